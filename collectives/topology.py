"""Topologies: how fast devices talk along each mesh axis, compute and read their memory.

The cost model needs few numbers: latency of a step, bytes a device sends per second along an axis, its memory
bandwidth and arithmetic rate. `Topology()` is a uniform default (a chip of the size of a TPU v5e on a switch), good
for comparing plans; `load` reads `configs/topologies/*.toml`, whose rows carry their public source.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .errors import TopologyError

__all__ = ["Link", "Topology", "load"]


@dataclass(frozen=True, slots=True)
class Link:
    """`latency` in seconds per step, `bandwidth` in bytes per second that one device sends."""

    latency: float = 1e-6
    bandwidth: float = 4.5e10

    def __post_init__(self):
        if self.latency < 0 or self.bandwidth <= 0:
            raise TopologyError(f"a link needs latency >= 0 and bandwidth > 0, got {self}")


@dataclass(frozen=True, slots=True)
class Topology:
    """What the cost model knows about the machine.

    default           link of axes that `axes` does not name
    axes              link per mesh axis name
    flops             arithmetic operations per second of one device (matrix unit)
    memory_bandwidth  bytes per second of one device's memory
    memory            bytes of one device's memory; None when unknown
    """

    name: str = "uniform"
    default: Link = Link()
    axes: Mapping[str, Link] = field(default_factory=dict)
    flops: float = 1.97e14
    memory_bandwidth: float = 8.19e11
    memory: int | None = None

    def link(self, axis_names: Iterable[str]) -> Link:
        """The link of a group that spans these axes: the slowest of theirs."""
        links = [self.axes.get(name, self.default) for name in axis_names] or [self.default]
        return Link(max(l.latency for l in links), min(l.bandwidth for l in links))

    def key(self) -> tuple:
        """A hashable value that distinguishes topologies in cache keys."""
        axes = tuple(sorted((n, l.latency, l.bandwidth) for n, l in self.axes.items()))
        return (self.name, self.default, axes, self.flops, self.memory_bandwidth, self.memory)


def load(path: str | Path) -> Topology:
    """Reads a topology file.

    ```toml
    name = "two hosts"
    flops = 1.97e14
    memory_bandwidth = 8.19e11
    memory = 17179869184
    [default]
    latency = 1e-6
    bandwidth = 4.5e10
    [axes.data]
    bandwidth = 6.25e9
    ```
    Raises `TopologyError` for a missing or malformed file and for unknown keys.
    """
    try:
        data = tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise TopologyError(f"cannot read topology {path}: {e}") from None
    known = {"name", "default", "axes", "flops", "memory_bandwidth", "memory", "source", "read_on"}
    unknown = sorted(set(data) - known)
    if unknown:
        raise TopologyError(f"{path} has unknown keys {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    try:
        default = Link(**data.get("default", {}))
        axes = {
            name: Link(**{"latency": default.latency, "bandwidth": default.bandwidth} | row)
            for name, row in data.get("axes", {}).items()
        }
        rest = {k: data[k] for k in ("flops", "memory_bandwidth", "memory") if k in data}
        return Topology(str(data.get("name", Path(path).stem)), default, axes, **rest)
    except TypeError as e:
        raise TopologyError(f"{path}: {e}") from None
