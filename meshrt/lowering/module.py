"""The whole module: `@main` with shardings and donation on its arguments, from a Jaxpr."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.memory import memory_put_p, placement_call
from meshrt.core.dimensions.solving import Solution
from meshrt.core.explicit import has_sums
from meshrt.core.jaxpr import Jaxpr, Var, subjaxprs
from meshrt.core.spaces import kind_of_space
from meshrt.core.types import aval_of
from meshrt.heuristics import EMBEDDED_CONSTANT_BYTES
from meshrt.lowering.boundary import WRAPPED, add_global_constants
from meshrt.lowering.context import LoweringContext, ModuleLowering
from meshrt.lowering.types import mlir_type
from meshrt.sharding.mesh import AxisType
from meshrt.sharding.named import NamedSharding
from propagation.asm import FunctionWriter, ModuleWriter, Ref
from propagation.quoting import quote

if TYPE_CHECKING:
    from propagation.program import Program

__all__ = ["LoweredModule", "lower_module"]


@dataclass(frozen=True)
class LoweredModule:
    """What was written and what the caller must pass: first `consts`, then the arguments numbered by `kept`.

    `customs` are the user's ways of partitioning operations, by the key that the custom call of each one carries.
    `callbacks` are what the program calls back, `inspections` the values that somebody asks the sharding of, by index.
    `arg_memories` and `out_memories` are the kinds of memory where it takes arguments (`consts` first) and gives
    results; empty where all are the devices' own.
    """

    writer: ModuleWriter
    consts: tuple[Any, ...]
    kept: tuple[int, ...]
    mesh_symbol: str | None
    customs: Mapping[str, Any] = field(default_factory=dict)
    callbacks: tuple[Any, ...] = ()
    inspections: tuple[Any, ...] = ()
    arg_memories: tuple[str, ...] = ()
    out_memories: tuple[str, ...] = ()

    @functools.cached_property
    def text(self) -> str:
        """The module as MLIR text, formatted when first asked for."""
        return self.writer.text()

    def program(self) -> Program:
        """The module as a new `Program`, which the caller may change; no text is made."""
        # Start-up time: a program that is found on disk, or runs on one device, is never propagated.
        from propagation.written import program_of

        return program_of(self.writer)


def lower_module(
    jaxpr: Jaxpr,
    needed: Sequence[bool],
    consts: Sequence[Any],
    name: str,
    *,
    mesh: Any,
    is_bare_open: bool = False,
    arg_shardings: Sequence[NamedSharding | None],
    out_shardings: Sequence[NamedSharding | None],
    donated: Sequence[bool],
    out_paths: Sequence[str],
    platform: str,
    keep_unused: bool = False,
    is_export: bool = False,
    platforms: Sequence[str] = (),
    solution: Solution | None = None,
    callers: Mapping[Any, int] | None = None,
    arg_memories: Sequence[str] = (),
    out_memories: Sequence[str | None] = (),
    auto_args: Sequence[int] = (),
    auto_outs: Sequence[int] = (),
    overrides: Mapping[Any, Any] | None = None,
) -> LoweredModule:
    """Lowers a program to global StableHLO annotated with `sdy` shardings.

    `jaxpr` is free of dead code, `needed` flags the arguments that it uses, and `consts` are the values of its
    constvars. `mesh` is the AbstractMesh of the computation (None for a single device), in which the meshes of
    all shardings can be written (see `meshrt.sharding.common`); with `is_bare_open` types without axes leave it to
    propagation, as they may be of values over Auto axes. Arguments that nothing uses are dropped unless `keep_unused`.
    `callers` has, of the devices that are named to make calls, the places among the program's devices; `arg_memories`
    and `out_memories`, `auto_args` and `auto_outs` are those of a LoweringRequest.

    For export (`is_export`) nothing is passed that the caller of the file would not know: captured arrays are written
    into the text. `platforms` are those to write for if they are several, and `solution` says what the variables in
    symbolic sizes of the arguments are; both make arguments and functions of their own (`meshrt.lowering.boundary`).
    `overrides` are lowering rules in place of those that primitives have.
    """
    kept = [i for i, n in enumerate(needed) if n or keep_unused]
    lowering = ModuleLowering(name, platforms or (platform,), is_export)
    lowering.mesh, lowering.is_bare_open, lowering.callers = mesh, is_bare_open, callers or {}
    lowering.overrides = overrides or {}
    symbol = lowering.mesh_symbol(mesh) if mesh is not None else None
    partitions = mesh.size if mesh is not None else 1
    lowering.writer.attributes = f"mhlo.num_partitions = {partitions} : i32, mhlo.num_replicas = 1 : i32"
    for taken in ("main", *([WRAPPED] if is_export else [])):
        lowering.unique_name(taken)
    hoisted = list(zip(jaxpr.constvars, consts))
    passed = [(v, c) for v, c in hoisted if not is_export and not _is_embedded(c)]
    memories = _Memories(jaxpr, [v for v, _ in passed], kept, arg_memories, out_memories)
    lowering.uses_memories = memories.are_several or _uses_memories(jaxpr, set())
    function, results = _main(lowering, jaxpr, kept, hoisted, passed)
    offset = len(passed)
    aliases = _aliases(jaxpr, kept, donated, arg_shardings, out_shardings, memories, (auto_args, auto_outs))
    for k, (v, _) in enumerate(passed):
        if has_sums(v.aval):  # of other captured arrays propagation says how they lie
            function.arg_attrs[k] = ", ".join(_sharding_attr(None, v.aval, lowering))
    for k, i in enumerate(kept):
        attrs = _sharding_attr(arg_shardings[i], jaxpr.invars[i].aval, lowering)
        if donated[i] and memories.args[offset + k] in memories.outs:
            attrs.append(f"tf.aliasing_output = {aliases[i]} : i32" if i in aliases else "jax.buffer_donor = true")
        if i in auto_args:
            attrs.append(_CHOSEN)
        function.arg_attrs[offset + k] = ", ".join(attrs)
    function.result_attrs = [
        ", ".join(
            [f"jax.result_info = {quote(path)}", *_sharding_attr(s, v.aval, lowering), *[_CHOSEN] * (k in auto_outs)]
        )
        for k, (path, s, v) in enumerate(zip(out_paths, out_shardings, jaxpr.outvars))
    ]
    if lowering.uses_memories:
        function.arg_attrs = _with_memories(function.arg_attrs, memories.args)
        function.result_attrs = _with_memories(function.result_attrs, memories.outs)
        # What was asked of a result is a move, of which XLA wants to be told.
        ctx = LoweringContext(lowering, function)
        results = [placement_call(ctx, x, kind) if asked else x for x, kind, asked in zip(results, *memories.asked)]
    function.ret(results)
    if solution is not None or len(platforms) > 1:
        add_global_constants(lowering.writer, solution, kept, several_platforms=len(platforms) > 1)
    if is_export:
        has_global_constants = solution is not None or len(platforms) > 1 or lowering.has_global_constants
        lowering.writer.attributes += f", jax.uses_shape_polymorphism = {str(has_global_constants).lower()}"
    _check_alive(passed)
    return LoweredModule(
        lowering.writer,
        tuple(c for _, c in passed),
        tuple(kept),
        symbol,
        lowering.customs,
        tuple(lowering.callbacks),
        tuple(lowering.inspections),
        memories.args if memories.are_several else (),
        memories.outs if memories.are_several else (),
    )


def _main(
    lowering: ModuleLowering,
    jaxpr: Jaxpr,
    kept: Sequence[int],
    hoisted: Sequence[tuple[Var, Any]],
    passed: Sequence[tuple[Var, Any]],
) -> tuple[FunctionWriter, list[Ref]]:
    """`@main` with its body but for the return, and what it gives. Of the captured values (`hoisted`) those in `passed`
    are its first arguments; the others are constants in its text."""
    types = [mlir_type(v.aval) for v, _ in passed] + [mlir_type(jaxpr.invars[i].aval) for i in kept]
    function = lowering.writer.function("main", types, public=True)
    ctx = LoweringContext(lowering, function)
    env = {v: a for (v, _), a in zip(passed, function.args)}
    # Of the variable's dtype: a captured NumPy array may be wider than arrays are here.
    env.update({v: ctx.array(_data(c, v.aval)) for v, c in hoisted if v not in env})
    invars = (*jaxpr.constvars, *[jaxpr.invars[i] for i in kept])
    program = Jaxpr((), invars, jaxpr.outvars, jaxpr.eqns, name=jaxpr.name)
    try:
        return function, ctx.jaxpr(program, [*[env[v] for v in jaxpr.constvars], *function.args[len(passed) :]])
    except errors.DeviceMemoryError as e:
        raise errors.DeviceMemoryError(f"{e} (made at {ctx.source})") from None


def _check_alive(passed: Sequence[tuple[Var, Any]]) -> None:
    """Refuses captured arrays whose buffers are gone: the program would be called with nothing."""
    for v, const in passed:
        if getattr(const, "is_deleted", bool)():
            raise errors.DeletedArrayError(f"a captured array of type {v.aval.short()} was deleted or donated")


class _Memories:
    """The kinds of memory at the boundary of a program: of all that it takes, captured values first, and gives."""

    def __init__(
        self, jaxpr: Jaxpr, passed: Sequence[Var], kept: Sequence[int], args: Sequence[str], outs: Sequence[str | None]
    ):
        count = len(jaxpr.outvars)
        known = [args[i] if args else kind_of_space(jaxpr.invars[i].aval.memory_space) for i in kept]
        self.args = (*[kind_of_space(v.aval.memory_space) for v in passed], *known)
        given = outs or (None,) * count
        self.outs = tuple(k or kind_of_space(v.aval.memory_space) for k, v in zip(given, jaxpr.outvars))
        self.asked = (self.outs, [k is not None for k in given])
        self.are_several = any(kind != "device" for kind in (*self.args, *self.outs))


def _with_memories(attrs: Sequence[str], kinds: Sequence[str]) -> list[str]:
    return [", ".join(filter(None, (a, f"mhlo.memory_kind = {quote(k)}"))) for a, k in zip(attrs, kinds)]


def _uses_memories(jaxpr: Jaxpr, seen: set[Jaxpr]) -> bool:
    """Whether a program, or a Jaxpr inside it, puts values beside the devices' own memory. `seen`: those that don't."""
    seen.add(jaxpr)
    for eqn in jaxpr.eqns:
        if eqn.primitive is memory_put_p:
            if eqn.params["kind"] != "device":
                return True
        elif not eqn.primitive.cache_types:  # else there are no Jaxprs in its parameters
            if any(inner not in seen and _uses_memories(inner, seen) for inner in subjaxprs(eqn.params)):
                return True
    return False


def _is_embedded(const: Any) -> bool:
    return isinstance(const, np.ndarray | np.generic | int | float | complex) and (
        aval_of(const).nbytes <= EMBEDDED_CONSTANT_BYTES
    )


def _data(const: Any, aval: Any) -> np.ndarray:
    """A captured value as it is written into the text: of the variable's dtype. Keys are given as their words."""
    return np.asarray(const).astype(aval.physical().dtype)


# An argument or result whose layout XLA chooses.
_CHOSEN = 'mhlo.layout_mode = "auto"'


def _sharding_attr(sharding: NamedSharding | None, aval: Any, lowering: ModuleLowering) -> list[str]:
    if lowering.mesh is None:
        return []
    if sharding is None:
        if AxisType.Explicit not in lowering.mesh.axis_types:
            return []
        return [f"sdy.sharding = #sdy.sharding{lowering.pin_text(aval, lowering.mesh)}"]
    return [f"sdy.sharding = {lowering.sharding_text(sharding, aval.physical().ndim)}"]


def _aliases(
    jaxpr: Jaxpr, kept: Sequence[int], donated: Sequence[bool], arg_shardings: Sequence[NamedSharding | None],
    out_shardings: Sequence[NamedSharding | None], memories: _Memories, auto: tuple[Sequence[int], Sequence[int]],
) -> dict[int, int]:  # fmt: skip
    """Which result takes over which donated argument's buffer: the first free one of equal type, sharding, memory.

    XLA chooses one layout for both, so it chooses for both (`auto`: those of arguments and of results) or for none.
    """
    free: dict[Any, list[int]] = {}
    for k, v in enumerate(jaxpr.outvars):
        free.setdefault((v.aval.shape, v.aval.dtype), []).append(k)
    aliases = {}
    for at, i in enumerate(kept):
        if not donated[i]:
            continue
        aval = jaxpr.invars[i].aval
        for k in free.get((aval.shape, aval.dtype), ()):
            out, given = out_shardings[k], arg_shardings[i]
            if memories.outs[k] != memories.args[len(memories.args) - len(kept) + at]:
                continue
            if (k in auto[1]) != (i in auto[0]):
                continue  # (`pipeline.donation` refuses programs in which nothing else fits)
            if out is None or given is None or out.is_equivalent_to(given, aval.ndim):
                aliases[i] = k
                free[(aval.shape, aval.dtype)].remove(k)
                break
    return aliases
