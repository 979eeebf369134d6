"""What the stations have in common: the trace that they come from, their text, and the way on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from meshrt import tree_util
from meshrt.core.types import ShapedArray
from meshrt.runtime.compile_cache import fingerprint
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.typed import told_sharding

if TYPE_CHECKING:
    from meshrt.pipeline.ahead import TopologyCompiled
    from meshrt.pipeline.compiled import Compiled
    from meshrt.pipeline.lowered import Lowered
    from meshrt.pipeline.partitioned import Partitioned
    from meshrt.pipeline.program import Called
    from meshrt.pipeline.propagated import Propagated
    from meshrt.pipeline.traced import LoweringRequest, TraceRecord
    from meshrt.pipeline.written import Written

__all__ = ["ArgInfo", "Onward", "Station", "UnboundStation", "args_info"]


@dataclass(frozen=True, slots=True)
class ArgInfo:
    """An argument of a staged function: its type `aval` and whether it is `donated`. A leaf of pytrees.

    >>> traced = meshrt.jit(lambda x: x + 1, donate_argnums=0).trace(jnp.ones(4))
    >>> (info,), _ = traced.args_info
    >>> info.shape, str(info.dtype), info.donated
    ((4,), 'float32', True)
    """

    aval: ShapedArray
    donated: bool

    # JAX's name.
    _aval = property(lambda self: self.aval)

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape."""
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        """The element type: a NumPy dtype, or an extended one as that of keys."""
        return self.aval.dtype


class Onward(Protocol):
    """What makes the next station of a value: `meshrt.pipeline.road.Road`, which knows the caches and the devices.

    `written` are the shardings of the call as its user wrote them; None where there was no call. `devices` are those of
    its arguments; None where only an AbstractMesh was named.
    """

    @property
    def devices(self) -> tuple[Any, ...] | None: ...

    @property
    def written(self) -> Written | None: ...

    def lower(self, record: TraceRecord, request: LoweringRequest) -> Lowered: ...

    def propagate(self, lowered: Lowered) -> Propagated: ...

    def partition(self, propagated: Propagated, options: Mapping[str, Any]) -> Partitioned: ...

    def compile(
        self,
        lowered: Lowered,
        compiler_options: Mapping[str, Any] | None,
        device_assignment: Sequence[Any] | None,
        topology: Any,
        partition_options: Mapping[str, Any] | None,
    ) -> Compiled | TopologyCompiled: ...


def args_info(record: Called, donated: Sequence[bool]) -> Any:
    """An ArgInfo for each argument, in the structure of the arguments."""
    infos = [ArgInfo(a, d) for a, d in zip(record.in_avals, donated)]
    return tree_util.tree_unflatten(record.in_tree, infos)


class Station:
    """A value of the pipeline."""

    __slots__ = ()

    @property
    def _record(self) -> Called:
        """What is known of the function."""
        raise NotImplementedError

    @property
    def fun_name(self) -> str:
        """The name of the staged function."""
        return self._record.fun_name

    @property
    def in_tree(self) -> Any:
        """The structure of the arguments, `(args, kwargs)`."""
        return self._record.in_tree

    @property
    def out_tree(self) -> Any:
        """The structure of the results."""
        return self._record.out_tree

    @property
    def in_avals(self) -> Any:
        """The types of the arguments, in their structure `(args, kwargs)`."""
        return tree_util.tree_unflatten(self.in_tree, self._record.in_avals)

    @property
    def out_avals(self) -> Any:
        """The types of the results, in their structure."""
        return tree_util.tree_unflatten(self.out_tree, self._record.out_avals)

    def as_text(self) -> str:
        """The program at this station."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """A hash of the program at this station, equal on every host."""
        return fingerprint(self.as_text())[:32]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.fun_name}: {self.fingerprint[:12]}>"


class UnboundStation(Station):
    """A station before the program is bound to devices: it has a way on.

    `record` is the trace that it comes from, `request` what is asked of that.
    """

    __slots__ = ("_onward", "record", "request")

    record: TraceRecord
    request: LoweringRequest
    _onward: Onward

    @property
    def _record(self) -> TraceRecord:
        return self.record

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """Positions among the flat arguments."""
        return tuple(i for i, d in enumerate(self.request.donated) if d)

    @property
    def args_info(self) -> Any:
        """An ArgInfo for each argument, in the structure of the arguments."""
        return args_info(self.record, self.request.donated)

    @property
    def out_info(self) -> Any:
        """A ShapeDtypeStruct for each result, with the sharding that was asked for it, or that its type tells."""
        written = self._onward.written
        avals = self.record.out_avals
        asked = (None,) * len(avals) if written is None else written.outs
        outs = [
            ShapeDtypeStruct(a.shape, a.dtype, sharding=self._told(a) if s is None else s, weak_type=a.weak_type)
            for a, s in zip(avals, asked)
        ]
        if self.record.high is not None:
            return self.record.high_out_info(outs)
        return tree_util.tree_unflatten(self.out_tree, outs)

    def _told(self, aval: ShapedArray) -> NamedSharding | None:
        """The sharding of a result for which none was asked."""
        return told_sharding(aval, self.request.mesh)
