"""Layers as pairs of functions, under the names of jax.example_libraries.stax.

A layer is `(init, apply)`: `init(rng, input_shape)` gives `(output_shape, params)`, and
`apply(params, inputs, rng=None)` the outputs. Layers of several inputs or outputs have lists of shapes and arrays in
their place.

>>> import meshrt
>>> init, apply = serial(Dense(8), Relu, Dense(2))
>>> shape, params = init(meshrt.random.key(0), (3, 4))
>>> shape, apply(params, meshrt.numpy.ones((3, 4))).shape
((3, 2), (3, 2))
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors, lax, nn, random
from meshrt import numpy as jnp
from meshrt.nn.initializers import glorot_normal, normal, ones, zeros
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.staging import eval_shape

__all__ = [
    "AvgPool", "BatchNorm", "Conv", "Conv1DTranspose", "ConvTranspose", "Dense", "Dropout", "Elu", "Exp", "FanInConcat",
    "FanInSum", "FanOut", "Flatten", "Gelu", "GeneralConv", "GeneralConvTranspose", "Identity", "LeakyRelu",
    "LogSoftmax", "MaxPool", "Relu", "Selu", "Sigmoid", "Softmax", "Softplus", "SumPool", "Tanh", "elementwise",
    "glorot", "logsoftmax", "parallel", "randn", "serial", "shape_dependent",
]  # fmt: skip

Layer = tuple[Callable[..., Any], Callable[..., Any]]

# The names that older programs use.
glorot, randn, logsoftmax = glorot_normal, normal, nn.log_softmax


_GLOROT, _NORMAL, _SMALL = glorot_normal(), normal(), normal(1e-6)


def _fixed(apply: Callable[..., Any], shape_of: Callable[[Any], Any] = lambda shape: shape) -> Layer:
    """A layer without parameters."""
    return lambda rng, input_shape: (shape_of(input_shape), ()), apply


def _result_shape(
    apply: Callable[[Any], Any], input_shape: Sequence[int], batch: int, dtype: Any = np.float32
) -> tuple[int, ...]:
    """The shape that `apply` gives, of inputs of this dtype whose size along dimension `batch` may be unknown (-1)."""
    known = list(input_shape)
    known[batch] = 1
    shape = list(eval_shape(apply, ShapeDtypeStruct(tuple(known), dtype)).shape)
    shape[batch] = input_shape[batch]
    return tuple(shape)


# ---------------------------------------------------------------------------------------------------------------------
# Layers with parameters


def Dense(out_dim: int, W_init: Any = _GLOROT, b_init: Any = _NORMAL) -> Layer:
    """`inputs @ W + b`, with parameters (W, b).

    >>> from meshrt.example_libraries import stax
    >>> init, apply = stax.Dense(5)
    >>> shape, params = init(meshrt.random.key(0), (-1, 3))
    >>> shape, apply(params, jnp.ones((2, 3))).shape
    ((-1, 5), (2, 5))
    """

    def init(rng: Any, input_shape: tuple[int, ...]) -> Any:
        for_w, for_b = random.split(rng)
        params = W_init(for_w, (input_shape[-1], out_dim)), b_init(for_b, (out_dim,))
        return (*input_shape[:-1], out_dim), params

    def apply(params: Any, inputs: Any, **_: Any) -> Any:
        return jnp.dot(inputs, params[0]) + params[1]

    return init, apply


def _convolution(
    convolve: Callable[..., Any], names: Sequence[str], out_chan: int, filter_shape: Sequence[int], W_init: Any,
    b_init: Any,
) -> Layer:  # fmt: skip
    """`convolve(inputs, W) + b`, where `names` are those of the dimensions of inputs, kernel and result."""
    taken, kernel, given = names
    W_init = W_init or glorot_normal(kernel.index("I"), kernel.index("O"))

    def init(rng: Any, input_shape: tuple[int, ...]) -> Any:
        sizes = iter(filter_shape)
        channels = {"O": out_chan, "I": input_shape[taken.index("C")]}
        shape = [channels[c] if c in channels else next(sizes) for c in kernel]
        for_w, for_b = random.split(rng)
        w = W_init(for_w, shape)
        params = w, b_init(for_b, [out_chan if c == "C" else 1 for c in given])
        return _result_shape(lambda x: convolve(x, w), input_shape, taken.index("N"), w.dtype), params

    def apply(params: Any, inputs: Any, **_: Any) -> Any:
        return convolve(inputs, params[0]) + params[1]

    return init, apply


def GeneralConv(
    dimension_numbers: Sequence[str], out_chan: int, filter_shape: Sequence[int], strides: Any = None,
    padding: Any = "VALID", W_init: Any = None, b_init: Any = _SMALL,
) -> Layer:  # fmt: skip
    """A convolution with a bias, over arrays whose dimensions are named by e.g. ("NHWC", "HWIO", "NHWC").

    >>> from meshrt.example_libraries import stax
    >>> init, apply = stax.GeneralConv(("NHWC", "HWIO", "NHWC"), 5, (3, 3), padding="SAME")
    >>> init(meshrt.random.key(0), (1, 8, 8, 3))[0]
    (1, 8, 8, 5)
    """
    strides = strides or (1,) * len(filter_shape)

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=dimension_numbers)

    return _convolution(convolve, dimension_numbers, out_chan, filter_shape, W_init, b_init)


def GeneralConvTranspose(
    dimension_numbers: Sequence[str], out_chan: int, filter_shape: Sequence[int], strides: Any = None,
    padding: Any = "VALID", W_init: Any = None, b_init: Any = _SMALL,
) -> Layer:  # fmt: skip
    """A transposed convolution with a bias; see `GeneralConv`.

    >>> from meshrt.example_libraries import stax
    >>> init, apply = stax.GeneralConvTranspose(("NHWC", "HWIO", "NHWC"), 5, (3, 3), padding="SAME")
    >>> init(meshrt.random.key(0), (1, 8, 8, 3))[0]
    (1, 8, 8, 5)
    """
    strides = strides or (1,) * len(filter_shape)

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_transpose(x, w, strides, padding, dimension_numbers=dimension_numbers)

    return _convolution(convolve, dimension_numbers, out_chan, filter_shape, W_init, b_init)


Conv = functools.partial(GeneralConv, ("NHWC", "HWIO", "NHWC"))
Conv1DTranspose = functools.partial(GeneralConvTranspose, ("NHC", "HIO", "NHC"))
ConvTranspose = functools.partial(GeneralConvTranspose, ("NHWC", "HWIO", "NHWC"))


def BatchNorm(
    axis: Any = (0, 1, 2), epsilon: float = 1e-5, center: bool = True, scale: bool = True, beta_init: Any = zeros,
    gamma_init: Any = ones,
) -> Layer:  # fmt: skip
    """Zero mean and unit variance over the dimensions `axis`, then `gamma * x + beta`; parameters (beta, gamma).

    >>> from meshrt.example_libraries import stax
    >>> init, apply = stax.BatchNorm(axis=(0,))
    >>> shape, params = init(meshrt.random.key(0), (-1, 3))
    >>> apply(params, jnp.ones((2, 3))).shape
    (2, 3)
    """
    over = (axis,) if np.ndim(axis) == 0 else tuple(axis)

    def init(rng: Any, input_shape: tuple[int, ...]) -> Any:
        shape = tuple(size for i, size in enumerate(input_shape) if i not in over)
        for_beta, for_gamma = random.split(rng)
        beta = beta_init(for_beta, shape) if center else ()
        return input_shape, (beta, gamma_init(for_gamma, shape) if scale else ())

    def apply(params: Any, x: Any, **_: Any) -> Any:
        beta, gamma = params
        z = nn.standardize(x, over, epsilon=epsilon)
        if scale:
            z = jnp.expand_dims(gamma, over) * z
        return z + jnp.expand_dims(beta, over) if center else z

    return init, apply


# ---------------------------------------------------------------------------------------------------------------------
# Layers without parameters


def elementwise(fun: Callable[..., Any], **fun_kwargs: Any) -> Layer:
    """`fun(inputs, **fun_kwargs)`, which keeps shapes.

    >>> from meshrt.example_libraries import stax
    >>> stax.elementwise(jnp.exp)[1]((), jnp.zeros(2))
    Array([1., 1.], dtype=float32)
    """
    return _fixed(lambda params, inputs, **_: fun(inputs, **fun_kwargs))


Tanh = elementwise(jnp.tanh)
Relu = elementwise(nn.relu)
Exp = elementwise(jnp.exp)
LogSoftmax = elementwise(nn.log_softmax, axis=-1)
Softmax = elementwise(nn.softmax, axis=-1)
Softplus = elementwise(nn.softplus)
Sigmoid = elementwise(nn.sigmoid)
Elu = elementwise(nn.elu)
LeakyRelu = elementwise(nn.leaky_relu)
Selu = elementwise(nn.selu)
Gelu = elementwise(nn.gelu)
Identity = elementwise(lambda x: x)


def _pooling(reducer: Callable[..., Any], start: float, mean: bool, name: str) -> Callable[..., Layer]:
    def pool(
        window_shape: Sequence[int], strides: Any = None, padding: Any = "VALID", spec: str | None = None
    ) -> Layer:
        """A reduction over windows of the spatial dimensions; `spec` names all dimensions, by default "NHWC".

        >>> from meshrt.example_libraries import stax
        >>> init, apply = stax.MaxPool((2, 2), strides=(2, 2))
        >>> apply((), jnp.ones((1, 4, 4, 3))).shape
        (1, 2, 2, 3)
        """
        rank = len(window_shape) + 2
        batch, channels = (0, rank - 1) if spec is None else (spec.index("N"), spec.index("C"))
        spatial = [i for i in range(rank) if i not in (batch, channels)]
        window, steps = [1] * rank, [1] * rank
        for i, size, step in zip(spatial, window_shape, strides or (1,) * len(window_shape)):
            window[i], steps[i] = size, step

        def reduce(x: Any) -> Any:
            return lax.reduce_window(x, start, reducer, tuple(window), tuple(steps), padding)

        def apply(params: Any, inputs: Any, **_: Any) -> Any:
            if not mean:
                return reduce(inputs)
            shape = [n if i in spatial else 1 for i, n in enumerate(inputs.shape)]
            return reduce(inputs) / reduce(jnp.ones(shape, inputs.dtype))  # at the edges windows are smaller

        return _fixed(apply, lambda shape: _result_shape(reduce, shape, batch))

    pool.__name__ = pool.__qualname__ = name
    return pool


MaxPool = _pooling(lax.max, -np.inf, False, "MaxPool")
SumPool = _pooling(lax.add, 0.0, False, "SumPool")
AvgPool = _pooling(lax.add, 0.0, True, "AvgPool")

Flatten = _fixed(
    lambda params, inputs, **_: jnp.reshape(inputs, (inputs.shape[0], -1)),
    lambda shape: (shape[0], math.prod(shape[1:])),
)


def FanOut(num: int) -> Layer:
    """A list of `num` times the input.

    >>> from meshrt.example_libraries import stax
    >>> stax.FanOut(2)[1]((), 3)
    [3, 3]
    """
    return _fixed(lambda params, inputs, **_: [inputs] * num, lambda shape: [shape] * num)


FanInSum = _fixed(lambda params, inputs, **_: sum(inputs), lambda shapes: shapes[0])


def FanInConcat(axis: int = -1) -> Layer:
    """The inputs, concatenated along `axis`.

    >>> from meshrt.example_libraries import stax
    >>> stax.FanInConcat()[1]((), (jnp.ones((1, 2)), jnp.ones((1, 3)))).shape
    (1, 5)
    """

    def joined(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        shape = list(shapes[0])
        shape[axis] = sum(s[axis] for s in shapes)
        return tuple(shape)

    return _fixed(lambda params, inputs, **_: jnp.concatenate(inputs, axis), joined)


def Dropout(rate: float, mode: str = "train") -> Layer:
    """Keeps each element with probability `rate`, scaled by its inverse; does nothing unless `mode` is "train".

    >>> from meshrt.example_libraries import stax
    >>> init, apply = stax.Dropout(0.9, mode="test")
    >>> apply((), jnp.ones(2), rng=meshrt.random.key(0))
    Array([1., 1.], dtype=float32)
    """

    def apply(params: Any, inputs: Any, rng: Any = None, **_: Any) -> Any:
        if rng is None:
            raise errors.ArgumentValueError(
                "Dropout layer requires apply_fun to be called with a PRNG key argument: apply(params, inputs, rng=key)"
            )
        if mode != "train":
            return inputs
        return jnp.where(random.bernoulli(rng, rate, inputs.shape), inputs / rate, 0)

    return _fixed(apply)


# ---------------------------------------------------------------------------------------------------------------------
# Layers of layers


def _keys(rng: Any, count: int) -> Sequence[Any]:
    return [None] * count if rng is None else random.split(rng, count)


def serial(*layers: Layer) -> Layer:
    """One layer after the other; the parameters are a list.

    >>> from meshrt.example_libraries import stax
    >>> init, apply = stax.serial(stax.Dense(5), stax.Relu, stax.Dense(2))
    >>> init(meshrt.random.key(0), (-1, 3))[0]
    (-1, 2)
    """

    def init(rng: Any, input_shape: Any) -> Any:
        params = []
        for begin, _ in layers:
            rng, own = random.split(rng)
            input_shape, param = begin(own, input_shape)
            params.append(param)
        return input_shape, params

    def apply(params: Any, inputs: Any, rng: Any = None, **kwargs: Any) -> Any:
        for (_, run), param, own in zip(layers, params, _keys(rng, len(layers))):
            inputs = run(param, inputs, rng=own, **kwargs)
        return inputs

    return init, apply


def parallel(*layers: Layer) -> Layer:
    """Each layer on an input of its own; inputs, outputs and parameters are sequences.

    >>> from meshrt.example_libraries import stax
    >>> init, apply = stax.parallel(stax.Dense(5), stax.Dense(2))
    >>> init(meshrt.random.key(0), [(-1, 3), (-1, 3)])[0]
    ((-1, 5), (-1, 2))
    """

    def init(rng: Any, input_shape: Any) -> Any:
        made = [
            begin(own, shape) for (begin, _), own, shape in zip(layers, random.split(rng, len(layers)), input_shape)
        ]
        return tuple(shape for shape, _ in made), tuple(param for _, param in made)

    def apply(params: Any, inputs: Any, rng: Any = None, **kwargs: Any) -> Any:
        each = zip(layers, params, inputs, _keys(rng, len(layers)))
        return [run(param, x, rng=own, **kwargs) for (_, run), param, x, own in each]

    return init, apply


def shape_dependent(make_layer: Callable[[Any], Layer]) -> Layer:
    """The layer `make_layer(input_shape)`, made when that shape is known.

    >>> from meshrt.example_libraries import stax
    >>> init, apply = stax.shape_dependent(lambda shape: stax.Dense(shape[-1]))
    >>> init(meshrt.random.key(0), (-1, 3))[0]
    (-1, 3)
    """

    def init(rng: Any, input_shape: Any) -> Any:
        return make_layer(input_shape)[0](rng, input_shape)

    def apply(params: Any, inputs: Any, **kwargs: Any) -> Any:
        return make_layer(inputs.shape)[1](params, inputs, **kwargs)

    return init, apply
