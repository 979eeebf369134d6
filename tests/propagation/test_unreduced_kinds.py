"""Partial values that combine by a maximum or minimum: `unreduced=max{"x"}`, in the dialect since jaxlib 0.11."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

import collectives
import propagation
from propagation.annotations import parse_sharding
from propagation.errors import UnsupportedModuleError
from propagation.fuzz import Oracle
from propagation.fuzz.compare import VERSION
from propagation.model import Mesh, TensorSharding

from . import feature_cases
from .test_stages import normal

MESH = Mesh("mesh", (("a", 2), ("b", 4)))
T = "tensor<8x16xf32>"
since_0_11 = pytest.mark.skipif(VERSION == "0.10", reason="the dialect of jaxlib 0.10 has sums only")


def between(argument: str, result: str) -> str:
    return (
        f"{feature_cases.MESHES}func.func @main(%x: {T} {{sdy.sharding = #sdy.sharding<@mesh, {argument}>}}) -> "
        f"({T} {{sdy.sharding = #sdy.sharding<@mesh, {result}>}}) {{\n  return %x : {T} }}"
    )


PARTIAL = '[{"a"}, {}], unreduced={"b"}'
CASES = {
    "from partial": between(PARTIAL, '[{"a"}, {"b"}]'),
    "to partial": between('[{"a"}, {}]', PARTIAL),
    "split to partial": between('[{"a"}, {"b"}]', PARTIAL),
    "pointwise": feature_cases.module("unreduced axes"),
    **{f.stem: f.read_text() for f in sorted((Path(__file__).parent / "cases").glob("unreduced*.mlir"))},
}


def of_kind(kind: str, text: str) -> str:
    return text.replace("unreduced={", f"unreduced={kind}{{")


@pytest.mark.parametrize("kind", ["max", "min"])
def test_read_kept_and_written(kind):
    text = f'#sdy.sharding<@mesh, [{{"a"}}, {{?}}p1], replicated={{"b":(1)2}}, unreduced={kind}{{"b":(2)2}}>'
    sharding = parse_sharding(text, {"mesh": MESH})
    assert sharding.reduction == kind and sharding.to_text() == text
    assert sharding.with_dims(sharding.dims) is sharding
    assert sharding.closed().to_text() == f'#sdy.sharding<@mesh, [{{"a"}}, {{}}], unreduced={kind}{{"b":(2)2}}>'
    assert pickle.loads(pickle.dumps(sharding)) is sharding
    sums = parse_sharding(text.replace(f"={kind}", "=sum"), {"mesh": MESH})
    assert sums.reduction == "sum" and sums is not sharding and "unreduced={" in sums.to_text()
    whole = TensorSharding(MESH, sharding.dims, reduction=kind)
    assert whole.reduction == "sum" and whole is TensorSharding(MESH, sharding.dims)


@since_0_11
@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("stage", [s for s in propagation.STAGES if s not in ("inlined", "insert_reshards")])
def test_every_stage(stage, kind):
    compared = 0
    with Oracle() as oracle:
        for name, case in CASES.items():
            text = of_kind(kind, case)
            ours = propagation.run(text, stage, version=VERSION, chlo=False, shardy_faults=True).as_text()
            assert "unreduced={" not in ours and (f"unreduced={kind}" in ours or stage == "pipeline")
            theirs = oracle(stage, text)
            if theirs is None or theirs.startswith("ERROR"):
                assert stage == "pipeline", name  # which refuses modules that drop unreduced axes
                continue
            assert normal(ours) == normal(theirs), name
            compared += 1
    assert compared == len(CASES) or (stage == "pipeline" and compared > 1)


@since_0_11
@pytest.mark.parametrize("kind", ["max", "min"])
def test_explicit_reshards(kind):
    """A maximum is left to be taken with an all-reduce that takes maxima."""
    passes = "sdy-insert-explicit-reshards{enable-full-version=true}"
    taken = 0
    with Oracle() as oracle:
        for name, case in CASES.items():
            closed = oracle("closed", of_kind(kind, case))
            ours = propagation.run(closed, "insert_reshards", version=VERSION, chlo=False, shardy_faults=True).as_text()
            assert ours.strip() == oracle(passes, closed).strip(), name
            taken += len(re.findall(rf"sdy\.all_reduce.*{kind}", ours))
    assert taken > 1


@since_0_11
def test_the_partitioner_refuses_them():
    text = of_kind("max", between(PARTIAL, '[{"a"}, {}]'))
    for module in (text, propagation.run(text)):
        with pytest.raises(UnsupportedModuleError, match="over b leaves its max to be taken; only sums"):
            collectives.partition(module)
