"""Finds random keys that are used twice. Names are those of ``jax.experimental.key_reuse``, of all its versions.

Equal keys give equal numbers, so each key is to be used once. With the setting `debug_key_reuse` a second use raises
KeyReuseError, inside of programs when they are traced and for arrays of keys when they are passed to a function.

>>> with meshrt.debug_key_reuse(True):
...     key = meshrt.random.key(0)
...     x = meshrt.random.normal(key)
...     y = meshrt.random.normal(key)
Traceback (most recent call last):
    ...
meshrt.errors.KeyReuseError: Previously-consumed key passed to random_bits at index 0. ...

What each operation does to keys stands in `meshrt.primitives.key_uses`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshrt.core.key_use import Forward, KeyReuseSignature, Sink, Source
from meshrt.errors import KeyReuseError
from meshrt.primitives.key_marks import Expected, assert_consumed_value_p, consume_p
from meshrt.primitives.key_uses import jaxpr_signature as jaxpr_type_signature
from meshrt.random import clone
from meshrt.staging import make_jaxpr

__all__ = [
    "Forward", "KeyReuseError", "KeyReuseSignature", "Sink", "Source", "assert_consumed", "assert_unconsumed",
    "check_key_reuse", "check_key_reuse_jaxpr", "consume", "function_type_signature", "jaxpr_type_signature",
    "reuse_key", "unconsumed_copy",
]  # fmt: skip

# Names that `random.clone` had before.
reuse_key = unconsumed_copy = clone


def consume(key: Any) -> Any:
    """The same keys, as a use of them: neither `key` nor the result may be used afterwards."""
    return consume_p.bind(key)


def assert_consumed(key: Any, value: Any = True) -> None:
    """Says that a key has been used up, or which keys of an array have; the checker raises AssertionError if not.

    Args:
      key: ``key<...>[*s]``.
      value: a boolean or ``bool[*s]``.
    """
    assert_consumed_value_p.bind(key, value=Expected(value))


def assert_unconsumed(key: Any) -> None:
    """Says that a key may still be used; the checker raises AssertionError if not."""
    assert_consumed_value_p.bind(key, value=Expected(False))


def function_type_signature(fun: Callable[..., Any], *args: Any) -> KeyReuseSignature:
    """What `fun` does to the keys among the leaves of its arguments.

    >>> function_type_signature(meshrt.random.split, meshrt.random.key(0))
    KeyReuseSignature(Sink(0), Source(0))

    Raises:
      KeyReuseError: it uses a key twice.
    """
    return jaxpr_type_signature(make_jaxpr(fun)(*args).jaxpr)


def check_key_reuse(fun: Callable[..., Any], /, *args: Any) -> None:
    """KeyReuseError if `fun` uses a key twice on arguments of these types; AssertionError as `assert_consumed` says."""
    function_type_signature(fun, *args)


def check_key_reuse_jaxpr(jaxpr: Any) -> None:
    """The same of a program."""
    jaxpr_type_signature(jaxpr)
