"""Names and values at operations, judged by the text that JAX lowers to."""

import re

import jax
import numpy as np
import pytest
from jax.experimental import compute_on as jax_compute_on
from jax.experimental import xla_metadata as judge

import meshrt
from meshrt import errors
from meshrt.experimental import compute_on as meshrt_compute_on
from meshrt.experimental.xla_metadata import set_xla_metadata
from tests.meshrt.shard_map.libraries import ours, same, theirs

A = np.ones((8, 8), np.float32)


def marked(m):
    return judge.set_xla_metadata if m.api is jax else set_xla_metadata


def rows(lowered):
    """The operations that bear something, and what."""
    found = []
    for line in lowered.as_text().splitlines():
        if "frontend_attributes" in line:
            name = re.search(r"(?:stablehlo\.|call @)(\w+)", line)[1]
            found.append((name, re.search(r"frontend_attributes = (\{.*?\})", line)[1]))
    return found


def nested(m):
    def f(x):
        with marked(m)(key="outer", other=1):
            y = x * 2
            with marked(m)(key="inner"):
                z = y + x
        return m.np.sin(z)

    return f


def both(m):
    def f(x):
        with marked(m)(a="1", key="context"):
            y = m.np.sin(x)
        return marked(m)(y, key="value")

    return f


def with_processor(m):
    """Beside what `compute_on` says."""
    compute_on = (jax_compute_on if m.api is jax else meshrt_compute_on).compute_on

    def f(x):
        with marked(m)(key="v"), compute_on("device_host"):
            return m.np.sin(x)

    return f


def in_scan(m):
    def f(x):
        with marked(m)(key="v"):
            return m.lax.scan(lambda c, _: (m.np.sin(c), None), x, None, length=3)[0]

    return f


PROGRAMS = {
    "nested contexts": lambda m: m.jit(nested(m)).lower(1.0),
    "a decorated function": lambda m: m.jit(marked(m)(flag=True, n=1)(lambda x: x * x)).lower(1.0),
    "a decorated jitted function": lambda m: marked(m)(flag=False)(m.jit(lambda x: x * x)).lower(1.0),
    "a value": lambda m: m.jit(lambda x: marked(m)(m.np.sin(x) * x, key="v")).lower(1.0),
    "a value, in a context": lambda m: m.jit(both(m)).lower(1.0),
    "an argument": lambda m: m.jit(lambda x: marked(m)(x, key="v") + x).lower(1.0),
    "a mapped value": lambda m: m.jit(m.vmap(lambda x: marked(m)(m.np.sin(x), key="v"))).lower(A),
    "beside compute_on": lambda m: m.jit(with_processor(m)).lower(1.0),
    "nothing": lambda m: m.jit(marked(m)()(lambda x: x * x)).lower(1.0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_operations_bear_what_jax_gives_them(name):
    assert rows(PROGRAMS[name](ours())) == rows(PROGRAMS[name](theirs()))


def test_functions_are_traced_again_for_other_names():
    traced = []

    @meshrt.jit
    def f(x):
        traced.append(x)
        return x * x

    f(1.0)
    with set_xla_metadata(key="v"):
        f(1.0)
        assert rows(f.lower(1.0)) == [("multiply", '{key = "v"}')]
    f(1.0)
    assert len(traced) == 2 and rows(f.lower(1.0)) == []


def test_loops_derivatives_and_programs_of_several_devices_bear_them():
    assert ("sine", '{key = "v"}') in rows(meshrt.jit(in_scan(ours())).lower(1.0))
    g = meshrt.grad(lambda x: set_xla_metadata(meshrt.numpy.sin(x), key="v"))
    same(g(1.0), jax.grad(jax.numpy.sin)(1.0))
    mesh = ours().mesh((4,), ("x",))
    x = meshrt.device_put(A, meshrt.NamedSharding(mesh, meshrt.P("x")))
    f = meshrt.jit(set_xla_metadata(key='a "quoted" \\ value')(lambda x: x @ x))
    assert "frontend_attributes" in f.lower(x).partition().as_text()
    assert "frontend_attributes={key=" in f.lower(x).compile().as_text()
    same(f(x), A @ A)
    same(set_xla_metadata({"a": A}, key="v"), {"a": A})


def test_values_that_are_no_values():
    with pytest.raises(errors.ArgumentTypeError, match="strings, numbers, bools or None"):
        set_xla_metadata(key=[1])


def test_none_takes_a_name_away():
    found = []
    for library, mark in ((meshrt, set_xla_metadata), (jax, judge.set_xla_metadata)):

        def f(x, mark=mark, library=library):
            with mark(a=1, b=2):
                y = library.numpy.sin(x)
                with mark(a=None):
                    return library.numpy.cos(y)

        found.append(rows(library.jit(f).lower(1.0)))
    assert found[0] == found[1] == [("sine", '{a = "1", b = "2"}'), ("cosine", '{b = "2"}')]
    same(set_xla_metadata(A, a=None), A)
