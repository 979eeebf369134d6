"""Files that a user names, read and written so that one line says what is wrong with them, whatever they are: a
directory, a pipe that nobody writes to, something without an end, text that is nested too deeply."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from meshrt.errors import InspectError, TargetError

__all__ = ["FILE_BYTES", "open_regular", "read_json", "read_toml", "require_writable", "toml_text", "writable"]

# The longest file that is read. Chosen: a module of a million operations is a third of it.
FILE_BYTES = 256 << 20


def open_regular(path: str, wanted: str = "a StableHLO file or FILE.py:FUNCTION") -> BinaryIO:
    """Opens a file for reading. TargetError for what is none, such as a pipe that may never have a writer.

    A pipe that a shell has opened (`<(...)`) is read: its name lies in /dev/fd.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        raise TargetError(f"{path}: {e.strerror or e}") from None
    mode = os.fstat(descriptor).st_mode
    kind = next((text for is_kind, text in _KINDS if is_kind(mode)), None)
    if kind is not None and not (stat.S_ISFIFO(mode) and path.startswith(("/dev/fd/", "/proc/self/fd/"))):
        os.close(descriptor)
        raise TargetError(f"{path}: is {kind}, not a file; give {wanted}")
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode), "a device"),
)


def read_json(path: str, wanted: str) -> Any:
    """The value in a file of JSON. InspectError for what is none; `wanted` is what messages ask for."""
    return _parsed(path, wanted, "JSON", json.loads)


def read_toml(path: str, wanted: str) -> dict[str, Any]:
    """The tables of a file of TOML, likewise."""
    found: dict[str, Any] = _parsed(path, wanted, "TOML", tomllib.loads)
    return found


def _parsed(path: str, wanted: str, language: str, parse: Callable[[str], Any]) -> Any:
    try:
        with open_regular(path, wanted) as file:
            data = file.read(FILE_BYTES + 1)
    except OSError as e:
        raise TargetError(f"{path}: {e.strerror or e}") from None
    if len(data) > FILE_BYTES:
        raise InspectError(f"{path}: longer than {FILE_BYTES >> 20} MiB; give {wanted}")
    try:
        return parse(data.decode())
    except RecursionError:
        raise InspectError(f"{path}: not {language}: it is nested too deeply; give {wanted}") from None
    except ValueError as e:  # also of decoding, and of numbers with thousands of digits
        raise InspectError(f"{path}: not {language}: {e}; give {wanted}") from None


def writable(text: str) -> str:
    r"""A text as files in UTF-8 can have it: halves of characters, which stand for bytes of names that are no UTF-8,
    are written out.

    >>> print(writable("b\udcff.mlir"))
    b\udcff.mlir
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def toml_text(text: str | Sequence[str | Sequence[str]]) -> str:
    """A text as TOML writes it, in quotes, or a list of such; of what UTF-8 cannot have, what is `writable`.

    >>> toml_text('say "\N{GRINNING FACE}"')
    '"say \\\\"\N{GRINNING FACE}\\\\""'
    """
    # Strings of JSON, but for halves of characters and one control character.
    written = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    return re.sub("[\ud800-\udfff]", lambda half: "\\" + writable(half[0]), written)


def require_writable(path: str, option: str) -> None:
    """InspectError if what `option` names cannot be written: to be known before there is something to write."""
    if os.path.isdir(path):
        why = "is a directory"
    elif not os.path.isdir(os.path.dirname(path) or "."):
        why = "its directory is not there"
    elif not os.access(path if os.path.exists(path) else Path(path).parent, os.W_OK):
        why = "may not be written"
    else:
        return
    raise InspectError(f"{path}: {why}; give {option} a file that can be written")
