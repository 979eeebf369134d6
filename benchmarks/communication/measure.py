"""One program, measured: `python -m benchmarks.communication.measure NAME`, which prints JSON.

A process of its own for each program: its compiler, its devices and its memory are its own.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np

import collectives
import propagation
from collectives.topology import load
from meshrt.runtime import hlo
from meshrt.runtime.memory_stats import memory_stats_of
from meshrt.xla import jaxlib_api, jaxlib_executables

from .base import Workload
from .library import PROGRAMS

__all__ = ["Measured", "measure", "staged"]

REPEATS = 9
WARM_UP = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"
SLOW = 2.0  # seconds after which a program is timed twice only
ENOUGH, MOST = 3.0, 100  # seconds of sampling short steps, and samples, at most


@dataclass(frozen=True, slots=True)
class Side:
    """A compiled program: bytes the busiest device sends, collectives that run, peak bytes of a device, seconds."""

    bytes: float
    collectives: int
    kinds: dict[str, int]
    memory: int
    compile_seconds: float
    step_seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Both sides of a program. `error` is the largest difference to one device, relative to the largest value;
    `predicted_seconds` is what `collectives.plan.timing` says of a step on these devices, `predicted_memory` what the
    plan says of a device's bytes."""

    name: str
    ours: Side
    xla: Side
    best: float | None
    bound: float | None
    error: float
    predicted_seconds: float
    predicted_memory: float
    propagate_seconds: float
    partition_seconds: float
    operations: int
    findings: int


def staged(program: Workload, mesh: Any) -> tuple[Any, Any]:
    """The program jitted by JAX with its annotations on `mesh`, which may be abstract; its arguments' shardings."""
    placed = lambda spec: jax.sharding.NamedSharding(mesh, spec)
    is_spec = lambda x: isinstance(x, jax.sharding.PartitionSpec)
    constrain = lambda x, *spec: jax.lax.with_sharding_constraint(x, placed(jax.sharding.PartitionSpec(*spec)))
    ins = jax.tree.map(placed, program.specs(), is_leaf=is_spec)
    outs = None if program.outs is None else jax.tree.map(placed, program.out_specs(), is_leaf=is_spec)
    jitted = jax.jit(program.bind(constrain), in_shardings=ins, out_shardings=outs, keep_unused=True)
    return jitted, ins


def measure(program: Workload, repeats: int = REPEATS) -> Measured:
    """Compiles both, checks both against one device, times them in turn."""
    mesh = jax.sharding.Mesh(
        np.array(jax.devices()[: program.devices]).reshape([n for _, n in program.mesh]), [n for n, _ in program.mesh]
    )
    jitted, ins = staged(program, mesh)
    placed = lambda spec: jax.sharding.NamedSharding(mesh, spec)
    values = program.values()
    lowered = jitted.lower(*values)
    start = time.perf_counter()
    compiled = lowered.compile()
    xla_seconds = time.perf_counter() - start
    theirs = compiled.runtime_executable()

    text = lowered.as_text(debug_info=True)
    collectives.partition(WARM_UP)  # what is imported and made once is no one program's
    start = time.perf_counter()
    propagated = propagation.run(text)
    between = time.perf_counter()
    partitioned = collectives.partition(propagated)
    module = partitioned.as_text()
    end = time.perf_counter()
    devices = list(mesh.devices.flat)
    ours = jaxlib_api.compile_and_load(module, devices, jaxlib_api.compile_options(devices))
    ours_seconds = time.perf_counter() - start

    arguments = [jax.device_put(v, s) for v, s in zip(jax.tree.leaves(values), jax.tree.leaves(ins))]
    ours_arguments = [
        jax.device_put(v, placed(_spec(s))) for v, s in zip(jax.tree.leaves(values), partitioned.arg_shardings)
    ]
    expected = jax.tree.leaves(jax.jit(program.bind(lambda x, *spec: x))(*values))
    result_shardings = [placed(_spec(s)) for s in partitioned.result_shardings]
    got = _gather(ours.execute_sharded(ours_arguments), expected, result_shardings)
    runs = [_runner(ours, ours_arguments), _runner(theirs, arguments)]
    ours_time, xla_time = _times(runs, repeats)
    return Measured(
        program.name,
        _side(ours, len(devices), ours_seconds, ours_time),
        _side(theirs, len(devices), xla_seconds, xla_time),
        program.best,
        program.bound if program.bound is not None else program.best,
        _error(got, expected),
        collectives.partition(propagated, load("cpu")).timing.seconds,
        partitioned.memory.peak,
        between - start,
        end - between,
        sum(1 for _ in propagated.program.ops()),
        len(partitioned.findings),
    )


def _spec(sharding: Any) -> jax.sharding.PartitionSpec:
    entries = []
    for dim in sharding.dims:
        if any(not a.is_full(sharding.mesh) for a in dim.axes):
            raise ValueError(f"{sharding.to_text()} is no PartitionSpec")
        entries.append(tuple(a.name for a in dim.axes) or None)
    return jax.sharding.PartitionSpec(*entries)


def _gather(results: Any, expected: list, shardings: list) -> list[np.ndarray]:
    pieces = results.disassemble_into_single_device_arrays()
    make = jax.make_array_from_single_device_arrays
    return [np.asarray(make(e.shape, s, list(p))) for p, e, s in zip(pieces, expected, shardings)]


def _error(got: list[np.ndarray], expected: list) -> float:
    worst = 0.0
    for a, b in zip(got, expected):
        a, b = (np.asarray(x).astype(np.complex128 if np.iscomplexobj(x) else np.float64) for x in (a, b))
        assert a.shape == b.shape
        if a.size:
            difference = float(np.max(np.abs(a - b)))
            worst = max(worst, difference / max(1e-30, float(np.max(np.abs(b))))) if difference else worst
    return worst


def _runner(executable: Any, arguments: list) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        pieces = executable.execute_sharded(arguments).disassemble_into_single_device_arrays()
        jax.block_until_ready(pieces)
        return time.perf_counter() - start

    return run


def _times(runs: list[Callable[[], float]], repeats: int) -> list[float]:
    """Medians of samples taken in turn, each side first in every other turn. Short steps are sampled more often, since
    a pause of the machine is long beside them."""
    first = [run() for run in runs]
    count = 2 if max(first) > SLOW else repeats
    end = time.perf_counter() + ENOUGH
    samples: list[list[float]] = []
    while len(samples) < count or (len(samples) < MOST and time.perf_counter() < end):
        pair = [0.0] * len(runs)
        for i in (range(len(runs)), reversed(range(len(runs))))[len(samples) % 2]:
            pair[i] = runs[i]()
        samples.append(pair)
    return [statistics.median(s) for s in zip(*samples)]


def _side(executable: Any, devices: int, compile_seconds: float, step_seconds: float) -> Side:
    text = jaxlib_executables.hlo_text(executable)
    found = hlo.collectives(text, devices)
    kinds: dict[str, int] = {}
    for c in found:
        kinds[c.kind] = kinds.get(c.kind, 0) + (c.times or 1)
    memory = memory_stats_of(executable).device_size_in_bytes  # the CPU compiler's own peak leaves temporaries out
    sent = hlo.traffic(text, devices).bytes[1]
    return Side(sent, sum(kinds.values()), kinds, memory, compile_seconds, step_seconds)


def main() -> None:
    """Prints the figures, or {"error": ...}."""
    program = PROGRAMS[sys.argv[1]]
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else REPEATS
    try:
        reply = asdict(measure(program, repeats))
        if not math.isfinite(reply["error"]):
            raise ValueError(f"{program.name}: results differ from one device by {reply['error']}")
    except Exception as e:
        reply = {"failed": f"{type(e).__name__}: {e}"[:2000]}
    print("\n" + json.dumps(reply))


if __name__ == "__main__":
    main()
