"""`jax._src.test_loader`: which tests are run, and how many at a time."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import unittest
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from absl.testing import absltest

from meshrt import errors
from meshrt.compat.layer._src import test_warning_util
from meshrt.compat.layer._src.config import int_flag, string_flag

__all__ = ["TEST_NUM_THREADS", "JaxTestLoader", "JaxTestSuite", "thread_unsafe_test", "thread_unsafe_test_class"]

TEST_NUM_THREADS = int_flag("jax_test_num_threads", int(os.environ.get("JAX_TEST_NUM_THREADS", "0")))
# Regular expressions that are looked for in `Class.test_name`: of the tests to run, and of those not to.
_WANTED = string_flag("test_targets", os.environ.get("JAX_TEST_TARGETS", ""))
_UNWANTED = string_flag("exclude_test_targets", os.environ.get("JAX_EXCLUDE_TEST_TARGETS", ""))


class _Running:
    """The threads that run tests beside each other; one that must be alone waits until all others stand still."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads: set[int] = set()
        self._waiting = 0
        self._alone: int | None = None

    @contextlib.contextmanager
    def beside_others(self) -> Iterator[None]:
        me = threading.get_ident()
        with self._changed:
            # Those that wait to be alone go first: others begin all the time.
            self._changed.wait_for(lambda: self._alone is None and not self._waiting)
            self._threads.add(me)
        try:
            yield
        finally:
            self._leave(me)

    def _leave(self, me: int) -> bool:
        with self._changed:
            was_beside = me in self._threads
            self._threads.discard(me)
            self._changed.notify_all()
            return was_beside

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A test that runs beside others stands still itself while it waits."""
        me = threading.get_ident()
        if self._alone == me:
            yield
            return
        was_beside = self._leave(me)
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: self._alone is None and not self._threads)
            self._waiting -= 1
            self._alone = me
        try:
            yield
        finally:
            with self._changed:
                self._alone = None
                self._threads |= {me} if was_beside else set()
                self._changed.notify_all()


_running = _Running()


@contextlib.contextmanager
def thread_unsafe_test(condition: bool = True) -> Iterator[None]:
    """Around what no other test must run beside, if `condition`. A decorator of tests, and a context manager."""
    with _running.alone() if condition and TEST_NUM_THREADS.value > 0 else contextlib.nullcontext():
        yield


def thread_unsafe_test_class(condition: bool = True) -> Callable[[type], type]:
    """Decorates a class of tests that no other test must run beside, their `setUp` included, if `condition`."""

    def decorate(cls: Any) -> Any:
        if not issubclass(cls, unittest.TestCase):
            raise errors.ArgumentTypeError(f"thread_unsafe_test_class decorates classes of test cases, not {cls}")
        cls.thread_hostile = condition
        return cls

    return decorate


class _Kept:
    """What a test says of its outcome, kept until it is over: results of unittest take one test at a time."""

    failfast = False

    def __init__(self) -> None:
        self.said: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not re.match("add[A-Z]|st(art|op)Test$", name):
            raise AttributeError(name)
        return lambda *args: self.said.append((name, args))


def _flat(suite: unittest.TestSuite) -> Iterator[Any]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


class JaxTestSuite(unittest.TestSuite):
    """Runs its tests one after the other, or in as many threads as the flag `jax_test_num_threads` says, but then
    without `setUpClass` and `setUpModule`."""

    def run(self, result: unittest.TestResult, debug: bool = False) -> unittest.TestResult:
        if TEST_NUM_THREADS.value <= 0:
            return super().run(result, debug)
        test_warning_util.install_threadsafe_warning_handlers()
        turn = threading.Lock()

        def run_one(test: Any) -> None:
            kept = _Kept()
            hostile = getattr(type(test), "thread_hostile", False)
            with _running.alone() if hostile else _running.beside_others():
                test(kept)
            with turn:
                for name, args in kept.said:
                    if hasattr(result, name):
                        getattr(result, name)(*args)

        with ThreadPoolExecutor(TEST_NUM_THREADS.value) as pool:
            for _ in pool.map(run_one, _flat(self)):  # raises what a result has raised
                pass
        return result


class JaxTestLoader(absltest.TestLoader):
    """Finds the tests that the environment variables JAX_TEST_TARGETS and JAX_EXCLUDE_TEST_TARGETS let through."""

    suiteClass = JaxTestSuite

    def getTestCaseNames(self, testCaseClass: Any) -> Sequence[str]:
        def is_wanted(test: str) -> bool:
            name = f"{testCaseClass.__name__}.{test}"
            return bool(re.search(_WANTED.value, name)) and not (_UNWANTED.value and re.search(_UNWANTED.value, name))

        return list(filter(is_wanted, super().getTestCaseNames(testCaseClass)))
