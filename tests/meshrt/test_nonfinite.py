"""debug_nans and debug_infs: the operation and the line that made what a program returned."""

import inspect
import re

import jax
import jax.ad_checkpoint
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest

import meshrt
import meshrt.numpy as mnp
from meshrt import P, errors
from meshrt.experimental import io_callback

X = np.array([1.0, 0.0, -1.0, 2.0], np.float32)


def programs(j, np_):
    lax = j.lax
    log = lambda x: np_.log(x)  # the line
    wrapped = j.custom_jvp(log)
    wrapped.defjvp(lambda p, t: (log(*p), t[0] / p[0]))
    return {
        "log": j.jit(log),
        "jit": j.jit(lambda x: j.jit(log)(x) * 2),
        "scan": j.jit(lambda x: lax.scan(lambda c, a: (c + log(a), c), 0.0, x)[0]),
        "while": j.jit(lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, log(c[1] - 1)), (0, x))[1]),
        "cond": j.jit(lambda x: {"y": lax.cond(x[0] > 0, log, lambda x: x, x)}),
        "checkpoint": j.jit(j.checkpoint(lambda x: log(x) + 1)),
        "custom": j.jit(lambda x: wrapped(x) + 1),
        "vmap": j.jit(j.vmap(log)),
        "grad": j.grad(lambda x: (log(x) ** 2).sum()),
        "jit of grad": j.jit(j.grad(lambda x: (log(x) ** 2).sum())),
        "eager": lambda x: log(x) + 1,
    }


LINE = inspect.getsourcelines(programs)[1] + 2


@pytest.mark.parametrize("name", programs(jax, jnp))
@pytest.mark.parametrize("where", ["device", "mesh"])
def test_names_the_operation_and_the_line(name, where):
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=r"invalid value \(nan\)"):
        programs(jax, jnp)[name](jnp.array(X))
    x = mnp.array(X)
    if where == "mesh":
        mesh = meshrt.make_mesh((4,), ("x",), meshrt.sharding.AxisType.Auto)
        x = meshrt.device_put(X, meshrt.NamedSharding(mesh, P("x")))
    f = programs(meshrt, mnp)[name]
    assert np.isnan(np.asarray(meshrt.tree.leaves(f(x))[0])).any()
    with meshrt.debug_nans(True), pytest.raises(FloatingPointError, match=r"invalid value \(nan\)") as e:
        f(x)
    assert isinstance(e.value, errors.NonFiniteError)
    assert name == "log" or re.search(rf"log at .*test_nonfinite\.py:{LINE}\b", str(e.value))
    if name in ("scan", "while"):
        assert f"in iteration {2 if name == 'scan' else 0}" in str(e.value)


def raised(f, *args, **settings):
    with meshrt.config.override(**settings), pytest.raises(errors.NonFiniteError) as e:
        f(*args)
    return str(e.value)


def test_nothing_is_donated_where_nans_are_searched_for():
    """As in JAX: the program is run again for the operation, which needs its arguments."""
    for lib, np_ in ((meshrt, mnp), (jax, jnp)):
        f = lib.jit(lambda x, np_=np_: np_.log(x) + 1, donate_argnums=0)
        x = np_.array(X)
        with lib.debug_nans(True), pytest.raises(FloatingPointError, match="log"):
            f(x)
        with lib.debug_nans(True):
            assert not x.is_deleted() and f.trace(x).donate_argnums == ()
        if lib is meshrt:  # JAX's program was made without donation, and its cache does not tell
            f(x)
            assert x.is_deleted() and f.trace(np_.array(X)).donate_argnums == (0,)


def test_what_the_search_cannot_do():
    f = meshrt.jit(lambda x: {"a": x, "b": 1 / mnp.abs(x)}, donate_argnums=0)
    assert "result['b']" in (text := raised(f, mnp.zeros(4), debug_infs=True)) and "donated" in text
    text = raised(meshrt.jit(lambda x, y: x + y), X, np.array([np.nan] * 4, np.float32), debug_nans=True)
    assert "its argument y has one (nan) already" in text

    def effect(x):
        io_callback(lambda v: None, None, x)
        return mnp.log(x)

    calls = []
    assert "side effects" in raised(meshrt.jit(effect), X, debug_nans=True)
    seen = meshrt.jit(lambda x: (meshrt.debug.callback(calls.append, x), mnp.log(x) * 2)[1])
    assert "log at" in raised(seen, X, debug_nans=True) and len(calls) == 1


def test_infinities():
    f = meshrt.jit(lambda x: 1 / x)
    assert "div at" in raised(f, X, debug_infs=True)
    with meshrt.debug_nans(True):
        f(X)
    assert np.isinf(np.asarray(f(X))).any()


def test_finite_programs_go_through():
    with meshrt.debug_nans(True), meshrt.debug_infs(True):
        assert float(meshrt.jit(lambda x: x.sum())(X)) == 2.0
        assert meshrt.jit(lambda x: x.astype("int32"))(X).dtype == np.int32


def test_what_computes_nothing_and_what_callbacks_return():
    """stop_gradient and checkpoint_name give what they got; nobody but the callback made what it returns."""
    for library in (jax, meshrt):
        nan = library.numpy.asarray(X * np.nan)
        with library.debug_nans(True):
            assert np.isnan(library.lax.stop_gradient(nan)).all()
            assert np.isnan(library.ad_checkpoint.checkpoint_name(nan, "a")).all()
            for call in (library.pure_callback, library.experimental.io_callback):
                np.testing.assert_array_equal(call(np.abs, X, X), np.abs(X))
                with pytest.raises(FloatingPointError, match=rf"\(nan\) encountered in {call.__name__}"):
                    call(lambda x: np.asarray(x) * np.nan, X, X)


def test_an_argument_that_has_one_is_no_operation():
    with meshrt.debug_nans(True), pytest.raises(FloatingPointError) as raised:
        meshrt.jit(lambda x: 2 * x)(X * np.nan)
    assert str(raised.value).startswith("invalid value (nan) encountered in result of")
