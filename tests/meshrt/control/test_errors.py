"""What the control-flow functions refuse, and what they say then."""

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, lax

ONES = np.ones(3, np.float32)

CASES = {
    "carry type": (
        lambda: lax.scan(lambda c, x: ({"a": c["a"], "b": jnp.sum(c["b"])}, x), {"a": 1.0, "b": ONES}, ONES),
        TypeError,
        [
            "scan body function carry input",
            "component c['b'] has type float32[3] but",
            "has type float32[], so the shapes",
        ],
    ),
    "carry dtype": (
        lambda: lax.scan(lambda c, x: (c.astype(jnp.bfloat16), x), ONES, ONES),
        TypeError,
        ["carry c has type float32[3] but", "has type bfloat16[3], so the dtypes do not match", "astype"],
    ),
    "carry structure": (
        lambda: lax.scan(lambda c, x: ({"a": c["a"]}, x), {"a": 1.0, "b": ONES}, ONES),
        TypeError,
        [
            "same pytree structure",
            "carry c is a <class 'dict'> with 2 children but",
            "is a <class 'dict'> with 1 child",
        ],
    ),
    "no pair": (lambda: lax.scan(lambda c, x: c, 1.0, ONES), TypeError, ["scan body output must be a pair"]),
    "sizes": (
        lambda: lax.scan(lambda c, x: (c, x), 1.0, (ONES, ONES[:2])),
        ValueError,
        ["different leading axis sizes: 3, 2. Most have size 3, but", "xs[1] of type float32[2] has size 2"],
    ),
    "sizes in a tree": (
        lambda: lax.scan(lambda c, x: (c, x), 1.0, {"a": ONES, "b": (ONES, ONES[:2])}),
        ValueError,
        ["3, 3, 2. Most have size 3", "  xs['b'][1] of type float32[2] has size 2"],
    ),
    "sizes of map": (
        lambda: lax.map(lambda x: x["a"], {"a": ONES, "b": ONES[:1]}),
        ValueError,
        ["map: scan got values with different leading axis sizes: 3, 1", "xs['b'] of type float32[1] has size 1"],
    ),
    "no axis of map": (
        lambda: lax.map(lambda x: x, (ONES, 2)),
        ValueError,
        ["no leading axis to scan over: 2 at xs[1]"],
    ),
    "no axis": (
        lambda: lax.scan(lambda c, x: (c, x), 1.0, 2.0),
        ValueError,
        ["no leading axis to scan over: 2.0 at xs"],
    ),
    "length": (
        lambda: lax.scan(lambda c, x: (c, x), 1.0, ONES, length=4),
        ValueError,
        ["`length` argument of 4 which disagrees with leading axis sizes [3]", "xs of type float32[3] has size 3"],
    ),
    "no length": (
        lambda: lax.scan(lambda c, x: (c, x), 1.0),
        ValueError,
        ["no values to scan over and `length` not provided"],
    ),
    "unroll of a fraction": (
        lambda: lax.scan(lambda c, x: (c, x), 1.0, ONES, unroll=1.5),
        errors.ArgumentTypeError,
        ["`unroll` must be a `bool`", "got 1.5 of type float", "give how many"],
    ),
    "unroll of an array": (
        lambda: lax.fori_loop(0, 3, lambda i, c: c, 1.0, unroll=jnp.int32(2)),
        errors.ArgumentTypeError,
        ["`unroll` must be a `bool`", "Array(2"],
    ),
    "unroll": (
        lambda: lax.scan(lambda c, x: (c, x), 1.0, ONES, unroll=-1),
        ValueError,
        ["`unroll` must be a `bool`"],
    ),
    "not a function": (lambda: lax.scan(3, 1.0, ONES), TypeError, ["lax.scan: f must be callable"]),
    "no array": (lambda: lax.scan(lambda c, x: (c, "y"), 1.0, ONES), TypeError, ["<class 'str'> at output component"]),
    "while condition": (
        lambda: lax.while_loop(lambda c: c, lambda c: c + 1, 1),
        TypeError,
        ["cond_fun must return a boolean scalar", "int32[]"],
    ),
    "while condition tree": (
        lambda: lax.while_loop(lambda c: (c < 1, c), lambda c: c + 1, 1),
        TypeError,
        ["cond_fun must return a boolean scalar, but got pytree"],
    ),
    "while carry": (
        lambda: lax.while_loop(lambda c: c < 3, lambda c: (c, 1), 1),
        TypeError,
        [
            "while_loop body function carry",
            "same pytree structure",
            "carry c is a leaf of type int32[] but",
            "is a <class 'tuple'>",
        ],
    ),
    "fori carry": (
        lambda: lax.fori_loop(0, 3, lambda i, c: jnp.stack([c, c]), ONES),
        TypeError,
        ["fori_loop body function carry", "carry c has type float32[3] but", "has type float32[2,3]"],
    ),
    "fori carry path": (
        lambda: lax.fori_loop(0, 3, lambda i, state: {"w": state["w"].astype(np.int32)}, {"w": ONES}),
        TypeError,
        ["component state['w'] has type float32[3] but", "int32[3], so the dtypes do not match", "astype"],
    ),
    "fori carry path, traced bounds": (
        lambda: lax.fori_loop(0, jnp.int32(3), lambda i, state: {"w": state["w"][:2]}, {"w": ONES}),
        TypeError,
        ["component state['w'] has type float32[3] but", "float32[2], so the shapes"],
    ),
    "fori carry structure": (
        lambda: lax.fori_loop(0, 3, lambda i, state: {"v": state["w"]}, {"w": ONES}),
        TypeError,
        ["same pytree structure", "carry state is a <class 'dict'> with pytree metadata ('w',)", "metadata ('v',)"],
    ),
    "fori bounds": (
        lambda: lax.fori_loop(0, ONES, lambda i, c: c, 1.0),
        TypeError,
        ["upper must be a scalar"],
    ),
    "fori dtypes": (
        lambda: lax.fori_loop(np.int8(0), np.int32(3), lambda i, c: c, 1.0),
        TypeError,
        ["lower and upper arguments to fori_loop must have equal types"],
    ),
    "pred shape": (
        lambda: lax.cond(ONES > 0, lambda x: x, lambda x: x, 1),
        TypeError,
        ["Pred must be a scalar", "shape (3,)", "where"],
    ),
    "pred type": (lambda: lax.cond("s", lambda x: x, lambda x: x, 1), TypeError, ["Pred must be a scalar, got s"]),
    "branch structure": (
        lambda: lax.cond(True, lambda x: {"a": x, "b": x}, lambda x: {"a": x}, 1),
        TypeError,
        [
            "cond branch outputs must have the same pytree structure",
            "true_fun output is a <class 'dict'> with 2 children but false_fun output is a <class 'dict'> with 1 child",
        ],
    ),
    "branch types": (
        lambda: lax.cond(True, lambda x: {"a": 1.0}, lambda x: {"a": ONES}, 1),
        TypeError,
        ["cond branches must have equal output types", "of true_fun at path ['a'] has type float32[]", "float32[3]"],
    ),
    "index type": (lambda: lax.switch(1.0, [lambda x: x] * 2, 1.0), TypeError, ["Index type must be an integer"]),
    "no branches": (lambda: lax.switch(1, [], 1.0), ValueError, ["Empty branch sequence"]),
    "operands twice": (
        lambda: lax.cond(True, lambda x: x, lambda x: x, 1, operand=2),
        TypeError,
        ["operands were given both"],
    ),
    "reverse while": (
        lambda: meshrt.grad(lambda x: lax.while_loop(lambda c: c < 3, lambda c: c * 2, x))(1.0),
        ValueError,
        ["Reverse-mode differentiation does not work for lax.while_loop", "Try using lax.scan"],
    ),
    "associative structure": (
        lambda: lax.associative_scan(lambda a, b: (a, b), ONES),
        TypeError,
        ["fn must return a pytree like its operands"],
    ),
    "map batch size": (lambda: lax.map(jnp.sin, ONES, batch_size=-1), ValueError, ["batch_size must be a whole"]),
}


@pytest.mark.parametrize("name", list(CASES))
def test_refusal(name):
    call, kind, parts = CASES[name]
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, errors.MeshrtError)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_weak_carries_are_promoted():
    out, _ = lax.scan(lambda c, x: (c + x, None), 0, ONES)
    assert out.dtype == np.float32 and float(out) == 3.0
    out = lax.while_loop(lambda c: c < 3, lambda c: c + jnp.bfloat16(1), 0.0)
    assert out.dtype == jnp.bfloat16


def test_a_body_is_staged_once():
    calls = []

    def body(c, x):
        calls.append(1)
        return c + x, x

    for _ in range(3):
        lax.scan(body, jnp.float32(0), ONES)
    assert len(calls) == 1
    lax.scan(body, jnp.zeros(2), jnp.ones((3, 2)))
    assert len(calls) == 2


def test_a_body_that_closes_over_tracers_is_staged_each_time():
    @meshrt.jit
    def f(x):
        return lax.scan(lambda c, y: (c + x * y, None), jnp.zeros(3), jnp.ones((2, 3)))[0]

    np.testing.assert_allclose(f(ONES), 2 * ONES)
    np.testing.assert_allclose(meshrt.grad(lambda x: jnp.sum(f(x)))(ONES), 2 * ONES)


def test_disable_jit_runs_python_loops():
    seen = []

    def body(c, x):
        seen.append(float(x))
        return c + x, c

    with meshrt.config.override(disable_jit=True):
        c, ys = lax.scan(body, jnp.float32(0), jnp.arange(3.0), reverse=True)
        assert lax.cond(jnp.float32(0) > 1, lambda: 1 / 0, lambda: 2.0) == 2.0
        assert lax.fori_loop(0, 3, lambda i, c: c + float(i), 0.0) == 3.0
    assert seen == [2.0, 1.0, 0.0] and float(c) == 3.0
    np.testing.assert_allclose(ys, [3.0, 2.0, 0.0])


@pytest.mark.parametrize("unroll, factor", [(True, 3), (False, 1), (2, 2), (0, 3)])
def test_numbers_of_numpy_unroll_as_those_of_python(unroll, factor):
    for given in (unroll, np.bool_(unroll) if isinstance(unroll, bool) else np.int8(unroll)):
        jaxpr = meshrt.make_jaxpr(lambda x: lax.scan(lambda c, y: (c + y, y), 0.0, x, unroll=given))(ONES)
        assert [e.params["unroll"] for e in jaxpr.eqns] == [factor]
