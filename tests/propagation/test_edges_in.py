"""Modules that carry `sdy.data_flow_edge` and `sdy.func_data_flow_edge` already, as Shardy's own passes leave them."""

from __future__ import annotations

import pytest

import propagation
from propagation.errors import UnsupportedModuleError
from propagation.fuzz import generator
from propagation.fuzz.compare import VERSION
from propagation.fuzz.oracle import Oracle
from propagation.pipeline import ALONE

from . import feature_cases
from .test_stages import normal

# Stages of the oracle that leave edges. In the last one functions are inlined as named computations.
LEAVE_EDGES = [
    "sdy-add-data-flow-edges",
    "sdy-add-data-flow-edges\nsdy-add-func-data-flow-edges",
    "import",
    "dedup-import",
    "prepared",
]
SINK = "sdy-sink-data-flow-edges\nsdy-sink-func-data-flow-edges"
ON_THE_MODULE = (*ALONE, "rules")  # what Shardy runs on a module with edges; its importer refuses one


def expected(oracle: Oracle, stage: str, text: str) -> str | None:
    """What Shardy makes of the module; where it begins with the import, of the module without its edges."""
    sunk = text if stage in ON_THE_MODULE else oracle(SINK, text)
    found = None if sunk is None or sunk.startswith("ERROR") else oracle(stage, sunk)
    return None if found is None or found.startswith("ERROR") or "mesh<[" in found else found


def check(modules: list[str], leave_edges: str, stages) -> int:
    """The number of comparisons; each must agree, and none of our stages may fail."""
    compared = 0
    with Oracle() as oracle:
        for module in modules:
            text = oracle(leave_edges, module)
            if text is None or text.startswith("ERROR") or "data_flow_edge" not in text:
                continue
            for stage in stages:
                ours = propagation.run(text, stage, version=VERSION, chlo=False, shardy_faults=True)
                is_inlined = leave_edges == "prepared" and stage not in ON_THE_MODULE
                theirs = None if is_inlined or ours.log.stale_priorities else expected(oracle, stage, text)
                own = normal(ours.as_text())
                if theirs is not None:
                    assert own == normal(theirs), (stage, text)
                    compared += 1
    return compared


FEATURES = [feature_cases.module(name) for name in feature_cases.CASES]


@pytest.mark.parametrize("leave_edges", LEAVE_EDGES)
def test_every_stage(leave_edges):
    least = 15 if leave_edges == "prepared" else 40
    assert check([*FEATURES, *map(generator.module, range(12))], leave_edges, propagation.STAGES[:-1]) > least


def test_explicit_reshards_beside_edges():
    passes = "sdy-insert-explicit-reshards{enable-full-version=true}"
    compared = 0
    with Oracle() as oracle:
        for text in FEATURES:
            edges = oracle("import", text)
            theirs = None if edges is None or edges.startswith("ERROR") else oracle(passes, edges)
            if theirs is None or theirs.startswith("ERROR") or "data_flow_edge" not in edges:
                continue
            ours = propagation.run(edges, "insert_reshards", version=VERSION, chlo=False, shardy_faults=True)
            assert ours.as_text().strip() == theirs.strip()
            compared += 1
    assert compared > 2


@pytest.mark.slow
@pytest.mark.parametrize("leave_edges", LEAVE_EDGES)
def test_more_modules(leave_edges):
    assert check([generator.module(s) for s in range(12, 130)], leave_edges, propagation.STAGES[:-1]) > 300


def test_edges_are_found_anew():
    """What was decided from a module with edges is what is decided from the module itself."""
    for name in ("data flow", "partial manual computation", "nested manual computations"):
        text = feature_cases.module(name)
        imported = propagation.run(text, "import").as_text()
        assert "sdy.data_flow_edge" in imported
        assert propagation.run(imported, "import").as_text() == imported
        assert propagation.run(imported).as_text() == propagation.run(text).as_text()


DANGLING = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
  %0 = stablehlo.negate %x : tensor<8xf32>
  %1 = sdy.data_flow_edge %0 : tensor<8xf32>
  return %1 : tensor<8xf32> }
"""


@pytest.mark.parametrize("stage", [*ALONE, "import", "closed"])
def test_an_edge_that_stands_for_nothing(stage):
    with pytest.raises(UnsupportedModuleError, match=r"sdy\.data_flow_edge stands for a value that flows"):
        propagation.run(DANGLING, stage)
