"""`jax._src.test_loader`: how tests are found and run: by absl, one after the other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from absl.testing import absltest

from meshrt.compat.layer._src.config import int_flag

__all__ = ["TEST_NUM_THREADS", "JaxTestLoader", "thread_unsafe_test", "thread_unsafe_test_class"]

TEST_NUM_THREADS = int_flag("jax_test_num_threads", int(os.environ.get("JAX_TEST_NUM_THREADS", "0")))
JaxTestLoader = absltest.TestLoader


class thread_unsafe_test(contextlib.ContextDecorator):
    """Around what other tests must not run beside: no test does. A decorator of tests, and a context manager."""

    def __init__(self, condition: bool = True):
        self.condition = condition

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def thread_unsafe_test_class(condition: bool = True) -> Callable[[type], type]:
    """As `thread_unsafe_test`, for all tests of a class."""
    return lambda cls: cls
