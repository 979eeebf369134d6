"""LSTMs beside JAX's reference implementation."""

import jax
import numpy as np
import pytest
from jax.experimental import rnn as theirs

import meshrt
from meshrt.experimental import rnn as ours

BATCH, TIME, INPUTS, HIDDEN = 3, 6, 4, 5
LENGTHS = np.array([6, 1, 4], np.int32)


def _given(layers, bidirectional):
    draw = np.random.default_rng(0)
    state = (layers * (1 + bidirectional), BATCH, HIDDEN)
    count = theirs.get_num_params_in_lstm(INPUTS, HIDDEN, layers, bidirectional)
    assert ours.get_num_params_in_lstm(INPUTS, HIDDEN, layers, bidirectional) == count
    return [draw.normal(size=s).astype(np.float32) for s in ((BATCH, TIME, INPUTS), state, state, (count,))]


def _weighed(outs):
    return sum((out * (1 + i)).sum() for i, out in enumerate(outs))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_ragged_batches_and_their_gradients(layers, bidirectional):
    x, h, c, weights = _given(layers, bidirectional)
    sizes = (INPUTS, HIDDEN, layers)

    def wanted(x, h, c, weights):
        unpacked = theirs.unpack_lstm_weights(weights, *sizes, bidirectional)
        return theirs.lstm_ref(x, h, c, *unpacked, LENGTHS, *sizes, 0.0, bidirectional)

    def packed(x, h, c, weights):
        return ours.lstm(x, h, c, weights, LENGTHS, *sizes, 0.0, bidirectional)

    def unpacked(x, h, c, weights):
        known = ours.unpack_lstm_weights(weights, *sizes, bidirectional)
        return ours.lstm_ref(x, h, c, *known, LENGTHS, *sizes, 0.0, bidirectional)

    every = (0, 1, 2, 3)
    expected = jax.jit(wanted)(x, h, c, weights)
    slopes = jax.jit(jax.grad(lambda *a: _weighed(wanted(*a)), every))(x, h, c, weights)
    for function in (packed, unpacked):
        for a, b in zip(meshrt.jit(function)(x, h, c, weights), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    got = meshrt.jit(meshrt.grad(lambda *a: _weighed(packed(*a)), every))(x, h, c, weights)
    for a, b in zip(got, slopes, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_weights(bidirectional):
    sizes = (INPUTS, HIDDEN, 2, bidirectional)
    a = ours.init_lstm_weight(meshrt.random.key(3), *sizes)
    b = theirs.init_lstm_weight(jax.random.key(3), *sizes)
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(ours.swap_lstm_gates(a, *sizes), theirs.swap_lstm_gates(b, *sizes))
    for x, y in zip(ours.unpack_lstm_weights(a, *sizes), theirs.unpack_lstm_weights(b, *sizes), strict=True):
        assert list(x) == list(y)
        for layer in x:
            np.testing.assert_array_equal(x[layer], y[layer])


def test_what_does_not_fit_is_named():
    x, h, c, weights = _given(1, False)
    call = lambda x=x, h=h, weights=weights, lengths=LENGTHS, dropout=0.0: ours.lstm(
        x, h, c, weights, lengths, INPUTS, HIDDEN, 1, dropout, False
    )
    with pytest.raises(ValueError, match=r"x must have the shape \(batch, time, 4\)"):
        call(x=x[..., :2])
    with pytest.raises(ValueError, match="h_0 must have the shape"):
        call(h=h[:, :2])
    with pytest.raises(ValueError, match="has 220 in one vector, not"):
        call(weights=weights[1:])
    with pytest.raises(NotImplementedError, match="can only be int32"):
        call(lengths=LENGTHS.astype(np.int8))
    with pytest.raises(NotImplementedError, match="Dropout not supported"):
        call(dropout=0.5)
