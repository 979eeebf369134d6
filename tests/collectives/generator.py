"""Random small programs in JAX, with random shardings: each value is an array of rank 1 to 3."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

__all__ = ["random_program"]

MESHES = ({"x": 8}, {"a": 4, "b": 2}, {"a": 2, "b": 2, "c": 2}, {"a": 3, "b": 2})
SIZES = {8: (8, 16, 24), 6: (6, 12, 18)}


def random_spec(rng, shape, axes):
    """A PartitionSpec whose axes divide the dimensions."""
    free = list(axes)
    rng.shuffle(free)
    entries = []
    for n in shape:
        names, split = [], 1
        while free and rng.random() < 0.55 and n % (split * axes[free[-1]]) == 0:
            split *= axes[free[-1]]
            names.append(free.pop())
        entries.append(tuple(names) if len(names) > 1 else names[0] if names else None)
    return PartitionSpec(*entries)


def random_program(seed: int):
    """(mesh axes, build, args, in specs): `build(constrain)` is the function, with a tuple of results."""
    rng = np.random.default_rng(seed)
    axes = MESHES[seed % len(MESHES)]
    sizes = SIZES[math.prod(axes.values())]
    shapes = [tuple(int(rng.choice(sizes)) for _ in range(rng.integers(1, 4))) for _ in range(3)]
    args = tuple(rng.standard_normal(s).astype(np.float32) for s in shapes)
    specs = tuple(random_spec(rng, s, axes) for s in shapes)
    plan = [(int(rng.integers(1 << 30)), float(rng.random())) for _ in range(int(rng.integers(4, 10)))]

    def build(constrain):
        def f(*xs):
            values = list(xs)
            for draw, chance in plan:
                local = np.random.default_rng(draw)
                values.append(_step(local, values, constrain if chance < 0.3 else None, axes))
            return tuple(values[len(xs) :])

        return f

    return axes, build, args, specs


def _step(rng, values, constrain, axes):
    x = values[int(rng.integers(max(0, len(values) - 4), len(values)))]
    kinds = [k for k in OPS if k is not None]
    y = None
    while y is None:
        y = OPS[kinds[int(rng.integers(len(kinds)))]](rng, x, values)
    if constrain is not None:
        spec = random_spec(rng, y.shape, axes)
        y = constrain(y, *spec)
    return y


def _like(rng, x, values):
    same = [v for v in values if v.shape == x.shape]
    return same[int(rng.integers(len(same)))]


def _dim(rng, x):
    return int(rng.integers(x.ndim)) if x.ndim else None


def _reduce(rng, x, values):
    if x.ndim < 1:
        return None
    f = (jnp.sum, jnp.max, jnp.mean, lambda v, axis: jnp.argmax(v, axis).astype(v.dtype))[int(rng.integers(4))]
    return f(x, axis=_dim(rng, x))


def _matmul(rng, x, values):
    if x.ndim < 1:
        return None
    d = _dim(rng, x)
    pairs = [(v, e) for v in values for e in range(v.ndim) if v.shape[e] == x.shape[d] and v.ndim + x.ndim <= 5]
    v, e = pairs[int(rng.integers(len(pairs)))] if pairs else (None, None)
    return None if v is None else jnp.tensordot(x, v, axes=(d, e)) * 0.2


def _reshape(rng, x, values):
    if x.ndim >= 2 and rng.random() < 0.5:
        d = int(rng.integers(x.ndim - 1))
        return x.reshape(*x.shape[:d], x.shape[d] * x.shape[d + 1], *x.shape[d + 2 :])
    d = _dim(rng, x)
    if d is None or x.ndim > 2:
        return None
    divisors = [k for k in (2, 3, 4, 6, 8) if x.shape[d] % k == 0 and x.shape[d] > k]
    if not divisors:
        return None
    k = divisors[int(rng.integers(len(divisors)))]
    return x.reshape(*x.shape[:d], k, x.shape[d] // k, *x.shape[d + 1 :])


def _slice(rng, x, values):
    d = _dim(rng, x)
    if d is None or x.shape[d] < 4:
        return None
    start = int(rng.integers(0, x.shape[d] // 2))
    stop = int(rng.integers(start + 2, x.shape[d] + 1))
    return jax.lax.slice_in_dim(x, start, stop, int(rng.choice([1, 1, 2])), axis=d)


def _concatenate(rng, x, values):
    d = _dim(rng, x)
    return None if d is None or x.shape[d] > 40 else jnp.concatenate([x, _like(rng, x, values)], axis=d)


def _pad(rng, x, values):
    if not x.ndim:
        return None
    widths = [(int(rng.integers(0, 3)), int(rng.integers(0, 3))) for _ in x.shape]
    return jnp.pad(x, widths, constant_values=0.5)


def _dynamic_slice(rng, x, values):
    d = _dim(rng, x)
    if d is None or x.shape[d] < 3:
        return None
    length = int(rng.integers(1, x.shape[d]))
    return jax.lax.dynamic_slice_in_dim(x, _start(x, x.shape[d] - length), length, axis=d)


def _update(rng, x, values):
    d = _dim(rng, x)
    if d is None or x.shape[d] < 3:
        return None
    length = int(rng.integers(1, x.shape[d]))
    shape = (*x.shape[:d], length, *x.shape[d + 1 :])
    new = jax.lax.broadcasted_iota(x.dtype, shape, d) * 0.3  # not a part of x: XLA updates in place while it reads
    return jax.lax.dynamic_update_slice_in_dim(x, new, _start(x, x.shape[d] - length), axis=d)


def _start(x, last: int):
    """A traced position in [0, last]: XLA merges two slices into one without clamping the second position, on one
    device too, so programs that clamp there have no trustworthy value to compare with."""
    return jnp.clip((jnp.max(jnp.abs(x)) * 2).astype(jnp.int32), 0, last)


def _take(rng, x, values):
    d = _dim(rng, x)
    if d is None:
        return None
    ids = jnp.asarray(rng.integers(0, x.shape[d], int(rng.choice([6, 8, 12]))))
    return jnp.take(x, ids, axis=d, mode="clip")


def _scatter(rng, x, values):
    if x.ndim < 1:
        return None
    ids = jnp.asarray(rng.integers(0, x.shape[0], x.shape[0]))
    y = _like(rng, x, values)
    return x.at[ids].add(y) if rng.random() < 0.7 else x.at[ids[:1]].set(y[:1])


def _scan(rng, x, values):
    if x.ndim < 2:
        return None

    def body(c, row):
        c = jnp.tanh(c + row)
        return c, c * 2

    last, all_ = jax.lax.scan(body, jnp.zeros(x.shape[1:], x.dtype), x)
    return all_ if rng.random() < 0.6 else last


def _mask(rng, x, values):
    d = _dim(rng, x)
    if d is None:
        return None
    where = jax.lax.broadcasted_iota(jnp.int32, x.shape, d)
    return jnp.where(where % 3 == 1, x, _like(rng, x, values))


def _transpose(rng, x, values):
    return jnp.transpose(x, list(rng.permutation(x.ndim))) if x.ndim > 1 else None


def _softmax(rng, x, values):
    return jax.nn.softmax(x, axis=_dim(rng, x)) if x.ndim else None


def _cond(rng, x, values):
    return jax.lax.cond(jnp.sum(jnp.abs(x)) > 3.7, lambda a: a * 2, lambda a: a - jnp.mean(a), x)


def _pool(rng, x, values):
    d = _dim(rng, x)
    if d is None or x.shape[d] < 4:
        return None
    window = [1] * x.ndim
    strides = list(window)
    window[d], strides[d] = int(rng.integers(2, 4)), int(rng.integers(1, 4))

    def total(v):
        y = jax.lax.reduce_window(v, -jnp.inf, jax.lax.max, window, strides, "SAME" if window[d] > 2 else "VALID")
        return jnp.sum(y * y)

    return jax.grad(total)(jnp.round(x)) * 0.3


def _convolve(rng, x, values):
    if x.ndim != 2:
        return None
    stride, taps = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    w = jnp.asarray(rng.standard_normal((taps, 1, 2)), x.dtype)
    dims = ("NHC", "HIO", "NHC")
    y = jax.lax.conv_general_dilated(x[..., None], w, (stride,), "SAME", dimension_numbers=dims)
    return y[..., 0] + y[..., 1] * 0.5


def _interior(rng, x, values):
    if not x.ndim or math.prod(x.shape) > 4000:
        return None
    config = [tuple(int(v) for v in (rng.integers(-1, 3), rng.integers(-1, 3), rng.integers(0, 3))) for _ in x.shape]
    return jax.lax.pad(x, jnp.asarray(0.25, x.dtype), config)


def _top_k(rng, x, values):
    return jax.lax.top_k(x, int(rng.integers(1, x.shape[-1] + 1)))[int(rng.integers(2))] * 1.0 if x.ndim else None


def _argsort(rng, x, values):
    return jnp.argsort(jnp.round(x), axis=_dim(rng, x)).astype(x.dtype) * 0.1 if x.ndim else None


def _associative(rng, x, values):
    return (
        jax.lax.associative_scan(jnp.maximum, x, reverse=bool(rng.integers(2)), axis=_dim(rng, x)) if x.ndim else None
    )


OPS = {
    "pool": _pool,
    "convolve": _convolve,
    "interior": _interior,
    "top_k": _top_k,
    "argsort": _argsort,
    "associative": _associative,
    "add": lambda rng, x, values: x + _like(rng, x, values),
    "multiply": lambda rng, x, values: x * _like(rng, x, values) * 0.5,
    "tanh": lambda rng, x, values: jnp.tanh(x),
    "reduce": _reduce,
    "matmul": _matmul,
    "matmul2": _matmul,
    "reshape": _reshape,
    "reshape2": _reshape,
    "slice": _slice,
    "concatenate": _concatenate,
    "pad": _pad,
    "dynamic_slice": _dynamic_slice,
    "update": _update,
    "take": _take,
    "scatter": _scatter,
    "scan": _scan,
    "mask": _mask,
    "transpose": _transpose,
    "softmax": _softmax,
    "cond": _cond,
    "roll": lambda rng, x, values: jnp.roll(x, int(rng.integers(1, 5)), axis=_dim(rng, x)) if x.ndim else None,
    "flip": lambda rng, x, values: jnp.flip(x, _dim(rng, x)) if x.ndim else None,
    "cumsum": lambda rng, x, values: jnp.cumsum(x, axis=_dim(rng, x)) * 0.1 if x.ndim else None,
    "sort": lambda rng, x, values: jnp.sort(x, axis=_dim(rng, x)) if x.ndim else None,
}
