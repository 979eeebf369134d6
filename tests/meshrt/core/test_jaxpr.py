"""Jaxprs: names and printing, the union of effects, and a checker that sees each way to break the grammar."""

from __future__ import annotations

import functools
import itertools
import math
import string

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.core import source
from meshrt.core.checking import check
from meshrt.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, JaxprTypeError, Literal, Var, _name, subjaxprs
from meshrt.core.primitive import Primitive
from meshrt.core.trace import eval_jaxpr
from meshrt.core.types import ShapedArray
from tests.meshrt.beside import assert_alike

F32, I32 = ShapedArray((2,), "float32"), ShapedArray((2,), "int32")
WHERE = source.capture()
twice = Primitive("twice", lambda x: x)
halves = Primitive("halves", lambda x: (x, x), multiple_results=True)
call = Primitive("call_it", lambda *avals, inner: inner.out_avals, multiple_results=True, cache_types=False)


def eqn(primitive, ins, outs, effects=frozenset(), **params) -> Eqn:
    return Eqn(primitive, ins, outs, params, WHERE, effects)


def test_names_count_in_base_26():
    letters = string.ascii_lowercase
    expected = [*letters, *map("".join, itertools.product(letters[1:], letters)), "baa", "bab"]
    assert [_name(i) for i in range(len(expected))] == expected


def test_parameters_are_printed_by_what_they_are():
    x, y, z = Var(F32), Var(F32), Var(F32)
    inner, second, third = (Jaxpr((), (z,), (z,), []) for _ in range(3))
    params = {
        "dtype": np.dtype("float32"), "fun": math.sqrt, "size": 3, "nothing": None,
        "branches": (inner, ClosedJaxpr(second)), "body": ClosedJaxpr(third), "tags": ("a", "b"),
    }  # fmt: skip
    text = repr(
        Jaxpr((), (x,), (y, Literal(np.float32(2), ShapedArray((), "float32"))), [eqn(twice, (x,), (y,), **params)])
    )
    assert text == (
        "{ lambda ; a:f32[2]. let\n"
        "    b:f32[2] = twice[\n"
        "      body={ lambda ; c:f32[2]. let  in (c,) }\n"
        "      branches=(\n"
        "        { lambda ; c:f32[2]. let  in (c,) }\n"
        "        { lambda ; c:f32[2]. let  in (c,) }\n"
        "      )\n"
        "      dtype=float32\n"
        "      fun=sqrt\n"
        "      size=3\n"
        "      tags=('a', 'b')\n"
        "    ] a\n"
        "  in (b, 2.0:f32[]) }"
    )
    with_const = Jaxpr((x,), (y,), (), [eqn(twice, (y,), ())])
    assert repr(with_const) == "{ lambda a:f32[2]; b:f32[2]. let twice b in () }"


def named(l, scale, name="scaled"):
    def fun(x):
        return x * scale

    fun.__name__ = name
    return l.jit(fun)


def shared(l):
    """Functions with what stands in them several times."""
    inner = named(l, 3.0)
    return inner, l.jit(lambda x: inner(x) + inner(x + 1.0))


def within_what_is_shared(l):
    outer = shared(l)[1]
    other = named(l, 2.0, "other")
    return lambda x: outer(x) + other(x) + outer(x) + other(x)


def inside_what_is_not(l):
    inner, outer = shared(l)
    return lambda x: outer(x) + inner(x)


def in_loops(l):
    body = lambda c, _: (c + 1.0, None)
    loop = lambda x: l.lax.scan(body, x, None, length=2)[0]
    return lambda x: loop(x) + l.jit(loop)(x)


def of_one_name(l):
    once, twice, thrice = (named(l, scale) for scale in (5.0, 6.0, 7.0))
    return lambda x: once(x) + twice(x) + thrice(x) + twice(x) + thrice(x)


PRINTED = {
    "on one line": lambda l: lambda x: x * 2,
    "on several": lambda l: lambda x: (x * 2 + x, x - 3, x * x, l.lax.sin(x), l.lax.cos(x)),
    "what nobody takes": lambda l: lambda x: (x + 1, l.lax.sin(x) * 2)[0],
    "branches": lambda l: lambda x: l.lax.cond(x > 0, lambda y: y + 1, lambda y: y - 1, x),
    "loops": lambda l: lambda x: l.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x)),
    "no results": lambda l: lambda x: [],
    "shared, by what is shared too": within_what_is_shared,
    "shared, by what stands once": inside_what_is_not,
    "shared bodies of loops": in_loops,
    "shared, of one name": of_one_name,
    "many names": lambda l: lambda x: functools.reduce(lambda y, _: l.lax.sin(y), range(30), x),
}


@pytest.mark.parametrize("name", PRINTED)
def test_programs_are_printed_as_by_jax(name):
    assert_alike(lambda l: str(l.make_jaxpr(PRINTED[name](l))(1.0)))


def test_values_of_a_call_have_one_name():
    text = str(meshrt.make_jaxpr(lambda x: meshrt.jit(lambda y: jnp.sin(y))(x + 1) - 1)(1.0))
    inside = "{ lambda ; b:f32[]. let c:f32[] = sin b in (c,) }"
    assert f"    c:f32[] = jit[\n      name=<lambda>\n      jaxpr={inside}\n    ] b\n    d:f32[] = sub c" in text


def test_effects_of_a_program_are_those_of_its_equations():
    x, outs = Var(F32), [Var(F32) for _ in range(4)]
    sets = [frozenset({"a"}), frozenset(), frozenset({"b", "c"}), frozenset({"a", "d"})]
    eqns = [eqn(twice, (x,), (o,), effects) for o, effects in zip(outs, sets)]
    assert Jaxpr((), (x,), (), eqns).effects == set("abcd")
    assert Jaxpr((), (x,), (), eqns[1:2]).effects == frozenset()
    assert Jaxpr((), (x,), (), eqns, effects=frozenset({"only"})).effects == {"only"}
    assert ClosedJaxpr(Jaxpr((), (x,), (), eqns)).effects == set("abcd")


def good() -> tuple[Var, Var, Var, Jaxpr]:
    c, x, y = Var(F32), Var(F32), Var(F32)
    one = Literal(np.float32(1), ShapedArray((), "float32"))
    return c, x, y, Jaxpr((c,), (x,), (y, c, one), [eqn(twice, (x,), (y,))])


def test_a_sound_program_passes():
    _, _, _, jaxpr = good()
    check(jaxpr)
    check(ClosedJaxpr(jaxpr, [np.zeros(2, np.float32)]))
    x, a, b = Var(F32), Var(F32), Var(F32)
    check(Jaxpr((), (x,), (a,), [eqn(halves, (x,), (a, b))]))
    check(meshrt.make_jaxpr(lambda x: jnp.where(x > 0, x, 1.0) * 2)(1.0))


def _broken():
    c, x, y, jaxpr = good()
    z = Var(F32)
    closed = lambda **k: Jaxpr(**{"constvars": (c,), "invars": (x,), "outvars": (y,), "eqns": jaxpr.eqns, **k})
    inner = Jaxpr((), (), (z,), [])  # its result is defined nowhere
    yield "a constant and an argument are one", closed(invars=(x, c)), "the argument list binds"
    yield "an argument twice", closed(invars=(x, x)), "the argument list binds"
    yield "a result twice", closed(eqns=[*jaxpr.eqns, eqn(twice, (x,), (y,))]), "a second time"
    yield "an equation gives its operand", closed(eqns=[eqn(twice, (x,), (x,))], outvars=(x,)), "a second time"
    yield "used before", closed(eqns=[eqn(twice, (z,), (y,))]), "used before its definition by y?.*twice"
    yield "no such result", closed(outvars=(y, z)), "the result .* is not defined"
    yield "too few results", closed(eqns=[eqn(halves, (x,), (y,))]), "should have 2 results"
    yield "another type", closed(eqns=[eqn(twice, (x,), (v := Var(I32),))], outvars=(v,)), "gives f32.2., not i32.2."
    wrong = Var(ShapedArray((3,), "float32"))
    yield "another shape", closed(eqns=[eqn(twice, (x,), (wrong,))], outvars=()), "gives f32.2., not f32.3."
    yield "inside", Jaxpr((), (), (v := Var(F32),), [eqn(call, (), (v,), inner=inner)]), "the result .* is not defined"


@pytest.mark.parametrize("jaxpr, says", [pytest.param(j, s, id=name) for name, j, s in _broken()])
def test_each_way_to_break_the_grammar_is_seen(jaxpr, says):
    with pytest.raises(JaxprTypeError, match=says):
        check(jaxpr)


def test_programs_among_parameters_are_found_in_tuples_too():
    _, _, _, jaxpr = good()
    inner = Jaxpr((), (), (), [])
    params = {"a": jaxpr, "b": (ClosedJaxpr(inner), 3), "c": [inner], "d": "text", "e": None}
    assert list(subjaxprs(params)) == [jaxpr, inner, inner]


def test_constants_must_be_as_many_as_their_variables():
    _, _, _, jaxpr = good()
    for consts in ((), (1.0, 2.0)):
        with pytest.raises(ValueError, match=f"{len(consts)} constants given for 1 constvars"):
            ClosedJaxpr(jaxpr, consts)


def test_results_of_a_program_may_be_literals_constants_and_arguments():
    c, x, _, _ = good()
    one = Literal(np.float32(1), ShapedArray((), "float32"))
    assert eval_jaxpr(Jaxpr((c,), (x,), (one, c, x), []), ["c"], ["x"]) == [np.float32(1), "c", "x"]


def test_a_line_in_no_known_function_is_told_without_one():
    where = source.source_at("nowhere/it.py:7", [WHERE])
    assert (where.file, where.line, where.function) == ("nowhere/it.py", 7, "<unknown>")
    assert str(where) == "nowhere/it.py:7 (<unknown>)"
    here = source.source_at(f"{WHERE.file}:{WHERE.line}", [WHERE])
    assert (here.line, here.function) == (WHERE.line, WHERE.function)
