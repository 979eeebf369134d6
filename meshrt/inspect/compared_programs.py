"""Two programs to compare, each as the module that the process which parses foreign files reads.

The earlier one, if it is a function, is lowered in a process of its own (`python -m
meshrt.inspect.compared_programs`): two versions of a script import modules of the same names.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from meshrt.errors import InspectError
from meshrt.inspect.annotations import Annotations
from meshrt.inspect.containers import module_in
from meshrt.inspect.guard import Limits, ask_child, is_json, read_file
from meshrt.inspect.target import ForeignText, Hook, lower_target, parse_mesh, split_target
from meshrt.inspect.written_arguments import WrittenArguments
from meshrt.pipeline.names import names_of

__all__ = ["Side", "is_report", "side_apart", "side_of"]


@dataclass(frozen=True, slots=True)
class Side:
    """A module, the file that it is the text of, the names of its arguments and results if they are known better than
    it says them, and the mesh and annotations that are still to be laid over it; `is_exported`: it is the file of an
    exported function, with numbers for its symbolic `sizes`."""

    name: str
    module: bytes
    file: str | None = None
    names: tuple[list[str], list[str]] | None = None
    mesh: Mapping[str, int] | None = None
    annotations: Annotations | None = None
    is_exported: bool = False
    sizes: Mapping[str, int] | None = None

    def as_options(self) -> dict[str, Any]:
        """What the child is told beside the module itself."""
        given = None if self.annotations is None else asdict(self.annotations)
        return {
            "name": self.name, "bytes": len(self.module), "file": self.file, "names": self.names,
            "mesh": None if self.mesh is None else dict(self.mesh), "annotations": given,
            "is_exported": self.is_exported, "sizes": None if self.sizes is None else dict(self.sizes),
        }  # fmt: skip


def is_report(path: str) -> bool:
    """Whether a file is what `--json` wrote, rather than a program."""
    if split_target(path) is not None or not os.path.isfile(path):
        return path.endswith(".json")
    with open(path, "rb") as file:
        return is_json(file.read(64))


def side_of(
    target: str, mesh: str | None, hook: Hook, annotations: Annotations | None, limits: Limits,
    sizes: Mapping[str, int] | None = None,
) -> Side:  # fmt: skip
    """A function, lowered in this process, or a file. InspectError for what is neither."""
    python = split_target(target)
    if python is None:
        if target.endswith(".py"):
            raise InspectError(f"{target}: name a function of it, as in {target}:step")
        data = read_file(target, limits)
        exported = module_in(data, target)
        file = None if exported is not None or target == "-" else target
        over = None if mesh is None else parse_mesh(mesh)
        if sizes and exported is None:
            raise InspectError(f"{target}: is no exported function, whose symbolic sizes --sizes are numbers for")
        return Side(target, data, file, None, over, annotations, exported is not None, sizes)
    if mesh is None:
        raise InspectError(f"{target} needs a mesh, such as --mesh data=4,model=2 or --against-mesh data=4,model=2")
    name = f"{python[0]}:{python[1]}"
    lowered = lower_target(*python, parse_mesh(mesh), hook, annotations=annotations)
    if isinstance(lowered, ForeignText):
        return Side(name, lowered.encode(), annotations=annotations)
    return Side(name, lowered.module.text.encode(), names=names_of(lowered))


def side_apart(
    target: str, mesh: str | None, hook: Hook, annotations: Annotations | None, limits: Limits,
    sizes: Mapping[str, int] | None = None,
) -> Side:  # fmt: skip
    """The same, a function in a process of its own."""
    if split_target(target) is None or mesh is None:
        return side_of(target, mesh, hook, annotations, limits, sizes)
    asked = [
        target,
        mesh,
        asdict(hook) if isinstance(hook, WrittenArguments) else hook,
        None if annotations is None else asdict(annotations),
    ]
    reply = ask_child(target, "meshrt.inspect.compared_programs", json.dumps(asked).encode(), limits)
    given = None if reply["annotations"] is None else Annotations(**reply["annotations"])
    return Side(reply["name"], reply["module"].encode(), names=reply["names"], annotations=given)


def main() -> None:
    """Lowers one function: reads what `side_of` takes as JSON from standard input, writes the side as JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    target, mesh, hook, annotations = json.loads(sys.stdin.buffer.read())
    hook = WrittenArguments(**hook) if isinstance(hook, dict) else hook
    try:
        side = side_of(target, mesh, hook, Annotations(**annotations) if annotations else None, Limits())
        reply = {**side.as_options(), "module": side.module.decode()}
    except InspectError as e:
        reply = {"error": str(e)}
    answers.write(json.dumps(reply))
    answers.flush()


if __name__ == "__main__":
    main()
