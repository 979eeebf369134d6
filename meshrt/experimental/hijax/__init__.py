"""High types (hijax): values that consist of several arrays, operations on them with rules of their own, mutable boxes.

See docs/hijax.md. Names are those of `jax.experimental.hijax`, of several versions of JAX; those of high types that
meshrt ships are in the modules of this package.
"""

from __future__ import annotations

from meshrt.core.effects import control_flow_allowed_effects
from meshrt.core.high import (
    HiType,
    MutableHiType,
    TypeInState,
    TypeWrittenTo,
    aval_method,
    aval_property,
    register_hitype,
)
from meshrt.core.lojax import lower_to_lojax
from meshrt.core.references import AbstractRef
from meshrt.core.types import AbstractValue, ShapedArray
from meshrt.experimental.hijax.box import Box, BoxTy, BoxTypeState, box_effect, box_get, box_set, new_box
from meshrt.experimental.hijax.derived import (
    apply_derived_linearization,
    jvp_from_lin,
    linearize_from_jvp,
    transpose_jvp,
    transpose_linearized,
    vjp_from_jvp,
    vjp_from_lin,
    vjp_fwd_from_jvp,
    vjp_fwd_from_lin,
)
from meshrt.experimental.hijax.hiprim import HiPrim, bdims_at_front, unmap_avals, vmap_rule
from meshrt.experimental.hijax.mapped_operations import VmapOf
from meshrt.experimental.hijax.operations import HiPrimitive
from meshrt.experimental.hijax.saved import register_hitype_serialization
from meshrt.experimental.hijax.vjp_operations import Static, VJPHiPrimitive
from meshrt.interpreters.accumulators import GradAccum, NullAccum, RefAccum, ValAccum
from meshrt.interpreters.ad import Zero, instantiate_zeros, is_undefined_primal
from meshrt.numpy.names import missing as _missing
from meshrt.primitives.references import RefView as TransformedRef
from meshrt.sharding.high_spec import HiPspec
from meshrt.transforms.mapped import MappingSpec

__all__ = [
    "AbstractRef", "AbstractValue", "AvalMutableQDD", "AvalQDD", "Box", "BoxTy", "BoxTypeState", "GradAccum", "HiPrim",
    "HiPrimitive", "HiPspec", "HiType", "MappingSpec", "MutableHiType", "NullAccum", "RefAccum", "ShapedArray",
    "Static", "TransformedRef", "Ty", "VJPHiPrimitive", "ValAccum", "VmapOf", "Zero", "apply_derived_linearization",
    "aval_method", "aval_property", "bdims_at_front", "box_effect", "box_get", "box_set",
    "control_flow_allowed_effects", "hijax_method", "instantiate_zeros", "is_undefined_primal", "jvp_from_lin",
    "linearize_from_jvp", "lower_to_lojax", "new_box", "register_hitype", "register_hitype_serialization",
    "transpose_jvp", "transpose_linearized", "unmap_avals", "vjp_from_jvp", "vjp_from_lin", "vjp_fwd_from_jvp",
    "vjp_fwd_from_lin", "vmap_rule",
]  # fmt: skip

Ty = AbstractValue
AvalQDD, AvalMutableQDD = TypeInState, TypeWrittenTo
hijax_method = aval_method


__getattr__ = _missing("jax.experimental.hijax", __all__)
