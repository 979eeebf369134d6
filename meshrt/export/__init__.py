"""Programs that outlive their process: functions as StableHLO in files, called again from other programs.

>>> import meshrt, numpy as np
>>> from meshrt import export
>>> exported = export.export(meshrt.jit(lambda x: 2 * x))(meshrt.ShapeDtypeStruct((3,), np.float32))
>>> again = export.deserialize(exported.serialize())
>>> again.call(np.ones(3, np.float32)).tolist()
[2.0, 2.0, 2.0]

`docs/export.md` tells more, `docs/export-format.md` what a file holds.
"""

from meshrt.core.dimensions.expression import is_symbolic_dim
from meshrt.core.dimensions.scope import SymbolicScope
from meshrt.core.dimensions.shapes import symbolic_shape
from meshrt.export.checks import (
    DisabledSafetyCheck,
    default_export_platform,
    maximum_supported_calling_convention_version,
    minimum_supported_calling_convention_version,
)
from meshrt.export.exported import Exported
from meshrt.export.exporting import export
from meshrt.export.foreign import from_stablehlo
from meshrt.export.jax_format import from_jax, to_jax
from meshrt.export.loading import deserialize
from meshrt.export.specs import symbolic_args_specs
from meshrt.tree_files import register_namedtuple_serialization, register_pytree_node_serialization

__all__ = [
    "DisabledSafetyCheck", "Exported", "SymbolicScope", "default_export_platform", "deserialize", "export", "from_jax",
    "from_stablehlo", "is_symbolic_dim", "maximum_supported_calling_convention_version",
    "minimum_supported_calling_convention_version", "register_namedtuple_serialization",
    "register_pytree_node_serialization", "symbolic_args_specs", "symbolic_shape", "to_jax",
]  # fmt: skip
