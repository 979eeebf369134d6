"""Devices of hardware that is not here: names, meshes, what cannot be done with them; and with a compiler, programs."""

import importlib.util

import jax
import numpy as np
import pytest
from jax.experimental import topologies as judge

import meshrt
from meshrt import P, errors
from meshrt.experimental import topologies
from meshrt.sharding import NamedSharding

needs_tpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")


def test_what_is_attached():
    here, theirs = topologies.get_attached_topology(), judge.get_attached_topology()
    assert here.devices == meshrt.devices() and len(here.devices) == len(theirs.devices)
    assert repr(here) == "<TopologyDescription 8 devices here>"
    mesh = topologies.make_mesh(here, (4, 2), ("a", "b"))
    wanted = judge.make_mesh(theirs, (4, 2), ("a", "b"))
    assert [d.id for d in mesh.devices.flat] == [d.id for d in wanted.devices.flat]
    assert str(mesh.axis_types) == str(wanted.axis_types)
    x = meshrt.device_put(np.ones((4, 4), np.float32), NamedSharding(mesh, P("a")))
    assert float(meshrt.jit(lambda x: x.sum())(x)) == 16.0
    assert isinstance(topologies.TopologyDescription(here.devices[:2]), topologies.TopologyDescription)


REFUSED = {
    "a platform without one": (("", "cpu"), NotImplementedError, "topology not implemented for cpu"),
    "no platform": (("v5e:2x2", "abacus"), NotImplementedError, "topology not implemented for abacus"),
    "another platform": (("v5e:2x2", "cuda"), ValueError, "v5e:2x2 is of the platform tpu, not cuda"),
    "no name": (("",), ValueError, "topology"),
    "no shape": (("v5e", "tpu"), ValueError, "write v5e:4x4"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_description(name):
    arguments, kind, text = REFUSED[name]
    with pytest.raises(kind, match=text) as e:
        topologies.get_topology_desc(*arguments)
    assert isinstance(e.value, errors.MeshrtError)
    if kind is NotImplementedError:
        with pytest.raises(kind, match=text):
            judge.get_topology_desc(*arguments)


def test_refusals_about_meshes():
    with pytest.raises(ValueError, match="must equal the product of mesh_shape"):
        topologies.make_mesh(topologies.get_attached_topology(), (3, 2), ("a", "b"))
    with pytest.raises(ValueError, match="must equal the product of mesh_shape"):
        judge.make_mesh(judge.TopologyDescription(jax.devices()), (3, 2), ("a", "b"))
    with pytest.raises(errors.BackendError):
        topologies.get_attached_topology("abacus")


@pytest.mark.tpu
@needs_tpu
@pytest.mark.parametrize(("count", "shape"), [(4, (2, 2)), (2, (2, 1))])
def test_programs_for_meshes_of_such_devices(count, shape):
    found = topologies.get_topology_desc("v5e:2x2", "tpu")
    assert len(found.devices) == 4 and repr(found) == "<TopologyDescription v5e:2x2>"
    part = topologies.TopologyDescription(found.devices[::-1][:count])
    mesh = meshrt.sharding.Mesh(np.array(part.devices).reshape(shape), ("a", "b"))
    x = meshrt.ShapeDtypeStruct((256, 256), np.float32, sharding=NamedSharding(mesh, P("a", "b")))
    lowered = meshrt.jit(lambda x: x @ x).lower(x)
    compiled = lowered.compile()
    assert compiled.topology.name == "v5e"
    assert compiled.memory_analysis().argument_size_in_bytes == 256 * 256 * 4 / count
    assert compiled.plan.counts == lowered.partition().plan.counts and (count == 2 or compiled.collectives())
    with pytest.raises(errors.CompileOnlyError, match="is not here"):
        compiled(x)


@pytest.mark.tpu
@needs_tpu
def test_nothing_runs_and_nothing_lies_there():
    found = topologies.get_topology_desc("v5e:2x2")
    mesh = topologies.make_mesh(found, (2, 2), ("a", "b"))
    split = NamedSharding(mesh, P("a", "b"))
    with pytest.raises(errors.CompileOnlyError, match="no array can lie there"):
        meshrt.device_put(np.ones((4, 4), np.float32), split)
    with pytest.raises(errors.CompileOnlyError, match="not here"):
        meshrt.jit(lambda x: x, in_shardings=split)(np.ones((4, 4), np.float32))
    with pytest.raises(errors.CompileOnlyError, match="not here"):
        meshrt.jit(lambda: meshrt.numpy.ones(4), out_shardings=NamedSharding(mesh, P("a")))()
    one = meshrt.sharding.SingleDeviceSharding(found.devices[1])
    alone = meshrt.jit(lambda x: x + 1).lower(meshrt.ShapeDtypeStruct((4,), np.float32, sharding=one)).compile()
    assert alone.memory_analysis().argument_size_in_bytes > 0
