"""Where arrays lie in tiles, a kernel's gradient is computed before that of what the kernel was laid over."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from collectives.topology import load
from propagation.model import Mesh

from ..jax_side import Case, check

SHAPES = [(2, 32, 16, 8), (3, 3, 8, 8), (2, 32, 16, 8)]
X, W, CT = (np.random.default_rng(i).standard_normal(s).astype("float32") for i, s in enumerate(SHAPES))


def backward(x, w, ct):
    f = lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.vjp(f, x, w)[1](ct)


@pytest.mark.parametrize("turned", [False, True])
def test_the_summed_gradient_comes_first(turned):
    f = (lambda x, w, ct: backward(x, w, ct)[::-1]) if turned else backward
    rows = P(None, "x")
    outs = (P(), rows) if turned else (rows, P())
    case = Case({"x": 8}, lambda constrain: f, (X, W, CT), (rows, P(), rows), outs)
    placed = load("v5e:2x4").on(Mesh("mesh", (("x", 8),)))
    result, _ = check(case, topology=placed)
    lines = result.as_text().splitlines()
    convolutions = [re.match(r"(%\d+) =", line)[1] for line in lines if '"stablehlo.convolution"' in line]
    (barrier,) = [line for line in lines if "optimization_barrier" in line]
    assert len(convolutions) == 2 and re.search(rf"{convolutions[0]}\)", barrier)
    plain, _ = check(case)
    assert "optimization_barrier" not in plain.as_text()
