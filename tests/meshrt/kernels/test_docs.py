"""The examples of docs/kernels.md and of the docstrings run as they stand."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "kernels.md"
ROOM = "meshrt.experimental.kernels."
MODULES = [
    "call", "cores", "facts", "helpers", "memory", "params", "simulator.params", "specs", "values",
]  # fmt: skip


def test_the_page():
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    exec("\n".join(blocks), names)  # the page is ours
    np.testing.assert_array_equal(names["doubled"], np.full((16, 16), 48.0))
    assert "scratch 0" in str(names["found"])


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    result = doctest.testmod(importlib.import_module(ROOM + name))
    assert result.attempted and not result.failed
