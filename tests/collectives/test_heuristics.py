"""Thresholds stand in one file, each with its meaning, its unit and where it comes from."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from collectives import heuristics

ROOM = Path(heuristics.__file__).parent
# What follows from a number format is no threshold: what is far from overflow in f32, how many codes fit into 16 bits.
FORMATS = {"value_ranges.py": {"LARGEST", "LARGEST_HALF", "SMALLEST"}, "common_factors.py": {"CODED_DEVICES"}}
FILES = sorted(p for p in ROOM.rglob("*.py") if p.name != "heuristics.py")


def _is_number(node: ast.expr) -> bool:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        # An expression of numbers, as 1 << 20.
        return isinstance(node, ast.BinOp) and _is_number(node.left) and _is_number(node.right)
    return isinstance(value, int | float) and not isinstance(value, bool)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOM)))
def test_no_threshold_stands_elsewhere(path):
    found = [
        target.id
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _is_number(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id not in FORMATS.get(path.name, ())
    ]
    assert not found, f"{path.name}: {found} belong to collectives/heuristics.py"


def test_each_says_where_it_comes_from():
    """In the comment in front of it, or for all of a section below its title."""
    section, comment, described, named = "", "", 0, False
    for line in (ROOM / "heuristics.py").read_text().splitlines():
        if line.startswith("# -- "):
            section, comment = "", ""
        elif line.startswith("#"):
            comment += line[1:]
        elif re.match(r"[A-Z][A-Z0-9_, ]* ?[:=]", line):
            text = section + comment
            assert re.search(r"[Cc]hosen|[Mm]easured|[Dd]erived|Hardware's figure", text), f"{line}: nobody knows why"
            described, named = described + 1, True
        elif not line:
            section, comment, named = section + ("" if named else comment), "", False
    assert described > 60
