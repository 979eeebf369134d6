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


def _calls(text):
    """The calls that a StableHLO program writes, each with whether compilers keep it."""
    return ['inlineable = "false"' in line for line in text.splitlines() if re.search(r"\bcall @threefry", line)]


def test_b16_samplers_are_calls_that_a_cpu_keeps():
    text = meshrt.jit(lambda k: [mr.normal(s, SHAPE) for s in mr.split(k, 3)]).lower(mr.key(0)).as_text()
    assert _calls(text) == [True] * 4 and text.count("func.func private") == 2
    large = meshrt.jit(lambda k: mr.bits(mr.split(k)[0], (2048, 1024))).lower(mr.key(0)).as_text()
    assert _calls(large) == [True, False]


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_b16_calls_are_kept_and_send_nothing_where_samples_are_split(axis_type):
    mesh = meshrt.make_mesh((4, 2), ("x", "y"), (axis_type,) * 2)
    specs = [P("x", "y"), P("y", "x"), P("x", "y")]
    split = lambda k: [
        meshrt.lax.with_sharding_constraint(mr.normal(s, SHAPE), NamedSharding(mesh, spec))
        if axis_type is AxisType.Auto
        else mr.normal(s, SHAPE, out_sharding=NamedSharding(mesh, spec))
        for s, spec in zip(mr.split(k, 3), specs)
    ]
    program = meshrt.jit(split)
    with meshrt.set_mesh(mesh):
        partitioned, drawn = program.trace(mr.key(0)).lower().partition(), program(mr.key(0))
    text = partitioned.as_text()
    assert not partitioned.plan.entries
    assert all(_calls(text)) and len(_calls(text)) == 4
    sizes = [math.prod(map(int, dims[:-1].split("x"))) for dims in re.findall(r"tensor<((?:\d+x)+)", text)]
    assert max(sizes) == math.prod(SHAPE) // 8
    for x, key, spec in zip(drawn, mr.split(mr.key(0), 3), specs):
        assert x.sharding.spec == spec
        np.testing.assert_array_equal(np.asarray(x), np.asarray(mr.normal(key, SHAPE)))


def test_b16_samples_of_split_keys_send_nothing():
    mesh = meshrt.make_mesh((8,), ("x",), AxisType.Explicit)
    keys = mr.split(mr.key(0), 8)
    split = meshrt.device_put(keys, NamedSharding(mesh, P("x")))
    draw = lambda k: (mr.normal(k, (4,)), mr.permutation(k, 5))
    with meshrt.set_mesh(mesh):
        by_device = meshrt.shard_map(lambda ks: mr.normal(ks[0], (4,))[None], in_specs=P("x"), out_specs=P("x"))
        programs = [meshrt.jit(meshrt.vmap(draw)), meshrt.jit(by_device)]
        for program in programs:
            assert not program.trace(split).lower().partition().plan.entries
        (mapped, _), mine = (program(split) for program in programs)
    expected = np.asarray([np.asarray(mr.normal(k, (4,))) for k in keys])
    np.testing.assert_array_equal(np.asarray(mapped), expected)
    np.testing.assert_array_equal(np.asarray(mine), expected)
