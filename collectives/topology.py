"""Topologies: how fast devices talk along each mesh axis, compute and read their memory.

The cost model needs few numbers: latency of a step, bytes a device sends per second along an axis, its memory
bandwidth and arithmetic rate. `Topology()` is a uniform default (a chip of the size of a TPU v5e on a switch), good
for comparing plans; `load` reads a file or one of `configs/topologies/*.toml`, whose rows carry their public source.

A mesh is laid over a topology row-major: its last axis varies fastest along the last dimension of the hardware, and
devices of one host come before those of the next. `on` finds which physical dimensions each axis covers, and `link`
what a group over some axes gets from them.
"""

from __future__ import annotations

import contextlib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import TopologyError
from .network import Digit, Link, Network

if TYPE_CHECKING:
    from propagation.model import Mesh

__all__ = ["Digit", "Link", "Network", "Topology", "known", "load"]


@dataclass(frozen=True, slots=True)
class Topology:
    """What the cost model knows about the machine.

    default           link of axes that neither `axes` nor the network tells
    axes              link per mesh axis name, given by the user
    flops             arithmetic operations per second of one device (matrix unit, bfloat16)
    memory_bandwidth  bytes per second of one device's memory
    memory            bytes of one device's memory; None when unknown
    compiler          whose compiler makes programs for it: "tpu", "cuda", "cpu"; None when unknown
    network, shape    the wiring and the size of the slice; None and () when unknown
    places            digits of the hardware's dimensions that each mesh axis covers (`on`)
    device            how a GPU is described to its compiler; see configs/topologies/h100.toml
    measured          what programs reach on one device, for predicted times; see configs/topologies/h200.toml
    sources           where each figure was published and when it was read: {"memory": "..., 2026-11-21"}

    Raises `TopologyError` for figures that are not positive numbers.

    >>> import collectives
    >>> collectives.topology.load("v5e:4x4").devices
    16
    """

    name: str = "uniform"
    default: Link = field(default_factory=Link)
    axes: Mapping[str, Link] = field(default_factory=dict)
    flops: float = 1.97e14
    memory_bandwidth: float = 8.19e11
    memory: int | None = None
    compiler: str | None = None
    network: Network | None = None
    shape: tuple[int, ...] = ()
    places: Mapping[str, tuple[Digit, ...]] = field(default_factory=dict)
    device: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what in ("flops", "memory_bandwidth", "memory"):
            value = getattr(self, what)
            if value is None and what == "memory":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise TopologyError(f"{what} of topology {self.name} must be a positive number, got {value!r}")

    @property
    def spec(self) -> str:
        """`v5e:16x16`."""
        return f"{self.name}:{'x'.join(map(str, self.shape))}" if self.shape else self.name

    @property
    def devices(self) -> int | None:
        """How many devices it has; None when it holds any mesh."""
        return math.prod(self.shape) if self.shape else None

    def link(self, axis_names: Iterable[str]) -> Link:
        """The link of a group over these axes: the slowest of those that the user gave, else what the network gives."""
        names = list(axis_names)
        given = [self.axes[name] for name in names if name in self.axes]
        placed = [d for name in names if name not in self.axes for d in self.places.get(name, ())]
        if placed and self.network is not None:
            given.append(self.network.link(self.shape, placed))
        elif len(given) < len(names) or not names:
            given.append(self.default)
        if len(given) == 1:
            return given[0]
        return Link(
            max(l.latency for l in given),
            min(l.bandwidth for l in given),
            min(l.exchange or l.bandwidth for l in given),
            min(l.shift or l.bandwidth for l in given),
            None if any(l.rounds is None for l in given) else max(l.rounds or 0 for l in given),
        )

    def on(self, mesh: Mesh) -> Topology:
        """This topology with `mesh` laid over it; itself when it has no shape.

        Raises `TopologyError` if it does not hold exactly the devices of the mesh, if an axis lies across the hardware
        in a way that has no digits (as an axis of 6 over two dimensions of 4), or if it has figures for an axis that
        the mesh lacks.
        """
        strange = [name for name in self.axes if name not in mesh.axis_names]
        if strange and not mesh.is_empty:
            raise TopologyError(
                f"topology {self.name} has figures for axis {strange[0]!r}, the mesh has {', '.join(mesh.axis_names)}; "
                f"rename or remove [axes.{strange[0]}]"
            )
        if not self.shape or mesh.is_empty:
            return self
        if mesh.size != math.prod(self.shape):
            raise TopologyError(self._misfit(mesh))
        several = self.network is not None and self.network.hosts(self.shape) > 1
        return replace(self, places=_places(self.spec, self.shape, mesh, several))

    def _misfit(self, mesh: Mesh) -> str:
        axes = ", ".join(f"{n}={s}" for n, s in mesh.axes)
        text = f"{self.spec} and the mesh ({axes}) differ in their numbers of devices, {self.devices} and {mesh.size}"
        fitting = self._shape_for(mesh)
        if fitting is None:
            assert self.network is not None
            most = "x".join(map(str, self.network.limits))
            return f"{text}; no shape up to {self.name}:{most} has as many, so change the mesh to {self.shape}"
        return f"{text}; use {self.name}:{'x'.join(map(str, fitting))}, or a mesh as large as {self.spec}"

    def _shape_for(self, mesh: Mesh) -> tuple[int, ...] | None:
        """A shape of this hardware that holds the mesh, the one on fewest hosts; where none does, one of its size."""
        if self.network is None:
            return (mesh.size,)
        for shape in self.network.shapes_for(mesh.size):
            with contextlib.suppress(TopologyError):  # an axis that lies across the hardware
                _places(self.spec, shape, mesh, self.network.hosts(shape) > 1)
                return shape
        return self.network.shape_for(mesh.size)

    def __hash__(self) -> int:
        return hash(self.key())

    def key(self) -> tuple[Any, ...]:
        """A hashable value that distinguishes topologies in cache keys."""
        axes = tuple(sorted(self.axes.items(), key=lambda item: item[0]))
        places = tuple(sorted(self.places.items()))
        tables = (tuple(sorted(t.items())) for t in (self.device, self.measured))
        numbers = (self.flops, self.memory_bandwidth, self.memory, *tables)
        return (self.name, self.default, axes, *numbers, self.compiler, self.network, self.shape, places)


def _places(spec: str, shape: tuple[int, ...], mesh: Mesh, several: bool) -> dict[str, tuple[Digit, ...]]:
    """The digits that each axis covers when mesh and hardware are both counted row-major, of `several` hosts one after
    the other."""
    left = [[dim, n] for dim, n in enumerate(shape)]  # physical dimensions, how much of each is still free
    if several:
        left = [left[-1], *left[:-1]]
    out: dict[str, tuple[Digit, ...]] = {}
    for name, size in reversed(mesh.axes):
        digits = []
        need = size
        while need > 1:
            dim, free = left[-1]
            if free == 1:
                left.pop()
                continue
            part = math.gcd(need, free)
            if part == 1 or (part != need and part != free):
                raise TopologyError(
                    f"axis {name!r} of size {size} cannot be laid over {spec}: {need} and {free} chips do not divide; "
                    "reorder the axes or choose sizes that divide the hardware's dimensions"
                )
            digits.append(Digit(dim, shape[dim] // free, part))
            left[-1][1] = free // part
            need //= part
        out[name] = tuple(reversed(digits))
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Files

_FIGURES = ("flops", "memory_bandwidth", "memory")
_TOP = {"name", "base", "compiler", "default", "axes", "network", "device", "measured", *_FIGURES, "source", "read_on"}
_NETWORK = {"kind", "limits", "wrap", "wrap_all", "latency", "bandwidth", "between"}
_LINK = {"latency", "bandwidth", "exchange", "shift", "rounds"}
_DEVICE = {
    "name", "cores", "l2_bytes", "clock_ghz", "compute_capability", "shared_memory_per_core", "registers_per_core",
    "threads_per_core",
}  # fmt: skip
_MEASURED = {
    "flops", "flops_f32", "memory_bandwidth", "kernel", "comparison", "cholesky", "lu", "qr", "eigen",
    "singular",
}  # fmt: skip
_SPEC = re.compile(r"([A-Za-z][\w.-]*)(?::(\d+(?:x\d+)*))?")


def load(what: str | Path) -> Topology:
    """A topology by name (`v5e:16x16`, `h100:8`, `cpu`) or from a file.

    ```toml
    base = "v5e"                  # optional: start from a known topology and replace some of its rows
    flops = 1.5e14                # a number, or a row with its source:
    [memory]
    value = 17179869184
    source = "data sheet"
    read_on = "2026-11-21"
    [default]
    latency = 1e-6
    bandwidth = 4.5e10
    [axes.data]                   # what is known of one mesh axis
    bandwidth = 6.25e9
    [network]
    kind = "torus"                # or "switch"
    limits = [16, 16]
    wrap = 16
    latency = 1e-6
    bandwidth = 4.5e10
    ```
    A file may be given a shape too: `my.toml:4x4`. Raises `TopologyError` for a missing or malformed file, for unknown
    keys, and for a shape that the hardware is not made in.

    >>> load("h100:8").spec, load("v5e").shape
    ('h100:8', ())
    """
    text = str(what)
    path, shape = Path(text), ""
    if not path.is_file():
        head, colon, tail = text.rpartition(":")
        if colon and re.fullmatch(r"\d+(x\d+)*", tail):
            path, shape = Path(head), tail
    if path.suffix != ".toml" and not path.is_file():
        found = _SPEC.fullmatch(text)
        if found is None or found[1] not in known():
            raise TopologyError(
                f"no topology {text!r}; give a file, or one of {', '.join(known())} with a shape, as in v5e:16x16"
            )
        path, shape = known()[found[1]], found[2] or ""
    topology = _read(path)
    return _shaped(topology, shape) if shape else topology


def known() -> dict[str, Path]:
    """The topologies that come along, by name: in a checkout, or in the installed package."""
    root = Path(__file__).parent.parent
    folders = (root / "meshrt" / "_configs" / "topologies", root / "configs" / "topologies")
    return {p.stem: p for folder in folders for p in sorted(folder.glob("*.toml"))}


def _shaped(topology: Topology, text: str) -> Topology:
    sizes = [int(n) if len(n) < 8 else 0 for n in text.split("x")]
    if any(n < 1 for n in sizes):
        raise TopologyError(f"{topology.name}:{text} has a size that no machine has")
    if topology.network is None:
        if len(sizes) != 1:
            raise TopologyError(f"{topology.name} has no network of several dimensions; write {topology.name}:8")
        return replace(topology, shape=tuple(sizes))
    topology.network.check(topology.name, tuple(sizes))
    return replace(topology, shape=tuple(sizes))


def _read(path: Path, depth: int = 0) -> Topology:
    if path.exists() and not path.is_file():  # reading a pipe may not end
        raise TopologyError(f"topology {path} is no file; give one as in configs/topologies, or a name such as v5e:4x4")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:  # not TOML, not UTF-8, nested too deeply
        raise TopologyError(f"cannot read topology {path}: {e}") from None
    if not data:
        raise TopologyError(f"topology {path} says nothing; give it rows, or base = one of {', '.join(known())}")
    _only(path, "", data, _TOP)
    base = Topology(name=path.stem)
    if "base" in data:
        if depth > 4 or not isinstance(data["base"], str) or data["base"] not in known():
            raise TopologyError(f"{path}: base = {data['base']!r} is not one of {', '.join(known())}")
        base = _read(known()[data["base"]], depth + 1)
    sources = dict(base.sources)
    row = lambda where, value: _figure(path, where, value, sources, data)
    try:
        fields: dict[str, Any] = {k: row(k, data[k]) for k in _FIGURES if k in data}
        fields["name"] = str(data.get("name", base.name))
        fields["compiler"] = data.get("compiler", base.compiler)
        default = _table(path, "default", data, _LINK)
        fields["default"] = replace(base.default, **{k: row(f"default.{k}", v) for k, v in default.items()})
        axes = _table(path, "axes", data)
        fields["axes"] = dict(base.axes) | {
            axis: replace(
                fields["default"],
                **{k: row(f"axes.{axis}.{k}", v) for k, v in _table(path, axis, axes, _LINK, "axes.").items()},
            )
            for axis in axes
        }
        device = _table(path, "device", data, _DEVICE)
        fields["device"] = dict(base.device) | {k: row(f"device.{k}", v) for k, v in device.items()}
        odd = [k for k, v in fields["device"].items() if not isinstance(v, int | float | str)]
        if odd:
            raise TopologyError(f"device.{odd[0]} is a number or a name, got {fields['device'][odd[0]]!r}")
        measured = _table(path, "measured", data, _MEASURED)
        kept = {k: v for k, v in base.measured.items() if k.removesuffix("_f32") not in data}
        fields["measured"] = kept | {k: row(f"measured.{k}", v) for k, v in measured.items()}
        for name, value in fields["measured"].items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise TopologyError(f"measured.{name} is a positive number, got {value!r}")
        if "network" in data:
            fields["network"] = _network(path, _table(path, "network", data, _NETWORK), base.network, row)
            if "default" not in data:
                fields["default"] = Link(fields["network"].latency, fields["network"].bandwidth)
        found = replace(base, **fields, sources=sources)
    except TopologyError as e:
        raise e if e.message.startswith(str(path)) else TopologyError(f"{path}: {e.message}") from None
    if fields["compiler"] not in (None, "tpu", "cuda", "cpu"):
        raise TopologyError(f"{path}: compiler = {fields['compiler']!r} is none of tpu, cuda, cpu")
    return found


def _network(path: Path, table: dict[str, Any], base: Network | None, row: Any) -> Network:
    values = {k: row(f"network.{k}", v) for k, v in table.items() if k != "between"}
    if "between" in table:
        given = _table(path, "between", table, _LINK, "network.")
        known_link = base.between if base is not None and base.between is not None else Link()
        values["between"] = replace(known_link, **{k: row(f"network.between.{k}", v) for k, v in given.items()})
    if "limits" in values:
        if not isinstance(values["limits"], list):
            raise TopologyError(f"{path}: network.limits is a list of sizes, got {values['limits']!r}")
        values["limits"] = tuple(values["limits"])
    if base is not None:
        return replace(base, **values)
    missing = sorted({"kind", "limits", "latency", "bandwidth"} - set(values))
    if missing:
        raise TopologyError(f"{path}: network lacks {', '.join(missing)}")
    return Network(**values)


def _figure(path: Path, where: str, value: Any, sources: dict[str, str], data: dict[str, Any]) -> Any:
    """The value of a row, which may be a table with `value`, `source` and `read_on`."""
    common = [str(data[k]) for k in ("source", "read_on") if k in data]
    if isinstance(value, dict):
        _only(path, f"{where}.", value, {"value", "source", "read_on"})
        if "value" not in value:
            raise TopologyError(f"{path}: {where} lacks value")
        common = [str(value[k]) for k in ("source", "read_on") if k in value] or common
        value = value["value"]
    sources[where] = ", ".join(common) or str(path)
    return value


def _table(
    path: Path, name: str, data: dict[str, Any], known: set[str] | None = None, within: str = ""
) -> dict[str, Any]:
    """The table [within name], whose keys are `known` (None: any)."""
    table = data.get(name, {})
    if not isinstance(table, dict):
        raise TopologyError(f"{path}: {within}{name} is a table ([{within}{name}]), got {table!r}")
    if known is not None:
        _only(path, f"{within}{name}.", table, known)
    return table


def _only(path: Path, where: str, table: dict[str, Any], allowed: set[str]) -> None:
    unknown = sorted(set(table) - allowed)
    if unknown:
        raise TopologyError(
            f"{path} has unknown keys {', '.join(where + k for k in unknown)}; known are {', '.join(sorted(allowed))}"
        )
