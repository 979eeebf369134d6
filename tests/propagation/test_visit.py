"""One visit of an operation: factors and back, what each strategy gives, and why a tensor gets less."""

from __future__ import annotations

import itertools
import math

import pytest

from propagation.axes import contains
from propagation.factors import BACKWARD, BOTH, CLOSED, FORWARD, LIMITED, NONE, USED_ELSEWHERE, major_axes
from propagation.model import AxisRef, DimSharding, FactorSharding, Mesh, OpRule, TensorFactors, TensorSharding
from propagation.projection import back_project, project, project_rule
from propagation.visit import common_mesh, decide

MESH = Mesh("m", (("a", 2), ("b", 2), ("c", 4), ("d", 3)))
A, B, C, D = map(MESH.axis, "abcd")
C1, C2 = AxisRef("c", 1, 2), AxisRef("c", 2, 2)
LETTERS = {"a": A, "b": B, "c": C, "d": D, "1": C1, "2": C2}  # 1 and 2: the halves of c


def on(*dims: str, replicated: str = "", unreduced: str = "", mesh: Mesh = MESH) -> TensorSharding:
    """`on("ab?", "")`: the first dimension over a and b, and open; the second unsharded and closed."""
    split = [DimSharding([LETTERS[x] for x in d.rstrip("?")], d.endswith("?")) for d in dims]
    return TensorSharding(mesh, split, [LETTERS[x] for x in replicated], [LETTERS[x] for x in unreduced])


POINTWISE = OpRule((8, 8), (((0,), (1,)),) * 2, (((0,), (1,)),), elementwise=True)
MATMUL = OpRule((8, 8, 8), (((0,), (2,)), ((2,), (1,))), (((0,), (1,)),), (0, 0, 1))
SPLIT = OpRule((2, 4), (((0, 1),),), (((0,), (1,)),))  # a reshape of 8 to 2x4
OF_ONE = OpRule((3,), (((0,),), ()), (((0,),),))  # the second operand is a scalar


def test_a_dimension_of_several_factors_gives_its_axes_to_the_major_ones_first():
    rule, mapping = OpRule((2, 6, 4), (((0, 1, 2),),), (((0,), (1,), (2,)),)), ((0, 1, 2),)
    table = {
        "": ((), (), ()), "a": ((A,), (), ()), "ab": ((A,), (B,), ()), "abd": ((A,), (B, D), ()),
        "c": ((C1,), (C2,), ()), "adc": ((A,), (D, C1), (C2,)), "adb": ((A,), (D, B), ()),
        "adbc": ((A,), (D, B), (C,)), "12": ((C1,), (C2,), ()), "ad12": ((A,), (D, C1), (C2,)),
    }  # fmt: skip
    for text, expected in table.items():
        state = project(rule, mapping, on(text))
        assert tuple(state.axes) == expected, text
        assert state.closed == [True] * 3 and state.minor_most[2] and not any(state.minor_most[:2])
        whole = text.replace("12", "c")
        assert back_project(rule, mapping, state, MESH) is on(whole), text
        opened = project(rule, mapping, on(text + "?"))
        assert opened.closed == [False] * 3 and opened.axes == state.axes
        assert back_project(rule, mapping, opened, MESH) is on(whole + "?")


def test_axes_that_do_not_divide_a_factor_are_kept_beside_it():
    rule, mapping = OpRule((2, 6, 4), (((0, 1, 2),),), (((0,), (1,), (2,)),)), ((0, 1, 2),)
    state = project(rule, mapping, on("da?"))  # 3 does not divide 2
    assert (state.axes, state.overflow[0]) == ([(), (), None], (D, A))
    assert (state.closed, state.minor_most) == ([False, True, False], [False, False, False])
    state = project(rule, mapping, on("acd?"))  # of c one half goes to 6, the other to what is left of it: 3
    assert (state.axes, state.overflow[1]) == ([(A,), (C1,), ()], (C2, D))
    assert (state.closed, state.minor_most) == ([False, False, True], [False, False, True])
    for text in ("da", "da?", "acd", "acd?", "cd", "bda?"):
        assert back_project(rule, mapping, project(rule, mapping, on(text)), MESH) is on(text)


def test_what_is_written_through_factors_is_read_again():
    """All shardings of one dimension of two factors and one of one, whole or through `project_rule`."""
    rule = OpRule((4, 6, 3), (((0, 1), (2,)),), (((0,), (1, 2)),))
    lists = ["".join(p) for k in range(4) for p in itertools.permutations("abcd", k)]
    for first, second in itertools.product(lists, ["", "d", "b"]):
        if set(first) & set(second):
            continue
        for mark, kept in itertools.product(["", "?"], ["", "a"]):
            if kept in first + second and kept:
                continue
            sharding = on(first + mark, second + mark, replicated=kept)
            state = project(rule, rule.operands[0], sharding)
            assert back_project(rule, rule.operands[0], state, MESH) is sharding
            split = math.prod(a.size for axes in (*state.axes, *state.overflow) for a in axes or ())
            assert state.sharded_size() == split == math.prod(d.factor for d in sharding.dims)
            (seen,) = project_rule(rule, [sharding], [None]).operands
            assert seen.replicated == state.replicated
            assert [f and (f.axes, f.closed, f.minor_most, f.overflow) for f in seen.factors] == [
                None if axes is None else (axes, state.closed[f], state.minor_most[f], state.overflow[f])
                for f, axes in enumerate(state.axes)
            ]


def test_tensors_without_annotation_have_all_their_factors_open_or_closed():
    for closed in (False, True):
        view = project_rule(SPLIT, [None], [on("a", "")], closed_if_missing=closed)
        assert view.operands == (TensorFactors((FactorSharding((), closed, False), FactorSharding((), closed))),)
        assert view.results == (TensorFactors((FactorSharding((A,), True), FactorSharding((), True))),)
    state = project(MATMUL, MATMUL.operands[1], None)
    assert (state.axes, state.closed) == ([None, (), ()], [False] * 3) and state.minor_most == [False, True, True]


def visit(rule, *shardings, strategy="aggressive", directions=None, conservative=False):
    return decide(rule, directions or (BOTH,) * rule.num_factors, strategy, conservative, shardings)


# rule, shardings, the conflict: (factor, wanted, tensor, granted, reason)
OPEN = on("?", "?")
CONFLICTS = {
    "closed": (POINTWISE, (on("a?", "?"), on("", ""), OPEN), (0, (A,), 1, (), CLOSED)),
    "reserved": (
        POINTWISE, (on("a?", "?"), on("?", "?", replicated="a"), OPEN),
        (0, (A,), 1, (), "the axis is reserved as replicated or unreduced"),
    ),
    "elsewhere": (POINTWISE, (on("a?", "?"), on("?", "a?"), OPEN), (0, (A,), 1, (), USED_ELSEWHERE)),
    "limited": (POINTWISE, (on("ab?", ""), OPEN, on("a", "")), (0, (A, B), 1, (A,), LIMITED)),
    "overflow": (
        SPLIT, (on("d?"), on("a?", "?")), (0, (A,), 0, (), "an axis on the dimension does not divide its factor"),
    ),
    "not minor": (
        SPLIT, (on("?"), on("d?", "?")),
        (0, (D,), 0, (), "the axis does not divide the factor, which has another to its right"),
    ),
    "in part": (
        SPLIT, (on("?"), on("c?", "?")),
        (0, (C,), 0, (C1,), "the axis does not divide the factor, which has another to its right"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFLICTS)
def test_why_a_tensor_gets_less_than_it_could(name):
    rule, shardings, expected = CONFLICTS[name]
    found = [(c.factor, c.wanted, c.tensor, c.granted, c.reason) for c in visit(rule, *shardings).conflicts]
    assert expected in found, found


def changes(*args, **options) -> dict[int, TensorSharding]:
    return dict(visit(*args, **options).changes)


def test_axes_spread_to_every_tensor_that_has_the_factor():
    decision = visit(MATMUL, on("a?", "c?"), on("?", "b?"), on("?", "?"))
    assert dict(decision.changes) == {1: on("c?", "b?"), 2: on("a?", "b?")}
    assert set(decision.sources) == {(1, 2, 0), (2, 0, 0), (2, 1, 1)}
    assert decision.before == (on("a?", "c?"), on("?", "b?"), on("?", "?")) and decision.conflicts == ()
    assert visit(MATMUL, *(on("?", "?"),) * 3) == visit(MATMUL, None, None, None)


def digits(axes) -> list[str]:
    """Axes as the smallest parts that they are made of, c being made of 1 and 2."""
    return [x for axis in axes for x, part in LETTERS.items() if x != "c" and contains(axis, part)]


def agreed(lists: list[list[str]], first: list[str] | None = None) -> list[str]:
    """As long as no two lists differ: the longest of them, or what they leave of `first`."""
    longest = max(lists, key=len, default=[]) if first is None else first
    same = lambda k: len({x[k] for x in [longest, *lists] if len(x) > k}) == 1
    return longest[: next(k for k in itertools.count() if k == len(longest) or not same(k))]


def test_the_axes_that_a_factor_could_have():
    """Both ways: the longest on which all agree. One way: those of the side that gives, cut where the other differs."""
    texts = ["", *"abc12", "ab", "ac", "a1", "1a", "ca", "1b", "2a", "21", "cb"]
    lists = [tuple(LETTERS[x] for x in text) for text in texts]
    rule = OpRule((64,), (((0,),), ((0,),)), (((0,),),))
    states = {axes: project(rule, ((0,),), TensorSharding(MESH, [DimSharding(axes)])) for axes in lists}
    for triple in itertools.product(lists, repeat=3):
        one, other, result = (states[axes] for axes in triple)
        x, y, z = map(digits, triple)
        expected = {
            NONE: [],
            BOTH: agreed([x, y, z]),
            FORWARD: agreed([z], agreed([x, y])),
            BACKWARD: agreed([x, y], z),
        }
        for direction, wanted in expected.items():
            assert digits(major_axes(0, direction, [one, other], [result])) == wanted, (triple, direction)


@pytest.mark.parametrize(
    "direction, of_operand, of_result",
    [(NONE, set(), set()), (FORWARD, {1, 2}, set()), (BACKWARD, set(), {0, 1}), (BOTH, {1, 2}, {0, 1})],
)
def test_directions_say_whose_axes_spread(direction, of_operand, of_result):
    """To all other tensors, the other operand included."""
    for source, reached in ((0, of_operand), (2, of_result)):
        shardings = [on("a?", "?") if t == source else on("?", "?") for t in range(3)]
        assert set(changes(POINTWISE, *shardings, directions=(direction, BOTH))) == reached


def test_the_basic_strategy_takes_only_what_all_tensors_can():
    conflict = (on("a?", "?"), on("?", "?"), on("?", "a?"))
    assert changes(POINTWISE, *conflict, strategy="basic") == {}
    assert changes(POINTWISE, on("ab?", "?"), on("a", ""), on("?", "?"), strategy="basic") == {2: on("a?", "?")}
    (found,) = visit(POINTWISE, on("a?", "?"), on("", ""), on("?", "?"), strategy="basic").conflicts
    assert (found.factor, found.wanted, found.tensor, found.granted) == (0, (A,), -1, ())


def test_a_tensor_without_the_factor_has_no_say_about_its_axes():
    """An axis of size 2 on a factor of size 3 (padded), beside a scalar that has it reserved."""
    assert changes(OF_ONE, on("a?"), on(replicated="a"), on("?"), strategy="basic") == {2: on("a?")}
    assert changes(OF_ONE, on("a?"), on(), on("?"), strategy="basic") == {2: on("a?")}


def test_the_largest_tensor_claims_an_axis_that_two_factors_want():
    rule = OpRule((8, 4), (((0,),), ((1,),)), (((0,), (1,)),))
    assert changes(rule, on("a?"), on("a?"), on("?", "?"))[2] is on("a?", "?")
    rule = OpRule((4, 8), (((0,),), ((1,),)), (((0,), (1,)),))
    assert changes(rule, on("a?"), on("a?"), on("?", "?"))[2] is on("?", "a?")


def test_conservative_visits_split_no_axis():
    shardings = (on("?"), on("c?", "?"))
    assert changes(SPLIT, *shardings)[0] is on("1?")
    assert changes(SPLIT, *shardings, conservative=True) == {}
    assert changes(POINTWISE, on("a1?", "?"), OPEN, OPEN, conservative=True) == {1: on("a?", "?"), 2: on("a?", "?")}


def test_the_mesh_of_an_operation():
    other, alike = Mesh("m", (("a", 4),)), Mesh("n", MESH.axes)
    empty, single = Mesh("e", ()), Mesh("one", (), [3])
    assert common_mesh([None, on("a"), None]) is MESH and common_mesh([]) is common_mesh([None]) is None
    assert common_mesh([on("a", mesh=alike), on("a")]) is alike  # meshes that differ in their names only
    assert common_mesh([on("a"), TensorSharding(other, ())]) is None
    assert common_mesh([TensorSharding(empty, ()), on("a"), TensorSharding(empty, ())]) is MESH
    assert common_mesh([TensorSharding(single, ())]) is None
    assert visit(POINTWISE, on("a?", "?"), on("?"), on("?", "?")).changes == ()  # of another rank
