"""The processes that judge candidates: `python -m meshrt.autoshard.judge`, each holding the program.

Modules may be foreign: they are parsed here only, under limits, as `meshrt.inspect.guard` says. A judge reads one JSON
line of options and the module's bytes, and answers with a description of the program; then a line for each candidate
(the mesh, per argument and dimension its axes, whether it is a first look), each answered with its figures, or why it
cannot be made.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import propagation
from collectives.errors import CollectivesError
from collectives.topology import Topology, load
from meshrt.autoshard.figures import Figures, impossible
from meshrt.inspect.child import limit
from meshrt.inspect.foreign import partition_foreign
from meshrt.pipeline.names import argument_names
from propagation.correspondence import dimension_classes
from propagation.errors import PropagationError
from propagation.overrides import annotating
from propagation.reopening import Reading, reading_of

__all__ = ["described", "judge"]

Module = str | bytes

# Objects made and not freed after which Python looks for cycles. Measured: a candidate takes a sixth less time than
# with Python's 700, and the process no more memory.
GARBAGE_OBJECTS = 200_000

# A module is read as it stands, in the order in which XLA decides.
PLAIN = Reading(None, xla_order=True)


def judge(
    module: Module,
    mesh: Mapping[str, int] | None,
    arguments: Sequence[Any] | None,
    topology: Topology | None,
    is_first: bool = False,
    reading: Reading = PLAIN,
) -> Figures:
    """The figures of a module whose arguments have these axes; None: those that it says itself. At a first look
    no other layouts of what lies inside are compared: that takes half as long, and the figures are at best as good.
    `reading` leaves out what propagation wrote into the module, which would hold for all candidates otherwise."""
    annotate = None if arguments is None else annotating(mesh, arguments)
    try:
        decided = reading.run(module, annotate)
        made = partition_foreign(decided, topology, compare=not is_first)
    except (PropagationError, CollectivesError) as e:
        return impossible(str(e))
    timing, memory = made.timing, made.memory
    return Figures(
        timing.seconds, timing.computing, timing.sending, made.plan.bytes, memory.peak, memory.arguments,
        made.plan.counts,
    )  # fmt: skip


def described(module: Module) -> dict[str, Any]:
    """The module's mesh (None: it names none), its arguments with the axes that they have, and the classes of their
    dimensions."""
    classes = [asdict(c) for c in dimension_classes(module)]
    started = propagation.run(module, "import")
    meshes = [m for m in started.program.meshes.values() if m.axes]
    axes = [
        None if s is None else [[a.name for a in d.axes] for d in s.dims]
        for s in (started.sharding(v) for v in started.program.main.args)
    ]
    shapes = [(list(v.type.shape), v.type.dtype) for v in started.program.main.args]
    return {
        "mesh": dict(meshes[0].axes) if meshes else None,
        "arguments": [
            {"name": name, "shape": shape, "dtype": dtype, "axes": known}
            for name, (shape, dtype), known in zip(argument_names(started), shapes, axes)
        ],
        "classes": classes,
    }


def main() -> None:
    """Answers until its standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    given = sys.stdin.buffer
    options = json.loads(given.readline())
    data = given.read(options["bytes"])
    limit(options["memory_bytes"], int(options["seconds"]) + 1)
    try:
        module = data if data.startswith(b"ML\xefR") else data.decode()
        # What does not fit is judged as well: the search is told how far it is from fitting.
        topology = replace(load(options["topology"]), memory=None) if options["topology"] else None
        reading = reading_of(module, PLAIN.xla_order)
        answer(described(module) if options["describe"] else {})
        # Of what stays nothing is looked through again; what a candidate leaves is, when there is much of it.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GARBAGE_OBJECTS)
    except (PropagationError, CollectivesError, UnicodeDecodeError, MemoryError, RecursionError) as e:
        answer({"error": str(e) or type(e).__name__})
        os._exit(0)
    for line in given:
        asked = json.loads(line)
        answer(asdict(judge(module, asked["mesh"], asked["arguments"], topology, asked["is_first"], reading)))
    os._exit(0)  # nothing to tear down


if __name__ == "__main__":
    main()
