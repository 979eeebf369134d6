"""Random manual computations over some or all axes of a mesh, with collectives, branches and loops inside.

The judge is JAX on a mesh of the manual axes alone, over which nothing has to be partitioned: what the other axes do
changes no value. (With them XLA's partitioner puts permutes into branches that some devices skip, and waits for ever.)
"""

from __future__ import annotations

import math
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, shard_map
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import collectives
import propagation

from . import harness
from .jax_side import Case, agree, jax_mesh

MESHES = [{"a": 8}, {"a": 4, "b": 2}, {"a": 2, "b": 2, "c": 2}, {"a": 3, "b": 2}, {"a": 5}]
SIZES = {3: (24, 12, 30), 5: (40, 10)}
LARGEST = 20000


class Body:
    """A few steps drawn once, to be run on meshes with and without the free axes."""

    def __init__(self, rng: random.Random, manual: list[str]):
        self.manual = manual
        self.parted = True  # whether devices may take different branches; the judge computes both and chooses
        kinds = [name for name in dir(self) if name.startswith("step_")]
        self.steps = [(rng.choice(kinds), rng.randrange(1 << 30)) for _ in range(rng.randint(2, 6))]

    def __call__(self, axes: dict[str, int]):
        def run(x):
            for kind, seed in self.steps:
                if x.size > LARGEST:
                    x = x[tuple(slice(0, min(n, 6)) for n in x.shape)]
                rng = random.Random(seed)
                axis, d, e = rng.choice(self.manual), rng.randrange(x.ndim), rng.randrange(x.ndim)
                x = getattr(self, kind)(x, axis, axes[axis], d, e, rng, axes)
            return x

        return run

    def step_sum(self, x, axis, n, d, e, rng, axes):
        return lax.psum(x, axis if rng.random() < 0.7 else tuple(self.manual)) * 0.25

    def step_maximum(self, x, axis, n, d, e, rng, axes):
        return lax.pmax(x, axis)

    def step_gather(self, x, axis, n, d, e, rng, axes):
        return lax.all_gather(x, axis, axis=d, tiled=True)

    def step_scatter(self, x, axis, n, d, e, rng, axes):
        return x if x.shape[d] % n else lax.psum_scatter(x, axis, scatter_dimension=d, tiled=True) * 0.5

    def step_exchange(self, x, axis, n, d, e, rng, axes):
        return x if x.shape[d] % n else lax.all_to_all(x, axis, d, e, tiled=True)

    def step_permute(self, x, axis, n, d, e, rng, axes):
        targets = rng.sample(range(n), n)
        return lax.ppermute(x, axis, [(i, j) for i, j in enumerate(targets) if rng.random() < 0.8])

    def step_place(self, x, axis, n, d, e, rng, axes):
        return x + lax.axis_index(axis).astype(x.dtype)

    def step_flip(self, x, axis, n, d, e, rng, axes):
        return jnp.sin(jnp.flip(x, d))

    def step_roll(self, x, axis, n, d, e, rng, axes):
        return jnp.roll(x, rng.randint(1, 3), d)

    def step_sort(self, x, axis, n, d, e, rng, axes):
        return jnp.sort(x, d)

    def step_total(self, x, axis, n, d, e, rng, axes):
        return jnp.cumsum(x, d) * 0.1

    def step_contract(self, x, axis, n, d, e, rng, axes):
        m = x.shape[d]
        return jnp.tensordot(x, jnp.cos(jnp.arange(m * m, dtype=x.dtype)).reshape(m, m), axes=((d,), (0,))) * 0.2

    def step_constrain(self, x, axis, n, d, e, rng, axes):
        spec: list[str | None] = [None] * x.ndim
        for free in (a for a in axes if a not in self.manual):
            where = rng.randrange(x.ndim)
            spec[where] = spec[where] or free
        if not any(spec):
            return x
        return lax.with_sharding_constraint(x, NamedSharding(jax.sharding.get_abstract_mesh(), P(*spec)))

    def step_branch_by_place(self, x, axis, n, d, e, rng, axes):
        chosen = lax.axis_index(axis) == rng.randrange(n)
        return lax.cond(chosen, lambda y: jnp.flip(y, d) * 2, lambda y: jnp.roll(y, 1, e), x)

    def step_branch_by_data(self, x, axis, n, d, e, rng, axes):
        return lax.cond(jnp.sum(x) > 0.5, lambda y: jnp.flip(y, d) * 2, lambda y: jnp.cumsum(y, e) * 0.3, x)

    def step_branch_that_all_agree_on(self, x, axis, n, d, e, rng, axes):
        swap = lambda y: lax.ppermute(jnp.flip(y, d), axis, [(0, 1), (1, 0)])
        return lax.cond(lax.psum(jnp.sum(x), tuple(self.manual)) > 0.5, swap, lambda y: lax.psum(y, axis), x)

    def step_collectives_by_place(self, x, axis, n, d, e, rng, axes):
        """Branches of some devices, with other collectives among those that take them."""
        other = self.other(axis)
        if other is None:
            return x
        place, steps = rng.randrange(n), self.exchanges(rng, other, axes[other], d, x)
        return self.either(lax.axis_index(axis) == place, *steps, x)

    def step_rounds_by_place(self, x, axis, n, d, e, rng, axes):
        """A loop that devices leave after different numbers of rounds."""
        other = self.other(axis)
        if other is None:
            return x
        once, rounds = self.exchanges(rng, other, axes[other], d, x)[0], lax.axis_index(axis) % 3
        if self.parted:
            more = lambda s: s[0] < rounds
            return lax.while_loop(more, lambda s: (s[0] + 1, once(s[1])), (jnp.int32(0), x))[1]
        for i in range(3):
            x = jnp.where(i < rounds, once(x), x)
        return x

    def step_nested(self, x, axis, n, d, e, rng, axes):
        """A manual computation over a free axis, whose parts are put together again."""
        free = [a for a in axes if a not in self.manual and x.shape[d] % axes[a] == 0]
        work = lambda y: jnp.cumsum(jnp.flip(y, d) * 0.5, e)
        if not free:
            return work(x)
        name = rng.choice(free)
        ends = dict(in_specs=P(*[None] * d, name), out_specs=P(), axis_names={name}, check_vma=False)
        whole = lambda y: work(lax.all_gather(y, name, axis=d, tiled=True))
        return shard_map(whole, mesh=jax.sharding.get_abstract_mesh(), **ends)(x)

    def other(self, axis):
        return next((a for a in self.manual if a != axis), None)

    def exchanges(self, rng, axis, n, d, x):
        """Two ways to exchange something along an axis that keep the shape."""
        targets = rng.sample(range(n), n)
        pairs = [(i, j) for i, j in enumerate(targets) if rng.random() < 0.8]
        found = [
            lambda y: lax.psum(y, axis) * 0.3,
            lambda y: lax.ppermute(jnp.flip(y, d), axis, pairs),
            lambda y: jnp.roll(lax.pmax(y, axis), 1, d),
        ]
        if x.shape[d] % n == 0:
            found.append(lambda y: lax.all_to_all(y, axis, d, d, tiled=True))
        return rng.sample(found, 2)

    def either(self, chosen, first, second, x):
        return lax.cond(chosen, first, second, x) if self.parted else jnp.where(chosen, first(x), second(x))

    def step_ring(self, x, axis, n, d, e, rng, axes):
        ring = [(i, (i + 1) % n) for i in range(n)]
        return lax.fori_loop(0, 3, lambda i, y: lax.ppermute(jnp.flip(y, d), axis, ring) * 0.9, x)

    def step_loop_by_data(self, x, axis, n, d, e, rng, axes):
        return lax.while_loop(lambda y: jnp.max(jnp.abs(y)) > 0.7, lambda y: jnp.flip(y, d) * 0.5, x)


def split(rng: random.Random, shape, axes: dict[str, int], names, dims=None) -> list[list[str]]:
    """Some of the axes `names` added to dimensions that they divide."""
    out = [[] for _ in shape] if dims is None else [list(d) for d in dims]
    for name in names:
        d = rng.randrange(-1, len(shape))
        if d >= 0 and shape[d] % math.prod(axes[a] for a in [*out[d], name]) == 0:
            out[d].append(name)
    return out


def check(seed: int):
    rng = random.Random(seed)
    axes = rng.choice(MESHES)
    names = list(axes)
    manual = sorted(rng.sample(names, rng.randint(1, len(names))), key=names.index)
    sizes = SIZES.get(axes["a"], (16, 8))
    shape = tuple(rng.choice(sizes) for _ in range(rng.randint(2, 3)))
    inside = split(rng, shape, axes, manual)
    outside = split(rng, shape, axes, [a for a in names if a not in manual], inside)
    spec = lambda dims: P(*[tuple(d) or None for d in dims])
    body = Body(rng, manual)
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)

    def mapped(over: dict[str, int]):
        ends = dict(in_specs=spec(inside), out_specs=P(tuple(manual)), axis_names=set(manual), check_vma=False)
        return shard_map(body(over), mesh=jax_mesh(over), **ends)

    body.parted = False
    want = np.asarray(jax.jit(mapped({a: axes[a] for a in manual}))(x))
    body.parted = True
    case = Case(axes, lambda _: mapped(axes), (x,), (spec(outside),))
    result = collectives.partition(propagation.run(case.text))
    (got,), _ = harness.run_partitioned(result, [x], [want.shape])
    agree(got, want, 2e-4)


@pytest.mark.parametrize("seed", range(10))
def test_random_manual_computations(seed):
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 180, 10))
def test_many_random_manual_computations(first):
    for seed in range(first, first + 10):
        check(seed)
