"""The same program by meshrt and by JAX: programs take a `Library` and use nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np

import meshrt


@dataclass(frozen=True)
class Library:
    """A library and what differs in spelling."""

    api: Any
    np: Any
    lax: Any
    mesh_types: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.api, name)

    @property
    def P(self) -> Any:
        return self.api.P

    def mesh(self, sizes: tuple[int, ...], names: tuple[str, ...], kind: str = "Auto") -> Any:
        devices = np.array(self.api.devices()[: math.prod(sizes)]).reshape(sizes)
        types = (getattr(self.api.sharding.AxisType, kind),) * len(names)
        return self.api.sharding.Mesh(devices, names, axis_types=types)

    def varying(self, x: Any) -> frozenset[str]:
        """The axes that the type of a value varies over."""
        aval = self.api.typeof(x)
        return frozenset(aval.mat.varying if self.api is jax else aval.vma)


@cache
def ours() -> Library:
    return Library(meshrt, meshrt.numpy, meshrt.lax, meshrt.sharding)


@cache
def theirs() -> Library:
    return Library(jax, jax.numpy, jax.lax, jax.sharding)


def same(got: Any, want: Any, rtol: float = 1e-5) -> None:
    """Structure, shapes, dtypes and values."""
    a, b = meshrt.tree.leaves(got), jax.tree.leaves(want)
    assert len(a) == len(b)
    for x, y in zip(a, b):
        x, y = np.asarray(x), np.asarray(y)
        assert x.shape == y.shape and x.dtype == y.dtype, (x.shape, y.shape, x.dtype, y.dtype)
        np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol=rtol, atol=1e-5)
