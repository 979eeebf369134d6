"""Programs compiled for TPUs that are not here: peak memory and the compiler's costs, ours beside XLA's.

`python -m benchmarks.communication.hardware [SPEC ...] [--library] [--only TEXT ...]` prints JSON; needs the extra
`meshrt[tpu]`. The specs are slices. By default a training step of the demo's model is compiled for v5e:16x16 and
v5p:8x8x8: the batch is sharded over the first dimensions of a slice, features over the last. `--library` compiles the
library's programs instead, for v5e:2x4 and v5p:2x2x2; `--only` those whose names contain one of the texts.

TPUs' compilers count in a program's peak what they copy to memory on the chip ahead of its use, all that of small
programs among it: whichever of two equal programs copies more. `device bytes` are what lies in the device's memory, of
arguments, results and temporaries, with the gaps between them.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

import collectives
import meshrt
import propagation
from collectives.topology import load
from meshrt.runtime.schedule import schedule
from meshrt.runtime.topology import TopologyExecutable, compile_for, topology_of
from propagation.model import Mesh

from ..tasks import Tasks
from .base import Workload
from .measure import staged

__all__ = ["compare", "compare_program"]

STEP, LIBRARY = ("v5e:16x16", "v5p:8x8x8"), ("v5e:2x4", "v5p:2x2x2")
MODEL = {"width": 2048, "heads": 16, "hidden": 8192, "context": 512, "vocabulary": 32768, "layers": 8}


def compare(spec: str) -> dict[str, Any]:
    """Both partitioners' programs of one training step, compiled for `spec`."""
    topology = load(spec)
    mesh = {"data": math.prod(topology.shape[:-1]), "model": topology.shape[-1]}
    tasks = Tasks(meshrt)
    built, arguments, context = tasks._staged({**MODEL, "batch": 4 * mesh["data"]}, mesh)
    with context:
        lowered = built.jitted_step().trace(*arguments).lower(lowering_platforms=(topology.compiler,))

        def side(partitioner: str) -> dict[str, Any]:
            with meshrt.config.override(partitioner=partitioner):
                return _side(lambda: lowered.compile(topology=spec)._executable)

        return _both(side("meshrt"), side("xla"))


def compare_program(program: Workload, spec: str) -> dict[str, Any]:
    """Both partitioners' programs of one program of the library, compiled for `spec`, which has as many devices."""
    topology = topology_of(spec)
    text = _lowered(program, topology.compiler)
    placed = topology.on(Mesh("mesh", program.mesh))
    ours = lambda: collectives.partition(propagation.run(text), placed).as_text()
    return _both(_side(lambda: compile_for(topology, ours())), _side(lambda: compile_for(topology, text, mode="spmd")))


def _lowered(program: Workload, platform: str) -> str:
    """The program for all devices, as JAX lowers it for `platform`."""
    mesh = jax.sharding.AbstractMesh(tuple(n for _, n in program.mesh), tuple(name for name, _ in program.mesh))
    jitted, _ = staged(program, mesh)
    return jitted.trace(*program.values()).lower(lowering_platforms=(platform,)).as_text(debug_info=True)


def _both(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    # The compiler counts a loop's body once, so XLA's contractions in loops (a turn per device of a ring) hide most
    # of their arithmetic: "flops" and "bytes accessed" of the two sides do not compare. For the same reason its time
    # estimate may come out negative: then it says nothing.
    figures = ("peak bytes", "device bytes", "optimal seconds", "bytes sent")
    told = [k for k in figures if min(ours[k] or 0, theirs[k] or 0) > 0]
    ratio = {k: round(ours[k] / theirs[k], 4) for k in told}
    return {"ours": ours, "XLA": theirs, "ours/XLA": ratio}


def _side(compile_: Callable[[], TopologyExecutable]) -> dict[str, Any]:
    start = time.perf_counter()
    compiled = compile_()
    seconds = time.perf_counter() - start
    cost, memory, topology = compiled.cost_analysis() or {}, compiled.memory_analysis(), compiled.topology
    peak = memory.peak_memory_in_bytes
    try:
        found = schedule(compiled.hlo_text(), topology.devices)
    except meshrt.errors.UnsupportedError:  # what a compiler newer than jaxlib made cannot always be read
        found = None
    return {
        "peak bytes": peak,
        "device bytes": memory.device_size_in_bytes,
        "share of memory": round(peak / topology.memory, 4),
        "optimal seconds": cost.get("optimal_seconds"),
        "flops": cost.get("flops"),
        "bytes accessed": cost.get("bytes accessed"),
        "collectives": None if found is None else len(found),
        "asynchronous": None if found is None else sum(c.asynchronous for c in found),
        "bytes sent": None if found is None else sum(c.bytes * (c.times or 1) for c in found),
        "compile seconds": round(seconds, 1),
    }


def _library(specs: Sequence[str], only: Sequence[str]) -> dict[str, Any]:
    """{spec: {program: figures}}; of a program that a compiler refuses, why."""
    from .library import PROGRAMS

    names = [n for n in PROGRAMS if not only or any(text in n for text in only)]
    found: dict[str, Any] = {spec: {} for spec in specs}
    for spec in specs:
        for name in names:
            try:
                found[spec][name] = compare_program(PROGRAMS[name], spec)
            except meshrt.errors.CompileError as e:
                found[spec][name] = {"failed": str(e)[:2000]}
        compiled = [r["ours/XLA"] for r in found[spec].values() if "failed" not in r]
        for what in ("peak bytes", "device bytes"):
            shares = [r[what] for r in compiled]
            if shares:
                mean = math.exp(sum(map(math.log, shares)) / len(shares))
                row = {"mean": round(mean, 4), "worst": max(shares), "programs": len(shares)}
                found[spec][f"{what}, all"] = row
    return found


def main() -> None:
    """Prints {spec: figures}, or {spec: {program: figures}} of the library's programs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.communication.hardware", description=__doc__)
    parser.add_argument("specs", nargs="*", metavar="SPEC", help="slices to compile for, as v5e:2x4")
    parser.add_argument("--library", action="store_true", help="the library's programs instead of a training step")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="the library's programs so named")
    given = parser.parse_args()
    if given.library or given.only:
        figures = _library(given.specs or LIBRARY, given.only)
    else:
        figures = {spec: compare(spec) for spec in given.specs or STEP}
    print("\n" + json.dumps(figures))


if __name__ == "__main__":
    main()
