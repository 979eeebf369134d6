"""Keys of random numbers as `jax._src.random.prng` has them: their class, their types, the generators by name."""

from __future__ import annotations

from typing import Any

from meshrt.config import settings
from meshrt.dtypes import KEY_IMPLS, KeyImpl, issubdtype, prng_key
from meshrt.dtypes import KeyType as KeyTy
from meshrt.errors import ArgumentValueError
from meshrt.runtime.array import Array

__all__ = ["KeyTy", "PRNGImpl", "PRNGKeyArray", "default_prng_impl", "prngs", "register_prng", "resolve_prng_impl"]

PRNGImpl = KeyImpl
prngs = KEY_IMPLS


class _KeyArrays(type):
    """Arrays whose elements are keys are of no class of their own: they are the instances of this one."""

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, Array) and issubdtype(x.dtype, prng_key)


class PRNGKeyArray(metaclass=_KeyArrays):
    """Arrays of keys."""


def default_prng_impl() -> KeyImpl:
    """The generator behind `random.key`."""
    return KEY_IMPLS[settings.default_prng_impl]


def resolve_prng_impl(impl_spec: Any) -> KeyImpl:
    """The generator that a name, a generator or None (the default one) stands for. ValueError for an unknown name."""
    if impl_spec is None:
        return default_prng_impl()
    if isinstance(impl_spec, str):
        if impl_spec not in KEY_IMPLS:
            raise ArgumentValueError(
                f'unrecognized PRNG implementation "{impl_spec}". Did you mean one of: {KEY_IMPLS}'
            )
        return KEY_IMPLS[impl_spec]
    return impl_spec if isinstance(impl_spec, KeyImpl) else impl_spec.impl


def register_prng(impl: Any) -> None:
    """Makes a generator known by its name."""
    if KEY_IMPLS.setdefault(impl.name, impl) is not impl:
        raise ValueError(f"PRNG with name {impl.name} already registered: {KEY_IMPLS[impl.name]}")
