"""Exported functions: written once against JAX's names, as `benchmarks.tasks`."""

from __future__ import annotations

import importlib
import time
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["Exports"]

WIDTH, HEADS, TOKENS, BATCH = 64, 4, 32, 8


class Exports:
    """The stages of an exported train step of a transformer, on one device."""

    def __init__(self, frontend: ModuleType):
        self.jax, self.jnp = frontend, frontend.numpy
        self.export = importlib.import_module(f"{frontend.__name__}.export")
        self._made: dict[int, tuple[Any, Any]] = {}
        self._compiled: dict[int, Any] = {}

    def seconds(self, layers: int, stage: str) -> float:
        """Seconds of a stage: "export", "serialize", "deserialize", "first call", "first call, code in the file" (which
        JAX's files cannot hold)."""
        if stage == "export":
            step, arguments = self._step(layers), self._arguments(layers)
            start = time.perf_counter()
            self.export.export(step)(*arguments)
            return time.perf_counter() - start
        exported, blob = self._exported(layers)
        if stage == "first call, code in the file":
            return self._first_call(layers, self.export.deserialize(self._with_code(layers), with_executable=True))
        if stage == "serialize":
            start = time.perf_counter()
            exported.serialize()
            return time.perf_counter() - start
        start = time.perf_counter()
        read = self.export.deserialize(blob)
        if stage == "deserialize":
            return time.perf_counter() - start
        return self._first_call(layers, read)

    def _first_call(self, layers: int, read: Any) -> float:
        arguments = self._arguments(layers)
        start = time.perf_counter()
        self.jax.block_until_ready(self.jax.jit(read.call)(*arguments))
        return time.perf_counter() - start

    def size(self, layers: int) -> int:
        """Bytes of the step in a file."""
        return len(self._exported(layers)[1])

    def _exported(self, layers: int) -> tuple[Any, Any]:
        if layers not in self._made:
            exported = self.export.export(self._step(layers))(*self._arguments(layers))
            self._made[layers] = exported, exported.serialize()
        return self._made[layers]

    def _with_code(self, layers: int) -> Any:
        if layers not in self._compiled:
            self._compiled[layers] = self._exported(layers)[0].serialize(with_executable=True)
        return self._compiled[layers]

    def _step(self, layers: int) -> Any:
        jax, jnp = self.jax, self.jnp

        def layer(x: Any, w: dict[str, Any]) -> Any:
            norm = lambda x: x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
            q, k, v = (jnp.einsum("btd,dhk->bthk", norm(x), w[n]) for n in "qkv")
            scores = jax.nn.softmax(jnp.einsum("bqhk,bthk->bhqt", q, k) / q.shape[-1] ** 0.5, axis=-1)
            x = x + jnp.einsum("bqhk,hkd->bqd", jnp.einsum("bhqt,bthk->bqhk", scores, v), w["o"])
            return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]

        def loss(params: list[Any], x: Any) -> Any:
            for w in params:
                x = layer(x, w)
            return (x * x).mean()

        def step(params: list[Any], x: Any) -> tuple[Any, Any]:
            value, grads = jax.value_and_grad(loss)(params, x)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

        return jax.jit(step)

    def _arguments(self, layers: int) -> tuple[Any, Any]:
        shapes = dict.fromkeys("qkv", (WIDTH, HEADS, WIDTH // HEADS)) | {
            "o": (HEADS, WIDTH // HEADS, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)
        }  # fmt: skip
        params = [{n: np.full(s, 0.01, np.float32) for n, s in shapes.items()} for _ in range(layers)]
        return params, np.ones((BATCH, TOKENS, WIDTH), np.float32)
