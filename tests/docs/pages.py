"""What the pages of docs/ say that can be run: snippets of Python, commands, files.

A snippet is a fenced block. What precedes it in an HTML comment, which readers don't see, says how it is run:

    <!-- before            Python that runs before the next block: imports, small stand-ins for the reader's own
    import meshrt
    -->
    <!-- file: train.py    a file that commands of the page read, also in front of a visible block
    ...
    -->
    <!-- commands before   commands that run before the next block of commands
    ...
    -->
    <!-- not run: why -->  the next block cannot run here

and anywhere on a page, `<!-- own process: why -->` asks that its Python runs in a process of its own.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md"))
SHOWN = {"text", "mlir"}  # what programs print: nothing to run
_TOKEN = re.compile(r"^<!-- ?(?P<comment>.*?)-->$|^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass
class Block:
    """One fenced block of a page."""

    page: Path
    line: int  # of its first line of code
    language: str
    code: str
    before: list[tuple[int, str]] = field(default_factory=list)  # (line, hidden Python or commands)
    not_run: str | None = None

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[list[str]]:
        """The commands of a console block, without comments; a line that ends in a backslash goes on."""
        lines = self.code.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line.removeprefix("$ "), comments=True))]


@dataclass
class Page:
    """A page: its blocks in order, the files that its commands read, and whether its Python needs a process."""

    path: Path
    blocks: list[Block]
    files: dict[str, str]
    own_process: bool

    def source(self) -> str:
        """All of its Python as one script whose line numbers are those of the page."""
        lines: list[str] = []
        for block in self.blocks:
            if block.language == "python":
                parts = block.before + ([] if block.not_run else [(block.line, block.code)])
                for line, code in parts:
                    lines += [""] * (line - 1 - len(lines)) + code.splitlines()
        return "\n".join(lines) + "\n"


def read(path: Path) -> Page:
    """The page at `path`."""
    text = path.read_text()
    blocks: list[Block] = []
    files: dict[str, str] = {}
    before: list[tuple[int, str]] = []
    not_run, named, own_process = None, None, False
    for match in _TOKEN.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        if (comment := match["comment"]) is None:
            blocks.append(Block(path, line, match["language"], match["code"], before, not_run))
            if named is not None:
                files[named] = match["code"]
            before, not_run, named = [], None, None
            continue
        head, _, rest = comment.partition("\n")
        kind, _, value = (part.strip() for part in head.partition(":"))
        if kind in ("before", "commands before"):
            before.append((line, rest))
        elif kind == "file" and rest:
            files[value] = rest
        elif kind == "file":
            named = value
        elif kind == "not run":
            not_run = value
        elif kind == "own process":
            own_process = True
    return Page(path, blocks, files, own_process)
