"""Where compilers number instructions from the results, sums taken together are listed as the results need them."""

from __future__ import annotations

import re

import numpy as np
from jax.sharding import PartitionSpec as P

from collectives.topology import load
from propagation.model import Mesh

from ..jax_side import Case, check

A, B = (np.random.default_rng(i).standard_normal(s).astype("float32") for i, s in enumerate([(64, 6), (64, 10)]))


def test_sums_are_listed_as_the_results_need_them():
    def build(constrain):
        def f(a, b):
            first, second = a.sum(0), b.sum(0)
            return constrain(second, None), constrain(first, None) * constrain(second, None)[:6]

        return f

    case = Case({"x": 8}, build, (A, B), (P("x"), P("x")), (P(), P()))
    placed = load("v5e:2x4").on(Mesh("mesh", (("x", 8),)))
    result, _ = check(case, topology=placed)
    (types,) = re.findall(r'"stablehlo.all_reduce".*?\}\) : \((.*?)\) ->', result.as_text(), re.S)
    assert types == "tensor<10xf32>, tensor<6xf32>"
    plain, _ = check(case)
    assert len(plain.plan.counts) == 1
