"""One side of the comparison: reads tasks as JSON lines from standard input, answers on standard output.

python -m benchmarks.worker meshrt|jax
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback


def serve(package: str) -> None:
    """Answers until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the packages print must not be read as an answer
    frontend = importlib.import_module(package)
    for name in ("numpy", "sharding"):
        importlib.import_module(f"{package}.{name}")
    from benchmarks.tasks import Tasks

    tasks = Tasks(frontend)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = {"value": getattr(tasks, request["task"])(**request["arguments"])}
        except Exception:
            reply = {"error": traceback.format_exc()}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
