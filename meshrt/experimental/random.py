"""A generator of random values that remembers how often it was asked (`jax.experimental.random`).

Its state is a reference, so a function that draws needs no key handed in and none handed back. It draws what
`meshrt.random` draws from the key that it folds the count of draws into.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors, tree_util
from meshrt import random as functional
from meshrt.core.references import AbstractRef
from meshrt.core.trace import EVAL, current_trace
from meshrt.core.types import ShapedArray, aval_of
from meshrt.numpy.names import missing as _missing
from meshrt.ref import addupdate, new_ref

__all__ = ["StatefulPRNG", "stateful_rng"]
__getattr__ = _missing(__name__, __all__)

Size = int | Sequence[int] | None


@dataclass(frozen=True, slots=True)
class StatefulPRNG:
    """A generator with a state: made by `stateful_rng`.

    It is a pytree of a typed key and a reference to the number of draws so far, and goes into transformed functions
    like any other; like references it can be returned from none.

    Raises:
      ArgumentValueError: the key is not a typed one, or the counter is no reference.
    """

    _base_key: Any
    _counter: Any

    def __post_init__(self) -> None:
        if not isinstance(_type(self._base_key), ShapedArray) or not _type(self._base_key).is_key:
            raise errors.ArgumentValueError(
                f"Expected base_key to be a typed PRNG key; got {self._base_key}: make one with meshrt.random.key"
            )
        if not isinstance(_type(self._counter), AbstractRef):
            raise errors.ArgumentValueError(
                f"Expected counter to be a scalar integer ref; got {self._counter}: make one with meshrt.new_ref(0)"
            )

    def key(self, shape: Size = ()) -> Any:
        """A new key, or an array of `shape` of new keys.

        Raises:
          ArgumentValueError: this is an array of generators (`split`), outside of a function that is mapped over it.

        >>> from meshrt.experimental.random import stateful_rng
        >>> stateful_rng(0).key(2).shape
        (2,)
        """
        if self._base_key.shape:
            raise errors.ArgumentValueError(
                f"cannot operate on split stateful generator: it has shape {self._base_key.shape}; draw from each in a "
                "function that meshrt.vmap maps over it, or make a list of generators with spawn"
            )
        key = functional.fold_in(self._base_key, self._counter[...])
        addupdate(self._counter, ..., 1)
        sizes = _sizes(shape)
        return functional.split(key, sizes) if sizes else key

    def random(self, size: Size = None, dtype: Any = float) -> Any:
        """Floats from [0, 1), as many as `size` says (one by default)."""
        return functional.uniform(self.key(), _sizes(size), dtype)

    def uniform(self, low: Any = 0, high: Any = 1, size: Size = None, *, dtype: Any = float) -> Any:
        """Floats from [low, high); by default of the shape that the bounds have together.

        >>> from meshrt.experimental.random import stateful_rng
        >>> rng = stateful_rng(42)
        >>> rng.uniform(), rng.uniform()
        (Array(0.5302608, dtype=float32), Array(0.72766423, dtype=float32))
        """
        return functional.uniform(self.key(), _sizes(size, low, high), minval=low, maxval=high, dtype=dtype)

    def normal(self, loc: Any = 0, scale: Any = 1, size: Size = None, *, dtype: Any = float) -> Any:
        """Normally distributed floats with mean `loc` and standard deviation `scale`."""
        drawn = functional.normal(self.key(), _sizes(size, loc, scale), dtype)
        return (jnp.asarray(loc) + jnp.asarray(scale) * drawn).astype(dtype)

    def integers(self, low: Any, high: Any = None, size: Size = None, *, dtype: Any = int) -> Any:
        """Integers from [low, high), or from [0, low) if only one bound is given.

        >>> from meshrt.experimental.random import stateful_rng
        >>> stateful_rng(0).integers(10, size=(2, 3)).shape
        (2, 3)
        """
        low, high = (0, low) if high is None else (low, high)
        return functional.randint(self.key(), _sizes(size, low, high), minval=low, maxval=high, dtype=dtype)

    def split(self, num: int | Sequence[int]) -> StatefulPRNG:
        """Independent generators as one, with dimensions of size `num` in front, for `meshrt.vmap` to map over.

        >>> from meshrt.experimental.random import stateful_rng
        >>> meshrt.vmap(lambda rng: rng.uniform())(stateful_rng(123).split(3)).shape
        (3,)
        """
        return StatefulPRNG(self.key(num), new_ref(jnp.zeros(num, int)))

    def spawn(self, n_children: int) -> list[StatefulPRNG]:
        """A list of independent generators.

        >>> from meshrt.experimental.random import stateful_rng
        >>> [child.integers(0, 10).shape for child in stateful_rng(123).spawn(2)]
        [(), ()]
        """
        return [StatefulPRNG(key, new_ref(0)) for key in self.key(n_children)]


def _unflatten(_: Any, children: Any) -> StatefulPRNG:
    """Without the checks: what stands at the leaves may be anything that a transformation puts there."""
    out = object.__new__(StatefulPRNG)
    for name, value in zip(_FIELDS, children, strict=True):
        object.__setattr__(out, name, value)
    return out


_FIELDS = ("_base_key", "_counter")
tree_util.register_pytree_with_keys(
    StatefulPRNG,
    lambda g: (tuple([(tree_util.GetAttrKey(n), getattr(g, n)) for n in _FIELDS]), ()),
    _unflatten,
    lambda g: ((g._base_key, g._counter), ()),
)


def _type(x: Any) -> Any:
    try:
        return aval_of(x)
    except TypeError:  # no value of a program at all
        return None


def _sizes(size: Size, *parameters: Any) -> tuple[int, ...]:
    """The shape that `size` says, by default the one that the parameters of a distribution have together."""
    if size is None:
        return np.broadcast_shapes(*[np.shape(p) for p in parameters])
    return tuple(map(operator.index, size)) if isinstance(size, Sequence | np.ndarray) else (operator.index(size),)


def stateful_rng(seed: Any = None, *, impl: Any = None) -> StatefulPRNG:
    """A generator of random values that counts its draws, so that each draws something else.

    Args:
      seed: an integer. Without one the generator is different each time; inside traced functions one is needed.
      impl: the name of the algorithm, by default that of `meshrt.random.key`.

    Raises:
      ArgumentTypeError: no seed, inside a function that is being traced.

    >>> from meshrt.experimental.random import stateful_rng
    >>> rng = stateful_rng(42)
    >>> draw = meshrt.jit(lambda: rng.uniform())
    >>> draw(), draw()
    (Array(0.5302608, dtype=float32), Array(0.72766423, dtype=float32))
    """
    if seed is None:
        if current_trace() is not EVAL:
            raise errors.ArgumentTypeError(
                "When used within transformed code, stateful_rng() requires an explicit seed to be set: what is drawn "
                "while a function is traced would be drawn once for all of its calls"
            )
        entropy = np.random.SeedSequence().entropy
        if not isinstance(entropy, int):
            raise errors.InternalError(f"NumPy's seed is no integer: {entropy!r}")
        seed = np.int64(entropy & dtypes.iinfo(np.int64).max)
    return StatefulPRNG(functional.key(seed, impl=impl), new_ref(0))
