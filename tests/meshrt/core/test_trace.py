"""Staging: literals, constants and tracers of programs being recorded."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.core.jaxpr import Literal, Var
from meshrt.core.trace import EVAL, JaxprTrace, current_trace, set_trace, trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.errors import LeakedTracerError

SCALARS = [
    True, False, 0, 1, -1, 0.0, -0.0, 1.0, math.inf, 1j, complex(1, 0.0), complex(1, -0.0), complex(0.0, 1),
    complex(-0.0, 1), 0j, np.float32(1), np.float32(-0.0), np.float32(0.0), np.int32(1), np.complex64(1),
    np.complex64(complex(1, -0.0)), np.bool_(True),
]  # fmt: skip


def bits(value) -> tuple:
    """What tells two scalars apart, the signs of their zeros included."""
    parts = np.asarray(value)
    return type(value), parts.tobytes(), parts.dtype


def test_literals_are_shared_by_what_is_the_same_and_by_nothing_else():
    trace = JaxprTrace("f")
    for a, b in itertools.product(SCALARS, repeat=2):
        one, other = trace.atom(a), trace.atom(b)
        assert isinstance(one, Literal) and one.aval is aval_of(a)
        if bits(a) != bits(b):
            assert one is not other, (a, b)
        assert str(np.asarray(one.val)) == str(np.asarray(a))  # with the sign of a zero
    assert trace.atom(2.5) is trace.atom(2.5) and trace.atom(7) is trace.atom(7)
    assert trace.atom(np.array(3, np.int32)).val == 3 and not trace.consts


def test_arrays_are_constants_once_by_identity():
    trace, a = JaxprTrace("f"), np.ones((2,), np.float32)
    b = a.copy()
    assert trace.atom(a) is trace.atom(a) and trace.atom(a) is not trace.atom(b)
    (first, one), (second, other) = trace.consts.values()
    assert one is a and other is b and type(first) is type(second) is Var
    assert trace.atom(np.ones((1,), np.float32)).aval == ShapedArray((1,), "float32")


def test_tracers_of_another_program_are_constants_and_of_an_ended_one_are_refused():
    outer, inner = JaxprTrace("outer"), JaxprTrace("inner")
    x = outer.argument(ShapedArray((2,), "float32"), "argument x")
    assert outer.atom(x) is x._var
    assert inner.atom(x) is not x._var and [value for _, value in inner.consts.values()] == [x]
    outer.close([x], [x])
    with pytest.raises(LeakedTracerError, match="argument x of outer"):
        JaxprTrace("later").atom(x)


def test_the_program_of_a_function_of_several_results():
    aval = ShapedArray((2,), "float32")
    const = np.full((2,), 3, np.float32)
    closed = trace_to_jaxpr(lambda x, y: [jnp.add(x, const), 1.0, y, const], [aval, aval], "f")
    assert closed.in_avals == [aval, aval] and [a.dtype for a in closed.out_avals] == [np.float32] * 4
    assert len(closed.consts) == 1 and closed.jaxpr.outvars[3] is closed.jaxpr.constvars[0]
    assert isinstance(closed.jaxpr.outvars[1], Literal) and closed.jaxpr.outvars[2] is closed.jaxpr.invars[1]


def test_the_trace_is_set_inside_only_and_comes_back_after_an_error():
    trace = JaxprTrace("f")
    with pytest.raises(KeyError), set_trace(trace) as inside:
        assert current_trace() is inside is trace
        raise KeyError
    assert current_trace() is EVAL


def test_a_tracer_outside_is_refused_by_the_operation_that_takes_it():
    kept = []
    meshrt.make_jaxpr(lambda x: (kept.append(x), x)[1])(np.ones(2, np.float32))
    with pytest.raises(LeakedTracerError, match=re.escape("float32[2] was used by ")):
        jnp.sin(kept[0])


@pytest.mark.parametrize("ask", [bool, int, float, complex, range, np.asarray], ids=lambda f: f.__name__)
def test_the_value_of_a_tracer_is_not_known(ask):
    with pytest.raises(TypeError, match=r"(?s)traced array with shape int32\[\]\..*It is argument"):
        meshrt.make_jaxpr(lambda x: ask(x))(np.int32(1))


def test_a_tracer_has_the_length_of_its_first_dimension():
    seen = []
    meshrt.make_jaxpr(lambda x: seen.append(len(x)))(np.ones((3, 2), np.float32))
    assert seen == [3]
    with pytest.raises(TypeError, match="unsized"):
        meshrt.make_jaxpr(len)(np.float32(1))
