"""Ways to do an operation: weighed before anything is written, the cheapest taken, the others named and priced."""

from __future__ import annotations

import contextlib
import gc
import json
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation
from collectives.decide import choosing
from collectives.decide.candidate import Candidate
from collectives.errors import InputError
from collectives.layouts.state import State
from collectives.plan.communication import CommunicationPlan
from collectives.walk import families, walk
from propagation.gc_pause import collector_paused

from .generator import random_program
from .jax_side import Case

PAGE = Path(__file__).parents[2] / "docs" / "collectives.md"


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def layers(constrain):
    def run(x, w, v):
        h = jnp.tanh(x @ w)
        return (h @ v).T.reshape(-1) + jnp.sum(h)

    return run


def recurrent(constrain):
    def run(x, w):
        step = lambda h, row: (jnp.tanh((h @ w).T.T + row), jnp.sum(h))
        return jax.lax.scan(step, jnp.zeros(x[:, 0].shape), x.swapaxes(0, 1))

    return run


LAYERS = Case({"x": 8}, layers, (normal(16, 64), normal(64, 128), normal(128, 8)), (P(), P(None, "x"), P("x")), P("x"))
RECURRENT = Case({"x": 8}, recurrent, (normal(8, 16, 24), normal(24, 24)), (P("x"), P(None, "x")))


def planned(case, **options):
    return collectives.partition(propagation.run(case.text), **options).plan


def test_the_way_that_is_taken_is_the_cheapest_of_those_weighed():
    found = [row for case in (LAYERS, RECURRENT) for row in planned(case).decisions]
    assert found
    for op, taken, ways in found:
        assert len(ways) > 1 and ways[taken].later is not None, op
        assert all(way.cost > ways[taken].cost - 1e-3 for way in ways), op


def test_what_is_known_of_an_operation_is_not_taken_for_one_with_other_sizes():
    """Two convolutions whose split loops are alike, and whose windows are not, differ in the work that devices do."""

    def two(constrain):
        numbers = ("NHWC", "HWIO", "NHWC")
        conv = lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)
        return lambda x, v, w: (conv(x, v), conv(x, w))

    args = normal(16, 32, 32, 8), normal(1, 1, 8, 8), normal(5, 5, 8, 8)
    rows = planned(Case({"x": 8}, two, args, (P(), P(), P()), (P("x"), P("x")))).decisions
    small, large = [row for row in rows if row.op.name == "stablehlo.convolution"]
    assert large.ways[large.taken].now > 20 * small.ways[small.taken].now > 0


def test_a_line_and_a_value_are_explained_by_what_each_way_would_have_cost():
    plan = planned(LAYERS)
    row = next(row for row in plan.decisions if row.op.name == "stablehlo.dot_general")
    by_value = plan.explain(row.op.results[0])
    head, taken, *others = str(by_value).splitlines()
    where = re.match(r"(.*): stablehlo.dot_general -> 16x8xf32$", head)
    assert where and others
    assert re.match(
        r"  taken: f32\[16,128@x\], f32\[128@x,8\] -> f32\[16,8\], still to be added up over x: .* 464 B of it later$",
        taken,
    )
    assert any(re.match(r"  or:    f32\[16,128\], f32\[128,8\] -> f32\[16,8\]: (at least )?.* KiB", o) for o in others)
    name = Path(__file__).name
    line = re.search(rf"{name}:(\d+)", head).group(1)
    by_line = plan.explain(f"{name}:{line}")
    assert set(by_value) <= set(by_line)
    assert str(plan.explain(f"other.py:{line}")) == "nothing was decided here: no operation, or none with several ways"


def test_decisions_are_values_that_print_and_compare():
    first, again, other = planned(LAYERS).decisions, planned(LAYERS).decisions, planned(RECURRENT).decisions
    assert first == again and hash(first) == hash(again) and first != other and first != "decisions"
    assert first.as_text() == again.as_text() and len(first) == len(first.rows)
    data = json.loads(json.dumps(first.as_json()))
    assert [sum(way["taken"] for way in row["ways"]) for row in data] == [1] * len(first)


@pytest.mark.parametrize("what", [3, None, "train.py", "train.py:", ":57", "57", ":", ""])
def test_what_is_no_value_and_no_line_is_refused(what):
    with pytest.raises(InputError, match="no value of the program and no source line"):
        planned(LAYERS).explain(what)


def test_a_plan_that_was_made_by_hand_explains_nothing():
    with pytest.raises(InputError, match="ask the one of a partitioned program"):
        CommunicationPlan((), 0.0).explain("train.py:3")


@pytest.mark.parametrize("case", [LAYERS, RECURRENT], ids=["layers", "recurrent"])
def test_nothing_is_written_before_it_is_decided(monkeypatch, case):
    """Candidates are offered and weighed; operations appear when the cheapest one is written. (Pointwise operations
    whose operands lie as they are wanted are no choice.)"""
    take, seen = choosing.take, set()

    def checked(ctx, op, candidates):
        states = {s: s.held for s in map(ctx.state, op.operands)}
        before = len(ctx.region.items)
        write = take(ctx, op, candidates)
        assert len(ctx.region.items) == before and all(s.held is held for s, held in states.items()), op
        seen.add(op.name)
        return write

    monkeypatch.setattr(choosing, "take", checked)
    planned(case)
    assert {"stablehlo.dot_general", "stablehlo.reduce", "stablehlo.transpose"} <= seen


@pytest.fixture
def unsettled(monkeypatch):
    """A context in which every operation's candidates are weighed, also where nothing is to be chosen."""

    @contextlib.contextmanager
    def weighing():
        plain = [SimpleNamespace(**{k: v for k, v in vars(f).items() if k != "SETTLED"}) for f in families._families()]
        table = families.joined_rules(plain)
        with monkeypatch.context() as patched:
            patched.setattr(walk, "rules", lambda: table)
            yield

    return weighing


SETTLED_CASES = [LAYERS, RECURRENT, *range(12)]


@pytest.mark.parametrize("what", SETTLED_CASES, ids=["layers", "recurrent", *map(str, range(12))])
def test_what_is_settled_is_written_as_the_candidates_would_have_been(unsettled, what):
    case = what
    if isinstance(what, int):
        axes, build, args, specs = random_program(what)
        case = Case(axes, build, args, specs)
    propagated = propagation.run(case.text)
    quick = collectives.partition(propagated)
    with unsettled():
        weighed = collectives.partition(propagated)
    assert quick.as_text() == weighed.as_text()
    assert quick.plan.decisions == weighed.plan.decisions


def test_an_operation_of_which_another_file_knows_a_way_is_never_settled():
    """Two files with ways for one operation: all are weighed, although one says that there is nothing to choose."""
    asked = []
    settled = lambda ctx, op: asked.append("settled") or True
    ways = [lambda ctx, op, n=n: [Candidate((), (), lambda: asked.append(n), work=n)] for n in (2.0, 1.0)]
    first = SimpleNamespace(CANDIDATES={"a.b": ways[0]}, SETTLED={"a.b": settled})
    second = SimpleNamespace(CANDIDATES={"a.b": ways[1]})
    op = SimpleNamespace(name="a.b", operands=(), results=())
    families.joined_rules([first])["a.b"](None, op)
    assert asked == ["settled"]
    families.joined_rules([first, second])["a.b"](SimpleNamespace(chosen=[]), op)
    assert asked == ["settled", 1.0]


def test_a_result_keeps_nothing_of_what_was_known_while_it_was_written():
    """Without the collector: else every program would keep all states of its values alive."""
    propagated = propagation.run(LAYERS.text)
    gc.collect()
    with collector_paused():
        before = {id(o) for o in gc.get_objects() if isinstance(o, State)}
        made = collectives.partition(propagated)
        left = [o for o in gc.get_objects() if isinstance(o, State) and id(o) not in before]
    assert made.as_text() and not left


def test_a_loop_decides_once_for_each_operation_of_its_body():
    """What was decided in drafts that were dropped is in no plan."""
    decided = [row.op for row in planned(RECURRENT).decisions]
    assert decided and len(decided) == len(set(decided))


def test_the_page_names_the_operations_that_have_candidates():
    ops = {name for family in families._families() for name in getattr(family, "CANDIDATES", {})}
    named = re.search(r"These families offer candidates: (.*?)\.\n", PAGE.read_text(), re.DOTALL).group(1)
    from propagation.ops import POINTWISE

    expected = {name.partition(".")[2] for name in ops if name not in POINTWISE and "@" not in name}
    assert set(re.findall(r"`(\w+)`", named)) == expected - {"map"}
    assert ops >= POINTWISE


def test_no_operation_has_both_candidates_and_a_rule():
    for family in families._families():
        assert not set(getattr(family, "CANDIDATES", ())) & set(getattr(family, "PARTITION", ()))
