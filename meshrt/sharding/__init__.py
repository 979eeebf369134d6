"""Meshes of devices and how arrays are laid out on them."""

from collections.abc import Callable
from typing import Any

from meshrt.core.manual import ManualAxisType
from meshrt.sharding.axes import AbstractDevice, AxisType, AxisTypes
from meshrt.sharding.context import get_described_mesh as get_abstract_mesh
from meshrt.sharding.context import get_mesh, set_mesh, use_abstract_mesh
from meshrt.sharding.device_order import create_device_mesh
from meshrt.sharding.make import make_mesh
from meshrt.sharding.mesh import AbstractMesh, Mesh
from meshrt.sharding.named import NamedSharding, Sharding, SingleDeviceSharding, make_single_device_sharding
from meshrt.sharding.sdy import mesh_to_sdy_text, spec_from_sdy, spec_from_sdy_text, to_sdy_text
from meshrt.sharding.spec import Infer, PartitionSpec, UnreducedKind

P = PartitionSpec
# Functions that stand on higher rooms; `meshrt/__init__.py` hands them in.
auto_axes: Callable[..., Any]
explicit_axes: Callable[..., Any]
reshard: Callable[..., Any]

__all__ = [
    "AbstractDevice", "AbstractMesh", "AxisType", "AxisTypes", "Infer", "ManualAxisType", "Mesh", "NamedSharding", "P",
    "PartitionSpec", "Sharding", "SingleDeviceSharding", "UnreducedKind", "auto_axes", "create_device_mesh",
    "explicit_axes", "get_abstract_mesh", "get_mesh", "make_mesh", "make_single_device_sharding", "mesh_to_sdy_text",
    "reshard", "set_mesh", "spec_from_sdy", "spec_from_sdy_text", "to_sdy_text", "use_abstract_mesh",
]  # fmt: skip
