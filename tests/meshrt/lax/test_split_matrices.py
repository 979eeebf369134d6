"""Batches of matrices that are split over devices: each device decomposes its own, and sends nothing."""

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.lax import linalg
from meshrt.sharding import AxisType, NamedSharding, PartitionSpec

RNG = np.random.default_rng(0)
A = RNG.normal(size=(8, 3, 3)).astype(np.float32)
H = A @ A.swapaxes(-1, -2) + 3 * np.eye(3, dtype=np.float32)
V = A[:, 0] + 4
P = PartitionSpec

PROGRAMS = {
    "cholesky": (linalg.cholesky, H),
    "eigh": (linalg.eigh, H),
    "eig": (linalg.eig, A),
    "qr": (linalg.qr, A),
    "qr pivoting": (lambda x: linalg.qr(x, pivoting=True), A),
    "svd": (linalg.svd, A),
    "lu": (linalg.lu, A),
    "schur": (linalg.schur, A),
    "hessenberg": (linalg.hessenberg, A),
    "tridiagonal": (linalg.tridiagonal, H),
    "triangular_solve": (lambda a, b: linalg.triangular_solve(a, b, left_side=True), H, A),
    "tridiagonal_solve": (lambda d, b: linalg.tridiagonal_solve(d / 9, d, d / 9, b), V, A),
    "householder_product": (linalg.householder_product, A, V),
    "ormqr": (linalg.ormqr, A, V, A),
    "symmetric_product": (linalg.symmetric_product, A, H),
    "solve": (jnp.linalg.solve, H, A),
    "inv": (jnp.linalg.inv, H),
    "det": (jnp.linalg.det, np.concatenate([np.concatenate([A, A[:, :1]], 1), np.ones((8, 4, 1), np.float32)], 2)),
    "gradient of eigh": (meshrt.grad(lambda x: jnp.sum(linalg.eigh(x)[0] ** 3)), H),
    "gradient of solve": (meshrt.grad(lambda a, b: jnp.sum(jnp.linalg.solve(a, b) ** 2)), H, A),
}


def mesh_of(kind):
    return meshrt.make_mesh((8,), ("x",), axis_types=(kind,))


def compare(name, outs):
    function, *operands = PROGRAMS[name]
    expected = meshrt.tree.leaves(meshrt.jit(function)(*operands))
    for a, b in zip(meshrt.tree.leaves(outs), expected, strict=True):
        assert a.sharding.spec[0] == "x", a.sharding
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def split(name, mesh):
    return [meshrt.device_put(x, NamedSharding(mesh, P("x"))) for x in PROGRAMS[name][1:]]


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_sent_where_propagation_decides(name):
    function, operands = meshrt.jit(PROGRAMS[name][0]), split(name, mesh_of(AxisType.Auto))
    partitioned = function.trace(*operands).lower().propagate().partition()
    assert not len(partitioned.plan)
    compare(name, function(*operands))


@pytest.mark.parametrize("name", PROGRAMS)
def test_types_of_explicit_axes(name):
    with meshrt.set_mesh(mesh_of(AxisType.Explicit)) as mesh:
        outs = meshrt.jit(PROGRAMS[name][0])(*split(name, mesh))
    compare(name, outs)


@pytest.mark.parametrize("name", ["eigh", "svd", "solve", "tridiagonal_solve", "gradient of eigh"])
def test_regions_of_one_device(name):
    mesh = mesh_of(AxisType.Auto)
    mapped = meshrt.shard_map(PROGRAMS[name][0], mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    compare(name, meshrt.jit(mapped)(*split(name, mesh)))


def test_right_hand_sides_stay_split():
    mesh = mesh_of(AxisType.Auto)
    sides = RNG.normal(size=(3, 16)).astype(np.float32)
    b = meshrt.device_put(sides, NamedSharding(mesh, P(None, "x")))
    function = meshrt.jit(lambda b: linalg.triangular_solve(H[0], b, left_side=True, lower=True))
    assert not function.trace(b).lower().propagate().partition().plan.bytes
    assert function(b).sharding.spec == P(None, "x")
    np.testing.assert_allclose(function(b), jax.scipy.linalg.solve_triangular(H[0], sides, lower=True), rtol=1e-5)


@pytest.mark.parametrize("library", [jax, meshrt], ids=["jax", "meshrt"])
def test_types_of_right_hand_sides(library):
    """Split columns of b stay so in the type of x; what the solve sums over must not be split."""
    names, kind = library.sharding, library.sharding.AxisType.Explicit
    mesh = library.make_mesh((8,), ("x",), axis_types=(kind,))
    with library.set_mesh(mesh):
        put = lambda x, *spec: library.device_put(x, names.NamedSharding(mesh, names.PartitionSpec(*spec)))
        a, b = put(H[0]), put(np.ones((3, 16), np.float32), None, "x")
        solve = lambda a, b, left: library.lax.linalg.triangular_solve(a, b, left_side=left)
        assert str(library.typeof(solve(a, b, True))) == "float32[3,16@x]"
        refused = library.errors.ShardingTypeError if library is meshrt else jax._src.core.ShardingTypeError
        with pytest.raises(refused, match="triangular solve input `b` must be unsharded on the contracting axis"):
            solve(put(np.eye(16, dtype=np.float32)), put(np.ones((8, 16), np.float32), None, "x"), False)
