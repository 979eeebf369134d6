"""custom_jvp and custom_vjp: rules in use, their conventions, and what is said of wrong ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshrt
import meshrt.numpy as mnp
from meshrt import errors
from meshrt.custom_derivatives import SymbolicZero

X = np.linspace(0.1, 1.2, 4).astype(np.float32)
BOTH = [(meshrt, mnp), (jax, jnp)]


def agree(make, *args, tolerance=1e-5):
    """`make(jx, np)` is a function that gives the same with both packages."""
    mine, theirs = make(meshrt, mnp)(*args), make(jax, jnp)(*args)
    for a, b in zip(meshrt.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def wrong_jvp(jx, np_):
    """A rule that is not the derivative, so that its use shows."""

    @jx.custom_jvp
    def f(x, y):
        return np_.sin(x) * y

    @f.defjvp
    def _(primals, tangents):
        (x, y), (tx, ty) = primals, tangents
        return f(x, y), 7.0 * tx * y + np_.cos(x) * ty

    return f


def wrong_vjp(jx, np_):
    @jx.custom_vjp
    def f(x, y):
        return np_.sin(x) * y

    f.defvjp(lambda x, y: (f(x, y), (x, y)), lambda saved, g: (7.0 * g * saved[1], g * np_.cos(saved[0])))
    return f


@pytest.mark.parametrize("make", [wrong_jvp, wrong_vjp])
def test_the_rule_is_used_under_every_transformation(make):
    def everything(jx, np_):
        f = make(jx, np_)

        def loss(f):
            return lambda x: np_.sum(f(x, np_.cos(x)) ** 2)

        variants = [
            f,
            jx.jit(f),
            jx.checkpoint(f),
            jx.vmap(f),
            lambda x, y: jx.lax.map(lambda xy: f(*xy), (x, y)),
            lambda x, y: jx.lax.cond(True, f, lambda x, y: x, x, y),
            jx.jit(jx.vmap(jx.checkpoint(jx.jit(f)), (0, 0))),
        ]
        each = jx.vmap(jx.grad(lambda x, y: f(x, y)))
        return jx.jit(lambda x: [jx.grad(loss(v))(x) for v in variants] + [each(x, x)])

    agree(everything, X)


def test_forward_mode_uses_the_jvp_rule():
    agree(lambda jx, np_: lambda x: jx.jvp(wrong_jvp(jx, np_), (x, x), (x, np_.cos(x))), X)
    agree(lambda jx, np_: lambda x: jx.jacfwd(lambda x: wrong_jvp(jx, np_)(x, x))(x), X)


def test_unbatched_arguments_get_summed_cotangents():
    def everything(jx, np_):
        f = wrong_vjp(jx, np_)
        return lambda x: jx.grad(lambda x, y: np_.sum(jx.vmap(f, (0, None))(x, y)), (0, 1))(x, x[0])

    agree(everything, X)


def test_nondiff_arguments():
    def everything(jx, np_):
        apply = jx.custom_jvp(lambda g, x, n: g(x) * n, nondiff_argnums=(0, 2))
        apply.defjvp(lambda g, n, primals, tangents: (g(*primals) * n, 3.0 * n * tangents[0]))
        apply2 = jx.custom_vjp(lambda g, x, n: g(x) * n, nondiff_argnums=(0, 2))
        apply2.defvjp(lambda g, x, n: (g(x) * n, x), lambda g, n, x, ct: (ct * n * g(x),))
        return lambda x: (
            jx.grad(lambda x: np_.sum(apply(np_.sin, x, 2)))(x),
            jx.grad(lambda x: np_.sum(apply2(np_.sin, x, 2)))(x),
            jx.grad(lambda x: np_.sum(apply2(np_.sin, x, n=3)))(x),
        )

    agree(everything, X)


def test_arguments_without_derivative_may_be_traced():
    """By custom_jvp: transformations of the function pass them on, and the rule is not asked about them."""

    def everything(jx, np_):
        apply = jx.custom_jvp(lambda n, x, ms: x * n["n"] * ms[1], nondiff_argnums=(0, 2))
        rule = lambda n, ms, primals, tangents: (apply(n, *primals, ms), 3.0 * n["n"] * tangents[0] + 0 * ms[1])
        apply.defjvp(rule)
        one = lambda x: lambda n, x: apply({"n": n}, x, ("name", 2.0))
        rows = lambda f: lambda x: jx.vmap(f, (0, None))(x, x)
        return lambda x: (
            jx.jit(one(x))(2.0, x),
            rows(one(x))(x),
            jx.jit(rows(jx.jacrev(one(x), 1)))(x),
            jx.grad(lambda x: rows(one(x))(x).sum())(x),
            jx.grad(lambda n: one(x)(n, x).sum())(2.0),
            jx.jacfwd(lambda x: one(x)(x[0], x))(x),
        )

    agree(everything, X)


def test_integer_arguments_and_results():
    def everything(jx, np_):
        @jx.custom_jvp
        def f(x, i):
            return x * i, i + 1

        @f.defjvp
        def _(primals, tangents):
            x, i = primals
            out, j = f(x, i)
            return (out, j), (tangents[0] * i * 2.0, np.zeros(j.shape, jax.dtypes.float0))

        @jx.custom_vjp
        def g(x, i):
            return x * i

        g.defvjp(lambda x, i: (g(x, i), i), lambda i, ct: (ct * i * 2.0, None))
        i = np.int32(3)
        return lambda x: (jx.grad(lambda x: np_.sum(f(x, i)[0]))(x), jx.grad(lambda x: np_.sum(g(x, i)))(x))

    agree(everything, X)


def test_defjvps():
    def everything(jx, np_):
        @jx.custom_jvp
        def f(x, y):
            return np_.sin(x) * y

        f.defjvps(lambda t, out, x, y: t * out, None)
        return lambda x: jx.grad(lambda x, y: np_.sum(f(x, y)), (0, 1))(x, x)

    agree(everything, X)


def test_symbolic_zeros():
    seen = []

    @meshrt.custom_jvp
    def f(x, y):
        return x * y

    def rule(primals, tangents):
        seen.append([isinstance(t, SymbolicZero) for t in tangents])
        (x, y), (tx, _) = primals, tangents
        return x * y, tx * y

    f.defjvp(rule, symbolic_zeros=True)
    np.testing.assert_allclose(meshrt.grad(lambda x: mnp.sum(f(x, 2.0)))(X), np.full(4, 2.0))
    assert seen == [[False, True]]

    @meshrt.custom_vjp
    def g(x, y):
        return x * y, x + y

    def forward(x, y):
        seen.append((x.perturbed, y.perturbed))
        return (x.value * y.value, x.value + y.value), y.value

    def backward(y, cts):
        seen.append(isinstance(cts[1], SymbolicZero))
        return cts[0] * y, None

    g.defvjp(forward, backward, symbolic_zeros=True)
    np.testing.assert_allclose(meshrt.grad(lambda x: mnp.sum(g(x, 2.0)[0]))(X), np.full(4, 2.0))
    assert seen[1:] == [(True, False), True]


def test_methods_and_custom_gradient():
    class Scaled:
        scale = 3.0

        @meshrt.custom_gradient
        def constant(x):
            return mnp.sin(x), lambda ct: ct * 5.0

    np.testing.assert_allclose(meshrt.grad(lambda x: mnp.sum(Scaled.constant(x)))(X), np.full(4, 5.0))

    def everything(jx, np_):
        @jx.custom_gradient
        def f(x, y):
            return x * y, lambda ct: (ct * np_.sin(y), ct * x)

        return lambda x: jx.jit(jx.grad(lambda x, y: np_.sum(f(x, y)), (0, 1)))(x, x * 2)

    agree(everything, X)


def test_closure_convert():
    def everything(jx, np_):
        def minimum(objective, x):
            converted, captured = jx.closure_convert(objective, x)
            return solve(converted, x, *captured)

        solve = jx.custom_vjp(lambda f, x, *captured: f(x, *captured), nondiff_argnums=(0,))
        solve.defvjp(
            lambda f, x, *captured: (f(x, *captured), (x, captured)),
            lambda f, saved, ct: (ct, *[ct * c for c in saved[1]]),
        )
        return lambda x: jx.grad(lambda c: minimum(lambda x: np_.sin(x) * c, x[0]))(x[1])

    agree(everything, X)


def test_rules_may_loop_over_tangents():
    """A loop whose carry has a known counter beside a tangent."""

    def everything(jx, np_):
        @jx.custom_jvp
        def f(x):
            return np_.sin(x)

        @f.defjvp
        def _(primals, tangents):
            (x,), (t,) = primals, tangents
            total = jx.lax.fori_loop(0, 3, lambda i, s: s + t * np_.cos(x) * i, np_.zeros_like(t))
            _, doubled = jx.lax.scan(lambda c, k: ((c[0] + k, c[1] + t * c[0]), None), (1.0, t), np_.arange(3.0))[0]
            return f(x), jx.jit(lambda a, b: a + b * 0.5)(total, doubled)

        return lambda x: (jx.grad(lambda x: np_.sum(f(x)))(x), jx.jvp(f, (x,), (x,)), jx.jit(jx.vmap(jx.grad(f)))(x))

    agree(everything, X)


def _jvp_with(rule, x=1.0):
    @meshrt.custom_jvp
    def f(x, y):
        return x * y

    f.defjvp(rule)
    return meshrt.jit(meshrt.grad(f))(x, 2.0)


def _vjp_with(forward, backward):
    @meshrt.custom_vjp
    def g(x, y):
        return x * y["a"]

    g.defvjp(forward, backward)
    return meshrt.jit(meshrt.grad(g, (0, 1)))(1.0, {"a": 2.0})


def _closed_over(kind):
    def f(z):
        if kind == "jvp":
            h = meshrt.custom_jvp(lambda x: x * z)
            h.defjvp(lambda p, t: (p[0] * 2.0, t[0]))
        else:
            h = meshrt.custom_vjp(lambda x: x * z)
            h.defvjp(lambda x: (x, None), lambda r, g: (g,))
        return h(1.0)

    return meshrt.grad(f)(2.0)


MUL = lambda x, y: x * y
NO_BWD = lambda saved, ct: None
REFUSED = {
    "no jvp": (lambda: meshrt.custom_jvp(MUL)(1.0, 2.0), AttributeError, "No JVP defined for custom_jvp"),
    "no vjp": (lambda: meshrt.custom_vjp(MUL)(1.0, 2.0), AttributeError, "No VJP defined for custom_vjp"),
    "jvp no pair": (lambda: _jvp_with(lambda p, t: p[0] * 3.0), TypeError, "must produce a pair"),
    "jvp trees": (lambda: _jvp_with(lambda p, t: (p[0], (t[0],))), TypeError, "equal container (pytree) structures"),
    "jvp shape": (
        lambda: _jvp_with(lambda p, t: (p[0] * p[1], mnp.ones(3))),
        TypeError,
        "Expected float32[] (tangent type of float32[]) but got float32[3]",
    ),
    "jvp result": (
        lambda: _jvp_with(lambda p, t: (mnp.ones(3), mnp.ones(3))),
        TypeError,
        "expected f32[] but got f32[3]",
    ),
    "fwd no pair": (lambda: _vjp_with(lambda x, y: x, NO_BWD), TypeError, "must produce a pair"),
    "fwd tree": (lambda: _vjp_with(lambda x, y: ((x, x), 1), NO_BWD), TypeError, "of the structure that g returns"),
    "fwd shape": (lambda: _vjp_with(lambda x, y: (mnp.ones(2), 1), NO_BWD), TypeError, "expected f32[] but got f32[2]"),
    "fwd residual": (lambda: _vjp_with(lambda x, y: (x, "a"), NO_BWD), TypeError, "residuals must be arrays"),
    "bwd no tuple": (lambda: _vjp_with(lambda x, y: (x, 1), lambda r, g: g), TypeError, "a tuple of length equal to"),
    "bwd length": (lambda: _vjp_with(lambda x, y: (x, 1), lambda r, g: (g,)), TypeError, "a tuple of length equal to"),
    "bwd tree": (lambda: _vjp_with(lambda x, y: (x, 1), lambda r, g: (g, (g,))), TypeError, "output[1]"),
    "bwd shape": (
        lambda: _vjp_with(lambda x, y: (x, 1), lambda r, g: (mnp.ones(2), {"a": g})),
        ValueError,
        "output[0] the bwd rule produced an output of type float32[2]",
    ),
    "bwd key": (
        lambda: _vjp_with(lambda x, y: (x, 1), lambda r, g: (g, {"a": mnp.ones(2)})),
        ValueError,
        "output[1]['a']",
    ),
    "forward mode": (
        lambda: meshrt.jvp(wrong_vjp(meshrt, mnp), (1.0, 2.0), (1.0, 1.0)),
        TypeError,
        "can't apply forward-mode autodiff (jvp) to a custom_vjp function",
    ),
    "linearize": (
        lambda: meshrt.linearize(wrong_vjp(meshrt, mnp), 1.0, 2.0)[1](1.0, 1.0),
        TypeError,
        "can't apply forward-mode autodiff",
    ),
    "closed over jvp": (
        lambda: _closed_over("jvp"),
        errors.ClosedOverError,
        "with respect to a value that it closes over",
    ),
    "closed over vjp": (
        lambda: _closed_over("vjp"),
        errors.ClosedOverError,
        "with respect to a value that it closes over",
    ),
}


def _traced_nondiff():
    f = meshrt.custom_vjp(MUL, nondiff_argnums=(1,))
    f.defvjp(MUL, MUL)
    return meshrt.jit(lambda x: f(x, x))(1.0)


REFUSED["traced nondiff"] = (_traced_nondiff, TypeError, "non-differentiable argument")


@pytest.mark.parametrize("name", list(REFUSED))
def test_refusal(name):
    call, kind, part = REFUSED[name]
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, errors.MeshrtError)
    assert part in str(caught.value), str(caught.value)


def test_none_is_a_zero_cotangent_for_a_whole_argument():
    out = _vjp_with(lambda x, y: (x * y["a"], None), lambda r, g: (g * 3.0, None))
    assert float(out[0]) == 3.0 and float(out[1]["a"]) == 0.0


def test_calls_are_staged_once():
    """By all programs; where values are known nothing is staged, and the function runs each time."""
    calls = []

    @meshrt.custom_jvp
    def f(x):
        calls.append(1)
        return mnp.sin(x)

    f.defjvp(lambda p, t: (f(*p), t[0]))
    for _ in range(3):
        meshrt.jit(lambda x: f(x))(X)
    assert len(calls) == 1
    for _ in range(3):
        f(X)
    assert len(calls) == 4


def test_primals_with_their_flags_are_leaves():
    # As a library sees them that maps over the arguments of its rule, beside arguments that have no leaves.
    flags = []

    def forward(x, nothing, pair):
        flags.append(meshrt.tree.map(lambda p: p.perturbed, (x, nothing, pair)))
        return x.value * pair[0].value, (pair[0].value,)

    f = meshrt.custom_vjp(lambda x, nothing, pair: x * pair[0])
    f.defvjp(forward, lambda res, ct: (ct * res[0], [], (None, None)), symbolic_zeros=True)
    g = lambda x: f(x, [], (mnp.float32(3.0), mnp.int32(1)))
    assert meshrt.grad(g)(2.0) == 3.0 and flags == [(True, [], (False, False))]
    batched = meshrt.vmap(lambda a: f(a[1], a[0], (a[1], 1)), in_axes=((None, 0),))
    np.testing.assert_array_equal(batched((None, mnp.arange(3.0))), [0.0, 1.0, 4.0])


AROUND_RESIDUALS = {
    "grad": lambda m, f, x: m.grad(f)(x),
    "grad of jit": lambda m, f, x: m.grad(m.jit(f))(x),
    "jit of grad": lambda m, f, x: m.jit(m.grad(f))(x),
    "vmap of grad": lambda m, f, x: m.vmap(m.grad(f))(x),
    "grad of vmap": lambda m, f, x: m.grad(lambda x: m.vmap(f)(x).sum())(x),
    "checkpoint": lambda m, f, x: m.grad(m.checkpoint(f))(x),
    "across jit": lambda m, f, x: m.jit(lambda x: m.vjp(f, x)[1])(x)(m.numpy.float32(1))[0],
    "scan": lambda m, f, x: m.grad(lambda x: m.lax.scan(lambda c, _: (c + f(x), None), 0.0, length=2)[0])(x),
}


@pytest.mark.parametrize("name", list(AROUND_RESIDUALS))
def test_residuals_that_are_numbers_stay_numbers(name):
    def outcome(m):
        seen = []

        def backward(residuals, ct):
            seen.append([type(r) for r in residuals if isinstance(r, bool)])
            seen.append([next(t for t in (int, float, complex) if isinstance(r, t)) for r in residuals[2:5]])
            x, double, n, scale, _, flag = residuals
            return (ct * m.numpy.cos(x) * (2 if double else 1) * n * scale if flag else None,)

        f = m.custom_vjp(lambda x: m.numpy.sin(x).sum())
        f.defvjp(lambda x: (m.numpy.sin(x).sum(), (x, True, 3, 0.5, 1j, True)), backward)
        return AROUND_RESIDUALS[name](m, f, m.numpy.arange(3, dtype="float32")), seen

    (ours, seen), (theirs, expected) = outcome(meshrt), outcome(jax)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert ours.dtype == theirs.dtype and seen == expected == [[bool, bool], [int, float, complex]]


def test_a_backward_rule_runs_where_the_function_after_it_answers_none():
    """As for statistics that are handed back as the "gradient" of what they replace."""

    def make(jx, np_):
        @jx.custom_vjp
        def scaled(x, history):
            return x * history

        scaled.defvjp(lambda x, h: (x * h, (x, h)), lambda r, ct: (None, np_.abs(r[0]) + r[1]))

        @jx.custom_vjp
        def straight(x, quantized):
            return x * 3 + quantized

        straight.defvjp(lambda x, q: (x * 3 + q, None), lambda _, ct: (ct * 3, None))

        def f(x, history):
            scaled(x, history)  # nobody reads it: its rule does not run
            return straight(x, scaled(x, history)).sum()

        def stopped(x, history):
            return (x * jx.lax.stop_gradient(scaled(x, history))).sum()

        def g(x, history):
            both = jx.grad(f, (0, 1))(x, history), jx.jit(jx.grad(f, (0, 1)))(x, history)
            return both, jx.grad(stopped, (0, 1))(x, history), jx.grad(lambda h: f(x, h) * 0.0)(history)

        return g

    agree(make, X, X + 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "int32"])
def test_a_cotangent_may_have_another_dtype(dtype):
    def make(jx, np_):
        f = jx.custom_vjp(lambda x: x * 2)
        f.defvjp(lambda x: (x * 2, None), lambda _, g: (g.astype(dtype),))
        slope = jx.grad(lambda x: f(x).sum())
        return lambda x: (slope(x), jx.jit(slope)(x), jx.grad(lambda x: jx.jit(f)(np_.stack([x, x])).sum())(x))

    agree(make, X)


@pytest.mark.parametrize("answer", [lambda g: (g, None), lambda g: ({"a": g, "b": None}, g), lambda g: (g, {"c": g})])
def test_one_cotangent_may_stand_for_all_leaves_of_an_argument(answer):
    def make(jx, np_):
        @jx.custom_vjp
        def f(d, e):
            return d["a"] * d["b"] + e["c"]

        f.defvjp(lambda d, e: (f(d, e), None), lambda _, g: answer(g))
        return lambda x: jx.grad(lambda *a: f(*a).sum(), (0, 1))({"a": x, "b": x + 1}, {"c": x})

    agree(make, X)


def test_a_rule_that_applies_the_function_to_the_tangent_can_be_transposed():
    def pulled(lib):
        @lib.custom_jvp
        def twice(x, k):
            return x * 2

        @twice.defjvp
        def _(primals, tangents):
            return twice(*primals), twice(tangents[0], 1.0)

        x = np.arange(3, dtype=np.float32)
        f = lambda y: twice((y**2).sum(), 1.0)
        direct = lib.linear_transpose(lambda x: twice(x, 1.0), x)
        of_pushed = lib.linear_transpose(lib.linearize(f, x)[1], x)(np.float32(1))
        return of_pushed, direct(x), lib.vmap(direct)(x[None]), lib.jit(lib.grad(f))(x), lib.hessian(f)(x)

    for ours, theirs in zip(jax.tree.leaves(pulled(meshrt)), jax.tree.leaves(pulled(jax))):
        np.testing.assert_allclose(ours, theirs)
