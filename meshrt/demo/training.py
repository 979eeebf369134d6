"""The training run itself, and moving its program to other devices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import meshrt
from meshrt.demo.model import LanguageModel
from meshrt.demo.settings import DemoSettings
from meshrt.demo.text import standard_library, windows
from meshrt.errors import ConfigError, counted
from meshrt.runtime import events
from meshrt.sharding import AxisType, Mesh

__all__ = ["Move", "StepReport", "Trainer", "other_mesh"]

STATIONS = ("trace", "lower", "propagate", "partition", "compile", "rebind")


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step: its number from 1, its loss in nats per byte, the seconds since training began (compilation left out)."""

    number: int
    loss: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Move:
    """What moving took: how often each station ran, and the seconds of the first step there and of the next."""

    description: str
    counts: dict[str, int]
    first_seconds: float
    next_seconds: float


class Trainer:
    """A model on a mesh. `steps()` trains; `move()` then continues on other devices of the same mesh shape."""

    def __init__(self, settings: DemoSettings):
        self.settings, config = settings, settings.model_config
        self.model = LanguageModel(meshrt, config)
        self.mesh = make_mesh(settings)
        self.step = self.model.jitted_step()
        self.batches = windows(standard_library(), config.batch, config.context + 1, settings.seed)
        self.compile_seconds = 0.0
        with meshrt.set_mesh(self.mesh):
            shardings = self.model.state_shardings(self.mesh)
            self.state = meshrt.jit(self.model.init, out_shardings=shardings)(meshrt.random.key(settings.seed))

    @property
    def tokens_per_step(self) -> int:
        return self.model.config.batch * self.model.config.context

    def lowered(self) -> Any:
        """The step's `Lowered`, from the cache that calls use."""
        with meshrt.set_mesh(self.mesh):
            return self.step.trace(*self.model.example_arguments(self.mesh)).lower()

    def steps(self) -> Iterator[StepReport]:
        """Trains, one report per step."""
        begun = 0.0
        with meshrt.set_mesh(self.mesh):
            for number in range(1, self.settings.steps + 1):
                start = time.perf_counter()
                loss = self._advance(self.mesh)
                if number == 1:
                    self.compile_seconds = time.perf_counter() - start
                    begun = time.perf_counter()
                yield StepReport(number, loss, time.perf_counter() - begun)

    def _advance(self, mesh: Mesh) -> float:
        tokens = meshrt.device_put(next(self.batches), self.model.token_sharding(mesh))
        self.state, loss = self.step(self.state, tokens)
        return float(loss)

    def move(self) -> Move:
        """Moves the state to other devices and takes two steps there, counting what the pipeline does."""
        mesh, description = other_mesh(self.mesh)
        self.state = meshrt.device_put(self.state, self.model.state_shardings(mesh))
        meshrt.block_until_ready(self.state)
        with meshrt.set_mesh(mesh):
            with events.count(*STATIONS) as counted:
                start = time.perf_counter()
                self._advance(mesh)
                first = time.perf_counter() - start
            start = time.perf_counter()
            self._advance(mesh)
            return Move(description, counted.as_dict(), first, time.perf_counter() - start)


def make_mesh(settings: DemoSettings) -> Mesh:
    """The mesh over the first devices. ConfigError if there are too few."""
    devices, needed = meshrt.devices(), settings.mesh_size
    if len(devices) < needed:
        axes = ",".join(f"{n}={s}" for n, s in settings.mesh.items())
        raise ConfigError(
            f"mesh {axes} needs {counted(needed, 'device')}, but there are {len(devices)}; give --devices {needed} "
            "or a smaller --mesh"
        )
    grid = np.array(devices[:needed], dtype=object).reshape(tuple(settings.mesh.values()))
    return Mesh(grid, tuple(settings.mesh), axis_types=(AxisType.Auto,) * len(settings.mesh))


def other_mesh(mesh: Mesh) -> tuple[Mesh, str]:
    """A mesh of the same shape on other devices: those not used yet, else the same in reverse; and which it is."""
    used = [d.id for d in mesh.devices.flat]
    free = [d for d in meshrt.devices() if d.id not in used]
    if len(free) >= mesh.size:
        devices, what = free[: mesh.size], "other devices"
    else:
        devices, what = list(mesh.devices.flat)[::-1], "the same devices in reverse order"
    grid = np.array(devices, dtype=object).reshape(mesh.devices.shape)
    ids = [d.id for d in devices]
    return Mesh(grid, mesh.axis_names, axis_types=mesh.axis_types), f"{what} (ids {ids[0]} ... {ids[-1]})"
