"""The examples of docs/checkpoint.md and of the docstrings run as they stand."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import meshrt

PAGE = Path(__file__).resolve().parents[3] / "docs" / "checkpoint.md"


def test_the_page():
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict = {}
    exec("\n".join(blocks), names)  # the page is ours
    for found in "abcdef":
        np.testing.assert_array_equal(names[found]["w"], np.ones((8, 4)))
    assert names["c"]["w"].sharding.spec == names["P"]("model") and names["best"].path.name == "step_00000040"


@pytest.mark.parametrize("name", ["functions", "manager", "grid"])
def test_docstrings(name):
    module = importlib.import_module(f"meshrt.checkpoint.{name}")
    found = doctest.testmod(module, extraglobs={"meshrt": meshrt})
    assert found.attempted and not found.failed
