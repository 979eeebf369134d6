"""Choices that look at what the users of a value bring along: never more bytes than XLA's partitioner."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from .jax_side import Case, check


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 4


def test_two_operands_that_meet_are_moved_once():
    """Both terms are where the rows are split; the sum is wanted where the columns are."""

    def build(constrain):
        def f(xs, w, v, h):
            def step(h, x):
                h = constrain(jnp.tanh(h @ w + x * v), None, "x")
                return h, jnp.sum(h, 0)

            return jax.lax.scan(step, h, xs)

        return f

    args = (normal(8, 30, 48), normal(48, 48, seed=1), normal(48, seed=2), normal(30, 48, seed=3))
    check(Case({"x": 5}, build, args, (P(None, "x"), P(), P(), P("x"))), rtol=2e-4)


def test_looking_up_takes_no_longer_in_a_whole_table():
    """A table smaller than what is looked up in it is gathered; its parts' answers would be added up."""
    table, ids = normal(16, 8), np.arange(32, dtype=np.int32) * 7 % 16
    build = lambda constrain: lambda table, ids: jnp.take(table, ids, axis=0, mode="clip")
    _, sent = check(Case({"a": 4, "b": 2}, build, (table, ids), (P("b"), P()), P()), exact=True)
    assert sent <= table.nbytes / 2


def test_what_is_whole_is_sliced_where_it_is():
    """What was looked up is on every device; one of its columns is not cut out of pieces and added up."""
    table, ids = normal(24, 4), np.arange(30, dtype=np.int32).reshape(6, 5) * 7 % 24
    build = lambda constrain: lambda table, ids: constrain(table, "x", None)[ids][:, 0] + 1
    check(Case({"x": 5}, build, (table, ids), (P(), P(None, "x")), P()), exact=True)


def test_what_is_asked_for_whole_is_sorted_whole():
    """Dealing it out first would spare work, and send more than gathering it once."""

    def build(constrain):
        step = lambda i, s: (constrain(jnp.sort(s[0], axis=0), None, None) + s[1], s[0] * 0.5)
        return lambda a, b: jax.lax.fori_loop(0, 4, step, (a, b))

    check(Case({"x": 8}, build, (normal(8, 48), normal(8, 48, seed=1)), (P("x"), P("x"))))


def test_a_short_transform_of_what_is_whole_stays_whole():
    build = lambda constrain: lambda x: jnp.fft.rfftn(constrain(x, None, "x"), axes=(1,))
    check(Case({"x": 8}, build, (normal(32, 6),), (P(),), P()))


def test_rows_that_weights_are_gathered_for_are_looked_up_where_they_are_wanted():
    """Propagation splits the features, whose products would be added up whole; behind a function there are others."""

    def build(constrain):
        f = jax.jit(lambda x: jnp.maximum(x, 0) * x)

        def layers(table, w, v, ids):
            x = table[ids]
            for i in range(2):
                x = x + f(x @ w[i]) @ v[i]
            return jnp.sum(x * x)

        return layers

    args = (
        normal(64, 16),
        normal(2, 16, 64, seed=1),
        normal(2, 64, 16, seed=2),
        np.arange(1024, dtype=np.int32).reshape(16, 64) % 64,
    )
    specs = P("x"), P(None, "x"), P(None, None, "x"), P("x")
    _, sent = check(Case({"x": 8}, build, args, specs, P()), rtol=1e-3)
    assert sent < 2 * 4 * (2 * 2 * 16 * 64 + 64 * 16)


def test_what_is_known_of_rows_is_gathered_before_it_is_repeated():
    """A sum for each row goes to where its copies are wanted as it is: logits stay split along the vocabulary."""

    def build(constrain):
        def loss(x, w, table, ids):
            y = x + jnp.tanh(x @ w)
            y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5)
            z = y @ table.T
            return jnp.mean(jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, ids[..., None], -1)[..., 0])

        return jax.value_and_grad(loss, (1, 2))

    x, w, table = normal(16, 8, 32), normal(32, 32, seed=1), normal(256, 32, seed=2)
    ids = np.arange(128, dtype=np.int32).reshape(16, 8)
    outs = (P(), (P("x"), P("x")))
    _, sent = check(Case({"x": 8}, build, (x, w, table, ids), (P("x"), P("x"), P("x"), P("x")), outs), rtol=2e-4)
    assert sent < 3 * x.nbytes


def test_a_version_that_a_program_returns_is_a_step_to_others():
    """Columns are gathered since they are returned so; rows are then a slice, where an exchange would come on top."""
    x = normal(16, 16)
    build = lambda constrain: lambda x: (y := jnp.tanh(x), constrain(y * 2, "x", None))
    _, sent = check(Case({"x": 8}, build, (x,), (P(None, "x"),), (P(), P("x"))))
    assert sent == x.nbytes * 7 / 8


def test_an_operand_that_others_gather_is_gathered_before_it_is_reshaped():
    """The sort needs all elements, and the reshape is wanted whole: one all-gather serves both."""

    def build(constrain):
        def f(x):
            y = x * x
            return constrain(y.reshape(2, 6), None, None), jnp.sort(y)

        return f

    x = normal(12)
    _, sent = check(Case({"a": 3, "b": 2}, build, (x,), (P(("b", "a")),)))
    assert sent == x.nbytes * 5 / 6


def test_what_others_have_gathered_is_updated_whole():
    """The sort has gathered all elements; the result of the update is wanted whole as well, and as pieces."""

    def build(constrain):
        def f(x, i):
            ordered = jnp.sort(x)
            y = jax.lax.dynamic_update_slice_in_dim(x, jnp.full(5, 0.3, x.dtype), i, axis=0)
            return ordered, constrain(y, "a"), constrain(jnp.flip(y, 0), None)

        return f

    x = normal(16)
    _, sent = check(Case({"a": 4, "b": 2}, build, (x, np.int32(3)), (P("a"), P())))
    assert sent == x.nbytes * 3 / 4


def test_an_operand_that_is_whole_is_cut_where_a_user_wants_it_so():
    """Cut for the convolution, as its result is wanted, it would have to exchange borders."""
    kernel = normal(3, 1, 2)

    def build(constrain):
        def f(x):
            y = jax.lax.conv_general_dilated(
                x[:, :, None], kernel, (1,), [(1, 1)], dimension_numbers=("NWC", "WIO", "NWC")
            )
            return constrain(y[:, :, 0] + y[:, :, 1] * 0.5, None, "x"), jnp.sort(x)

        return f

    _, sent = check(Case({"x": 8}, build, (normal(8, 8),), (P(),), (P(None, "x"), P())))
    assert not sent
