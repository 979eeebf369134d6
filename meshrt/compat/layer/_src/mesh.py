"""`jax._src.mesh`."""

from meshrt.numpy.names import missing as _missing
from meshrt.sharding import AbstractMesh, AxisType, Mesh, get_abstract_mesh, use_abstract_mesh
from meshrt.sharding.context import get_mesh as get_concrete_mesh
from meshrt.sharding.context import set_mesh

__all__ = [
    "AbstractMesh", "AxisType", "Mesh", "get_abstract_mesh", "get_concrete_mesh", "set_mesh", "use_abstract_mesh",
]  # fmt: skip
__getattr__ = _missing("jax._src.mesh", __all__)
