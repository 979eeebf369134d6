"""Keys: made from seeds, split, combined with data, and taken apart.

A typed key (dtype ``key<fry>``) is an array element; a legacy key, from :func:`PRNGKey`, is ``uint32[2]``. Every
function takes both.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.config import settings
from meshrt.core.operators import ArrayOperators
from meshrt.core.source import user_stacklevel
from meshrt.core.types import aval_of
from meshrt.numpy.arrays import asarray
from meshrt.numpy.operands import shape_tuple
from meshrt.primitives import random as rn
from meshrt.primitives.key_marks import random_clone_p

__all__ = ["PRNGKey", "clone", "fold_in", "key", "key_data", "key_dtype", "key_impl", "split", "wrap_key_data"]


def resolve_impl(spec: Any) -> dtypes.KeyImpl:
    """The generator for a name, a key dtype, one that was defined, None (``config.default_prng_impl``)."""
    if spec is None:
        spec = settings.default_prng_impl
    if isinstance(spec, dtypes.KeyType):
        return spec.impl
    if isinstance(spec, dtypes.KeyImpl):
        return spec
    if isinstance(spec, str) and spec in dtypes.KEY_IMPLS:
        return dtypes.KEY_IMPLS[spec]
    known = ", ".join(map(repr, dtypes.KEY_IMPLS))
    if not isinstance(spec, str):
        raise errors.ArgumentTypeError(
            f"unrecognized type {type(spec)} for specifying a random number generator; give one of {known}, a key "
            "dtype, or what extend.random.define_prng_impl gave"
        )
    raise errors.ArgumentValueError(f"unrecognized PRNG implementation {spec!r}; known: {known}")


def is_typed(x: Any) -> bool:
    """Whether ``x`` is an array of typed keys."""
    return isinstance(x, ArrayOperators) and isinstance(x.dtype, dtypes.KeyType)


def _allow_raw(name: str) -> None:
    """Warns or raises where the setting `legacy_prng_key` says so."""
    what = settings.legacy_prng_key
    if what == "allow":
        return
    text = (
        f"Legacy uint32 key array passed as key to jax.random function {name}. Make typed keys with random.key(seed), "
        "or wrap raw ones with random.wrap_key_data; the setting is legacy_prng_key"
    )
    if what == "error":
        raise errors.ArgumentValueError(text)
    warnings.warn(text, UserWarning, stacklevel=user_stacklevel())


def typed(name: str, keys: Any, batched: bool = False) -> tuple[Any, bool]:
    """``(typed keys, whether they came as raw data)``.

    Raises:
      ArgumentTypeError: no keys, or an array of keys where one is needed.
    """
    raw = not is_typed(keys)
    if raw:
        if not isinstance(keys, (ArrayOperators, np.ndarray)):
            raise errors.ArgumentTypeError(
                f"{name} needs a random key as its first argument, got {type(keys).__name__}; make one with "
                f"random.key(seed). JAX encountered invalid PRNG key data: expected key_data to have ndim, shape, and "
                f"dtype attributes. Got {keys!r}"
            )
        impl = resolve_impl(None)
        rn.check_key_data(impl, aval_of(keys))
        _allow_raw(name)
        keys = rn.random_wrap(keys, impl)
    if keys.ndim and not batched:
        raise errors.ArgumentValueError(
            f"{name} accepts a single key, but was given a key array of shape {keys.shape} != (). Use jax.vmap for "
            "batching."
        )
    return keys, raw


def _like_given(keys: Any, raw: bool) -> Any:
    return rn.random_unwrap(keys) if raw else keys


def _seeded(name: str, seed: Any, impl: Any) -> Any:
    if is_typed(seed):
        raise errors.ArgumentTypeError(f"{name} accepts a scalar seed, but was given a PRNG key.")
    if not isinstance(seed, int):
        try:
            aval = aval_of(seed)
        except errors.ArgumentTypeError as e:
            raise errors.ArgumentTypeError(f"random.{name}: PRNG key seed must be an integer: {e}") from None
        if aval.ndim:
            raise errors.ArgumentTypeError(
                f"{name} accepts a scalar seed, but was given an array of shape {aval.shape} != (). Use vmap for "
                "batching"
            )
        if not dtypes.issubdtype(aval.dtype, np.integer):
            raise errors.ArgumentTypeError(
                f"random.{name}: PRNG key seed must be an integer; got {aval.short()}, use int(seed)"
            )
    return rn.random_seed(seed, resolve_impl(impl))


def key(seed: Any, *, impl: Any = None, dtype: Any = None) -> Any:
    """A typed key from an integer seed.

    Args:
      impl: the generator: a name such as "threefry2x32" (the default), or a key dtype; ``dtype`` is the same.

    >>> meshrt.random.key(0)
    Array((), dtype=key<fry>) overlaying:
    [0 0]
    """
    if dtype is not None and impl is not None:
        raise errors.ArgumentValueError("random.key: give either impl or dtype, not both")
    return _seeded("key", seed, impl if dtype is None else dtype)


def PRNGKey(seed: Any, *, impl: Any = None) -> Any:
    """A legacy key, ``uint32[2]``, from an integer seed. New programs use :func:`key`.

    A typed key under the setting `enable_custom_prng`.

    Args:
      seed: an int.
      impl: the generator: "threefry2x32", "rbg" or "unsafe_rbg".

    >>> meshrt.random.PRNGKey(0)
    Array([0, 0], dtype=uint32)
    """
    if settings.enable_custom_prng:
        return _seeded("PRNGKey", seed, impl)
    return rn.random_unwrap(_seeded("PRNGKey", seed, impl))


def key_dtype(impl_spec: Any = None) -> dtypes.KeyType:
    """The dtype of keys of a generator.

    >>> meshrt.random.key_dtype()
    key<fry>
    """
    return dtypes.KeyType(resolve_impl(impl_spec))


def split(key: Any, num: Any = 2) -> Any:
    """``num`` (a number or a shape) new keys from one.

    Args:
      key: a key.
      num: how many keys, or the shape of an array of keys.

    Returns:
      An array of keys.

    Raises:
      TypeError: not a single key.

    >>> meshrt.random.split(meshrt.random.key(0), 3).shape
    (3,)
    """
    keys, raw = typed("split", key)
    return _like_given(rn.random_split(keys, shape_tuple(num)), raw)


def fold_in(key: Any, data: Any) -> Any:
    """A new key from a key and an integer of 32 bits; arrays and NumPy's integers count by their lowest ones.

    Args:
      key: a key.
      data: an int that tells keys apart.

    Returns:
      A key.

    >>> meshrt.random.uniform(meshrt.random.fold_in(meshrt.random.key(0), 7))
    Array(0.47504628, dtype=float32)
    """
    keys, raw = typed("fold_in", key)
    if isinstance(data, int) and not 0 <= data < 1 << 32:
        raise errors.IntegerOverflowError(
            f"Python integer {data} out of bounds for uint32: fold_in takes 32 bits; pass {data & 0xFFFFFFFF} for the "
            "lowest ones"
        )
    aval = aval_of(data)
    if aval.ndim or aval.is_key:
        raise errors.ArgumentTypeError(
            f"fold_in accepts a scalar, but was given an array of shape {aval.shape} != (), {aval.short()}. Use "
            "vmap "
            "for batching"
        )
    if isinstance(data, (int, np.integer)):
        data = np.uint32(int(data) & 0xFFFFFFFF)
    return _like_given(rn.random_fold_in(keys, asarray(data).astype(np.uint32)), raw)


def key_data(keys: Any) -> Any:
    """The raw data behind keys: ``uint32[..., 2]``.

    >>> meshrt.random.key_data(meshrt.random.key(7))
    Array([0, 7], dtype=uint32)
    """
    return rn.random_unwrap(typed("key_data", keys, batched=True)[0])


def wrap_key_data(key_bits_array: Any, *, impl: Any = None, dtype: Any = None) -> Any:
    """Typed keys from raw data.

    Args:
      key_bits_array: unsigned integers, whose last dimension is the size of a key.
      impl: the generator: "threefry2x32", "rbg" or "unsafe_rbg".
      dtype: dtype of the result; by default the default one of its kind.

    >>> meshrt.random.wrap_key_data(jnp.array([0, 7], jnp.uint32))
    Array((), dtype=key<fry>) overlaying:
    [0 7]
    """
    if dtype is not None and impl is not None:
        raise errors.ArgumentValueError("random.wrap_key_data: give either impl or dtype, not both")
    return rn.random_wrap(key_bits_array, resolve_impl(impl if dtype is None else dtype))


def key_impl(keys: Any) -> Any:
    """The generator that keys belong to: its name, or what ``extend.random.define_prng_impl`` gave.

    >>> meshrt.random.key_impl(meshrt.random.key(0))
    'threefry2x32'
    """
    impl = typed("key_impl", keys, batched=True)[0].dtype.impl
    return impl.name if impl.functions is None else impl


def clone(key: Any) -> Any:
    """The same keys, meant to be used again: the setting `debug_key_reuse` does not count what was done with `key`.

    >>> key = meshrt.random.key(0)
    >>> x, y = meshrt.random.uniform(key), meshrt.random.uniform(meshrt.random.clone(key))
    """
    return random_clone_p.bind(key)
