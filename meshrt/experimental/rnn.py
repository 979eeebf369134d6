"""Recurrent networks over ragged batches: the long short-term memory, with weights in the layout of cuDNN.

A layer runs once in each direction; a direction is a pseudo-layer, forward before backward. Its weights are `W_ih`
(4 hidden, inputs), `W_hh` (4 hidden, hidden), `b_ih` and `b_hh` (4 hidden,), in each of which the gates stand in the
order input, forget, cell, output. One vector holds them all: both matrices of each pseudo-layer, then both biases of
each.

Layers are scans, on every platform: nothing here needs cuDNN, and derivatives of all orders and modes exist.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors, lax, nn, random
from meshrt.core.types import aval_of
from meshrt.jit import jit
from meshrt.numpy.names import missing as _missing

__all__ = [
    "get_num_params_in_lstm", "init_lstm_weight", "lstm", "lstm_ref", "swap_lstm_gates", "unpack_lstm_weights",
]  # fmt: skip
__getattr__ = _missing(__name__, __all__)

_GATES = 4


class _Weights(NamedTuple):
    """The weights of one pseudo-layer."""

    w_ih: Any
    w_hh: Any
    b_ih: Any
    b_hh: Any


def _shapes(input_size: int, hidden_size: int, num_layers: int, bidirectional: bool) -> list[_Weights]:
    """The shapes of the weights of each pseudo-layer. Layers after the first read both directions of that before."""
    directions, rows = 1 + bool(bidirectional), _GATES * hidden_size
    widths = [input_size if layer == 0 else directions * hidden_size for layer in range(num_layers)]
    return [
        _Weights((rows, width), (rows, hidden_size), (rows,), (rows,)) for width in widths for _ in range(directions)
    ]


def _in_order(shapes: list[_Weights]) -> list[tuple[int, ...]]:
    """The shapes as they follow each other in the vector of all weights."""
    return [s for layer in shapes for s in layer[:2]] + [s for layer in shapes for s in layer[2:]]


def get_num_params_in_lstm(input_size: int, hidden_size: int, num_layers: int, bidirectional: bool) -> int:
    """How many numbers the weights of an LSTM are.

    Args:
      input_size: the size of an input at one time.
      hidden_size: the size of the state.
      num_layers: how many layers there are.
      bidirectional: whether each layer also runs from the end.

    >>> from meshrt.experimental import rnn
    >>> rnn.get_num_params_in_lstm(3, 5, 2, bidirectional=False)
    440
    """
    return sum(map(math.prod, _in_order(_shapes(input_size, hidden_size, num_layers, bidirectional))))


def init_lstm_weight(rng: Any, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool) -> Any:
    """Weights drawn evenly between -k and k, where k = sqrt(1 / hidden_size), as one float32 vector.

    Args:
      rng: a random key.
      input_size: the size of an input at one time.
      hidden_size: the size of the state.
      num_layers: how many layers there are.
      bidirectional: whether each layer also runs from the end.

    >>> from meshrt.experimental import rnn
    >>> rnn.init_lstm_weight(meshrt.random.key(0), 3, 5, 2, bidirectional=False).shape
    (440,)
    """
    count = get_num_params_in_lstm(input_size, hidden_size, num_layers, bidirectional)
    bound = np.sqrt(1.0 / hidden_size)
    return random.uniform(rng, (count,), np.float32, -bound, bound)


def _pieces(weights: Any, shapes: list[_Weights]) -> list[Any]:
    """The vector of all weights cut into arrays of the shapes `_in_order`."""
    wanted = _in_order(shapes)
    ends = np.cumsum([0, *map(math.prod, wanted)])
    if aval_of(weights).shape != (ends[-1],):
        raise errors.ArgumentValueError(
            f"weights: an LSTM of these sizes has {ends[-1]} in one vector, not {aval_of(weights).shape}; "
            "rnn.init_lstm_weight makes such a vector"
        )
    return [jnp.reshape(weights[a:b], s) for a, b, s in zip(ends, ends[1:], wanted)]


def unpack_lstm_weights(
    weights: Any, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool
) -> tuple[dict[int, Any], dict[int, Any], dict[int, Any], dict[int, Any]]:
    """`W_ih`, `W_hh`, `b_ih` and `b_hh`, each by the number of its pseudo-layer, out of the vector of all weights.

    Args:
      weights: the vector.
      input_size: the size of an input at one time.
      hidden_size: the size of the state.
      num_layers: how many layers there are.
      bidirectional: whether each layer also runs from the end.

    Raises:
      ArgumentValueError: the vector has another size than these weights.

    >>> from meshrt.experimental import rnn
    >>> w_ih, *_ = rnn.unpack_lstm_weights(jnp.ones(440), 3, 5, 2, bidirectional=False)
    >>> {layer: w.shape for layer, w in w_ih.items()}
    {0: (20, 3), 1: (20, 5)}
    """
    shapes = _shapes(input_size, hidden_size, num_layers, bidirectional)
    pieces = _pieces(weights, shapes)
    matrices, biases = pieces[: 2 * len(shapes)], pieces[2 * len(shapes) :]
    kinds = matrices[::2], matrices[1::2], biases[::2], biases[1::2]
    w_ih, w_hh, b_ih, b_hh = (dict(enumerate(kind)) for kind in kinds)
    return w_ih, w_hh, b_ih, b_hh


def swap_lstm_gates(weights: Any, input_size: int, hidden_size: int, num_layers: int, bidirectional: bool) -> Any:
    """The weights with the cell's and the output's gate exchanged, for kernels that have them in that order.

    Args:
      weights: the vector of all weights.
      input_size: the size of an input at one time.
      hidden_size: the size of the state.
      num_layers: how many layers there are.
      bidirectional: whether each layer also runs from the end.

    >>> from meshrt.experimental import rnn
    >>> rnn.swap_lstm_gates(jnp.arange(16.0), 1, 1, 1, bidirectional=False)
    Array([ 0.,  1.,  3.,  2.,  4.,  5.,  7.,  6.,  8.,  9., 11., 10., 12.,
           13., 15., 14.], dtype=float32)
    """
    weights = jnp.asarray(weights)
    pieces = _pieces(weights, _shapes(input_size, hidden_size, num_layers, bidirectional))
    swapped = [jnp.reshape(p, (_GATES, -1))[np.array([0, 1, 3, 2])].ravel() for p in pieces]
    return jnp.concatenate(swapped)


def _direction(
    x: Any, state: tuple[Any, Any], weights: _Weights, lengths: Any, backward: bool, precision: Any
) -> tuple[Any, Any, Any]:
    """One pseudo-layer over time: outputs for x (time, batch, inputs), and the last h and c of each sequence."""
    times = jnp.arange(x.shape[0], dtype=np.int32)
    # What inputs add to the gates waits for no state: one product for all times.
    told = jnp.matmul(x, weights.w_ih.T, precision=precision) + (weights.b_ih + weights.b_hh)

    def step(carry: tuple[Any, Any], now: tuple[Any, Any]) -> tuple[tuple[Any, Any], Any]:
        (h, c), (told, time) = carry, now
        gates = told + jnp.matmul(h, weights.w_hh.T, precision=precision)
        i, f, g, o = jnp.split(gates, _GATES, axis=-1)
        new_c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
        new_h = nn.sigmoid(o) * jnp.tanh(new_c)
        # Behind the end of a sequence nothing is read: from the end, too, it starts where it ends.
        is_inside = (time < lengths)[:, None]
        return (jnp.where(is_inside, new_h, h), jnp.where(is_inside, new_c, c)), jnp.where(is_inside, new_h, 0)

    (h, c), out = lax.scan(step, state, (told, times), reverse=backward)
    return out, h, c


def _check(name: str, x: Any, h_0: Any, c_0: Any, lengths: Any, sizes: tuple[int, int, int], directions: int) -> None:
    input_size, hidden_size, num_layers = sizes
    batch = aval_of(x).shape[0] if aval_of(x).ndim == 3 else "batch"
    state = (num_layers * directions, batch, hidden_size)
    if aval_of(x).ndim != 3 or aval_of(x).shape[2] != input_size:
        raise errors.ArgumentValueError(
            f"{name}: x must have the shape (batch, time, {input_size}), it has {aval_of(x).shape}"
        )
    for what, value, wanted in (("h_0", h_0, state), ("c_0", c_0, state), ("seq_lengths", lengths, (batch,))):
        if aval_of(value).shape != wanted:
            raise errors.ArgumentValueError(f"{name}: {what} must have the shape {wanted}, not {aval_of(value).shape}")
    if aval_of(lengths).dtype != np.int32:
        raise errors.UnsupportedError(
            f"{name}: `seq_lengths` can only be int32, not {aval_of(lengths).dtype}; convert with astype('int32')"
        )


def _run(
    name: str, x: Any, h_0: Any, c_0: Any, layers: list[_Weights], lengths: Any, sizes: tuple[int, int, int],
    dropout: float, bidirectional: bool, precision: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    if dropout != 0.0:
        raise errors.UnsupportedError(
            f"{name}: Dropout not supported, as there is no key to draw it with: dropout={dropout}; use 0.0, and drop "
            "between layers of your own"
        )
    directions = 1 + bool(bidirectional)
    _check(name, x, h_0, c_0, lengths, sizes, directions)
    seen, last_h, last_c = jnp.swapaxes(x, 0, 1), [], []
    for layer in range(sizes[2]):
        outs = []
        for at in range(layer * directions, (layer + 1) * directions):
            backward = at != layer * directions
            out, h, c = _direction(seen, (h_0[at], c_0[at]), layers[at], lengths, backward, precision)
            outs.append(out)
            last_h.append(h)
            last_c.append(c)
        seen = jnp.concatenate(outs, axis=-1)
    return jnp.swapaxes(seen, 0, 1), jnp.stack(last_h), jnp.stack(last_c)


@functools.partial(jit, static_argnums=(5, 6, 7, 8, 9, 10))
def lstm(
    x: Any, h_0: Any, c_0: Any, weights: Any, seq_lengths: Any, input_size: int, hidden_size: int, num_layers: int,
    dropout: float, bidirectional: bool, precision: Any = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """An LSTM over a batch of sequences, batch first.

    Args:
      x: the inputs (batch, time, input_size).
      h_0: the first outputs (directions * num_layers, batch, hidden_size).
      c_0: the first states of the cells, of the same shape.
      weights: the vector of all weights, as `init_lstm_weight` makes it.
      seq_lengths: int32 (batch,): how long each sequence is. What stands behind its end is not read, and gives zeros.
      input_size: the size of an input at one time.
      hidden_size: the size of the state.
      num_layers: how many layers there are.
      dropout: must be 0.
      bidirectional: whether each layer also runs from the end.
      precision: a `lax.Precision` of the products.

    Returns:
      The last layer's outputs (batch, time, directions * hidden_size), and the last outputs and states of all
      pseudo-layers, of the shape of `h_0`.

    Raises:
      ArgumentValueError: sizes that do not fit together.
      UnsupportedError: lengths that are not int32, or dropout.

    >>> from meshrt.experimental import rnn
    >>> weights = rnn.init_lstm_weight(meshrt.random.key(0), 3, 5, 1, False)
    >>> h = jnp.zeros((1, 2, 5))
    >>> y, h_n, c_n = rnn.lstm(jnp.ones((2, 7, 3)), h, h, weights, jnp.array([7, 4]), 3, 5, 1, 0.0, False)
    >>> y.shape, h_n.shape, bool(y[1, 4:].any())
    ((2, 7, 5), (1, 2, 5), False)
    """
    unpacked = unpack_lstm_weights(weights, input_size, hidden_size, num_layers, bidirectional)
    layers, sizes = _by_layer(*unpacked), (input_size, hidden_size, num_layers)
    return _run("lstm", x, h_0, c_0, layers, seq_lengths, sizes, dropout, bidirectional, precision)


@functools.partial(jit, static_argnums=(8, 9, 10, 11, 12))
def lstm_ref(
    x: Any, h_0: Any, c_0: Any, W_ih: Mapping[int, Any], W_hh: Mapping[int, Any], b_ih: Mapping[int, Any],
    b_hh: Mapping[int, Any], seq_lengths: Any, input_size: int, hidden_size: int, num_layers: int, dropout: float,
    bidirectional: bool,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """`lstm` of weights that have been unpacked.

    Args:
      x: the inputs (batch, time, input_size).
      h_0: the first outputs (directions * num_layers, batch, hidden_size).
      c_0: the first states of the cells, of the same shape.
      W_ih: what inputs are multiplied with, by pseudo-layer.
      W_hh: what states are multiplied with.
      b_ih: what is added to the first of these.
      b_hh: what is added to the second.
      seq_lengths: int32 (batch,): how long each sequence is.
      input_size: the size of an input at one time.
      hidden_size: the size of the state.
      num_layers: how many layers there are.
      dropout: must be 0.
      bidirectional: whether each layer also runs from the end.

    >>> from meshrt.experimental import rnn
    >>> weights = rnn.unpack_lstm_weights(jnp.ones(440), 3, 5, 2, False)
    >>> h = jnp.zeros((2, 1, 5))
    >>> rnn.lstm_ref(jnp.ones((1, 7, 3)), h, h, *weights, jnp.array([7]), 3, 5, 2, 0.0, False)[0].shape
    (1, 7, 5)
    """
    layers, sizes = _by_layer(W_ih, W_hh, b_ih, b_hh), (input_size, hidden_size, num_layers)
    return _run("lstm_ref", x, h_0, c_0, layers, seq_lengths, sizes, dropout, bidirectional, None)


def _by_layer(*kinds: Mapping[int, Any]) -> list[_Weights]:
    return [_Weights(*(kind[layer] for kind in kinds)) for layer in sorted(kinds[0])]
