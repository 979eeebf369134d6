"""The first station: a Python function becomes a Jaxpr.

`TraceRecord` is what tracing gave, shared by all calls with arguments of equal types; `Traced` is a record and what
one call asks of it: the shardings of its arguments and results, donation, the platform.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from meshrt import config, errors, tree_util
from meshrt.core.jaxpr import ClosedJaxpr
from meshrt.core.lojax import lower_to_lojax
from meshrt.core.references import is_ref_type
from meshrt.core.source import own_scope
from meshrt.core.told import Told
from meshrt.core.trace import JaxprTrace, checked, eval_jaxpr, must_check, set_trace
from meshrt.core.types import ShapedArray, aval_of
from meshrt.pipeline.box_contents import CLOSED_OVER, ClosesOver, Writes, finished
from meshrt.pipeline.static_arguments import Static, bound, join
from meshrt.pipeline.station import Onward, UnboundStation
from meshrt.primitives.sharding import placements_of
from meshrt.runtime.events import timed
from meshrt.sharding.common import as_seen_on
from meshrt.sharding.context import tracing_mesh
from meshrt.sharding.mesh import AbstractMesh, AxisType
from meshrt.sharding.mesh_caches import mesh_reads
from meshrt.sharding.named import NamedSharding
from meshrt.transforms.arguments import ArgumentNames, argument_paths, no_array_returned, result_paths
from meshrt.transforms.discharge import settled_program
from meshrt.transforms.high import closed_leaves, flatten, leaf_paths, numbered, reopened, taken_apart
from meshrt.transforms.references import refuse_mutable, refuse_returned
from meshrt.transforms.tools import dce
from propagation.gc_pause import collector_paused

if TYPE_CHECKING:
    from meshrt.pipeline.lowered import Lowered

__all__ = ["LoweringRequest", "TraceRecord", "Traced", "trace", "trace_nested"]


class TraceRecord:
    """What tracing a function once gave: shared by all calls with arguments of these types.

    closed            the Jaxpr and the values that the function captured, without high types
    high              the same as it was traced, if there are high types in it, else None
    live, needed      the Jaxpr without dead code, which is what is lowered, and the arguments that it needs
    in_tree, out_tree structures of the arguments `(args, kwargs)` and of the results
    fun               has the names of the arguments
    asked             whether the function depends on the mesh that it was traced for
    places            meshes and devices that the function itself names
    """

    __slots__ = (
        "__weakref__", "_places", "asked", "closed", "fun", "fun_name", "high", "high_out_tree", "in_tree", "live",
        "needed", "out_tree", "takes_refs",
    )  # fmt: skip

    def __init__(self, fun: Callable[..., Any], fun_name: str, closed: ClosedJaxpr, in_tree: Any, out_tree: Any):
        self.fun, self.fun_name, self.asked = fun, fun_name, True
        self.high: ClosedJaxpr | None = closed if closed.is_high else None
        self.high_out_tree: Any = out_tree if closed.is_high else None
        closed, self.out_tree = _lowered(closed, out_tree) if closed.is_high else (closed, out_tree)
        self.closed, self.in_tree = closed, in_tree
        self.live, self.needed = dce(settled_program(closed.jaxpr) if closed.effects else closed.jaxpr)
        # Whether references come from outside, as arguments or captured: `meshrt.pipeline.stateful` runs such programs.
        inputs = (*closed.jaxpr.constvars, *closed.jaxpr.invars)
        self.takes_refs = any(is_ref_type(v.aval) for v in inputs)
        self._places: dict[Any, Any] | None = None

    @property
    def places(self) -> dict[Any, Any]:
        places = self._places
        if places is None:
            places = self._places = placements_of(self.live)
        return places

    @property
    def in_avals(self) -> list[ShapedArray]:
        return self.closed.in_avals

    @property
    def out_avals(self) -> list[ShapedArray]:
        return self.closed.out_avals

    def as_traced(self) -> tuple[ClosedJaxpr, Any]:
        """The Jaxpr as the function wrote it, and the structure of its results: what transformations work on."""
        return (self.closed, self.out_tree) if self.high is None else (self.high, self.high_out_tree)

    def high_out_info(self, infos: Sequence[Any]) -> Any:
        """What is known of the results, with high types as they are in the places of what is known of their arrays."""
        assert self.high is not None
        found, outs = iter(infos), []
        for a in self.high.out_avals:
            mine = [next(found) for _ in range(len(a.lo_ty()) if a.is_high else 1)]
            outs.append(a if a.is_high else mine[0])
        return tree_util.tree_unflatten(self.high_out_tree, outs)

    def out_paths(self) -> list[str]:
        """Where each result stands in the function's result: `result`, `result[0]`, `result['loss']`."""
        return result_paths(self.out_tree)()

    def arg_paths(self) -> list[str]:
        """What the user calls each argument: `x`, `state['w']`."""
        return argument_paths(self.fun, self.in_tree)


class LoweringRequest(NamedTuple):
    """The key of lowering: everything that decides its text, beside the trace. No device stands in it.

    `views` are the meshes that the shardings are over where they are several: `mesh` is their common mesh then.
    `callers` are the places, among the devices of the program, of those that the function names to make calls.
    `arg_memories` and `out_memories` are the kinds of memory where arguments are taken and results given, if some are
    not the devices' own; of results None where nobody asked for one or for a sharding.
    `platforms` are those to write for where they are several, of which `platform` is the first: the program takes the
    index of the one that it runs on.
    `auto_args` and `auto_outs` are the positions of arguments and results whose layout the compiler chooses.
    """

    mesh: AbstractMesh | None
    arg_shardings: tuple[NamedSharding | None, ...]
    out_shardings: tuple[NamedSharding | None, ...]
    donated: tuple[bool, ...]
    platform: str
    keep_unused: bool = False
    views: tuple[AbstractMesh, ...] = ()
    callers: tuple[int, ...] = ()
    arg_memories: tuple[str, ...] = ()
    out_memories: tuple[str | None, ...] = ()
    platforms: tuple[str, ...] = ()
    auto_args: tuple[int, ...] = ()
    auto_outs: tuple[int, ...] = ()

    def on(self, platform: str) -> LoweringRequest:
        """The same for one platform."""
        return self._replace(platform=platform, platforms=())

    @property
    def uneven(self) -> bool:
        """Whether an argument or result is split into parts that do not divide it."""
        return any(s is not None and s.uneven for s in (*self.arg_shardings, *self.out_shardings))

    @property
    def is_bare_open(self) -> bool:
        """Whether values of types without axes may lie on Auto axes though the types of others say all of theirs: some
        meshes of the program have Explicit axes, and some Auto ones."""
        typed = self.mesh is not None and AxisType.Explicit in self.mesh.axis_types
        return typed and len(self.views) > 1 and any(AxisType.Auto in view.axis_types for view in self.views)

    def as_asked(self, out: int, sharding: NamedSharding, is_typed: bool = False) -> NamedSharding:
        """The sharding of a result, which is over the common mesh, over a mesh that the user named, if that can be.

        Where it `is_typed` it is over the mesh of the result's type already.
        """
        asked = self.out_shardings[out]
        if asked is None and is_typed:
            return sharding
        views = sorted(self.views, key=lambda m: AxisType.Auto not in m.axis_types) if self.is_bare_open else self.views
        for mesh in (*([asked.mesh] if asked is not None else []), *views):
            seen = as_seen_on(sharding, mesh)
            if seen is not None:
                return seen
        return sharding


class Traced(UnboundStation):
    """A function staged to a Jaxpr, with the shardings asked for its arguments and results.

    >>> traced = meshrt.jit(lambda x: 2 * x).trace(jnp.arange(3))
    >>> traced.out_info.shape, traced(jnp.arange(3))
    ((3,), Array([0, 2, 4], dtype=int32))
    """

    __slots__ = ()

    def __init__(self, record: TraceRecord, request: LoweringRequest, onward: Onward):
        self.record, self.request, self._onward = record, request, onward

    @property
    def jaxpr(self) -> ClosedJaxpr:
        """The program as it was traced, with the high types in it."""
        return self.record.closed if self.record.high is None else self.record.high

    @property
    def lojax(self) -> Traced:
        """The same with a Jaxpr of low types only, as it is lowered."""
        return self if self.record.high is None else _LowTraced(self.record, self.request, self._onward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the Jaxpr operation by operation, also on tracers. TreeError for other structures than were traced."""
        arguments = (args, kwargs)
        leaves, tree = tree_util.tree_flatten(taken_apart(arguments))
        if tree != self.in_tree:
            raise errors.TreeError(f"{self.fun_name} was traced for arguments {self.in_tree} and called with {tree}")
        outs = eval_jaxpr(self.record.closed.jaxpr, self.record.closed.consts, leaves)
        return finished(tree_util.tree_unflatten(self.out_tree, outs), arguments)

    def as_text(self) -> str:
        """The Jaxpr."""
        return str(self.jaxpr)

    def lower(self, *, lowering_platforms: Sequence[str] | None = None) -> Lowered:
        """Lowers to global StableHLO with `sdy` annotations, for the given platforms (default: the one at hand).

        With several the module takes, first of all, the index of the platform that it runs on.

        Raises:
          ArgumentValueError: no platform, or one of them twice. UnsupportedError: an argument has a symbolic size.
        """
        request = self.request
        if lowering_platforms is not None:
            platforms = (lowering_platforms,) if isinstance(lowering_platforms, str) else tuple(lowering_platforms)
            if not platforms or len(set(platforms)) != len(platforms):
                raise errors.ArgumentValueError(
                    f"lowering_platforms are different platforms, at least one: ('cpu', 'cuda'). Got {platforms}"
                )
            request = request.on(platforms[0])._replace(platforms=platforms if len(platforms) > 1 else ())
        return self._onward.lower(self.record, request)


class _LowTraced(Traced):
    """A traced function whose program over high types has been lowered to one over arrays."""

    __slots__ = ()

    @property
    def jaxpr(self) -> ClosedJaxpr:
        return self.record.closed

    @property
    def lojax(self) -> Traced:
        return self


# ---------------------------------------------------------------------------------------------------------------------
# Tracing


def trace(
    fun: Callable[..., Any], name: str, avals: Sequence[ShapedArray], tree: Any, static: Static, mesh: Any,
    captured: Sequence[Any] = (),
) -> TraceRecord:  # fmt: skip
    """Runs `fun` once on tracers of these types, for a mesh (an AbstractMesh, or None).

    `captured` are the mutable values that it closes over and that are among its arguments.

    Raises:
      ClosesOver: it closes over others.
    """
    with tracing_mesh(mesh), mesh_reads() as reads, collector_paused():
        seen_tree, seen = closed_leaves(tree, avals) or (tree, avals)
        closed, out_tree = trace_nested(fun, name, seen, seen_tree, static, captured)
        new = [c for v, c in zip(closed.jaxpr.constvars, closed.consts) if v.aval.mutable]
        if new:
            raise ClosesOver(new)
        # Within the block: lowering high types runs functions of the user's.
        record = TraceRecord(bound(fun, static, held=False), name, closed, tree, out_tree)
    record.asked = reads.asked
    return record


def trace_nested(
    fun: Callable[..., Any], name: str, avals: Sequence[ShapedArray], tree: Any, static: Static,
    captured: Sequence[Any] = (),
) -> tuple[ClosedJaxpr, Any]:  # fmt: skip
    """As `trace`, within the trace of a caller and under its mesh; the Jaxpr and the structure of the results."""
    with timed("trace", name):
        return _traced(fun, name, avals, tree, static, captured)


def _traced(
    fun: Callable[..., Any], name: str, avals: Sequence[ShapedArray], tree: Any, static: Static,
    captured: Sequence[Any],
) -> tuple[ClosedJaxpr, Any]:  # fmt: skip
    if must_check():
        made = checked(lambda t: _stage(t, fun, name, avals, tree, static, captured), name, requires_low=False)
    else:
        made = _stage(JaxprTrace(name, requires_low=False), fun, name, avals, tree, static, captured)
    if config.settings.debug_key_reuse:
        # Start-up time: programs that nobody debugs do without.
        from meshrt.primitives.key_uses import jaxpr_signature

        jaxpr_signature(made[0].jaxpr)  # raises where a key is used twice
    return made


def _stage(
    jaxpr_trace: JaxprTrace,
    fun: Callable[..., Any],
    name: str,
    avals: Sequence[ShapedArray],
    tree: Any,
    static: Static,
    captured: Sequence[Any],
) -> tuple[ClosedJaxpr, Any]:
    tracers = [jaxpr_trace.argument(a, f"argument {i}") for i, a in enumerate(avals)]
    told = jaxpr_trace.told = Told(fun, name, "jit", ArgumentNames(bound(fun, static, held=False), tree))
    told.inputs = [t._var for t in tracers]
    try:
        with set_trace(jaxpr_trace), own_scope():
            # Here, as classes of nodes may note in which trace they are made.
            args, kwargs = tree.unflatten(tracers)
            if captured:
                jaxpr_trace.consts.update({id(x): (t._var, x) for x, t in zip(captured, kwargs.pop(CLOSED_OVER))})
            args, kwargs = join(args, kwargs, static)
            outs, out_tree = flatten(fun(*args, **kwargs))
            _check_outputs(outs, out_tree, told)
            told.results = result_paths(out_tree)
            for x in captured:
                del jaxpr_trace.consts[id(x)]
            return jaxpr_trace.close(tracers, outs), out_tree
    finally:
        jaxpr_trace.closed = True


def _lowered(high: ClosedJaxpr, out_tree: Any) -> tuple[ClosedJaxpr, Any]:
    """A program without high types, and the structure of its results."""
    structure = reopened(out_tree, high.out_avals)
    states, mutable = high.jaxpr.mut_types, [v for v in high.jaxpr.invars if v.aval.mutable]
    finals = tuple((i, states[v]) for i, v in enumerate(mutable) if v in states)
    if finals:
        contents = [[0] * len(final.lo_ty()) for _, final in finals]
        whole = Writes(numbered(structure), contents, finals)
        structure = tree_util.tree_structure(whole)
    return lower_to_lojax(high), structure


def _check_outputs(outs: list[Any], tree: Any, told: Told) -> None:
    name = told.name
    for i, o in enumerate(outs):
        try:
            aval = aval_of(o)
        except TypeError:
            raise no_array_returned(told, o, tree, i) from None
        if is_ref_type(aval):
            refuse_returned("jit", name, o, "result" + tree_util.keystr(leaf_paths(tree)[i]))
        if aval.mutable:
            refuse_mutable("jit", name, aval, "result" + tree_util.keystr(leaf_paths(tree)[i]))
