"""Lists of arrays, written by TensorStore while the program goes on. Names are ``jax.experimental``'s."""

from __future__ import annotations

import abc
import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.experimental import multihost_utils
from meshrt.experimental.array_serialization.tensorstore_impl import (
    READ_AT_ONCE_GB,
    async_deserialize,
    async_serialize,
    get_tensorstore_spec,
    run_deserialization,
    run_serialization,
)
from meshrt.numpy.names import missing as _missing
from meshrt.runtime import backend
from meshrt.runtime.array import Array

__all__ = [
    "AsyncManager", "GlobalAsyncCheckpointManager", "GlobalAsyncCheckpointManagerBase", "async_deserialize",
    "async_serialize", "get_tensorstore_spec", "run_deserialization", "run_serialization",
]  # fmt: skip


class GlobalAsyncCheckpointManagerBase(abc.ABC):
    """What writes arrays in the background and reads them. Every process of a job makes the same calls."""

    @abc.abstractmethod
    def check_for_errors(self) -> None:
        """Raises what went wrong in the background, once."""

    @abc.abstractmethod
    def wait_until_finished(self) -> None:
        """Returns when all is written, on all processes; raises what went wrong."""

    @abc.abstractmethod
    def serialize(
        self, arrays: Any, tensorstore_specs: Any, *, on_commit_callback: Callable[[], None] | None = None
    ) -> None:
        """Starts to write arrays."""

    @abc.abstractmethod
    def deserialize(
        self, shardings: Sequence[Any], tensorstore_specs: Sequence[dict[str, Any]],
        global_shapes: Sequence[Any] | None = None, dtypes: Sequence[Any] | None = None,
    ) -> Sequence[Array]:  # fmt: skip
        """Reads arrays into shardings."""


class AsyncManager:
    """Waits in a thread until what was begun is written, then calls back."""

    def __init__(self, timeout_secs: float = 300):
        self._timeout_secs = timeout_secs
        self._futures: Sequence[Any] = ()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._failed = False
        self._after: Callable[[], None] | None = None

    def _add_futures(self, futures: Sequence[Any]) -> None:
        self._futures = futures

    def _start_async_commit(self, on_commit_callback: Callable[[], None] | None) -> None:
        # Where other processes have to be waited for, that is done by `wait_until_finished`, which all call in the same
        # order: calls from threads have none.
        self._after = on_commit_callback if backend.process_count() > 1 else None
        self._failed = False
        now = on_commit_callback if self._after is None else None
        self._thread = threading.Thread(target=self._commit, args=(self._futures, now))
        self._thread.start()

    def _commit(self, futures: Sequence[Any], callback: Callable[[], None] | None) -> None:
        try:
            for future in futures:
                future.result(timeout=self._timeout_secs)
            if callback is not None:
                callback()
        except BaseException as e:  # raised by the next call, in the thread of the program
            self._error, self._failed = e, True

    def check_for_errors(self) -> None:
        """Raises what went wrong in the background, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait_until_finished(self) -> None:
        """Returns when all is written, on all processes; raises what went wrong.

        Raises:
          CheckpointWriteError: other processes could not write what they hold.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            self.check_for_errors()
            return
        thread.join()
        if backend.process_count() == 1:
            self.check_for_errors()
            return
        self._agree("write what they hold")
        if self._after is not None and backend.process_index() == 0:
            self._commit((), self._after)
        self._agree("call back")

    def _agree(self, what: str) -> None:
        """Waits for all processes; raises what went wrong in any, so that none waits for one that has failed."""
        failed = np.flatnonzero(multihost_utils.process_allgather(self._failed))
        self.check_for_errors()
        if failed.size:
            listed = ", ".join(map(str, failed))
            raise errors.CheckpointWriteError(f"could not {what}: processes {listed}, whose own errors say why")


class GlobalAsyncCheckpointManager(AsyncManager, GlobalAsyncCheckpointManagerBase):
    """Writes arrays by TensorStore in the background, and reads them.

    >>> manager = GlobalAsyncCheckpointManager()
    >>> manager.serialize_with_paths([w], ["/data/step_1/w"])
    >>> manager.wait_until_finished()
    >>> (w,) = manager.deserialize_with_paths([w.sharding], ["/data/step_1/w"])
    """

    def serialize(
        self, arrays: Any, tensorstore_specs: Any, *, on_commit_callback: Callable[[], None] | None = None,
        transaction: Any = None,
    ) -> None:  # fmt: skip
        """Copies what this process holds of arrays, and writes it in the background.

        Args:
          arrays: arrays, in a list or another pytree.
          tensorstore_specs: where each goes, alike.
          on_commit_callback: called when all is written, on all processes: by process 0 if there are several.
          transaction: TensorStore's, within which arrays are made and written.
        """
        self.wait_until_finished()
        flat, structure = tree_util.tree_flatten(arrays)
        specs = structure.flatten_up_to(tensorstore_specs)
        begun: list[Any] = []

        async def run() -> None:
            options = {"commit_future": begun, "transaction": transaction}
            await asyncio.gather(*(async_serialize(x, spec, **options) for x, spec in zip(flat, specs)))

        asyncio.run(run())
        self._add_futures(begun)
        self._start_async_commit(on_commit_callback)

    def serialize_with_paths(
        self, arrays: Sequence[Array], paths: Sequence[str], *, on_commit_callback: Callable[[], None] | None = None,
        transaction: Any = None,
    ) -> None:  # fmt: skip
        """As `serialize`, into these folders."""
        specs = tree_util.tree_map(get_tensorstore_spec, paths)
        self.serialize(arrays, specs, on_commit_callback=on_commit_callback, transaction=transaction)

    def deserialize(
        self, shardings: Sequence[Any], tensorstore_specs: Sequence[dict[str, Any]],
        global_shapes: Sequence[Any] | None = None, dtypes: Sequence[Any] | None = None,
        concurrent_gb: int = READ_AT_ONCE_GB,
    ) -> list[Array]:  # fmt: skip
        """Reads arrays into shardings, when all that was begun is written."""
        self.wait_until_finished()
        return run_deserialization(shardings, tensorstore_specs, global_shapes, dtypes, concurrent_gb)

    def deserialize_with_paths(
        self, shardings: Sequence[Any], paths: Sequence[str], global_shapes: Sequence[Any] | None = None,
        dtypes: Sequence[Any] | None = None, concurrent_gb: int = READ_AT_ONCE_GB,
    ) -> list[Array]:  # fmt: skip
        """As `deserialize`, from these folders."""
        specs = tree_util.tree_map(get_tensorstore_spec, paths)
        return self.deserialize(shardings, specs, global_shapes, dtypes, concurrent_gb)


__getattr__ = _missing("jax.experimental.array_serialization.serialization", __all__)
