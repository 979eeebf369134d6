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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from meshrt import dispatch, errors, monitoring
from meshrt.runtime import events
from meshrt.runtime.array import Array
from meshrt.xla import jaxlib_api

__all__ = [
    "assert_num_jit_and_pmap_compilations", "capture_stderr", "capture_stdout", "collect_lowered_jaxprs",
    "count_aot_jit_cpp_cache_miss", "count_compilation_after_persistent_cache_miss", "count_device_put",
    "count_device_put_fast_path_hit", "count_events", "count_internal_device_puts", "count_jax_array_shard_arg_calls",
    "count_jit_and_pmap_lowerings", "count_jit_compilation_cache_miss",
    "count_jit_tracing_cache_miss", "count_pjit_cpp_cache_miss", "count_primitive_compiles",
    "count_subjaxpr_to_hlo_conversion",
    "register_event_duration_listener", "set_env",
]  # fmt: skip


class _OfThread(threading.local):
    """The events of a thread, and who collects its lowered programs."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.lowered: list[Any] | None = None
        self.functions: Counter[str] | None = None


_here = _OfThread()

# Counted beside the events of `meshrt.runtime.events`: values that were put somewhere (on devices, from the host or
# from others), and calls and uses of `device_put` that were given arrays and could not go on by what is known of them.
_PUT, _GIVEN = "put", "given arrays"


def _listen(kind: str, details: dict[str, Any]) -> None:
    _here.counts[kind] += 1
    if kind in ("dispatch_miss", "compiled_miss"):
        found = [type(leaf) is Array for leaf in details["leaves"]]
        _here.counts.update({_PUT: found.count(False), _GIVEN: True in found})
    if kind != "lowered":
        return
    if _here.functions is not None:
        _here.functions.update(re.findall(r'sym_name = "([^"]*)"', details["module"].text))
    if _here.lowered is not None:
        _here.lowered.append((details["closed"], jaxlib_api.parse(details["module"].text)))


def _listen_to_puts(leaves: Sequence[Any], targets: Sequence[Any], placed: Sequence[Any]) -> None:
    given = False
    for leaf, target, result in zip(leaves, targets, placed):
        if type(leaf) is not Array or (isinstance(target, jaxlib_api.Device) and leaf.sharding.num_devices == 1):
            _here.counts[_PUT] += 1
        elif target is not None and not (leaf.committed and leaf.sharding is result.sharding):
            given = True
            _here.counts[_PUT] += not leaf.sharding.is_equivalent_to(result.sharding, leaf.ndim)
    _here.counts[_GIVEN] += given


@functools.cache
def _subscribed() -> bool:
    """Events are listened to from the first time that somebody counts."""
    events.subscribe(_listen)
    events.puts.append(_listen_to_puts)
    return True


# What JAX calls the events of the pipeline that it tells its tests of, and what they are called here: calls for which
# nothing was ready, functions traced, programs lowered, programs wanted, programs compiled, calls of a Compiled that
# were not ready to run, and the three kinds of transfers.
_EVENTS = {
    "jit_cpp_cache_miss": "dispatch_miss", "trace_to_jaxpr": "trace", "lower_jaxpr_to_module": "lower",
    "pxla_cached_compilation": "program", "compile_after_persistent_compilation_miss": "compile",
    "stages_compiled_call": "compiled_miss",
    "batched_device_put": _PUT, "batched_copy_array": _GIVEN, "_array_shard_arg": _GIVEN,
}  # fmt: skip

_Counter = Callable[[], contextlib.AbstractContextManager[Callable[[], int]]]


def count_events(event: str) -> _Counter:
    """Gives a context manager whose value tells how often this thread has done something in the block so far.

    `event` is JAX's name of one of those below, or one of `meshrt.runtime.events`.
    """
    kind = _EVENTS.get(event, event)
    return functools.partial(_count, lambda: _here.counts[kind])


@contextlib.contextmanager
def _count(so_far: Callable[[], int]) -> Iterator[Callable[[], int]]:
    _subscribed()
    start = so_far()
    yield lambda: so_far() - start


(
    count_pjit_cpp_cache_miss, count_jit_tracing_cache_miss, count_jit_and_pmap_lowerings,
    count_jit_compilation_cache_miss, count_compilation_after_persistent_cache_miss, count_aot_jit_cpp_cache_miss,
    count_device_put, count_device_put_fast_path_hit, count_jax_array_shard_arg_calls,
) = map(count_events, _EVENTS)  # fmt: skip


@contextlib.contextmanager
def count_primitive_compiles() -> Iterator[Callable[[], int]]:
    """Gives a function that tells, after the block, how many operations were made ready one by one: primitives, each
    with other parameters. What was made ready before is forgotten; functions that were compiled are not."""
    dispatch.clear_primitives()
    found = -1
    yield lambda: found
    found = dispatch.primitives_ready()


@contextlib.contextmanager
def count_internal_device_puts() -> Iterator[Callable[[], dict[str, int]]]:
    """Gives a function that tells, after the block, how often jaxlib put values onto devices in calls, by its ways."""
    before = Counter(jaxlib_api.device_puts())
    found = Counter[str]()
    yield lambda: dict(found)
    found.update(Counter(jaxlib_api.device_puts()) - before)


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
    with count_jit_and_pmap_lowerings() as lowered:
        yield
        found = lowered()
    if found != times:
        raise AssertionError(f"{found} programs were lowered, not {times}")


class _Captured:
    """A block in which what goes to a stream's file, from Python or not, goes to another file."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._text: str | None = None

    def __enter__(self) -> Callable[[], str]:
        self._stream.flush()
        self._file, self._number = tempfile.TemporaryFile(), self._stream.fileno()
        self._kept = os.dup(self._number)
        os.dup2(self._file.fileno(), self._number)
        return self._written

    def __exit__(self, *_: object) -> None:
        self._stream.flush()
        os.dup2(self._kept, self._number)
        os.close(self._kept)
        with self._file as file:
            file.seek(0)
            self._text = file.read().decode()

    def _written(self) -> str:
        if self._text is None:
            raise errors.ArgumentValueError("what was printed is known when the block is over")
        return self._text


def capture_stdout() -> contextlib.AbstractContextManager[Callable[[], str]]:
    """Gives a function that tells, after the block, what Python and compiled code wrote to standard output in it."""
    return _Captured(sys.stdout)


def capture_stderr() -> contextlib.AbstractContextManager[Callable[[], str]]:
    """As `capture_stdout`, of standard error."""
    return _Captured(sys.stderr)


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
