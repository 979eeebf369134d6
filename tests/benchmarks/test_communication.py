"""The communication benchmark: its programs, its counting, and one program and one mesh measured for real."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import scipy.stats

from benchmarks.communication.__main__ import amount, ask, fraction, known_best, mean, rank_correlation, summary
from benchmarks.communication.base import PROGRAMS as REGISTERED
from benchmarks.communication.base import Array, Out
from benchmarks.communication.library import PROGRAMS
from benchmarks.communication.reshards import over_bound, pairs_of, shardings_of
from collectives import plan_reshard
from propagation.model import Mesh


def test_there_are_the_programs_of_every_kind():
    assert PROGRAMS is REGISTERED and len(PROGRAMS) >= 84
    assert sum(p.best is not None for p in PROGRAMS.values()) >= 64


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_well_formed(name):
    import jax

    p = PROGRAMS[name]
    sizes = dict(p.mesh)
    for a in jax.tree.leaves(p.args, is_leaf=lambda a: isinstance(a, Array)):
        for n, axes in zip(a.shape, a.spec):
            names = (axes,) if isinstance(axes, str) else axes or ()
            assert n % math.prod(sizes[x] for x in names) == 0
    assert p.devices == 8 and (p.best is None or p.best >= (p.bound or 0) >= 0)
    is_array, is_out = (lambda a: isinstance(a, Array)), (lambda s: isinstance(s, Out))
    structs = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), p.args, is_leaf=is_array)
    shapes = jax.tree.leaves(jax.eval_shape(p.bind(lambda x, *spec: x), *structs))
    if p.outs is not None:
        outs = jax.tree.leaves(p.outs, is_leaf=is_out)
        assert len(outs) == len(shapes) and all(len(o) <= len(x.shape) for o, x in zip(outs, shapes))


def row(name, ours, xla, best, error=0.0):
    side = lambda sent: {"bytes": sent, "memory": 100, "step_seconds": 1.0 + sent / 100, "collectives": 1}
    return {"name": name, "ours": side(ours), "xla": side(xla), "best": best, "bound": best, "error": error,
            "predicted_seconds": 1e-3 * ours, "predicted_memory": 75 + 0.1 * ours}  # fmt: skip


def test_figures_over_all_programs():
    rows = [row("a", 100, 400, 100), row("b", 50, 100, None), row("c", 0, 0, 0), row("d", 300, 100, 100, error=1.0)]
    found = summary(rows)
    assert (found["programs"], found["must communicate"]) == (4, 3)
    assert found["ours/best bytes"] == pytest.approx(3 ** (1 / 3))
    assert found["XLA/best bytes"] == pytest.approx((4 * 2 * 1) ** (1 / 3))
    assert found["above XLA in bytes"] == found["above 1.1 of best"] == found["wrong"] == ["d"]
    assert found["step time where communication shrank, worst"] == pytest.approx(1.5 / 2)
    assert found["step time, rank correlation of predicted and measured"] == pytest.approx(1.0)
    assert [found[f"memory, predicted within {n} % of the compiler's"] for n in (10, 25)] == [1, 4]
    assert known_best(rows[1]) == 50 and math.isnan(mean([]))
    assert (amount(3.5 * 2**20), amount(None), fraction(0, 0), fraction(1, 0)) == ("3.5M", "-", "=", "inf")


def test_rank_correlation_is_spearmans():
    draw = random.Random(0)
    for length in (3, 10, 40):
        a, b = ([float(draw.randint(0, 9)) for _ in range(length)] for _ in range(2))
        assert rank_correlation(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic)
    assert rank_correlation([1.0, 2.0, 5.0], [9.0, 4.0, 1.0]) == pytest.approx(-1.0)
    assert math.isnan(rank_correlation([1.0], [1.0])) and math.isnan(rank_correlation([1.0, 1.0], [1.0, 2.0]))


def test_one_program_for_real():
    found = ask("measure", "shift by one row", "2")
    assert "failed" not in found, found
    assert found["ours"]["bytes"] == found["best"] == 4096 < found["xla"]["bytes"]
    assert found["error"] == 0 and found["ours"]["kinds"] == {"collective_permute": 1}
    assert 0 < found["predicted_seconds"] < 1
    assert "failed" in ask("measure", "no such program")


def test_pairs_beside_shardys_passes():
    from benchmarks.communication.reshards import shardy

    mesh = Mesh("mesh", (("a", 4), ("b", 2)))
    assert len(shardings_of(mesh, 2)) == 11 and len(pairs_of(mesh, 2, None)) == 110
    pairs = list(itertools.islice(pairs_of(mesh, 2, None), 40))
    plans = [plan_reshard((64, 64), "f32", mesh, *pair) for pair in pairs]
    sent = shardy(mesh, (64, 64), pairs)
    assert all(p.bytes <= b + 1e-9 for p, b in zip(plans, sent))
    assert over_bound(plans, [p.bytes for p in plans])["geometric mean"] == 1.0
