"""Traces and tracers that a library declares itself, between the program and whatever transforms it; as JAX."""

import jax
import jax.api_util
import jax.extend.core
import jax.extend.linear_util
import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.compat.layer import core as core_layer
from meshrt.core import trace as core_trace
from meshrt.extend import core as extend_core
from meshrt.extend import linear_util

LIBRARIES = {
    "jax": (jax, jax.core, jax.extend.core, jax.extend.linear_util),
    "meshrt": (meshrt, core_layer, extend_core, linear_util),
}


def interpreted(name, f, seen):
    """`f` under a trace that notes operations and hands them on."""
    lib, core, extended, functions = LIBRARIES[name]

    class Tracer(core.Tracer):
        def __init__(self, trace, value):
            super().__init__(trace, lib.typeof(value))
            self.value = value

        def full_lower(self):
            return self

    class Trace(core.Trace):
        def __init__(self, parent, tag):
            super().__init__()
            self.parent, self.tag = parent, tag

        def value(self, x):
            return x.value if isinstance(x, Tracer) and x._trace.tag is self.tag else x

        def process_primitive(self, primitive, tracers, params):
            seen.append(primitive.name)
            types = [lib.typeof(t) for t in tracers]
            out = primitive.bind_with_trace(self.parent, [self.value(t) for t in tracers], types, params)
            return lib.tree.map(lambda v: Tracer(self, v), out)

    @functions.transformation
    def around(*values):
        with extended.take_current_trace() as parent:
            trace = Trace(parent, extended.TraceTag())
            with extended.set_current_trace(trace):
                out = yield [Tracer(trace, x) for x in values], {}
                yield trace.value(out)

    named = {"debug_info": jax.api_util.debug_info("interpreted", f, (), {})} if lib is jax else {}
    return around(functions.wrap_init(f, **named)).call_wrapped


PROGRAMS = {
    "scan": lambda lib, x: lib.lax.scan(lambda c, _: (c * x, c), x, None, length=3)[0],
    "while": lambda lib, x: lib.lax.while_loop(lambda c: c.sum() < 9, lambda c: c + x, x),
    "jit": lambda lib, x: lib.jit(lambda y: y + x)(x),
    "vmap": lambda lib, x: lib.vmap(lambda y: y * 2)(x),
    "grad": lambda lib, x: lib.grad(lambda y: (y * x).sum())(x),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_they_hand_on_what_they_have_seen(program):
    results = {}
    for name, (lib, *_) in LIBRARIES.items():
        seen, x = [], lib.numpy.arange(1.0, 3.0)
        f = interpreted(name, lambda x, lib=lib: PROGRAMS[program](lib, x), seen)
        results[name] = f(x), lib.jit(f)(x), lib.vmap(f)(x[None])[0]
        assert seen
    for ours, theirs in zip(results["meshrt"], results["jax"]):
        np.testing.assert_allclose(ours, theirs)


def test_they_are_left_where_the_function_raises():  # JAX stays in them
    def fails(x):
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        meshrt.eval_shape(interpreted("meshrt", fails, []), np.ones(2, np.float32))
    assert core_trace.current_trace() is core_trace.EVAL


def test_one_that_stays_the_current_one_is_named():
    kept = []
    meshrt.make_jaxpr(lambda x: kept.append(x._trace) or x)(1.0)
    with core_trace.set_trace(kept[0]), pytest.raises(errors.LeakedTracerError, match="traced to its end"):
        meshrt.lax.sin(np.float32(1))
