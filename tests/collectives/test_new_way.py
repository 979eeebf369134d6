"""Another way to do an operation is one file: that of ARCHITECTURE.md, word for word."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from collectives.walk import families

from .jax_side import Case, check

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def merging(tmp_path, monkeypatch):
    """Adds the file of the page to those that are asked."""
    (source,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "ARCHITECTURE.md").read_text(), re.DOTALL | re.MULTILINE)
    path = tmp_path / "sort_by_merging.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("collectives.ops.sort_by_merging", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rules = families.joined_rules([*families._families(), module])
    monkeypatch.setattr("collectives.walk.walk.rules", lambda: rules)


@pytest.mark.parametrize("axes", [{"x": 8}, {"a": 2, "b": 4}])
def test_the_way_is_taken_where_it_sends_less(merging, axes):
    x = np.random.default_rng(0).integers(0, 1000, (3, 720)).astype(np.int32)
    spec = P(None, tuple(axes))
    result, sent = check(Case(axes, lambda constrain: jnp.sort, (x,), (spec,), spec), rtol=0)
    assert sent == 3 * 6 * 90 * 4  # columnsort needs longer pieces, and gathering all sends 3 * 7 * 90 * 4
    assert "merged" in result.plan.as_text()
    (decided,) = [row for row in result.plan.decisions if row.op.name == "stablehlo.sort"]
    assert len(decided.ways) == 2  # whole rows, and this one


def test_the_family_keeps_what_it_does_better(merging):
    x = np.random.default_rng(0).integers(0, 1000, 1600).astype(np.int32)
    result, _ = check(Case({"x": 8}, lambda constrain: jnp.sort, (x,), (P("x"),), P("x")), rtol=0)
    assert "columnsort" in result.plan.as_text()


def file_with(**exports) -> ModuleType:
    module = ModuleType("some")
    vars(module).update(exports)
    return module


def test_a_rule_that_decides_for_itself_has_no_others_beside_it():
    rule = lambda ctx, op: None
    for beside in ({"PARTITION": {"stablehlo.sort": rule}}, {"CANDIDATES": {"stablehlo.sort": rule}}):
        with pytest.raises(RuntimeError, match=r"stablehlo\.sort has"):
            families.joined_rules([file_with(PARTITION={"stablehlo.sort": rule}), file_with(**beside)])
