"""A training step compiled for TPUs that are not here: peak memory and the compiler's costs, ours beside XLA's.

`python -m benchmarks.communication.hardware [SPEC ...]` prints JSON; needs the extra `meshrt[tpu]`. The specs are
slices such as v5e:16x16 (the default, with v5p:8x8x8); the model's batch is sharded over the first dimensions of a
slice, its features over the last.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

import meshrt
from collectives.topology import load

from ..tasks import Tasks

__all__ = ["compare"]

DEFAULT = ("v5e:16x16", "v5p:8x8x8")
MODEL = {"width": 2048, "heads": 16, "hidden": 8192, "context": 512, "vocabulary": 32768, "layers": 8}


def compare(spec: str) -> dict[str, Any]:
    """Both partitioners' programs of one step, compiled for `spec`."""
    topology = load(spec)
    mesh = {"data": math.prod(topology.shape[:-1]), "model": topology.shape[-1]}
    tasks = Tasks(meshrt)
    built, arguments, context = tasks._staged({**MODEL, "batch": 4 * mesh["data"]}, mesh)
    with context:
        lowered = built.jitted_step().trace(*arguments).lower(lowering_platforms=(topology.compiler,))
        sides = {name: _side(lowered, spec, name) for name in ("meshrt", "xla")}
    ours, theirs = sides["meshrt"], sides["xla"]
    # The compiler counts a loop's body once, so XLA's contractions in loops (a turn per device of a ring) hide most
    # of their arithmetic: "flops" and "bytes accessed" of the two sides do not compare. For the same reason its time
    # estimate may come out negative: then it says nothing.
    told = [k for k in ("peak bytes", "optimal seconds", "bytes sent") if min(ours[k] or 0, theirs[k] or 0) > 0]
    ratio = {k: round(ours[k] / theirs[k], 4) for k in told}
    return {"ours": ours, "XLA": theirs, "ours/XLA": ratio}


def _side(lowered: Any, spec: str, partitioner: str) -> dict[str, Any]:
    with meshrt.config.override(partitioner=partitioner):
        start = time.perf_counter()
        compiled = lowered.compile(topology=spec)
        seconds = time.perf_counter() - start
    cost = compiled.cost_analysis()
    try:
        found = compiled.collectives()
    except meshrt.errors.UnsupportedError:  # what a compiler newer than jaxlib made cannot always be read
        found = None
    return {
        "peak bytes": compiled.memory_analysis().peak_bytes,
        "share of memory": round(compiled.memory_share, 4),
        "optimal seconds": cost.get("optimal_seconds"),
        "flops": cost.get("flops"),
        "bytes accessed": cost.get("bytes accessed"),
        "collectives": None if found is None else len(found),
        "asynchronous": None if found is None else sum(c.asynchronous for c in found),
        "bytes sent": None if found is None else sum(c.bytes * (c.times or 1) for c in found),
        "compile seconds": round(seconds, 1),
    }


def main() -> None:
    """Prints {spec: figures}."""
    print("\n" + json.dumps({spec: compare(spec) for spec in (sys.argv[1:] or DEFAULT)}))


if __name__ == "__main__":
    main()
