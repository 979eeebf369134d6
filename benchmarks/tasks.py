"""What is timed, written once against JAX's names; runs inside a worker process of either package."""

from __future__ import annotations

import functools
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.checkpoints import Checkpoints
from benchmarks.exports import Exports
from benchmarks.vision import Vision

__all__ = ["EAGER", "Tasks"]

MODEL_SOURCE = Path(__file__).resolve().parent.parent / "meshrt" / "demo" / "model.py"
IN_FLIGHT = 100  # unawaited calls at most while measuring the overhead of calls

HOST = np.ones((8, 8), np.float32)

# Eager operations by how they are written: of x (8 numbers), m (8 by 8) and the NumPy of the package.
EAGER: dict[str, Callable[[Any, Any, Any], Any]] = {
    "x + x": lambda np, x, m: x + x,
    "x + 1": lambda np, x, m: x + 1,
    "-x": lambda np, x, m: -x,
    "x > 0": lambda np, x, m: x > 0,
    "sin(x)": lambda np, x, m: np.sin(x),
    "m @ m": lambda np, x, m: m @ m,
    "where(x, x, x)": lambda np, x, m: np.where(x, x, x),
    "where(x, x, 0.0)": lambda np, x, m: np.where(x, x, 0.0),
    "mean(x)": lambda np, x, m: np.mean(x),
    "m.mean(axis=0)": lambda np, x, m: m.mean(axis=0),
    "sum(x)": lambda np, x, m: np.sum(x),
    "x[0]": lambda np, x, m: x[0],
    "m[:, 1]": lambda np, x, m: m[:, 1],
    "x.reshape(2, 4)": lambda np, x, m: x.reshape(2, 4),
    "x.astype(int32)": lambda np, x, m: x.astype(np.int32),
    "concatenate((x, x))": lambda np, x, m: np.concatenate((x, x)),
    "asarray(NumPy)": lambda np, x, m: np.asarray(HOST),
}


def _model_source() -> ModuleType:
    """The demo's model, loaded by path so that the JAX process does not import meshrt."""
    spec = importlib.util.spec_from_file_location("benchmarked_model", MODEL_SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Tasks:
    """Every public method is a task. Meshes are given as {"data": 4, "model": 2}, models as fields of ModelConfig."""

    def __init__(self, frontend: ModuleType):
        self.jax, self.jnp = frontend, frontend.numpy
        self.is_meshrt = frontend.__name__ == "meshrt"
        self.source = _model_source()
        self._arguments: dict[Any, Any] = {}
        self._prepared: dict[Any, Any] = {}

    # -- meshes and models -----------------------------------------------------------------------------------

    def _axis_types(self, mesh: dict[str, int]) -> Any:
        return (self.jax.sharding.AxisType.Auto,) * len(mesh)

    def _abstract(self, mesh: dict[str, int]) -> Any:
        return self.jax.sharding.AbstractMesh(tuple(mesh.values()), tuple(mesh), axis_types=self._axis_types(mesh))

    def _mesh(self, mesh: dict[str, int], turn: int = 0) -> Any:
        """A mesh over all devices, in an order of their own for each `turn`."""
        devices = np.array(self.jax.devices(), dtype=object)
        order = np.random.default_rng(turn).permutation(devices.size) if turn else slice(None)
        devices = devices[order].reshape(tuple(mesh.values()))
        return self.jax.sharding.Mesh(devices, tuple(mesh), axis_types=self._axis_types(mesh))

    def _model(self, model: dict[str, Any]) -> Any:
        return self.source.LanguageModel(self.jax, self.source.ModelConfig(**model))

    def _staged(self, model: dict[str, Any], mesh: dict[str, int]) -> tuple[Any, Any, Any]:
        """A model that has never been traced, the types of its step's arguments, and the mesh's context."""
        abstract = self._abstract(mesh)
        built = self._model(model)
        key = (tuple(model.items()), tuple(mesh.items()))
        if key not in self._arguments:
            self._arguments[key] = built.example_arguments(abstract)
        return built, self._arguments[key], self.jax.sharding.use_abstract_mesh(abstract)

    def versions(self) -> dict[str, str]:
        """The versions of the package and of jaxlib."""
        import importlib.metadata as metadata

        return {n: metadata.version(n) for n in (self.jax.__name__, "jaxlib")}

    # -- stations --------------------------------------------------------------------------------------------

    def trace_lower(self, model: dict[str, Any], mesh: dict[str, int]) -> float:
        """Seconds from the Python function to lowered StableHLO, for a function that has not been seen before."""
        built, arguments, context = self._staged(model, mesh)
        with context:
            step = built.jitted_step()
            start = time.perf_counter()
            step.trace(*arguments).lower(lowering_platforms=("cpu",))
            return time.perf_counter() - start

    def trace_memory(self, model: dict[str, Any], mesh: dict[str, int], traces: int) -> float:
        """Bytes of Python's memory that each trace of a step keeps: of one function, for batches of several sizes."""
        import gc
        import tracemalloc

        built, arguments, context = self._staged(model, mesh)
        state, tokens = arguments
        like = lambda rows: self.jax.ShapeDtypeStruct((rows, *tokens.shape[1:]), tokens.dtype, sharding=tokens.sharding)
        with context:
            step = built.jitted_step()
            step.trace(state, like(8))  # what is loaded and filled once is not counted
            gc.collect()
            tracemalloc.start()
            for i in range(traces):
                step.trace(state, like(8 * (i + 2)))
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        return kept / traces

    def lowered_text(self, model: dict[str, Any], mesh: dict[str, int]) -> str:
        """The lowered step as MLIR text."""
        built, arguments, context = self._staged(model, mesh)
        with context:
            lowered = built.jitted_step().trace(*arguments).lower(lowering_platforms=("cpu",))
            return lowered.module.text if self.is_meshrt else lowered.as_text()

    def propagate_partition(self, model: dict[str, Any], mesh: dict[str, int]) -> float:
        """Seconds from lowered StableHLO to the text of one device's program; meshrt only."""
        built, arguments, context = self._staged(model, mesh)
        with context:
            lowered = built.jitted_step().trace(*arguments).lower(lowering_platforms=("cpu",))
            start = time.perf_counter()
            lowered.propagate().partition().result.as_text()
            return time.perf_counter() - start

    # -- running ---------------------------------------------------------------------------------------------

    def _state(self, built: Any, mesh: Any) -> tuple[Any, Any]:
        """Arguments of the step on `mesh`, made from the same NumPy values every time."""
        key = ("host", built.config)
        if key not in self._prepared:
            state = self.jax.jit(built.init)(self.jax.random.key(0))
            rng = np.random.default_rng(0)
            tokens = rng.integers(0, built.config.vocabulary, (built.config.batch, built.config.context + 1))
            self._prepared[key] = self.jax.tree.map(np.asarray, state), tokens.astype(np.int32)
        state, tokens = self._prepared[key]
        return (
            self.jax.device_put(state, built.state_shardings(mesh)),
            self.jax.device_put(tokens, built.token_sharding(mesh)),
        )

    def second_device_set(self, model: dict[str, Any], mesh: dict[str, int], less_later: bool = False) -> float:
        """Seconds of the first call of a compiled step on the same devices in an order not used before.

        With `less_later` the time of the third call is taken off (the second one may have results of the first that
        lie differently): what remains is the cost of the move.
        """
        key = ("second", tuple(model.items()))
        if key not in self._prepared:
            built = self._model(model)
            self._prepared[key] = [built, built.jitted_step(), 0]
            self._first_call(*self._prepared[key][:2], self._mesh(mesh))
        prepared = self._prepared[key]
        prepared[2] += 1  # whoever asks: a program that was on these devices before may still be loaded
        return self._first_call(*prepared[:2], self._mesh(mesh, turn=prepared[2]), less_later)

    def _first_call(self, built: Any, step: Any, mesh: Any, less_later: bool = False) -> float:
        with self.jax.set_mesh(mesh):
            state, tokens = self._state(built, mesh)
            self.jax.block_until_ready((state, tokens))
            start = time.perf_counter()
            out = self.jax.block_until_ready(step(state, tokens))
            first = time.perf_counter() - start
            if not less_later:
                return first
            out = self.jax.block_until_ready(step(out[0], tokens))
            start = time.perf_counter()
            self.jax.block_until_ready(step(out[0], tokens))
            return first - (time.perf_counter() - start)

    def first_step(self, model: dict[str, Any], mesh: dict[str, int]) -> None:
        """Initialises a model and runs one step of it."""
        built = self._model(model)
        concrete = self._mesh(mesh)
        with self.jax.set_mesh(concrete):
            state, tokens = self._state(built, concrete)
            self.jax.block_until_ready(built.jitted_step()(state, tokens))

    def step_time(self, model: dict[str, Any], mesh: dict[str, int], steps: int) -> float:
        """Seconds per training step, each awaited; compiled on the first request."""
        key = ("steps", tuple(model.items()), tuple(mesh.items()))
        concrete = self._mesh(mesh)
        with self.jax.set_mesh(concrete):
            if key not in self._prepared:
                built = self._model(model)
                step = built.jitted_step()
                state, tokens = self._state(built, concrete)
                state, loss = step(state, tokens)
                self._prepared[key] = [step, state, tokens]
            step, state, tokens = self._prepared[key]
            start = time.perf_counter()
            for _ in range(steps):
                state, loss = step(state, tokens)
                loss.block_until_ready()
            elapsed = time.perf_counter() - start
            self._prepared[key][1] = state
        return elapsed / steps

    def vision(self, model: str, devices: int, steps: int) -> dict[str, Any]:
        """Seconds per training step of a network for pictures, each awaited, and the loss of the last one."""
        key = ("vision", model, devices)
        if key not in self._prepared:
            jax, built = self.jax, Vision(self.jax, model)
            auto = (jax.sharding.AxisType.Auto,)
            mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ("batch",), axis_types=auto)
            put = lambda tree, *spec: jax.device_put(
                tree, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
            )
            parameters = built.init()
            state = put((parameters, [np.zeros_like(p) for p in parameters]))
            batch = put(built.batch(), "batch")
            state, loss = built.step(state, *batch)
            self._prepared[key] = [built.step, state, batch, loss]
        step, state, batch, loss = self._prepared[key]
        start = time.perf_counter()
        for _ in range(steps):
            state, loss = step(state, *batch)
            loss.block_until_ready()
        elapsed = time.perf_counter() - start
        self._prepared[key][1] = state
        return {"seconds": elapsed / max(steps, 1), "loss": float(loss)}

    def losses(self, model: dict[str, Any], mesh: dict[str, int], steps: int) -> list[float]:
        """The losses of the first steps on random tokens: both sides must train the same."""
        concrete = self._mesh(mesh)
        built = self._model(model)
        out = []
        with self.jax.set_mesh(concrete):
            state, tokens = self._state(built, concrete)
            step = built.jitted_step()
            for _ in range(steps):
                state, loss = step(state, tokens)
                out.append(float(loss))
        return out

    def call_overhead(self, leaves: int, devices: int, calls: int) -> float:
        """Seconds per call of a compiled function: of two arrays (leaves=2) or of a dictionary of arrays."""
        key = ("calls", leaves, devices)
        if key not in self._prepared:
            self._prepared[key] = self._prepare_calls(leaves, devices)
        function, arguments = self._prepared[key]
        return self._median_of_blocks(lambda: function(*arguments), calls)

    def _prepare_calls(self, leaves: int, devices: int) -> tuple[Any, Any]:
        jax, x = self.jax, np.arange(8, dtype=np.float32)
        place = lambda v: jax.device_put(v, jax.devices()[0])
        if devices > 1:
            mesh = self._mesh({"data": devices})
            sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
            place = lambda v: jax.device_put(v, sharding)
        if leaves == 2:
            function, arguments = jax.jit(lambda a, b: a + b), (place(x), place(x))
        else:
            tree = {f"layer{i // 4}": {f"w{j}": place(x) for j in range(4)} for i in range(0, leaves, 4)}
            function, arguments = jax.jit(lambda t: jax.tree.map(lambda a: a + 1, t)), (tree,)
        jax.block_until_ready(function(*arguments))
        return function, arguments

    def eager(self, operation: str, calls: int) -> float:
        """Seconds per eager operation on small arrays; every 100th result is awaited."""
        if "eager" not in self._prepared:
            self._prepared["eager"] = self.jnp.arange(8.0), self.jnp.ones((8, 8))
        x, m = self._prepared["eager"]
        run = EAGER[operation]
        return self._median_of_blocks(lambda: run(self.jnp, x, m), calls)

    def _median_of_blocks(self, call: Callable[[], Any], calls: int) -> float:
        """Seconds per call: of the blocks of unawaited calls the median, as others use the machine too."""
        blocks = []
        for _ in range(max(1, calls // IN_FLIGHT)):
            start = time.perf_counter()
            for _ in range(IN_FLIGHT):
                out = call()
            blocks.append(time.perf_counter() - start)
            self.jax.block_until_ready(out)
        return statistics.median(blocks) / IN_FLIGHT

    # -- arrays ----------------------------------------------------------------------------------------------

    def array_move(self, way: str, rows: int, calls: int) -> float:
        """Seconds to bring a float32 array of 4096 columns to 8 devices, split by rows, or back: `way` is
        "device_put", "callback" or "fetch"."""
        key = ("arrays", rows)
        if key not in self._prepared:
            value = np.random.default_rng(0).standard_normal((rows, 4096)).astype(np.float32)
            spec = self.jax.sharding.PartitionSpec("data")
            sharding = self.jax.sharding.NamedSharding(self._mesh({"data": 8}), spec)
            placed = self.jax.device_put(value, sharding)
            self._prepared[key] = value, sharding, placed, self.jax.jit(lambda a: a + 1)
        value, sharding, placed, computed = self._prepared[key]
        total = 0.0
        for _ in range(calls):
            fresh = self.jax.block_until_ready(computed(placed)) if way == "fetch" else None
            start = time.perf_counter()
            if way == "fetch":
                np.asarray(fresh)
            elif way == "device_put":
                self.jax.block_until_ready(self.jax.device_put(value, sharding))
            else:
                made = self.jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
                self.jax.block_until_ready(made)
            total += time.perf_counter() - start
        return total / calls

    def checkpoint(self, arrays: int) -> dict[str, float]:
        """Seconds of saving and restoring so many arrays of 8 MiB: see `Checkpoints.seconds`."""
        key = ("checkpoint", arrays)
        if key not in self._prepared:
            self._prepared[key] = Checkpoints(self.jax, arrays)
        seconds: dict[str, float] = self._prepared[key].seconds()
        return seconds

    # -- shard_map -------------------------------------------------------------------------------------------

    def shard_map_call(self, jitted: bool, calls: int) -> float:
        """Seconds per call of a mapped function of two arrays, in `jit` or eager. Eager calls communicate, and each one
        is awaited: XLA's CPU clients may deadlock on many unawaited collectives.
        """
        key = ("shard_map", jitted)
        if key not in self._prepared:
            jax, spec, mesh = self.jax, self.jax.sharding.PartitionSpec("data"), self._mesh({"data": 8})
            total = (lambda a: 1.0) if jitted else (lambda a: jax.lax.psum(a.sum(), "data"))
            body = lambda a, b: self.jnp.tanh(a) * b + total(a)
            function = jax.shard_map(body, mesh=mesh, in_specs=(spec, spec), out_specs=spec)
            x = np.arange(16, dtype=np.float32)
            arguments = [jax.device_put(x, jax.sharding.NamedSharding(mesh, spec)) for _ in range(2)]
            self._prepared[key] = jax.jit(function) if jitted else function, arguments
            jax.block_until_ready(self._prepared[key][0](*arguments))
        function, arguments = self._prepared[key]
        if jitted:  # as of any compiled function, so that the two can be compared
            return self._median_of_blocks(lambda: function(*arguments), calls)
        start = time.perf_counter()
        for _ in range(calls):
            self.jax.block_until_ready(function(*arguments))
        return (time.perf_counter() - start) / calls

    def shard_map_trace_lower(self, layers: int, mesh: dict[str, int]) -> float:
        """Seconds from a train step whose layers are written with shard_map to lowered StableHLO."""
        step, arguments = self._mapped_step(layers, self._mesh(mesh))
        start = time.perf_counter()
        step.trace(*arguments).lower(lowering_platforms=("cpu",))
        return time.perf_counter() - start

    def _mapped_step(self, layers: int, mesh: Any, width: int = 128, heads: int = 4) -> tuple[Any, Any]:
        """Tensor parallel layers over "model", samples over "data", written per device."""
        jax, jnp, P = self.jax, self.jnp, self.jax.sharding.PartitionSpec

        def block(x: Any, w: dict[str, Any]) -> Any:
            norm = lambda x: x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
            q, k, v = (jnp.einsum("btd,dhk->bthk", norm(x), w[n]) for n in "qkv")
            weights = jax.nn.softmax(jnp.einsum("bqhk,bthk->bhqt", q, k) / q.shape[-1] ** 0.5, axis=-1)
            mixed = jnp.einsum("bhqt,bthk->bqhk", weights, v)
            x = x + jax.lax.psum(jnp.einsum("bqhk,hkd->bqd", mixed, w["o"]), "model")
            return x + jax.lax.psum(jax.nn.gelu(norm(x) @ w["up"]) @ w["down"], "model")

        specs = {n: P(None, "model") for n in ("q", "k", "v", "up")} | {n: P("model") for n in ("o", "down")}
        layer = jax.shard_map(block, mesh=mesh, in_specs=(P("data"), specs), out_specs=P("data"))

        def loss(params: list[Any], x: Any) -> Any:
            for w in params:
                x = layer(x, w)
            return (x * x).mean()

        def step(params: list[Any], x: Any) -> tuple[Any, Any]:
            value, grads = jax.value_and_grad(loss)(params, x)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

        shapes = dict.fromkeys("qkv", (width, heads, width // heads)) | {
            "o": (heads, width // heads, width), "up": (width, 4 * width), "down": (4 * width, width)
        }  # fmt: skip
        make = lambda shape, spec: jax.ShapeDtypeStruct(
            shape, np.float32, sharding=jax.sharding.NamedSharding(mesh, spec)
        )
        params = [{n: make(s, specs[n]) for n, s in shapes.items()} for _ in range(layers)]
        return jax.jit(step), (params, make((16, 32, width), P("data")))

    # -- exported functions ----------------------------------------------------------------------------------

    @functools.cached_property
    def _exports(self) -> Exports:
        return Exports(self.jax)

    def export_seconds(self, layers: int, stage: str) -> float:
        """Seconds of a stage of an exported train step."""
        return self._exports.seconds(layers, stage)

    def export_size(self, layers: int) -> int:
        """Bytes of an exported train step in a file."""
        return self._exports.size(layers)

    # -- communication ---------------------------------------------------------------------------------------

    def communication(self, model: dict[str, Any], mesh: dict[str, int]) -> dict[str, Any]:
        """The optimised HLO of the step, and what our plan says of it (None for JAX, which has none)."""
        concrete = self._mesh(mesh)
        built = self._model(model)
        with self.jax.set_mesh(concrete):
            lowered = built.jitted_step().trace(*built.example_arguments(concrete)).lower()
            text = lowered.compile().as_text()
            plan = lowered.partition().plan.as_json() if self.is_meshrt else None
        return {"hlo": text, "plan": plan}
