"""Sums, contractions and masks that need less communication than one operation after the other: sums that are multiples
of each other, sums through contractions, large values made of small ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from .jax_side import Case, check


def normal(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def normalised(dims):
    def norm(x, gamma, beta):
        centred = x - jnp.mean(x, dims, keepdims=True)
        return centred * lax.rsqrt(jnp.var(x, dims, keepdims=True) + 1e-5) * gamma + beta

    def build(constrain):
        def f(x, gamma, beta, ct):
            y, back = jax.vjp(norm, x, gamma, beta)
            return y, back(ct)

        return f

    return build


@pytest.mark.smoke
def test_batch_norm_reduces_four_vectors():
    args = (normal(16, 4, 4, 6) * 3 + 1, normal(6), normal(6), normal(16, 4, 4, 6, seed=1))
    data = P("x", None, None, None)
    case = Case({"x": 8}, normalised((0, 1, 2)), args, (data, P(), P(), data), (data, (data, P(), P())))
    _, sent = check(case, rtol=1e-4, distribute=True)
    assert sent == 4 * 2 * 7 / 8 * 6 * 4
    _, sent = check(case, rtol=1e-4)
    assert sent == (4 * 4 + 4) * 2 * 7 / 8 * 6


def test_layer_norm_over_a_split_dimension_reduces_four_columns():
    args = (normal(12, 64) * 3 + 1, normal(64), normal(64), normal(12, 64, seed=1))
    rows, row = P(None, "x"), P("x")
    case = Case({"x": 8}, normalised((1,)), args, (rows, row, row, rows), (rows, (rows, row, row)))
    _, sent = check(case, rtol=1e-4, distribute=True)
    assert sent == 4 * 2 * 7 / 8 * 12 * 4
    _, sent = check(case, rtol=1e-4)
    assert sent == (4 * 4 + 1) * 2 * 7 / 8 * 12


@pytest.mark.parametrize("kind", ["float32", "complex64"])
def test_sums_go_through_contractions_where_the_other_operand_may_not_be_infinite(kind):
    """Nothing is known of an argument, be it of real or of complex numbers; of a bounded function's values it is."""
    args = [normal(24, 64), normal(64, 24, seed=1), normal(24, 2, seed=2)]
    args = tuple(a.astype(kind) for a in args)
    places = (P(None, "x"), P("x", None), P())
    case = Case({"x": 8}, lambda constrain: lambda a, b, c: (a @ b) @ c, args, places, P())
    less, most = [check(case, rtol=1e-4, above_xla=True, distribute=d)[1] for d in (True, None)]
    assert less == 2 * 7 / 8 * 24 * 2 * args[0].itemsize
    assert most == 2 * 7 / 8 * 24 * 24 * args[0].itemsize
    if kind == "float32":
        bounded = Case({"x": 8}, lambda constrain: lambda a, b, c: (a @ b) @ jnp.tanh(c), args, places, P())
        assert check(bounded, rtol=1e-4, above_xla=True)[1] == less


SPECIAL = np.array([np.inf, 0, 2, -np.inf, np.nan, 1], np.float32)


@pytest.mark.parametrize("distribute", [None, False])
@pytest.mark.parametrize("kind", ["zero", "positive", "mixed", "inf", "nan", "opposite"])
def test_sums_of_infinite_multiples_are_what_they_are_on_one_device(kind, distribute):
    def build(constrain):
        return lambda x, c: (jnp.sum(x, 0), jnp.sum(x * c, 0), jnp.sum(x / c, 0), jnp.sum(-x * c / 3, 0))

    x = np.abs(normal(16, 6)) + 1
    if kind != "positive":
        x[3] = {"zero": 0, "mixed": -100, "inf": np.inf, "nan": np.nan, "opposite": np.inf}[kind]
        x[9] = -np.inf if kind == "opposite" else x[9]
    case = Case({"x": 8}, build, (x, SPECIAL), (P("x", None), P()), (P(),) * 4)
    _, sent = check(case, rtol=1e-5, distribute=distribute)
    assert sent == (4 + 3 if distribute is None else 4 * 4) * 2 * 7 / 8 * 6


@pytest.mark.parametrize("where", range(4))
def test_a_normalisation_with_infinite_arguments(where):
    args = [normal(16, 6) * 3 + 1, normal(6), normal(6), normal(16, 6, seed=1)]
    args[where].flat[:6] = SPECIAL
    data = P("x", None)
    case = Case({"x": 8}, normalised((0,)), tuple(args), (data, P(), P(), data), (data, (data, P(), P())))
    check(case, rtol=1e-4)


def test_a_sum_passes_no_contraction_with_infinite_numbers():
    def build(constrain):
        return lambda x, w, v: (constrain(x, None, "x") @ constrain(w, "x", None)) @ v

    w = normal(32, 4)
    v = normal(4, 16, seed=1)
    v[1, :4] = np.inf, -np.inf, 0, np.nan
    case = Case({"x": 8}, build, (normal(64, 32, seed=2), w, v), (P(None, "x"), P("x", None), P()), P("x", None))
    check(case, rtol=1e-4, above_xla=True)


def test_sums_of_scaled_products_are_one_sum():
    def build(constrain):
        def f(x, y, a, b):
            one = jnp.sum(x * a * y, 0)
            two = jnp.sum(-(y * b) * x / a, 0)
            three = jnp.sum(x * y, 0)
            return one, two, three, jnp.sum(jnp.square(x) * b, 0), jnp.sum(x * x, 0)

        return f

    args = (normal(64, 6), normal(64, 6, seed=1), np.abs(normal(6, seed=2)) + 1, normal(6, seed=3))
    case = Case({"x": 8}, build, args, (P("x", None), P("x", None), P(), P()), (P(),) * 5)
    _, sent = check(case, rtol=1e-4, distribute=True)
    assert sent == 2 * 2 * 7 / 8 * 6 * 4
    _, sent = check(case, rtol=1e-4)
    assert sent == (2 * 4 + 3) * 2 * 7 / 8 * 6


def test_a_large_mean_does_not_drown_the_sum():
    args = (normal(64, 6) + 1e4, normal(6), normal(6), normal(64, 6, seed=1))
    data = P("x", None)
    case = Case({"x": 8}, normalised((0,)), args, (data, P(), P(), data), (data, (data, P(), P())))
    check(case, rtol=2e-2)


def test_extreme_factors():
    def build(constrain):
        return lambda x, a: (jnp.sum(x * a, 0), jnp.sum(x, 0))

    a = np.array([0.0, 1e-38, -1.0, np.nan, 2.0, 1e30], np.float32)
    check(Case({"x": 8}, build, (normal(64, 6), a), (P("x", None), P()), (P(), P())), rtol=1e-4)


@pytest.mark.smoke
def test_a_sum_passes_a_contraction():
    def build(constrain):
        def f(x, low, high, ct):
            _, back = jax.vjp(lambda low, high: x @ low @ high, low, high)
            return back(ct)

        return f

    args = (normal(64, 32), normal(32, 4), normal(4, 64), normal(64, 64, seed=1))
    specs = (P("x", None), P(), P(None, "y"), P("x", "y"))
    case = Case({"x": 2, "y": 4}, build, args, specs, (P(), P(None, "y")))
    result, sent = check(case, rtol=1e-4, distribute=True)
    assert sent == 2 * 7 / 8 * 32 * 4 * 4 + 2 * 1 / 2 * 4 * 16 * 4
    assert result.plan.counts == {"all_reduce": 2}


def test_uneven_sums_through_contractions():
    def build(constrain):
        def f(x, a, b):
            h = constrain(x, "x", "y") @ constrain(a, "y", None)
            return h.T @ constrain(b, "x", None)

        return f

    case = Case({"x": 3, "y": 2}, build, (normal(7, 9), normal(9, 4), normal(7, 5)), (P(), P(), P()), P())
    check(case, rtol=1e-4, above_xla=True)


@pytest.mark.parametrize("order", ["tokens", "experts"])
def test_a_dispatch_mask_is_made_where_it_is_needed(order):
    groups, tokens, experts, width, capacity = 8, 32, 8, 16, 8

    def build(constrain):
        def f(x, gate, w):
            probability = jax.nn.softmax(x @ gate, -1)
            if order == "experts":
                weights, chosen = lax.top_k(probability.transpose(0, 2, 1), capacity)
                dispatch = jax.nn.one_hot(chosen, tokens).transpose(0, 3, 1, 2)
                combine = dispatch * weights[:, None]
            else:
                wanted = jax.nn.one_hot(jnp.argmax(probability, -1), experts)
                place = (jnp.cumsum(wanted, 1) - 1) * wanted
                dispatch = (wanted * (place < capacity))[..., None] * jax.nn.one_hot(place.astype(jnp.int32), capacity)
                combine = dispatch * jnp.sum(probability * wanted, -1)[..., None, None]
            sent = constrain(jnp.einsum("gtec,gtd->egcd", dispatch, x), "x", None, None, None)
            done = constrain(jnp.tanh(jnp.einsum("egcd,edf->egcf", sent, w)), "x", None, None, None)
            return jnp.einsum("gtec,egcd->gtd", combine, done)

        return f

    args = (normal(groups, tokens, width), normal(width, experts), normal(experts, width, width, scale=0.3))
    tokens_split = P("x", None, None)
    case = Case({"x": 8}, build, args, (tokens_split, P(), P("x", None, None)), tokens_split)
    _, sent = check(case, rtol=1e-4)
    exchange = 7 / 8 * experts * capacity * width * 4
    assert sent <= 2.2 * exchange


def test_a_broadcast_bias_is_moved_before_it_grows():
    def build(constrain):
        def f(bias, x):
            grown = constrain(jnp.tanh(bias[:, None] + jnp.zeros((64, 128))), "x", None)
            return grown * 2, constrain(grown.T, "x", None) + x

        return f

    case = Case({"x": 8}, build, (normal(64), normal(128, 64)), (P("x"), P("x", None)), (P("x", None), P("x", None)))
    _, sent = check(case)
    assert sent <= 7 / 8 * 64 * 4 + 1


def test_products_with_one_are_another_name_of_the_other_factor():
    def build(constrain):
        def f(x, w, ct):  # ct, the cotangent of the product, is whole; as 1 * ct it would be split where the product is
            return jax.grad(lambda x: jnp.sum(x @ w * ct))(x)

        return f

    args = (normal(64, 32), normal(32, 16), normal(64, 16, seed=1))
    case = Case({"x": 2}, build, args, (P(), P(None, "x"), P()), P())
    result, sent = check(case)
    assert result.plan.counts == {"all_gather": 1} and sent == 32 * 16 * 4 / 2  # of w, and no sum of [64, 32]


def test_equal_masks_are_made_wherever_they_are_needed():
    """The contrastive loss picks the diagonal of scores and of their transpose: equal gradients, split otherwise."""

    def build(constrain):
        def loss(z):
            i = jnp.arange(z.shape[0])[:, None]
            picked = lambda z: jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(z), i, axis=1))
            return picked(z) + picked(z.T)

        return jax.grad(loss)

    result, sent = check(Case({"x": 4}, build, (normal(32, 32),), (P("x"),), P("x")))
    assert "all_to_all" not in result.plan.counts and sent == 3 * 2 * 3 / 4 * 32 * 4


def test_a_multiple_that_is_used_itself_is_summed_as_it_is():
    """No other sum is a multiple of the same one: taken out of the sum, the factor would only make one more product."""
    args = normal(32, 8), normal(32, 8, seed=1)

    def f(x, z):
        weighted = 3 * x
        return jnp.sum(weighted * z), weighted

    rows = P("x", None)
    result, sent = check(Case({"x": 8}, lambda constrain: f, args, (rows, rows), (P(), rows)), rtol=1e-5)
    assert result.as_text().count("stablehlo.multiply") == 2
    assert sent == 4 * 2 * 7 / 8


@pytest.mark.parametrize("out", [P(), P("x"), P(None, "x")])
def test_sums_side_by_side_are_one_sum(out):
    """The gradients of a kernel that is cut into gates: joined as addends, and reduced as one."""
    build = lambda _: lambda x, a, b: jnp.concatenate([x.T @ a, x.T @ b], axis=1)
    args = normal(64, 16), normal(64, 8, seed=1), normal(64, 24, seed=2)
    result, sent = check(Case({"x": 8}, build, args, (P("x"),) * 3, out))
    assert sent == (2 if out == P() else 1) * 7 / 8 * 16 * 32 * 4
    assert len(result.plan) == 1


def test_looked_up_rows_and_sums_are_joined_as_they_are():
    """Rows that were looked up have to arrive bit by bit, which sums have not."""
    build = lambda _: lambda t, i, a, b: jnp.concatenate([t[i], a @ b], axis=1)
    ids = np.arange(16, dtype=np.int32) * 5 % 64
    table = normal(64, 8)
    table[5] = -0.0
    args = table, ids, normal(16, 64, seed=1), normal(64, 8, seed=2)
    result, _ = check(Case({"x": 8}, build, args, (P("x"), P(), P(None, "x"), P("x")), P()))
    assert len([e for e in result.plan if not e.members]) + sum(len(e.members) for e in result.plan) == 2


JOINED = {
    "r + s + t": lambda r, s, t: r + s + t,
    "r - s + t": lambda r, s, t: r - s + t,
    "s - r + t": lambda r, s, t: s - r + t,
    "t - (r - s)": lambda r, s, t: t - (r - s),
}


@pytest.mark.parametrize("join", JOINED)
@pytest.mark.parametrize(
    ("mesh", "spec"), [({"x": 8}, P("x")), ({"y": 2, "x": 4}, P("x")), ({"x": 4, "y": 2}, P("y", "x"))]
)
def test_a_split_residual_and_two_sums_are_scattered_once(mesh, spec, join):
    build = lambda _: lambda r, a, w, b, v: jnp.tanh(JOINED[join](r, a @ w, b @ v))
    columns, rows = P("y" if spec[0] == "y" else None, "x"), P("x")
    args = (
        normal(64, 16),
        normal(64, 256, seed=1),
        normal(256, 16, seed=2),
        normal(64, 256, seed=3),
        normal(256, 16, seed=4),
    )
    result, sent = check(Case(mesh, build, args, (spec, columns, rows, columns, rows), spec), rtol=1e-4)
    n, own = mesh["x"], 2 if spec[0] == "y" else 1
    assert sent == (n - 1) / n * 64 // own * 16 * 4, result.plan.as_text()


def test_a_residual_with_one_sum_is_added_behind_it():
    """What more is added is no sum: each device adds its piece of the residual to its piece of the sum, as before."""
    build = lambda _: lambda r, a, w, c: (r - a @ w) * c
    args = normal(64, 16), normal(64, 256, seed=1), normal(256, 16, seed=2), normal(64, 16)
    result, _ = check(Case({"x": 8}, build, args, (P("x"), P(None, "x"), P("x"), P("x")), P("x")), rtol=1e-4)
    assert "dynamic_update_slice" not in result.as_text()


def test_a_gathered_table_is_transposed_instead_of_gathered_again():
    """Tied embeddings over the devices that share the batch: rows are looked up, and logits made with the transpose."""
    build = lambda _: lambda t, i: jnp.tanh(t[i]) @ t.T
    ids = np.arange(1024, dtype=np.int32) * 7 % 64
    args = normal(64, 16), ids
    result, sent = check(Case({"x": 8}, build, args, (P(None, "x"), P("x")), P("x")), rtol=1e-4)
    assert sent == 7 / 8 * 64 * 16 * 4, result.plan.as_text()
