"""Samples do not depend on how they are split: the counter of threefry is an element's place in the whole array."""

import math
import re

import numpy as np
import pytest

import meshrt
import meshrt.random as mr
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

SHAPE = (16, 24)
SAMPLERS = {
    "bits": lambda k: mr.bits(k, SHAPE),
    "bits8": lambda k: mr.bits(k, SHAPE, "uint8"),
    "uniform": lambda k: mr.uniform(k, SHAPE),
    "normal": lambda k: mr.normal(k, SHAPE),
    "truncated_normal": lambda k: mr.truncated_normal(k, -1.0, 2.0, SHAPE),
    "bernoulli": lambda k: mr.bernoulli(k, 0.3, SHAPE),
    "randint": lambda k: mr.randint(k, SHAPE, -5, 900),
    "gumbel": lambda k: mr.gumbel(k, SHAPE),
    "split": lambda k: mr.key_data(mr.split(k, SHAPE)),
    "permutation": lambda k: mr.permutation(k, 384).reshape(SHAPE),
}
LAYOUTS = [
    ((8,), ("x",), P("x")),
    ((4, 2), ("x", "y"), P("x", "y")),
    ((4, 2), ("x", "y"), P(("x", "y"))),
    ((4, 2), ("x", "y"), P(None, ("y", "x"))),
    ((2, 2, 2), ("x", "y", "z"), P(("z", "x"), "y")),
]


@pytest.mark.parametrize("sizes, names, spec", LAYOUTS, ids=lambda v: str(v))
def test_b16_samples_are_those_of_one_device(sizes, names, spec):
    sharding = NamedSharding(meshrt.make_mesh(sizes, names, AxisType.Auto), spec)
    everything = lambda k: {name: sample(k) for name, sample in SAMPLERS.items()}
    split = meshrt.jit(everything, out_shardings=sharding)(mr.key(11))
    whole = meshrt.jit(everything)(mr.key(11))
    for name, one in whole.items():
        assert split[name].sharding.is_equivalent_to(sharding, 2), name
        np.testing.assert_array_equal(np.asarray(split[name]), np.asarray(one), err_msg=name)


@pytest.mark.parametrize("sizes, names, spec", LAYOUTS, ids=lambda v: str(v))
def test_b16_no_device_makes_more_than_its_part_of_the_counter(sizes, names, spec):
    sharding = NamedSharding(meshrt.make_mesh(sizes, names, AxisType.Auto), spec)
    sample = meshrt.jit(lambda k: mr.normal(k, SHAPE), out_shardings=sharding)
    partitioned = sample.trace(mr.key(0)).lower().partition()
    sizes_made = [
        math.prod(map(int, dims[:-1].split("x"))) for dims in re.findall(r"tensor<((?:\d+x)+)", partitioned.as_text())
    ]
    assert max(sizes_made) == math.prod(SHAPE) // 8
    assert not partitioned.plan.entries
