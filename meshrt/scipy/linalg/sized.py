"""Matrices of a special form whose size is known when an exported program is called.

What NumPy computes for a number of rows is computed by the program for a symbolic one, by formulas whose steps are no
more than the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax

__all__: list[str] = []


def binomials(n: Any, signed: bool) -> Any:
    """Pascal's lower factor [n, n]; `signed` its inverse. Each row is the one above plus the same moved by one."""

    dtype = jnp.result_type(float)

    def step(row: Any, _: None) -> tuple[Any, Any]:
        moved = jnp.concatenate([jnp.zeros(1, dtype), row])[: row.shape[0]]
        return (moved - row if signed else moved + row), row

    first = (jnp.arange(n) == 0).astype(dtype)
    return lax.scan(step, first, None, length=n)[1]


def inverse_of_hilbert(n: Any) -> Any:
    """(-1)^(i + j) p[i] p[j] / (i + j + 1) with p[0] = n and p[i] = p[i - 1] (n + i) (n - i) / i^2."""
    i, rows = jnp.arange(n), jnp.array(n)
    ratios = (rows + i) * (rows - i).astype(jnp.result_type(float)) / jnp.maximum(i * i, 1)
    p = jnp.round(jnp.cumprod(jnp.where(i == 0, rows, ratios))) * jnp.where(i % 2 == 0, 1, -1)
    return jnp.outer(p, p) / (i[:, None] + i + 1)


def helmert_rows(n: Any) -> Any:
    """Helmert's matrix [n, n], with its first row."""
    i, j = jnp.arange(n, dtype=jnp.result_type(float))[:, None], jnp.arange(n)
    scale = jnp.sqrt(jnp.maximum(i * (i + 1), 1))
    rows = jnp.where(j < i, 1 / scale, jnp.where(j == i, -i / scale, 0.0))
    return jnp.where(i == 0, 1 / jnp.sqrt(jnp.array(n)), rows)


def fourier(n: Any, scale: str | None) -> Any:
    """The matrix [n, n] of the discrete Fourier transform."""
    i, rows = jnp.arange(n), jnp.array(n)
    turns = jnp.outer(i, i) % rows / rows
    divisor = {None: 1.0, "sqrtn": jnp.sqrt(rows), "n": rows}[scale]
    return jnp.exp(-2j * np.pi * turns) / divisor
