"""``python -m meshrt.examples``: the example scripts that come with meshrt, to list, run, read and copy.

    python -m meshrt.examples                      the names, a line on each
    python -m meshrt.examples train_lm --steps 50  runs one; what follows the name belongs to the script
    python -m meshrt.examples --show train_lm      prints its source
    python -m meshrt.examples --copy examples      writes all of them into a new folder

>>> from meshrt import examples
>>> "train_lm" in examples.names()
True
>>> examples.summary("train_lm")
"Trains a byte-level transformer language model on the standard library's own source files."
"""

from __future__ import annotations

import ast
import difflib
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from meshrt.errors import ConfigError, MeshrtError

__all__ = ["copy", "folder", "names", "path", "summary"]

# Beside scripts these folders hold what several of them share, which is no example.
_HELPERS = {"by_hand/compare"}


def folder() -> Path:
    """The folder of the scripts: in a checkout, or in the installed package.

    >>> from meshrt import examples
    >>> (examples.folder() / "train_lm.py").is_file()
    True
    """
    package = Path(__file__).parent
    for found in (package.parent / "examples", package / "_examples"):
        if (found / "train_lm.py").is_file():
            return found
    raise ConfigError(f"the examples are missing beside {package}; install meshrt again")


def names() -> list[str]:
    """The names of all examples, sorted: paths below the folder, without the ending.

    >>> from meshrt import examples
    >>> examples.names()[:2]
    ['by_hand/experts', 'by_hand/halo']
    """
    root = folder()
    found = {p.relative_to(root).with_suffix("").as_posix() for p in root.rglob("*.py")}
    return sorted(found - _HELPERS)


def path(name: str) -> Path:
    """The script of the example `name`, which may be given with its ending or with ``examples/`` in front.

    Raises:
      ConfigError: there is no such example; the message has the nearest names.

    >>> from meshrt import examples
    >>> examples.path("by_hand/halo").name
    'halo.py'
    """
    wanted = name.removeprefix("examples/").removesuffix(".py")
    known = names()
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, 3) or known
        raise ConfigError(f"no example {name!r}; there are: {', '.join(near)}")
    return folder() / f"{wanted}.py"


def summary(name: str) -> str:
    """The first line of the docstring of the example `name`.

    >>> from meshrt import examples
    >>> examples.summary("train_lm")
    "Trains a byte-level transformer language model on the standard library's own source files."
    """
    said = ast.get_docstring(ast.parse(path(name).read_text(encoding="utf-8"))) or ""
    return said.partition("\n")[0]


def copy(target: str | os.PathLike[str]) -> Path:
    """Writes all examples into the folder `target`, which must not exist yet.

    Raises:
      ConfigError: `target` exists or cannot be written.

    >>> import tempfile
    >>> from meshrt import examples
    >>> (examples.copy(tempfile.mkdtemp() + "/examples") / "train_lm.py").is_file()
    True
    """
    try:
        shutil.copytree(folder(), target, ignore=shutil.ignore_patterns("__pycache__"))
    except OSError as e:
        raise ConfigError(f"{target}: cannot be written ({e.strerror}); name a folder that does not exist yet") from e
    return Path(target)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; what the user can put right is one line and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _command(given)
        sys.stdout.flush()
    except MeshrtError as e:
        print(f"meshrt.examples: error: {e}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of the list has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _command(given: list[str]) -> int:
    if not given:
        columns, width = shutil.get_terminal_size().columns, max(map(len, names())) + 2
        for name in names():
            print(textwrap.fill(f"{name:<{width}}{summary(name)}", columns, subsequent_indent=" " * width))
        print("\nTo run one: python -m meshrt.examples NAME [OPTIONS]; to have all: ... --copy DIR")
    elif given[0] in ("-h", "--help"):
        print((__doc__ or "").partition("\n>>>")[0].rstrip())
    elif given[0] in ("--copy", "--show"):
        if len(given) != 2:
            raise ConfigError(f"{given[0]} takes one argument, got {len(given) - 1}")
        if given[0] == "--copy":
            print(f"written to {copy(given[1])}")
        else:
            print(path(given[1]).read_text(encoding="utf-8"), end="")
    elif given[0].startswith("-"):
        raise ConfigError(f"{given[0]}: no such option; there are --help, --copy DIR and --show NAME")
    else:
        # The script takes over this process: scripts set what has to be set before meshrt is imported.
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, str(path(given[0])), *given[1:]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
