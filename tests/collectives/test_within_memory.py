"""A limit on memory changes what is decided; the compiled program's own memory analysis judges what it holds."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation
from collectives import errors
from collectives.alternatives import _Contest
from collectives.options import Options
from meshrt.runtime.memory_stats import memory_stats_of
from meshrt.xla import jaxlib_api

from .generator import random_program
from .jax_side import Case, check

MESH = {"a": 2, "b": 4}


def normal(*shape, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.1).astype(np.float32)


def layer(constrain):
    return lambda x, up, down: jnp.tanh(x @ up) @ down


def attention(constrain):
    def run(x, q, k):
        scores = jax.nn.softmax(jnp.einsum("bsd,btd->bst", x @ q, x @ k))
        return jnp.einsum("bst,btd->bsd", scores, x)

    return run


def accumulated(constrain):
    """Gradients of parameters that are split, over microbatches."""

    def run(up, down, x):
        loss = lambda w, x: jnp.mean((jnp.tanh(x @ w[0]) @ w[1] - x) ** 2)
        add = lambda total, x: (jax.tree.map(jnp.add, total, jax.grad(loss)((up, down), x)), None)
        zeros = (jnp.zeros_like(up), jnp.zeros_like(down))
        return jax.lax.scan(add, zeros, x.reshape(4, -1, x.shape[1]))[0]

    return run


def compiled_bytes(partitioned, devices: int) -> int:
    """What the compiler says that a device holds."""
    chosen = jax.devices("cpu")[:devices]
    options = jaxlib_api.compile_options(chosen)
    return memory_stats_of(jaxlib_api.compile_and_load(partitioned.as_text(), chosen, options)).device_size_in_bytes


PROGRAMS = {
    "a hidden layer": (layer, [normal(256, 64), normal(64, 4096), normal(4096, 64, seed=1)], 2_800_000),
    "attention scores": (attention, [normal(4, 256, 32), normal(32, 32), normal(32, 32, seed=1)], 400_000),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_large_is_split_over_axes_that_it_does_not_use(name):
    build, args, limit = PROGRAMS[name]
    case = Case(MESH, build, args, (P("a"), P(), P()), P("a"))
    free, sent = check(case)
    assert (sent, free.plan.counts) == (0, {})
    assert compiled_bytes(free, 8) > limit
    bound, _ = check(case, above_xla=True, memory=limit)
    assert compiled_bytes(bound, 8) <= limit
    assert not bound.findings
    (taken,) = [row for row in bound.plan.alternatives if row.taken]
    assert "split over b along" in taken.what and "test_within_memory.py" in taken.what


def test_accumulators_stay_split():
    split = (P("x"), P(None, "x"))
    case = Case({"x": 8}, accumulated, [normal(64, 512), normal(512, 64), normal(4096, 64)], (*split, P("x")), split)
    free, _ = check(case)
    limit = compiled_bytes(free, 8) * 9 // 10
    bound, _ = check(case, above_xla=True, memory=limit)
    assert compiled_bytes(bound, 8) <= limit
    times = lambda made: [e.times for e in made.plan if e.kind == "reduce_scatter"]
    assert (times(free), times(bound)) == ([1, 1], [4, 4])


def test_a_limit_that_is_kept_changes_nothing():
    build, args, _ = PROGRAMS["a hidden layer"]
    case = Case(MESH, build, args, (P("a"), P(), P()), P("a"))
    program = propagation.run(case.text)
    free, loose = collectives.partition(program), collectives.partition(program, memory=5_000_000)
    assert loose.as_text() == free.as_text() and loose.plan.alternatives == free.plan.alternatives


def test_operations_that_nothing_needs_do_not_hide_what_is_to_be_split():
    """Propagation removes them, so that the large product has another number in the module as it came."""
    build, args, limit = PROGRAMS["a hidden layer"]
    text = Case(MESH, build, args, (P("a"), P(), P()), P("a")).text
    dead = "%d = stablehlo.exponential %arg0 : tensor<256x64xf32>\n%e = stablehlo.tanh %d : tensor<256x64xf32>\n"
    place = text.index("{\n", text.index("@main")) + 2
    bound = collectives.partition(propagation.run(text[:place] + dead + text[place:]), memory=limit)
    assert not bound.findings and bound.memory.peak <= limit


def test_what_does_not_fit_either_way_is_a_finding():
    build, args, _ = PROGRAMS["a hidden layer"]
    case = Case(MESH, build, args, (P("a"), P(), P()), P("a"))
    made = collectives.partition(propagation.run(case.text), memory=2_600_000)
    (finding,) = made.findings
    assert finding.kind == "memory" and finding.bytes == made.memory.peak > 2_600_000
    wanted = r"estimated to hold 2.57 MiB at once and may use 2.48 MiB; the largest are tensor<64x4096xf32> 1 MiB of "
    assert re.search(wanted + r"argument 1; .*test_within_memory.py:\d+\. Split them over more axes", finding.message)
    assert "test_within_memory.py" in str(finding.where)
    least = min(row.peak for row in made.plan.alternatives)
    assert made.memory.peak == least


def program(peak: float, refused: bool) -> Any:
    """What is compared of a program that is estimated to hold more than a device may use."""
    plan = SimpleNamespace(price=lambda message: 0.0, bytes=0.0, seconds=None)
    error = errors.DeviceMemoryError("too large") if refused else None
    return SimpleNamespace(plan=plan, memory=SimpleNamespace(peak=peak), refused=error, exceeds_memory=True)


@pytest.mark.parametrize(
    ("best", "other", "taken"),
    [
        ((10.0, False), (5.0, False), True), ((10.0, False), (9.9, False), False), ((10.0, True), (5.0, True), True),
        ((10.0, False), (5.0, True), False), ((10.0, True), (12.0, False), True),
    ],
)  # fmt: skip
def test_what_may_fit_is_preferred_to_what_certainly_does_not(best, other, taken):
    """Else a program that holds less, but has one operation that does not fit, would make an error of a finding."""
    contest = _Contest(cast(Any, None), None, Options(), program(*best))
    assert contest._is_better(program(*other)) == (taken, other[0])


def test_what_certainly_does_not_fit_is_split_before_it_is_an_error():
    """A product that another one reads is in memory whatever a compiler fuses."""
    chain = lambda constrain: lambda x: (x @ x.T) @ x
    case = Case({"x": 8}, chain, [normal(1024, 64)], (P(),), P())
    made, _ = check(case, above_xla=True, rtol=1e-4, memory=3 << 20)
    assert compiled_bytes(made, 8) <= 3 << 20
    with pytest.raises(errors.DeviceMemoryError, match=r"argument 0 .* 256 KiB"):
        collectives.partition(propagation.run(case.text), memory=300 << 10)
    with pytest.raises(errors.DeviceMemoryError, match="dot_general reads"):
        collectives.partition(propagation.run(case.text), memory=3 << 20, reorder=False)


@pytest.mark.parametrize("seed", [1140, 1310, 1311, 1320])
def test_nothing_is_held_for_later_users_where_memory_is_short(seed):
    """What is held for them is not for free: with less memory the program is one that does without."""
    axes, build, args, specs = random_program(seed)
    case = Case(axes, build, args, specs)
    free = collectives.partition(propagation.run(case.text))
    least = collectives.partition(propagation.run(case.text), memory_growth=0.0).memory.peak
    assert least < free.memory.peak
    made, _ = check(case, rtol=1e-4, above_xla=True, memory=int(least))
    assert made.memory.peak <= least and not [f for f in made.findings if f.kind == "memory"]
