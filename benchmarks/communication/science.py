"""Scientific programs: fields that are updated in place, borders, relaxation in two colours."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from .base import Array, Out, eight, program, two_by_four

F32 = 4
FIELD = Array((48, 48, 48), ("x", None, None))
FACE = 48 * 48 * F32


@program(
    "Maxwell's equations", eight, [FIELD] * 6, (Out("x", None, None),) * 6, 2 * 4 * FACE,
    "two faces of each field to one neighbour, a step",
)  # fmt: skip
def maxwell(ex, ey, ez, hx, hy, hz):
    def after(a, axis):
        return jnp.diff(a, axis=axis, append=jnp.zeros_like(lax.slice_in_dim(a, 0, 1, axis=axis)))

    def before(a, axis):
        return jnp.diff(a, axis=axis, prepend=jnp.zeros_like(lax.slice_in_dim(a, 0, 1, axis=axis)))

    for _ in range(2):
        hx = hx - 0.3 * (after(ez, 1) - after(ey, 2))
        hy = hy - 0.3 * (after(ex, 2) - after(ez, 0))
        hz = hz - 0.3 * (after(ey, 0) - after(ex, 1))
        ex = ex + 0.3 * (before(hz, 1) - before(hy, 2))
        ey = ey + 0.3 * (before(hx, 2) - before(hz, 0))
        ez = ez + 0.3 * (before(hy, 0) - before(hx, 1))
    return ex, ey, ez, hx, hy, hz


GRID = Array((512, 512), ("x", None))


@program(
    "waves updated in place", eight, [GRID] * 3, (Out("x", None),) * 3, 8 * 2 * 512 * F32,
    "one line to one neighbour for each of two fields, a step",
)  # fmt: skip
def waves(ez, hx, hy):
    def step(fields, _):
        ez, hx, hy = fields
        hx = hx.at[:, :-1].add(-0.5 * (ez[:, 1:] - ez[:, :-1]))
        hy = hy.at[:-1].add(0.5 * (ez[1:] - ez[:-1]))
        curl = hy[1:-1, 1:-1] - hy[:-2, 1:-1] - hx[1:-1, 1:-1] + hx[1:-1, :-2]
        return (ez.at[1:-1, 1:-1].add(0.5 * curl), hx, hy), None

    return lax.scan(step, (ez, hx, hy), None, length=8)[0]


@program(
    "nine neighbours and a border", two_by_four, [Array((512, 512), ("x", "y"))], Out("x", "y"),
    8 * (128 + 2 * 257) * F32,
    "a line of each side, with the corners, a step",
)  # fmt: skip
def nine(u):
    def step(_, u):
        q = jnp.pad(u, 1)
        near = sum(q[i : i + 512, j : j + 512] for i in range(3) for j in range(3))
        return 0.5 * u + near / 18

    return lax.fori_loop(0, 8, step, u)
