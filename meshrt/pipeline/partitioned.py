"""The fourth station: one device's program with explicit collectives and a plan of them (the package `collectives`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meshrt.core.explicit import unreduced_of
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.propagated import Propagated, boundary_shardings
from meshrt.pipeline.station import Onward, UnboundStation
from meshrt.runtime import backend
from meshrt.runtime.kernel_library import asked_ynnpack
from meshrt.sharding.named import NamedSharding
from meshrt.xla import jaxlib_api
from propagation.gc_pause import collector_paused

if TYPE_CHECKING:
    import collectives
    import propagation
    from meshrt.pipeline.ahead import TopologyCompiled
    from meshrt.pipeline.compiled import Compiled

__all__ = ["Partitioned", "options_for", "partition", "platform_options"]


def options_for(lowered: Lowered, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of `collectives.partition`, with what the program's own types, shardings and platform ask for."""
    options = platform_options(lowered.request.platform, options)
    if lowered.request.uneven:
        options = {**options, "uneven_boundary": True}
    asked = any(s is not None and s.spec.unreduced for s in lowered.request.out_shardings)
    if asked or any(unreduced_of(a) for a in lowered.record.closed.out_avals):  # types say so: callers know of it
        options = {**options, "unreduced_results": True}
    return options


def platform_options(platform: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options, with those that programs for a platform have by default."""
    options = {"compiler": _compiler_of(platform), **options}
    if platform == "cpu" and options.get("topology") is None:  # whose virtual devices share cores
        options = {"repeat": False, **options}
    if platform == "cpu":
        options = {"kernel_library": asked_ynnpack(), **options}
    return options


def _compiler_of(platform: str) -> str:
    """The name that the partitioner has for a platform's compiler; "other" for a plugin's."""
    # Start-up time: programs on one device never need this package.
    from collectives.options import COMPILERS

    name = backend.known_as(platform)
    return name if name in COMPILERS else "other"


def partition(result: propagation.Propagated, options: Mapping[str, Any]) -> collectives.PartitionedProgram:
    """The per-device program of a propagated module."""
    # Start-up time: programs on one device never need this package.
    import collectives

    with collector_paused():
        return collectives.partition(result, **options)


class Partitioned(UnboundStation):
    """One device's program; `.result` is `collectives.PartitionedProgram`, with the communication plan.

    >>> mesh = meshrt.sharding.AbstractMesh((4,), ("x",))
    >>> x = meshrt.ShapeDtypeStruct((8, 4), jnp.float32, sharding=meshrt.NamedSharding(mesh, meshrt.P("x")))
    >>> meshrt.jit(lambda x: x.sum(0)).lower(x).partition().plan.counts
    {'all_reduce': 1}
    """

    __slots__ = ("lowered", "options", "result")

    def __init__(
        self,
        propagated: Propagated,
        result: collectives.PartitionedProgram,
        options: Mapping[str, Any],
        onward: Onward,
    ):
        self.record, self.request = propagated.record, propagated.request
        self.lowered, self.result, self.options = propagated.lowered, result, dict(options)
        self._onward = onward

    lowered: Lowered

    @property
    def plan(self) -> collectives.CommunicationPlan:
        """Every collective with its cause, bytes and times."""
        return self.result.plan

    @property
    def findings(self) -> Any:
        """What the partitioner could not keep sharded, and where."""
        return self.result.findings

    def as_text(self, *, debug_info: bool = False) -> str:
        """The module in MLIR's pretty syntax, for people; `.result.as_text()`, without parsing, is what is compiled."""
        return jaxlib_api.pretty(self.result.as_text(), debug_info=debug_info)

    @property
    def fingerprint(self) -> str:
        """A hash of the program, equal on every host."""
        return self.result.fingerprint[:32]

    def _boundary(self) -> tuple[tuple[NamedSharding, ...], tuple[NamedSharding, ...]]:
        return boundary_shardings(self.result, self.lowered)

    @property
    def arg_shardings(self) -> tuple[NamedSharding, ...]:
        """Shardings of the module's arguments (captured arrays first) over the AbstractMesh."""
        return self._boundary()[0]

    @property
    def out_shardings(self) -> tuple[NamedSharding, ...]:
        """Shardings of the module's results over the AbstractMesh."""
        return self._boundary()[1]

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> Compiled | TopologyCompiled:
        """Compiles this program, as `Lowered.compile` does that of the default options."""
        return self._onward.compile(self.lowered, compiler_options, None, None, self.options)
