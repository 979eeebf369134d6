"""Paths as whoever reads a report knows them: relative to the working directory where they lie in it, so that a report
is the same in every checkout."""

from __future__ import annotations

import os
import re
from typing import Any

__all__ = ["relative"]


def relative(value: Any, folder: str | None = None) -> Any:
    """JSON values with all paths in `folder` (default: the working directory) relative to it, within sentences too;
    the texts of source files (`sources`) stay as they are.

    >>> relative({"where": "/home/me/train.py:7", "lines": ["of /home/me/lib/a.py:1 and /home/you/b.py:2"]}, "/home/me")
    {'where': 'train.py:7', 'lines': ['of lib/a.py:1 and /home/you/b.py:2']}
    """
    prefix = os.path.join(os.getcwd() if folder is None else folder, "")
    inside = re.compile(rf"(?<![\w./~-]){re.escape(prefix)}(?=[^/\s])")
    if prefix == os.sep:  # every path lies in it
        return value

    def walk(found: Any) -> Any:
        if isinstance(found, str):
            return inside.sub("", found) if prefix in found else found
        if isinstance(found, dict):
            return {key: sources(each) if key == "sources" else walk(each) for key, each in found.items()}
        if isinstance(found, list | tuple) and found and not isinstance(found[0], int | float):
            return type(found)(map(walk, found))
        return found

    def sources(rows: Any) -> Any:
        return [{**row, "path": walk(row["path"])} for row in rows]

    return walk(value)
