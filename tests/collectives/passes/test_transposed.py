"""All-reduces are taken of what is transposed already, where arrays lie in tiles."""

from __future__ import annotations

import re

import numpy as np
from jax.sharding import PartitionSpec as P

import collectives
import propagation

from ..jax_side import Case, check

A, B = (np.random.default_rng(i).standard_normal(s).astype("float32") for i, s in enumerate([(64, 6), (64, 10)]))
ROWS = P("x", None)


def test_a_contraction_is_transposed_before_it_is_summed():
    def build(constrain):
        def f(a, b):
            product = constrain((a.T @ b).T, None, None)
            return product * 2, product + 1

        return f

    case = Case({"x": 8}, build, (A, B), (ROWS, ROWS), (P(), P()))
    check(case)
    for topology, first in (("v5e:2x4", True), (None, False)):
        result = collectives.partition(propagation.run(case.text), topology=topology)
        (entry,) = result.plan
        assert entry.kind == "all_reduce" and entry.bytes == 2 * 7 / 8 * 60 * 4
        transposed = re.findall(r'(%\d+) = "stablehlo.transpose"\(.*-> tensor<10x6xf32>', result.as_text())
        (summed,) = re.findall(r'"stablehlo.all_reduce"\((%\d+)\)', result.as_text())
        assert (summed in transposed) == first


def test_sums_with_other_users_stay():
    def build(constrain):
        def f(a, b):
            product = constrain(a.T @ b, None, None)
            return product * 2, product.T

        return f

    result, _ = check(Case({"x": 8}, build, (A, B), (ROWS, ROWS), (P(), P())))
    (summed,) = re.findall(r'"stablehlo.all_reduce"\((%\d+)\)', result.as_text())
    assert f'{summed} = "stablehlo.dot_general"' in result.as_text()
