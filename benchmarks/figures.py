"""The figures: what is measured, how often, and what it must reach."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.peers import Pairs, Peers, alternate, import_seconds, start_seconds
from benchmarks.tasks import EAGER
from meshrt.runtime.hlo import axes_of_groups, collectives, traffic

__all__ = ["FIGURES", "Effort", "Figure", "Result"]

MESH = {"data": 4, "model": 2}
DEMO = {"layers": 4}
SHORT_BATCH = {"batch": 8, "context": 16}  # the step itself takes next to no time: what is left is the move
BIG_MESHES = {8: (4, 2), 64: (16, 4), 4096: (256, 16), 65536: (4096, 16)}
BIG_MODEL = {"width": 4096, "heads": 64, "hidden": 16384, "context": 512, "batch": 16384, "vocabulary": 32768}


def unrolled(layers: int, **sizes: int) -> dict[str, Any]:
    return {"layers": layers, "unrolled": True, **sizes}


@dataclass(frozen=True, slots=True)
class Effort:
    """How many pairs a figure takes: `full` for figures to be quoted, `quick` to see that all runs."""

    quick: bool = False

    def pairs(self, full: int) -> int:
        return 2 if self.quick else full


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table. `ours` and `theirs` are in `unit`; `must` and `goal` bound the ratio from above."""

    name: str
    unit: str
    ours: float
    theirs: float | None
    ratio: float | None
    spread: tuple[float, float] | None = None
    must: float | None = None
    goal: float | None = None
    pairs: int = 1
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def reached(self) -> bool | None:
        """Whether the ratio is what it must be; None where nothing is asked."""
        return None if self.must is None or self.ratio is None else self.ratio <= self.must

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "reached": self.reached}

    @staticmethod
    def of(name: str, pairs: Pairs, must: float | None = None, goal: float | None = None, unit: str = "s") -> Result:
        ours, theirs = pairs.medians
        details = {"first": pairs.first, "samples": {"meshrt": pairs.ours, "jax": pairs.theirs}}
        return Result(name, unit, ours, theirs, pairs.ratio, pairs.spread, must, goal, len(pairs.ours), details)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement that gives one or more results. `run(effort)` starts the processes it needs."""

    name: str
    about: str
    run: Callable[[Effort], list[Result]]


FIGURES: dict[str, Figure] = {}


def figure(name: str, about: str) -> Callable[[Callable[[Effort], list[Result]]], Callable[[Effort], list[Result]]]:
    def register(run: Callable[[Effort], list[Result]]) -> Callable[[Effort], list[Result]]:
        FIGURES[name] = Figure(name, about, run)
        return run

    return register


@figure("trace", "trace + lower of an unrolled transformer train step")
def _trace(effort: Effort) -> list[Result]:
    with Peers() as peers:
        out = []
        for layers, pairs in ((12, 7), (48, 5)):
            task = {"model": unrolled(layers), "mesh": MESH}
            taken = alternate(
                lambda: peers.ours("trace_lower", **task),
                lambda: peers.theirs("trace_lower", **task),
                effort.pairs(pairs),
            )
            out.append(Result.of(f"trace + lower, {layers} layers", taken, must=0.7, goal=0.33))
    return out


@figure("partition", "propagate + partition, against JAX's trace + lower of the same step")
def _partition(effort: Effort) -> list[Result]:
    with Peers() as peers:
        out = []
        for layers, pairs in ((12, 7), (48, 5)):
            task = {"model": unrolled(layers), "mesh": MESH}
            ours = lambda: peers.ours("propagate_partition", **task)
            taken = alternate(ours, lambda: peers.theirs("trace_lower", **task), effort.pairs(pairs))
            out.append(Result.of(f"propagate + partition, {layers} layers", taken, must=0.7, goal=0.3))
    return out


@figure("memory", "Python's memory that a cached trace keeps")
def _memory(effort: Effort) -> list[Result]:
    with Peers() as peers:
        task = {"model": unrolled(12), "mesh": MESH, "traces": 3}
        ours, theirs = peers.ours("trace_memory", **task), peers.theirs("trace_memory", **task)
    return [Result.of("memory per cached trace, 12 layers", Pairs((ours,), (theirs,)), unit="B")]


@figure("devices", "first call on a second device set of the same mesh shape")
def _devices(effort: Effort) -> list[Result]:
    out = []
    with Peers() as peers:
        for name, model, extra, must, goal in (
            ("the demo's model", DEMO, {}, 0.1, 0.03),
            ("short batches", {**DEMO, **SHORT_BATCH}, {}, 0.1, 0.03),
            ("less a later call", DEMO, {"less_later": True}, None, None),
            ("six unrolled layers, less a later call", unrolled(6), {"less_later": True}, 0.12, 0.05),
        ):
            task = {"model": model, "mesh": MESH, **extra}
            ours = lambda: peers.ours("second_device_set", **task)
            theirs = lambda: peers.theirs("second_device_set", **task)
            taken = alternate(ours, theirs, effort.pairs(5), warm=1)
            out.append(Result.of(f"first call on other devices, {name}", taken, must=must, goal=goal))
    return out


@figure("arrays", "large arrays to 8 devices and back")
def _arrays(effort: Effort) -> list[Result]:
    results = []
    with Peers() as peers:
        for way, what in (("device_put", "device_put"), ("callback", "from a callback"), ("fetch", "to the host")):
            for rows, size in ((64, "1 MiB"), (4096, "64 MiB")):
                task = {"way": way, "rows": rows, "calls": 20 if rows == 64 else 3}
                ours = lambda: peers.ours("array_move", **task)
                theirs = lambda: peers.theirs("array_move", **task)
                pairs = alternate(ours, theirs, effort.pairs(15), warm=2)
                must, goal = (None, None) if way == "fetch" else (1.0, 0.8)
                results.append(Result.of(f"{what}, {size}", pairs, must, goal))
    return results


@figure("checkpoint", "saving and restoring 128 MiB over 8 devices, beside orbax")
def _checkpoint(effort: Effort) -> list[Result]:
    """One pair of samples gives all figures, whose parts follow one another."""
    ours, theirs = [], []
    with Peers() as peers:
        for i in range(effort.pairs(9) + 1):
            sides = [(peers.ours, ours), (peers.theirs, theirs)]
            for side, samples in sides[:: 1 if i % 2 else -1]:
                samples.append(side("checkpoint", arrays=16))
    return [
        Result.of(name, _pairs_of(ours, theirs, key), must, goal)
        for name, key, must, goal in (
            ("stall of the step that saves", "stall", 0.5, 0.1),
            ("save and the next step, less a plain step", "step", None, None),
            ("save 128 MiB, to the commit", "save", 1.0, 1 / 1.5),
            ("restore 128 MiB", "restore", 1.0, 1 / 1.5),
        )
    ]


def _pairs_of(ours: list[dict[str, float]], theirs: list[dict[str, float]], key: str) -> Pairs:
    """The samples of one key, the first pair discarded."""
    a, b = [row[key] for row in ours], [row[key] for row in theirs]
    return Pairs(tuple(a[1:]), tuple(b[1:]), (a[0], b[0]))


@figure("start", "import to the end of the first step, in a new process")
def _start(effort: Effort) -> list[Result]:
    out = []
    with tempfile.TemporaryDirectory() as root:
        for name, warm, must, goal in (("nothing cached", False, 0.75, 0.6), ("warm disk cache", True, 0.5, 0.3)):
            folder = lambda package, warm=warm: f"{root}/{package}" if warm else None
            ours = lambda: start_seconds("meshrt", DEMO, MESH, folder("meshrt"))
            theirs = lambda: start_seconds("jax", DEMO, MESH, folder("jax"))
            taken = alternate(ours, theirs, effort.pairs(7), warm=1)  # the discarded pair fills the directories
            out.append(Result.of(f"import to the end of the first step, {name}", taken, must=must, goal=goal))
    return out


@figure("import", "import of the package and its numpy, in a new process")
def _import(effort: Effort) -> list[Result]:
    taken = alternate(lambda: import_seconds("meshrt"), lambda: import_seconds("jax"), effort.pairs(11), warm=1)
    return [Result.of("import", taken, must=0.5, goal=0.4)]


@figure("eager", "eager operations on small arrays")
def _eager(effort: Effort) -> list[Result]:
    out = []
    with Peers() as peers:
        for operation in EAGER:
            task = {"operation": operation, "calls": 1000}
            ours = lambda: peers.ours("eager", **task)
            theirs = lambda: peers.theirs("eager", **task)
            out.append(Result.of(operation, alternate(ours, theirs, effort.pairs(15), warm=2), must=1.0, goal=0.8))
    return out


@figure("calls", "overhead of calling a compiled function")
def _calls(effort: Effort) -> list[Result]:
    out = []
    with Peers() as peers:
        for leaves, must, goal in ((2, 1.0, 0.8), (100, 0.8, 0.5)):
            for devices in (1, 8):
                task = {"leaves": leaves, "devices": devices, "calls": 2000 if leaves == 2 and devices == 1 else 300}
                ours = lambda: peers.ours("call_overhead", **task)
                theirs = lambda: peers.theirs("call_overhead", **task)
                taken = alternate(ours, theirs, effort.pairs(15), warm=2)
                what = "2 arguments" if leaves == 2 else f"{leaves}-leaf tree"
                judged = devices == 1
                where = "" if judged else f", {devices} devices"
                out.append(Result.of(f"call, {what}{where}", taken, must if judged else None, goal if judged else None))
    return out


@figure("shard_map", "calls of mapped functions, and staging of a step written with shard_map")
def _shard_map(effort: Effort) -> list[Result]:
    out = []
    with Peers() as peers:
        for name, jitted, calls, must, goal in (
            ("eager shard_map call", False, 3, 0.5, 0.1),
            ("call of jit(shard_map), 2 arguments, 8 devices", True, 1000, 1.0, 0.8),
        ):
            task = {"jitted": jitted, "calls": calls}
            ours, theirs = (
                lambda: peers.ours("shard_map_call", **task),
                lambda: peers.theirs("shard_map_call", **task),
            )
            out.append(Result.of(name, alternate(ours, theirs, effort.pairs(11), warm=1), must, goal))
        task = {"layers": 12, "mesh": MESH}
        taken = alternate(
            lambda: peers.ours("shard_map_trace_lower", **task),
            lambda: peers.theirs("shard_map_trace_lower", **task),
            effort.pairs(7),
            warm=1,
        )
        out.append(Result.of("trace + lower with shard_map, 12 layers", taken, 0.4, 0.2))
    return out


@figure("steps", "step time of the demo's model, same mesh, same annotations")
def _steps(effort: Effort) -> list[Result]:
    with Peers() as peers:
        losses = {"model": DEMO, "mesh": MESH, "steps": 3}
        both = peers.ours("losses", **losses), peers.theirs("losses", **losses)
        task = {"model": DEMO, "mesh": MESH, "steps": 5}
        taken = alternate(
            lambda: peers.ours("step_time", **task), lambda: peers.theirs("step_time", **task), effort.pairs(11)
        )
    result = Result.of("step time of the demo's model", taken, must=1.1, goal=0.9)
    result.details.update(losses={"meshrt": both[0], "jax": both[1]})
    return [result]


@figure("vision", "step time of networks for pictures, on one device and on 8")
def _vision(effort: Effort) -> list[Result]:
    out = []
    with Peers() as peers:
        for model in ("ResNet-50", "ViT", "U-Net"):
            for devices, must in ((1, 1.0), (8, 0.9)):
                task = {"model": model, "devices": devices}
                losses = [side("vision", **task, steps=0)["loss"] for side in (peers.ours, peers.theirs)]
                ours = lambda: peers.ours("vision", **task, steps=2)["seconds"]
                theirs = lambda: peers.theirs("vision", **task, steps=2)["seconds"]
                taken = alternate(ours, theirs, effort.pairs(11), warm=1)
                where = "one device" if devices == 1 else f"{devices} devices"
                result = Result.of(f"step time of a {model}, {where}", taken, must)
                result.details.update(losses=dict(zip(("meshrt", "jax"), losses)))
                out.append(result)
    return out


def rows_of_hlo(text: str, mesh: dict[str, int]) -> list[dict[str, Any]]:
    """The collectives of compiled HLO as plain rows."""
    devices = 1
    for size in mesh.values():
        devices *= size
    return [
        {"kind": c.kind, "axes": axes_of_groups(c.groups, tuple(mesh.items())), "shapes": list(c.shapes),
         "bytes": c.bytes, "times": c.times, "cause": c.op_name or ""}
        for c in collectives(text, devices)
    ]  # fmt: skip


def _total(text: str, mesh: dict[str, int]) -> float:
    devices = 1
    for size in mesh.values():
        devices *= size
    return traffic(text, devices).bytes[1]


@figure("bytes", "bytes communicated per device and step, from the optimised HLO of both")
def _bytes(effort: Effort) -> list[Result]:
    out = []
    with Peers() as peers:
        for name, model in (("the demo's model", DEMO), ("4 unrolled layers", unrolled(4))):
            task = {"model": model, "mesh": MESH}
            ours, theirs = peers.ours("communication", **task), peers.theirs("communication", **task)
            a, b = _total(ours["hlo"], MESH), _total(theirs["hlo"], MESH)
            planned = sum(e["bytes"] * (e["times"] or 1) for e in ours["plan"])
            details = {
                "planned bytes": planned, "meshrt plan": ours["plan"],
                "meshrt": rows_of_hlo(ours["hlo"], MESH), "jax": rows_of_hlo(theirs["hlo"], MESH),
            }  # fmt: skip
            out.append(Result(f"bytes per device, {name}", "B", a, b, a / b, None, 1.0, 1.0, 1, details))
    return out


@figure("layers", "growth with the number of unrolled layers")
def _layers(effort: Effort) -> list[Result]:
    out = []
    with Peers() as peers:
        for layers in (12, 24, 48, 96):
            out += _stations(
                peers, f"{layers} layers", {"model": unrolled(layers), "mesh": MESH}, 1 if effort.quick else 3
            )
    return out


@figure("meshes", "growth with the number of (abstract) devices, 4 unrolled layers")
def _meshes(effort: Effort) -> list[Result]:
    out = []
    with Peers() as peers:
        for devices, shape in BIG_MESHES.items():
            task = {"model": unrolled(4, **BIG_MODEL), "mesh": dict(zip(("data", "model"), shape))}
            out += _stations(peers, f"{devices} devices", task, 1 if effort.quick else 3)
    return out


@figure("export", "a 12-layer train step as an exported function: each stage, and the size of its file")
def _export(effort: Effort) -> list[Result]:
    out, layers = [], 12
    with Peers() as peers:
        for stage, must, pairs in (
            ("export", 0.5, 5), ("serialize", 0.5, 7), ("deserialize", 0.5, 7), ("first call", 0.7, 3),
        ):  # fmt: skip
            task = {"layers": layers, "stage": stage}
            ours = lambda: peers.ours("export_seconds", **task)
            theirs = lambda: peers.theirs("export_seconds", **task)
            taken = alternate(ours, theirs, effort.pairs(pairs))
            out.append(Result.of(f"{stage}, {layers} layers", taken, must=must))
        # A file may hold compiled code as well, which JAX's cannot: against JAX's first call, which compiles.
        task = {"layers": layers, "stage": "first call, code in the file"}
        theirs = lambda: peers.theirs("export_seconds", layers=layers, stage="first call")
        taken = alternate(lambda: peers.ours("export_seconds", **task), theirs, effort.pairs(3))
        out.append(Result.of(f"first call, {layers} layers, code in the file", taken, must=0.7))
        sizes = (peers.ours("export_size", layers=layers),), (peers.theirs("export_size", layers=layers),)
        out.append(Result.of(f"size of the file, {layers} layers", Pairs(*sizes), must=1.0, unit="B"))
    return out


def _stations(peers: Peers, name: str, task: dict[str, Any], pairs: int) -> list[Result]:
    """Both stations of ours against JAX's trace + lower."""
    theirs = lambda: peers.theirs("trace_lower", **task)
    traced = alternate(lambda: peers.ours("trace_lower", **task), theirs, pairs)
    cut = alternate(lambda: peers.ours("propagate_partition", **task), theirs, pairs)
    return [Result.of(f"trace + lower, {name}", traced), Result.of(f"propagate + partition, {name}", cut)]
