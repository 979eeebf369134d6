"""A case of the judge: one function of arrays, written once against the `lax` namespace that meshrt shares with JAX."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
C64, I32, U32 = np.dtype(np.complex64), np.dtype(np.int32), np.dtype(np.uint32)
I8, U8, BOOL = np.dtype(np.int8), np.dtype(np.uint8), np.dtype(bool)
FLOATS = (BF16, F16)
INTS = (I32, U8)

Sampler = Callable[[np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Arg:
    """An operand: how to draw one, and whether it is mapped over by vmap and differentiated."""

    sample: Sampler
    mapped: bool = True
    smooth: bool = True  # differentiated when its dtype allows


@dataclass(frozen=True)
class Case:
    """`fun(lax, *args)` in both libraries.

    `derivatives` is 0, 1 or 2: how many times it can be differentiated. `reverse` says whether also in reverse mode,
    `finite` whether finite differences apply at the drawn points. `scale` multiplies the tolerances.
    """

    name: str
    fun: Callable[..., Any]
    args: tuple[Arg, ...]
    derivatives: int = 2
    reverse: bool = True
    finite: bool = True
    scale: float = 1.0
    vmap: bool = True
    trusted: bool = True  # whether JAX's derivatives are right; if not, only finite differences judge
    keys: bool = False  # operands are key data, results may be keys

    def draw(self, batch: int | None = None, salt: int = 0) -> list[np.ndarray]:
        """Operands; with `batch` each mapped one has that leading dimension."""
        rng = np.random.default_rng([zlib.crc32(self.name.encode()), salt])
        out = []
        for a in self.args:
            out.append(
                a.sample(rng) if batch is None or not a.mapped else np.stack([a.sample(rng) for _ in range(batch)])
            )
        return out


def normal(*shape: int, dtype: Any = F32, smooth: bool = True) -> Arg:
    """Standard normal values (rounded, for integers: times three; for bool: their sign)."""

    def sample(rng):
        x = rng.standard_normal(shape)
        if dtype == BOOL:
            return np.asarray(x > 0)
        if np.dtype(dtype).kind in "iu":
            return np.asarray(np.round(3 * x)).astype(np.int64).astype(dtype)
        if np.dtype(dtype).kind == "c":
            return np.asarray(x + 1j * rng.standard_normal(shape)).astype(dtype)
        return np.asarray(x).astype(dtype)

    return Arg(sample, smooth=smooth)


def uniform(low: float, high: float, *shape: int, dtype: Any = F32, smooth: bool = True) -> Arg:
    """Uniform values in [low, high)."""
    return Arg(lambda rng: np.asarray(rng.uniform(low, high, shape)).astype(dtype), smooth=smooth)


def integers(low: int, high: int, *shape: int, dtype: Any = I32) -> Arg:
    """Integers in [low, high)."""
    return Arg(lambda rng: np.asarray(rng.integers(low, high, shape)).astype(dtype))


def distinct(*shape: int, dtype: Any = F32) -> Arg:
    """Well separated values in random order, so that nothing is tied and no order changes nearby."""

    def sample(rng):
        n = int(np.prod(shape))
        return np.asarray(rng.permutation(n) * 0.25 - n / 8 + 0.1).reshape(shape).astype(dtype)

    return Arg(sample)


def fixed(value: Any, mapped: bool = False, smooth: bool = False) -> Arg:
    """A given array."""
    return Arg(lambda rng: np.asarray(value), mapped=mapped, smooth=smooth)


def choice(*values: Any) -> Arg:
    """One of the given arrays (all of one shape and dtype)."""
    stacked = np.stack([np.asarray(v) for v in values])
    return Arg(lambda rng: stacked[rng.integers(len(values))])


def with_dtypes(make: Callable[[Any], Case], dtypes: Sequence[Any]) -> list[Case]:
    """A case for each dtype, named after it; only float32 is differentiated twice."""
    cases = []
    for d in dtypes:
        case = make(np.dtype(d))
        order = min(case.derivatives, 2 if d == F32 else 1 if np.dtype(d).kind == "c" or d in FLOATS else 0)
        cases.append(replace(case, name=f"{case.name}-{np.dtype(d).name}", derivatives=order))
    return cases
