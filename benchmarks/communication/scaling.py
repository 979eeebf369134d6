"""Time of partitioning beside that of propagation, on training steps of 12 and 48 unrolled layers.

`python -m benchmarks.communication.scaling [--quick]` prints JSON. Partitioning should take no longer than propagation
and grow as the number of operations does.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import jax

import collectives
import propagation

from ..tasks import Tasks

__all__ = ["timings"]

MESH = {"data": 4, "model": 2}


def step_text(layers: int) -> str:
    """The StableHLO of one step of the demo's model, lowered by JAX."""
    tasks = Tasks(jax)
    built, arguments, context = tasks._staged({"layers": layers, "unrolled": True}, MESH)
    with context:
        return built.jitted_step().trace(*arguments).lower(lowering_platforms=("cpu",)).as_text(debug_info=True)


def timings(layers: int, samples: int) -> dict[str, float]:
    """Medians of CPU seconds; a fresh program is read each time."""
    text, rows, operations = step_text(layers), [], 0
    for _ in range(samples):
        start = time.process_time()
        propagated = propagation.run(text)
        between = time.process_time()
        collectives.partition(propagated).as_text()
        rows.append((between - start, time.process_time() - between))
        operations = sum(1 for _ in propagated.program.ops())
    propagate, partition = (statistics.median(column) for column in zip(*rows))
    return {
        "operations": operations, "propagate": round(propagate, 3), "partition": round(partition, 3),
        "partition/propagate": round(partition / propagate, 3),
    }  # fmt: skip


def main() -> None:
    """Prints the figures of both sizes and how the time per operation grows between them."""
    samples = 2 if "--quick" in sys.argv else 5
    timings(1, 1)  # what is imported and made once
    out: dict[str, Any] = {f"{n} layers": timings(n, samples) for n in (12, 48)}
    small, large = out["12 layers"], out["48 layers"]
    per_operation = lambda row: row["partition"] / row["operations"]
    out["partitioning an operation, 48 layers / 12"] = round(per_operation(large) / per_operation(small), 3)
    print("\n" + json.dumps(out))


if __name__ == "__main__":
    main()
