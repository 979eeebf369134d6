"""Meshes of devices and how arrays are laid out on them."""

from meshrt.sharding.context import get_abstract_mesh, get_mesh, set_mesh, use_abstract_mesh
from meshrt.sharding.make import create_device_mesh, make_mesh
from meshrt.sharding.mesh import AbstractMesh, AxisType, Mesh
from meshrt.sharding.named import NamedSharding, Sharding, SingleDeviceSharding
from meshrt.sharding.sdy import mesh_to_sdy_text, spec_from_sdy, spec_from_sdy_text, to_sdy_text
from meshrt.sharding.spec import PartitionSpec

P = PartitionSpec

__all__ = [
    "AbstractMesh", "AxisType", "Mesh", "NamedSharding", "P", "PartitionSpec", "Sharding", "SingleDeviceSharding",
    "create_device_mesh", "get_abstract_mesh", "get_mesh", "make_mesh", "mesh_to_sdy_text", "set_mesh",
    "spec_from_sdy", "spec_from_sdy_text", "to_sdy_text", "use_abstract_mesh",
]  # fmt: skip
