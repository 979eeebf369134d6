"""What happens within a block: programs traced, lowered and compiled by this thread, and what is printed."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from meshrt import errors, monitoring
from meshrt.caches import clear_caches
from meshrt.runtime import events, jaxlib_api

__all__ = [
    "assert_num_jit_and_pmap_compilations", "capture_stderr", "capture_stdout", "collect_lowered_jaxprs",
    "count_aot_jit_cpp_cache_miss", "count_compilation_after_persistent_cache_miss", "count_events",
    "count_jit_and_pmap_lowerings", "count_jit_compilation_cache_miss", "count_jit_tracing_cache_miss",
    "count_pjit_cpp_cache_miss", "count_primitive_compiles", "count_subjaxpr_to_hlo_conversion",
    "register_event_duration_listener", "set_env",
]  # fmt: skip


class _OfThread(threading.local):
    """The events of a thread, and who collects its lowered programs."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.lowered: list[Any] | None = None
        self.functions: Counter[str] | None = None


_here = _OfThread()


def _listen(kind: str, details: dict[str, Any]) -> None:
    _here.counts[kind] += 1
    if kind != "lowered":
        return
    if _here.functions is not None:
        _here.functions.update(re.findall(r'sym_name = "([^"]*)"', details["module"].text))
    if _here.lowered is not None:
        _here.lowered.append((details["closed"], jaxlib_api.parse(details["module"].text)))


@functools.cache
def _subscribed() -> bool:
    """Events are listened to from the first time that somebody counts."""
    events.subscribe(_listen)
    return True


def count_events(kind: str) -> Callable[[], contextlib.AbstractContextManager[Callable[[], int]]]:
    """A context manager that gives a function: how often this thread did something of a kind since it was entered."""

    @contextlib.contextmanager
    def counting() -> Iterator[Callable[[], int]]:
        _subscribed()
        before = _here.counts[kind]
        yield lambda: _here.counts[kind] - before

    return counting


# Calls for which nothing was ready, functions traced, programs lowered, programs wanted, programs compiled.
count_pjit_cpp_cache_miss = count_events("dispatch_miss")
count_jit_tracing_cache_miss = count_events("trace")
count_jit_and_pmap_lowerings = count_events("lower")
count_jit_compilation_cache_miss = count_events("program")
count_compilation_after_persistent_cache_miss = count_events("compile")
# Calls of a Compiled that were not ready to run.
count_aot_jit_cpp_cache_miss = count_events("compiled_miss")


@contextlib.contextmanager
def count_primitive_compiles() -> Iterator[Callable[[], int]]:
    """Gives a function that tells, afterwards, how many operations were made ready one by one."""
    clear_caches()
    found = -1
    with count_jit_tracing_cache_miss() as count:
        yield lambda: found
    found = count()


@contextlib.contextmanager
def collect_lowered_jaxprs() -> Iterator[list[Any]]:
    """Gives a list, to which each program that is lowered adds its Jaxpr and its module."""
    if _here.lowered is not None:
        raise errors.ArgumentValueError("collect_lowered_jaxprs stands inside another one: use the outer list")
    _subscribed()
    found: list[Any] = []
    _here.lowered = found
    try:
        yield found
    finally:
        _here.lowered = None


@contextlib.contextmanager
def count_subjaxpr_to_hlo_conversion(fun_name: str) -> Iterator[Callable[[], int]]:
    """Gives a function: how many functions of modules were written whose name has `fun_name` in it."""
    _subscribed()
    saved, found = _here.functions, Counter[str]()
    _here.functions = found

    def count() -> int:
        names = [n for n in found if fun_name in n]
        if len({n.rstrip("_0123456789") for n in names}) > 1:
            raise errors.ArgumentValueError(f"ambiguous name: {fun_name} stands in {names}")
        return sum(found[n] for n in names)

    try:
        yield count
    finally:
        _here.functions = saved


@contextlib.contextmanager
def assert_num_jit_and_pmap_compilations(times: int) -> Iterator[None]:
    """AssertionError unless the block lowers so many programs."""
    with count_jit_and_pmap_lowerings() as count:
        yield
    if count() != times:
        raise AssertionError(f"Expected exactly {times} XLA compilations, but executed {count()}")


@contextlib.contextmanager
def _captured(stream: TextIO) -> Iterator[Callable[[], str]]:
    text: list[str] = []

    def written() -> str:
        if not text:
            raise errors.ArgumentValueError("what was printed is known when the block is over")
        return text[0]

    with tempfile.NamedTemporaryFile("w+", encoding="utf-8") as file:
        stream.flush()
        kept = os.dup(stream.fileno())
        os.dup2(file.fileno(), stream.fileno())
        try:
            yield written
        finally:
            stream.flush()
            os.dup2(kept, stream.fileno())
            os.close(kept)
            file.seek(0)
            text.append(file.read())


def capture_stdout() -> contextlib.AbstractContextManager[Callable[[], str]]:
    """Gives a function that tells, after the block, what Python and compiled code wrote to standard output in it."""
    return _captured(sys.stdout)


def capture_stderr() -> contextlib.AbstractContextManager[Callable[[], str]]:
    """As `capture_stdout`, of standard error."""
    return _captured(sys.stderr)


@contextlib.contextmanager
def register_event_duration_listener(callback: Callable[..., None]) -> Iterator[None]:
    """Has a function told how long things take, within a block."""
    monitoring.register_event_duration_secs_listener(callback)
    try:
        yield
    finally:
        monitoring.unregister_event_duration_listener(callback)


@contextlib.contextmanager
def set_env(**values: str | None) -> Iterator[None]:
    """Environment variables of other values within a block; None for those that are not to be there."""
    saved = {name: os.environ.get(name) for name in values}
    try:
        _write_env(values)
        yield
    finally:
        _write_env(saved)


def _write_env(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
