"""The first station: a Python function becomes a Jaxpr.

`TraceRecord` is what tracing gave, shared by all calls with arguments of equal types; `Traced` is a record and what
one call asks of it: the shardings of its arguments and results, donation, the platform.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from meshrt import config, errors, tree_util
from meshrt.core.jaxpr import ClosedJaxpr
from meshrt.core.references import AbstractRef
from meshrt.core.trace import JaxprTrace, checked, eval_jaxpr, must_check, set_trace
from meshrt.core.types import ShapedArray, aval_of
from meshrt.pipeline.static_arguments import Static, bound, join
from meshrt.pipeline.station import Onward, UnboundStation
from meshrt.sharding.common import as_seen_on
from meshrt.sharding.context import tracing_mesh
from meshrt.sharding.mesh import AbstractMesh
from meshrt.sharding.named import NamedSharding
from meshrt.transforms.arguments import argument_paths
from meshrt.transforms.discharge import settled_program
from meshrt.transforms.high import flatten, leaf_paths
from meshrt.transforms.references import refuse_returned
from meshrt.transforms.tools import dce
from propagation.collector import collector_paused

if TYPE_CHECKING:
    from meshrt.pipeline.lowered import Lowered

__all__ = ["LoweringRequest", "TraceRecord", "Traced", "trace", "trace_nested"]


class TraceRecord:
    """What tracing a function once gave: shared by all calls with arguments of these types.

    closed            the Jaxpr and the values that the function captured
    live, needed      the Jaxpr without dead code, which is what is lowered, and the arguments that it needs
    in_tree, out_tree structures of the arguments `(args, kwargs)` and of the results
    fun               has the names of the arguments
    """

    __slots__ = ("__weakref__", "closed", "fun", "fun_name", "in_tree", "live", "needed", "out_tree", "takes_refs")

    def __init__(self, fun: Callable[..., Any], fun_name: str, closed: ClosedJaxpr, in_tree: Any, out_tree: Any):
        self.fun, self.fun_name, self.closed = fun, fun_name, closed
        self.in_tree, self.out_tree = in_tree, out_tree
        self.live, self.needed = dce(settled_program(closed.jaxpr) if closed.effects else closed.jaxpr)
        # Whether references come from outside, as arguments or captured: `meshrt.pipeline.stateful` runs such programs.
        inputs = (*closed.jaxpr.constvars, *closed.jaxpr.invars)
        self.takes_refs = any(type(v.aval) is AbstractRef for v in inputs)

    @property
    def in_avals(self) -> list[ShapedArray]:
        return self.closed.in_avals

    @property
    def out_avals(self) -> list[ShapedArray]:
        return self.closed.out_avals

    def out_paths(self) -> list[str]:
        """Where each result stands in the function's result: `result`, `result[0]`, `result['loss']`."""
        return ["result" + tree_util.keystr(path) for path in leaf_paths(self.out_tree)]

    def arg_paths(self) -> list[str]:
        """What the user calls each argument: `x`, `state['w']`."""
        return argument_paths(self.fun, self.in_tree)


class LoweringRequest(NamedTuple):
    """The key of lowering: everything that decides its text, beside the trace. No device stands in it.

    `views` are the meshes that the shardings are over where they are several: `mesh` is their common mesh then.
    `callers` are the places, among the devices of the program, of those that the function names to make calls.
    `arg_memories` and `out_memories` are the kinds of memory where arguments are taken and results given, if some are
    not the devices' own; of results None where nobody asked for one or for a sharding.
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

    @property
    def uneven(self) -> bool:
        """Whether an argument or result is split into parts that do not divide it."""
        return any(s is not None and s.uneven for s in (*self.arg_shardings, *self.out_shardings))

    def as_asked(self, out: int, sharding: NamedSharding) -> NamedSharding:
        """The sharding of a result, which is over the common mesh, over a mesh that the user named, if that can be."""
        asked = self.out_shardings[out]
        for mesh in (*([asked.mesh] if asked is not None else []), *self.views):
            seen = as_seen_on(sharding, mesh)
            if seen is not None:
                return seen
        return sharding


class Traced(UnboundStation):
    """A function staged to a Jaxpr, with the shardings asked for its arguments and results."""

    __slots__ = ()

    def __init__(self, record: TraceRecord, request: LoweringRequest, onward: Onward):
        self.record, self.request, self._onward = record, request, onward

    @property
    def jaxpr(self) -> ClosedJaxpr:
        return self.record.closed

    @property
    def lojax(self) -> Traced:
        """The same with a Jaxpr of low types only: itself, as high types are opened before a function is traced."""
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the Jaxpr operation by operation, also on tracers. TreeError for other structures than were traced."""
        leaves, tree = flatten((args, kwargs))
        if tree != self.in_tree:
            raise errors.TreeError(f"{self.fun_name} was traced for arguments {self.in_tree} and called with {tree}")
        outs = eval_jaxpr(self.record.closed.jaxpr, self.record.closed.consts, leaves)
        return tree_util.tree_unflatten(self.out_tree, outs)

    def as_text(self) -> str:
        return str(self.record.closed)

    def lower(self, *, lowering_platforms: Sequence[str] | None = None) -> Lowered:
        """Lowers to global StableHLO with `sdy` annotations, for the given platforms (default: the one at hand)."""
        request = self.request
        if lowering_platforms is not None:
            if len(lowering_platforms) != 1:
                raise errors.UnsupportedError(
                    f"lowering for {len(lowering_platforms)} platforms at once {tuple(lowering_platforms)} is not "
                    "implemented; lower once per platform"
                )
            request = request._replace(platform=lowering_platforms[0])
        return self._onward.lower(self.record, request)


# ---------------------------------------------------------------------------------------------------------------------
# Tracing


def trace(
    fun: Callable[..., Any], name: str, avals: Sequence[ShapedArray], tree: Any, static: Static, mesh: Any
) -> TraceRecord:
    """Runs `fun` once on tracers of these types, for a mesh (an AbstractMesh, or None)."""
    with tracing_mesh(mesh), collector_paused():
        closed, out_tree = trace_nested(fun, name, avals, tree, static)
    return TraceRecord(bound(fun, static, held=False), name, closed, tree, out_tree)


def trace_nested(
    fun: Callable[..., Any], name: str, avals: Sequence[ShapedArray], tree: Any, static: Static
) -> tuple[ClosedJaxpr, Any]:
    """As `trace`, within the trace of a caller and under its mesh; the Jaxpr and the structure of the results."""
    if must_check():
        made = checked(lambda t: _stage(t, fun, name, avals, tree, static), name)
    else:
        made = _stage(JaxprTrace(name), fun, name, avals, tree, static)
    if config.settings.debug_key_reuse:
        # Start-up time: programs that nobody debugs do without.
        from meshrt.primitives.key_uses import jaxpr_signature

        jaxpr_signature(made[0].jaxpr)  # raises where a key is used twice
    return made


def _stage(
    jaxpr_trace: JaxprTrace, fun: Callable[..., Any], name: str, avals: Sequence[ShapedArray], tree: Any, static: Static
) -> tuple[ClosedJaxpr, Any]:
    tracers = [jaxpr_trace.argument(a, f"argument {i}") for i, a in enumerate(avals)]
    try:
        with set_trace(jaxpr_trace):
            # Here, as classes of nodes may note in which trace they are made.
            args, kwargs = join(*tree.unflatten(tracers), static)
            outs, out_tree = flatten(fun(*args, **kwargs))
            _check_outputs(outs, out_tree, name)
            return jaxpr_trace.close(tracers, outs), out_tree
    finally:
        jaxpr_trace.closed = True


def _check_outputs(outs: list[Any], tree: Any, name: str) -> None:
    for i, o in enumerate(outs):
        try:
            aval = aval_of(o)
        except TypeError:
            path = tree_util.keystr(leaf_paths(tree)[i])
            raise errors.ArgumentTypeError(
                f"the jitted function {name} returned a value of type {type(o).__name__} at result{path}; results must "
                "be arrays or pytrees of arrays"
            ) from None
        if type(aval) is AbstractRef:
            refuse_returned("jit", name, o, "result" + tree_util.keystr(leaf_paths(tree)[i]))
