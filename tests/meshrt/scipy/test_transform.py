"""Rotations, beside JAX's."""

import jax.scipy.spatial.transform  # noqa: F401
import numpy as np
import pytest

import meshrt.numpy as jnp
from meshrt.scipy.spatial.transform import Rotation
from tests.meshrt.beside import assert_alike

RNG = np.random.default_rng(0)
Q = RNG.normal(size=(5, 4)).astype(np.float32)
V = RNG.normal(size=(5, 3)).astype(np.float32)


def rotation(lib):
    return lib.scipy.spatial.transform.Rotation


@pytest.mark.sweep(2)
@pytest.mark.parametrize("row", [slice(None), 0])
def test_representations(row):
    def program(lib):
        R, q, v = rotation(lib), lib.numpy.array(Q)[row], lib.numpy.array(V)[row]
        r = R.from_quat(q)
        return [
            r.as_matrix(), r.as_mrp(), r.as_rotvec(), r.as_rotvec(degrees=True), r.magnitude(), r.inv(), r.apply(V),
            r.apply(V, inverse=True), r.as_quat(canonical=True), r.as_quat(scalar_first=True), r * R.from_quat(Q),
            R.from_matrix(r.as_matrix()), R.from_mrp(v), R.from_rotvec(v), R.from_rotvec(v, degrees=True),
        ]  # fmt: skip

    assert_alike(program, 2e-4)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seq", ["xyz", "XYZ", "zxz", "ZYX", "YZY"])
def test_angles(seq):
    def program(lib):
        R = rotation(lib)
        v = lib.numpy.array(V)
        of_one = [R.from_euler(seq[:n], v[:, :n], degrees=n == 2) for n in (1, 2, 3)]
        locked = lib.numpy.array([0.2, np.pi / 2 if len(set(seq)) == 3 else 0.0, 0.3])
        return [of_one, R.from_quat(Q).as_euler(seq), R.from_quat(Q[0]).as_euler(seq, degrees=True),
                R.from_euler(seq, locked).as_euler(seq)]  # fmt: skip

    assert_alike(program, 1e-3)


@pytest.mark.parametrize(
    "call",
    [
        lambda R, lib: R.from_euler("xyzx", np.zeros(4)), lambda R, lib: R.from_euler("xyZ", np.zeros(3)),
        lambda R, lib: R.from_euler("xxy", np.zeros(3)), lambda R, lib: R.identity().as_euler("xy"),
        lambda R, lib: R.identity()[0], lambda R, lib: len(R.identity()), lambda R, lib: R.identity(),
        lambda R, lib: R.from_quat(Q).mean(np.ones(4)), lambda R, lib: R.from_quat(Q).mean(np.ones((5, 1))),
        lambda R, lib: lib.numpy.abs(R.from_quat(Q).mean(lib.numpy.arange(5)).quat),
        lambda R, lib: R.concatenate([R.from_quat(Q), R.from_quat(Q)])[2:4], lambda R, lib: len(R.from_quat(Q)),
        lambda R, lib: R.from_rotvec(lib.numpy.zeros(3)),
    ],
)  # fmt: skip
def test_arguments_of_rotations(call):
    assert_alike(lambda lib: call(rotation(lib), lib), 1e-4)


TIMES = np.array([0, 1, 2, 3.5, 5], np.float32)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("at", [1.5, np.array([0, 0.3, 1, 4.5], np.float32), np.zeros((2, 2), np.float32)])
def test_rotations_between_times(at):
    def program(lib):
        between = lib.scipy.spatial.transform.Slerp.init(TIMES, rotation(lib).from_quat(Q))
        return between(at), lib.jit(lambda s: s(at))(between)

    assert_alike(program, 1e-4)


@pytest.mark.parametrize("times", [TIMES[:3], TIMES[None]])
def test_refused_times(times):
    assert_alike(lambda lib: lib.scipy.spatial.transform.Slerp.init(times, rotation(lib).from_quat(Q)))
    assert_alike(lambda lib: lib.scipy.spatial.transform.Slerp.init(TIMES, Q))


def test_what_jax_has_not():
    assert Rotation.identity(3).quat.shape == (3, 4)
    import meshrt

    drawn = Rotation.random(meshrt.random.key(0), 50)
    np.testing.assert_allclose(np.asarray(jnp.linalg.norm(drawn.quat, axis=-1)), 1, 1e-5)
    slope = meshrt.grad(lambda v: Rotation.from_rotvec(v).apply(jnp.ones(3))[0])(jnp.zeros(3))
    np.testing.assert_allclose(np.asarray(slope), [0, 1, -1], 1e-5, 1e-6)
