"""Generators of random numbers: those that there are, and those that a program defines. Names are
``jax.extend.random``'s.

>>> impl = define_prng_impl(
...     key_shape=(1,),
...     seed=lambda seed: jnp.reshape(seed.astype(jnp.uint32), (1,)),
...     split=lambda key, shape: key + jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(*shape, 1),
...     random_bits=lambda key, bit_width, shape: jnp.full(shape, key[0], f"uint{bit_width}"),
...     fold_in=lambda key, data: key + data.astype(jnp.uint32),
...     name="constant", tag="c",
... )  # doctest: +SKIP
>>> random.bits(random.key(7, impl=impl), (2,))  # doctest: +SKIP
Array([7, 7], dtype=uint32)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshrt.dtypes import KEY_IMPLS as _IMPLS
from meshrt.dtypes import KeyImpl as _KeyImpl
from meshrt.primitives.generators import KeyFunctions as _KeyFunctions
from meshrt.primitives.random import random_seed
from meshrt.primitives.threefry import threefry2x32_p, threefry_2x32

__all__ = [
    "define_prng_impl", "random_seed", "rbg_prng_impl", "seed_with_impl", "threefry2x32_p", "threefry_2x32",
    "threefry_prng_impl", "unsafe_rbg_prng_impl",
]  # fmt: skip

threefry_prng_impl = _IMPLS["threefry2x32"]
rbg_prng_impl = _IMPLS["rbg"]
unsafe_rbg_prng_impl = _IMPLS["unsafe_rbg"]


def define_prng_impl(
    *,
    key_shape: tuple[int, ...],
    seed: Callable[[Any], Any],
    split: Callable[[Any, tuple[int, ...]], Any],
    random_bits: Callable[[Any, int, tuple[int, ...]], Any],
    fold_in: Callable[[Any, Any], Any],
    name: str = "<unnamed>",
    tag: str = "?",
) -> Any:
    """A generator of random numbers, to be given as ``impl`` to ``random.key`` and its like.

    The functions are of one key, an array ``uint32[*key_shape]``, and must not capture arrays; arrays of keys map them.

    Args:
      seed: ``(integer) -> key``.
      split: ``(key, shape) -> uint32[*shape, *key_shape]``.
      random_bits: ``(key, bit_width, shape) -> uint{bit_width}[*shape]``.
      fold_in: ``(key, integer) -> key``.
      name: what messages call it. tag: what printed dtypes show, ``key<tag>``.
    """
    return _KeyImpl(name, tag, tuple(key_shape), _KeyFunctions(seed, split, random_bits, fold_in))


def seed_with_impl(impl: Any, seed: Any) -> Any:
    """A typed key of a generator from an integer seed: ``random.key(seed, impl=impl)``."""
    return random_seed(seed, impl=impl)
