"""custom_linear_solve and custom_root beyond the rows of the judge: pytrees, meshes, errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshrt
import meshrt.numpy as mnp
from meshrt.sharding import NamedSharding, PartitionSpec

A = (3 * np.eye(4) + np.arange(16).reshape(4, 4) / 20).astype(np.float32)
B = np.arange(1, 5, dtype=np.float32)
LIBRARIES = [(jax, jnp), (meshrt, mnp)]


def directly(xp, a):
    """A solve by the inverse of the matrix."""
    return lambda matvec, b: xp.linalg.inv(a) @ b


def of_pairs(library, xp):
    """A block-diagonal system of a pair of unknowns; mapped over one right-hand side."""

    def solution(a, b, c):
        x, y = library.lax.custom_linear_solve(
            lambda v: (a @ v[0], 2 * v[1]),
            (b, c),
            lambda mv, r: (xp.linalg.inv(a) @ r[0], r[1] / 2),
            lambda mv, r: (xp.linalg.inv(a.T) @ r[0], r[1] / 2),
        )
        return xp.sum(xp.sin(x)) + xp.sum(y * y)

    gradients = library.grad(solution, argnums=(0, 1, 2))(A, B, B)
    return *gradients, library.vmap(solution, in_axes=(None, 0, None))(A, np.stack([B, -B]), B)


def test_pytrees() -> None:
    theirs, ours = (of_pairs(*library) for library in LIBRARIES)
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


def test_a_sharded_system() -> None:
    mesh = meshrt.make_mesh((4,), ("data",), devices=meshrt.devices()[:4])
    many = meshrt.device_put(np.stack([B, 2 * B, -B, B + 1]), NamedSharding(mesh, PartitionSpec("data")))

    @meshrt.jit
    def gradient(a, b):
        one = lambda r: meshrt.lax.custom_linear_solve(lambda x: a @ x, r, directly(mnp, a), directly(mnp, a.T))
        return meshrt.grad(lambda b: mnp.sum(meshrt.vmap(one)(b) ** 2))(b)

    inverse = np.linalg.inv(A.astype(np.float64))
    expected = 2 * np.asarray(many, np.float64) @ inverse.T @ inverse
    np.testing.assert_allclose(gradient(A, many), expected, rtol=1e-3)


REFUSED = {
    "another structure": lambda lax, xp: lax.custom_linear_solve(lambda x: (x, x), B, directly(xp, A)),
    "another shape": lambda lax, xp: lax.custom_linear_solve(lambda x: x[:2], B, directly(xp, A)),
    "a solution of another shape": lambda lax, xp: lax.custom_linear_solve(lambda x: x, B, lambda mv, b: b[:2]),
    "root: another structure": lambda lax, xp: lax.custom_root(
        lambda x: (x, x), 1.0, lambda f, x: x, lambda g, y: y / g(1.0)
    ),
    "root: a solution of another structure": lambda lax, xp: lax.custom_root(
        lambda x: x, 1.0, lambda f, x: [x], lambda g, y: y / g(1.0)
    ),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_errors_are_of_jaxs_classes(call) -> None:
    with pytest.raises((TypeError, ValueError)) as theirs:
        call(jax.lax, jnp)
    with pytest.raises(TypeError if isinstance(theirs.value, TypeError) else ValueError):
        call(meshrt.lax, mnp)


@pytest.mark.parametrize("library, xp", LIBRARIES, ids=["jax", "meshrt"])
def test_reverse_mode_needs_a_transposed_solve(library, xp) -> None:
    solve = lambda b: xp.sum(library.lax.custom_linear_solve(lambda x: xp.asarray(A) @ x, b, directly(xp, A)))
    assert library.jvp(solve, (B,), (B,))[1] == pytest.approx(float(np.linalg.solve(A, B).sum()), rel=1e-4)
    with pytest.raises(TypeError, match="transpose_solve"):
        library.grad(solve)(B)
