"""Saving and restoring a training state: meshrt's checkpoints beside orbax's. Each runs in its package's process."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

__all__ = ["Checkpoints"]


class Library(Protocol):
    """What is timed of a library."""

    def save(self, path: Path, tree: Any) -> Callable[[], None]:
        """Returns as soon as the program may go on, and what waits for the commit."""

    def restore(self, path: Path, tree: Any) -> Any:
        """The saved values, split as those of `tree`."""


class Ours:
    def __init__(self, frontend: ModuleType):
        self.checkpoint = frontend.checkpoint

    def save(self, path: Path, tree: Any) -> Callable[[], None]:
        wait: Callable[[], None] = self.checkpoint.save_async(path, tree).wait
        return wait

    def restore(self, path: Path, tree: Any) -> Any:
        return self.checkpoint.restore(path, tree)


class Orbax:
    def __init__(self, frontend: ModuleType):
        import orbax.checkpoint  # which imports JAX, so not where meshrt is measured

        self.jax, self.orbax = frontend, orbax.checkpoint
        self.saver = orbax.checkpoint.AsyncCheckpointer(orbax.checkpoint.PyTreeCheckpointHandler())

    def save(self, path: Path, tree: Any) -> Callable[[], None]:
        self.saver.save(path, args=self.orbax.args.PyTreeSave(tree))
        wait: Callable[[], None] = self.saver.wait_until_finished
        return wait

    def restore(self, path: Path, tree: Any) -> Any:
        how = self.jax.tree.map(lambda x: self.orbax.ArrayRestoreArgs(sharding=x.sharding), tree)
        return self.saver.restore(path, args=self.orbax.args.PyTreeRestore(restore_args=how))


class Checkpoints:
    """Arrays of 8 MiB that a step donates, as parameters and moments are, over 8 devices."""

    def __init__(self, frontend: ModuleType, arrays: int):
        self.jax = frontend
        self.library: Library = Ours(frontend) if frontend.__name__ == "meshrt" else Orbax(frontend)
        mesh = frontend.make_mesh((4, 2), ("data", "model"))
        sharding = frontend.sharding.NamedSharding(mesh, frontend.sharding.PartitionSpec("data", "model"))
        draw = np.random.default_rng(0)
        value = lambda: draw.standard_normal((1024, 2048), np.float32)
        self.tree = {f"w{i}": frontend.device_put(value(), sharding) for i in range(arrays)}
        self.update = frontend.jit(lambda t: frontend.tree.map(lambda x: x * 0.99, t), donate_argnums=0)
        self._step()

    def _step(self) -> None:
        self.tree = self.jax.block_until_ready(self.update(self.tree))

    def seconds(self) -> dict[str, float]:
        """Of the call that saves, of that and the step after it less a plain step, of all until the commit, and of
        restoring."""
        folder = Path(tempfile.mkdtemp(prefix="meshrt-benchmark-"))
        try:
            plain = min(_seconds(self._step) for _ in range(3))
            start = time.perf_counter()
            wait = self.library.save(folder / "step", self.tree)
            stall = time.perf_counter() - start
            self._step()
            step = time.perf_counter() - start
            wait()
            save = time.perf_counter() - start
            restored: list[Any] = []
            restore = _seconds(lambda: restored.append(self._restored(folder / "step")))
            self._check(restored[0])
        finally:
            shutil.rmtree(folder)
        return {"stall": stall, "step": max(step - plain, 0.0), "save": save - plain, "restore": restore}

    def _restored(self, path: Path) -> Any:
        return self.jax.block_until_ready(self.library.restore(path, self.tree))

    def _check(self, restored: Any) -> None:
        """What was restored is what was saved: a step before what there is now."""
        ours, theirs = np.asarray(self.update(restored)["w0"]), np.asarray(self.tree["w0"])
        if not np.array_equal(ours, theirs):
            raise AssertionError("a checkpoint was restored with other values than were saved")


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
