"""Devices of hardware that need not be here, and meshes of them, as JAX's `topologies`: for compiling ahead of time.

    topology = topologies.get_topology_desc("v5e:2x2", "tpu")
    mesh = topologies.make_mesh(topology, (2, 2), ("data", "model"))
    x = meshrt.ShapeDtypeStruct((8, 8), np.float32, sharding=NamedSharding(mesh, P("data", "model")))
    compiled = meshrt.jit(f).lower(x).compile()             # a TopologyCompiled, as of compile(topology="v5e:2x2")

Nothing runs on such devices, and no array lies there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt import errors
from meshrt.runtime import backend
from meshrt.runtime.topology import devices_of, platform_of, topology_of
from meshrt.sharding.device_order import create_device_mesh
from meshrt.sharding.mesh import AxisType, Mesh

__all__ = ["TopologyDescription", "get_attached_topology", "get_topology_desc", "make_mesh"]


class TopologyDescription:
    """The devices of some hardware, here or elsewhere.

    devices  in order of their places: along the hardware's dimensions, the last one fastest
    """

    def __init__(self, devices: Sequence[Any]):
        self.devices: list[Any] = list(devices)

    def __repr__(self) -> str:
        hardware = backend.elsewhere(self.devices)
        what = f"{len(self.devices)} devices here" if hardware is None else hardware.spec
        return f"<TopologyDescription {what}>"


def get_attached_topology(platform: str | None = None) -> TopologyDescription:
    """The devices of this job on a platform, by default the default one.

    Raises:
      BackendError: the platform cannot be started here.
    """
    return TopologyDescription(backend.devices(platform))


def get_topology_desc(topology_name: str = "", platform: str | None = None) -> TopologyDescription:
    """Hardware by its name: "v5e:16x16", "h100:8", or a file as in `configs/topologies`.

    Args:
      topology_name: what `lowered.compile(topology=...)` takes.
      platform: "tpu", "cuda" or "gpu", to be sure of; by default that of the hardware.

    Raises:
      ArgumentValueError: a name of nothing, or of hardware of another platform. UnsupportedError: no compiler for that
      platform works without its hardware. MissingCompilerError: the compiler's package is not installed.
    """
    wanted = {"gpu": "cuda"}.get(platform or "", platform)
    if wanted not in (None, "tpu", "cuda"):
        raise errors.UnsupportedError(
            f"topology not implemented for {platform}: programs are compiled ahead for 'tpu' and 'cuda'; "
            "get_attached_topology gives the devices that are here"
        )
    topology = topology_of(topology_name)
    if wanted is not None and platform_of(topology) != wanted:
        raise errors.ArgumentValueError(
            f"get_topology_desc: {topology_name} is of the platform {platform_of(topology)}, not {platform}; leave "
            "platform out, or name another topology"
        )
    return TopologyDescription(devices_of(topology))


def make_mesh(
    topo: TopologyDescription,
    mesh_shape: Sequence[int],
    axis_names: Sequence[Any],
    *,
    contiguous_submeshes: bool = False,
) -> Mesh:
    """A mesh, all of whose axes are Auto, over all devices of a topology, in an order that suits their interconnect.

    Args:
      topo: what the other functions of this module give.
      mesh_shape, axis_names: the sizes and names of the axes; the last one communicates most.
      contiguous_submeshes: of TPUs: the devices of each process are to form a block of the mesh.

    Raises:
      MeshError: the sizes do not multiply to the number of devices.

    >>> from meshrt.experimental import topologies
    >>> here = topologies.get_attached_topology()
    >>> topologies.make_mesh(here, (len(here.devices),), ("x",)).axis_names
    ('x',)
    """
    devices = create_device_mesh(mesh_shape, topo.devices, contiguous_submeshes=contiguous_submeshes)
    return Mesh(devices, tuple(axis_names), axis_types=(AxisType.Auto,) * devices.ndim)
