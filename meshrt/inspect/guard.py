"""Reading foreign files safely: in a process of their own, with limits.

MLIR's parser and the dialects' verifiers are C++: an input can make them abort, overflow the stack or take all
memory, and an exception handler sees nothing of that. So a file that somebody else wrote is parsed, propagated and
partitioned in a child process with limits on memory and time; whatever happens to it becomes one `InspectError`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshrt.errors import InspectError, TargetError
from meshrt.inspect.annotations import Annotations
from meshrt.inspect.containers import module_in
from meshrt.inspect.files import FILE_BYTES, open_regular
from meshrt.inspect.relative_paths import relative

__all__ = ["Limits", "ask_child", "inspect_file", "is_json", "read_file"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a foreign file may cost: its own size, and memory (bytes) and time (seconds) of the child process."""

    file_bytes: int = FILE_BYTES
    memory_bytes: int = 8 << 30
    seconds: float = 120.0


def inspect_file(
    path: str,
    stage: str | None = None,
    explain: str | None = None,
    topology: str | None = None,
    limits: Limits | None = None,
    mesh: dict[str, int] | None = None,
    annotations: Annotations | None = None,
    with_program: bool = False,
    rules: Sequence[str] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """{"report": Report.as_json()} of a StableHLO file, or {"text": ...} of a stage of it. A `path` of "-" is
    standard input. `mesh` is for a module that names none or one of other sizes, `annotations` for its arguments,
    `with_program` asks for all operations, `rules` are those of lint that are wanted, `sizes` numbers for symbolic
    sizes of an exported function.

    Raises `InspectError` for anything that cannot be read or partitioned within the limits.
    """
    limits = Limits() if limits is None else limits
    data, path_of_text = read_file(path, limits), None if path == "-" else path
    exported = module_in(data, path)
    if sizes and exported is None:
        raise InspectError(f"{path}: is no exported function, whose symbolic sizes --sizes are numbers for")
    if exported is not None:  # all of it is read in the child: it may be partitioned again
        path_of_text = None
    options = {
        "name": path, "stage": stage, "explain": explain, "topology": topology, "file": path_of_text,
        "memory_bytes": limits.memory_bytes, "seconds": limits.seconds, "mesh": mesh,
        "annotations": None if annotations is None else asdict(annotations), "with_program": with_program,
        "lint": rules, "is_exported": exported is not None, "sizes": sizes,
    }  # fmt: skip
    reply = ask_child(path, "meshrt.inspect.child", json.dumps(options).encode() + b"\n" + data, limits)
    return reply if stage is not None else relative(reply)


def ask_child(path: str, module: str, data: bytes, limits: Limits) -> dict[str, Any]:
    """What `python -m MODULE` answers to `data`, which is about a file. InspectError says how it failed."""
    child = subprocess.Popen(
        [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        out, err = child.communicate(data, timeout=limits.seconds)
    except subprocess.TimeoutExpired:
        raise InspectError(f"{path}: not finished after {limits.seconds:g} s; allow more with --timeout") from None
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    if child.returncode != 0 or not out:
        raise InspectError(f"{path}: {_why(child.returncode, err)}")
    reply: dict[str, Any] = json.loads(out)
    if "error" in reply:
        error, path = reply["error"], reply.get("of", path)
        if error.startswith("-:"):  # MLIR's name for what it reads from standard input
            error = path + error.removeprefix("-")
        raise InspectError(error if error.startswith(f"{path}:") else f"{path}: {error}")
    return reply


def read_file(path: str, limits: Limits) -> bytes:
    """The bytes of a module. TargetError for what is none, or is longer than the limit."""
    if not path:
        raise TargetError("no file was named; give a StableHLO file or FILE.py:FUNCTION")
    try:
        if path == "-":
            data = sys.stdin.buffer.read(limits.file_bytes + 1)
        else:
            with open_regular(path) as file:
                data = file.read(limits.file_bytes + 1)
    except OSError as e:
        raise TargetError(f"{path}: {e.strerror or e}") from None
    if len(data) > limits.file_bytes:
        raise TargetError(f"{path}: longer than {limits.file_bytes >> 20} MiB, which is the limit for a module")
    if not data.strip():
        raise TargetError(f"{path}: the file is empty")
    if is_json(data):
        raise TargetError(f"{path}: is JSON, not StableHLO; a report that --json wrote goes with --against")
    if data.startswith(b"HloModule"):
        raise TargetError(f"{path}: is HLO text, which has no shardings to propagate; give the StableHLO it came from")
    return data


def is_json(data: bytes) -> bool:
    """Whether what begins so is an object of JSON. (A module may begin with a dictionary of resources, `{-#`.)"""
    return data.lstrip().startswith(b"{") and data.lstrip()[1:].lstrip()[:1] in (b'"', b"}")


def _why(code: int, err: bytes) -> str:
    """What ended the child, from its exit code and the last telling line of what it printed."""
    lines = [line.strip() for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
    if code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
        told = next((line for line in lines if line.startswith(("LLVM ERROR", "loc(", "F0", "Fatal"))), "")
        crash = f"{name}: {told[:200]}" if told else name
        return f"the module crashed MLIR's parser or a pass ({crash}); it is malformed or hostile"
    last = lines[-1] if lines else "no output"
    return f"reading it failed with exit code {code}: {last[:300]}"
