"""Devices that a context names, abstract ones and the default: what they decide, and in which keys they are not."""

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.runtime import events
from meshrt.sharding import (
    AbstractDevice,
    AbstractMesh,
    AxisType,
    NamedSharding,
    get_abstract_mesh,
    use_abstract_mesh,
)
from meshrt.sharding import PartitionSpec as P
from tests.meshrt.sharding.test_context import KINDS, ONE, TWO, of, on


def test_b22_the_abstract_device_is_in_no_key():
    here = AbstractDevice.of(meshrt.devices()[0])
    by_hand = AbstractMesh((4,), ("x",), abstract_device=here)
    assert by_hand.abstract_mesh is of(ONE).abstract_mesh is AbstractMesh((4,), ("x",))
    assert by_hand.abstract_device == of(ONE).abstract_device == here and by_hand is not by_hand.abstract_mesh
    f = meshrt.jit(lambda x: x * 5)
    with events.count("trace", "lower") as n:
        for mesh in (by_hand, by_hand.abstract_mesh, of(ONE), of(TWO)):
            f.lower(meshrt.ShapeDtypeStruct((8,), np.float32, sharding=NamedSharding(mesh, P("x"))))
        f(on(of(TWO), np.ones(8, np.float32), "x"))
    assert (n.trace, n.lower) == (1, 1)
    explicit = AbstractMesh((4,), ("x",), AxisType.Explicit)
    assert explicit is of(ONE, types=AxisType.Explicit).abstract_mesh


def test_the_abstract_device_says_the_platform_and_is_checked():
    tpu = AbstractDevice("TPU v6 lite", 1, "tpu")
    mesh = AbstractMesh((4,), ("x",), abstract_device=tpu)
    assert repr(mesh) == repr(
        jax.sharding.AbstractMesh(
            (4,),
            ("x",),
            (jax.sharding.AxisType.Auto,),
            abstract_device=jax.sharding.AbstractDevice("TPU v6 lite", 1, "tpu"),
        )
    )
    assert (
        mesh.update(abstract_device=None) is mesh.abstract_mesh
        and mesh.update(axis_names=("q",)).abstract_device is tpu
    )
    f = meshrt.jit(lambda x: x + 1)
    shape = meshrt.ShapeDtypeStruct((8,), np.float32, sharding=NamedSharding(mesh, P("x")))
    assert f.lower(shape).request.platform == "tpu"
    with use_abstract_mesh(mesh):
        assert get_abstract_mesh() is mesh and f.lower(np.ones(8, np.float32)).request.platform == "tpu"
        assert f.trace(np.ones(8, np.float32)).lower(lowering_platforms=("cpu",)).request.platform == "cpu"
        assert int(f(1)) == 2  # what runs here runs here
    constrained = meshrt.jit(lambda x: meshrt.lax.with_sharding_constraint(x, NamedSharding(mesh, P("x"))))
    with pytest.raises(errors.DeviceAssignmentMismatchError, match=r"TPU v6 lite.*runs on AbstractDevice"):
        constrained(on(of(ONE), np.ones(8), "x"))
    with pytest.raises(TypeError, match="AbstractDevice"):
        AbstractMesh((4,), ("x",), abstract_device="tpu")


def test_b23_the_default_device_is_in_no_key_before_load():
    f = meshrt.jit(lambda x: jnp.cos(x) * 11)
    f(np.ones(3, np.float32))
    for device in meshrt.devices()[1:4]:
        with events.count(*KINDS) as n, meshrt.default_device(device):
            assert f(np.ones(3, np.float32)).devices() == {device}
        assert {k: n[k] for k in KINDS} == {**dict.fromkeys(KINDS, 0), "rebind": 1}
