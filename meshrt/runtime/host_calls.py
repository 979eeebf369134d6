"""Python functions that programs call back while they run.

A program with callbacks is awaited: when a call of it returns, its callbacks have run, and what one of them raised is
raised there. So programs of one thread call back in the order of their calls, and `effects_barrier` has only other
threads to wait for.

On several devices a callback that fails must not fail the device that runs it: the others would wait for it in the next
collective, and XLA's CPU runtime ends the process after a minute of that. The device goes on with zeros instead, calls
nothing any more, and the error is raised as soon as all are done.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from meshrt import errors

__all__ = ["Calls", "HostFunction", "busy_devices", "effects_barrier"]


class HostFunction(Protocol):
    """One call in a program: `run` makes it, on NumPy arrays; `nothing` gives zeros for its results."""

    @property
    def name(self) -> str:
        """What the user called and where, for messages."""

    def run(self, values: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]: ...

    def nothing(self, values: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]: ...


class Calls:
    """The callbacks of one program on one list of devices: makes what jaxlib calls, and knows what they raised."""

    __slots__ = ("_failed", "_lock", "_running", "callbacks", "devices", "is_alone")

    def __init__(self, callbacks: Sequence[HostFunction], devices: Sequence[Any]):
        self.callbacks, self.devices, self.is_alone = tuple(callbacks), frozenset(devices), len(devices) == 1
        self._lock = threading.Lock()
        self._failed: list[tuple[HostFunction, BaseException]] = []
        self._running = 0

    def functions(self) -> list[Callable[..., tuple[np.ndarray, ...]]]:
        """A function over NumPy arrays for each callback."""
        return [self._bound(c) for c in self.callbacks]

    def _bound(self, callback: HostFunction) -> Callable[..., tuple[np.ndarray, ...]]:
        def call(*values: np.ndarray) -> tuple[np.ndarray, ...]:
            if self._failed:
                return callback.nothing(values)
            try:
                # In a context of its own: XLA may call from its own threads or from the one that launched the program.
                return contextvars.Context().run(_inside, callback, values, self.devices)
            except BaseException as e:
                self._failed.append((callback, e))
                if self.is_alone:
                    raise
                return callback.nothing(values)

        return call

    @contextmanager
    def execution(self) -> Iterator[None]:
        """Around one execution, from its launch until it is done.

        Raises:
          CallbackError: a callback raised something, during this execution or one beside it.
        """
        with self._lock:
            if not self._running:
                self._failed.clear()
            self._running += 1
        _pending.enter()
        try:
            yield
        except Exception:
            if not self._failed:
                raise
        finally:
            _pending.leave()
            with self._lock:
                self._running -= 1
                failed = self._failed[:1]
        if failed:
            raise _explained(*failed[0]) from failed[0][1]


def _explained(callback: HostFunction, error: BaseException) -> errors.ExecutionError:
    if isinstance(error, errors.KernelError):  # of the simulator, which no user wrote: it names the kernel's line
        return type(error)(*error.args)
    return errors.CallbackError(f"{callback.name} failed: {type(error).__name__}: {error}")


_calling = threading.local()


def _inside(callback: HostFunction, values: Sequence[np.ndarray], devices: frozenset[Any]) -> tuple[np.ndarray, ...]:
    around = busy_devices()
    _calling.devices = devices if around is None else around | devices
    try:
        return callback.run(values)
    finally:
        _calling.devices = around


def busy_devices() -> frozenset[Any] | None:
    """The devices of the programs that wait for the callback which this thread runs; None outside of callbacks."""
    found: frozenset[Any] | None = getattr(_calling, "devices", None)
    return found


class _Pending:
    """Counts the executions with callbacks that are not done."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    def enter(self) -> None:
        with self._condition:
            self._count += 1

    def leave(self) -> None:
        with self._condition:
            self._count -= 1
            self._condition.notify_all()

    def wait(self) -> None:
        with self._condition:
            self._condition.wait_for(lambda: not self._count)


_pending = _Pending()


def effects_barrier() -> None:
    """Waits until no program with callbacks is running any more, in whichever thread it was called.

    Inside a callback it returns at once, for the program that called back cannot end before it does.

    >>> import meshrt
    >>> meshrt.jit(lambda x: meshrt.debug.print("{}", x))(1.0)
    1.0
    >>> meshrt.effects_barrier()
    """
    if busy_devices() is None:
        _pending.wait()
