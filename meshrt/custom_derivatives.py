"""Functions with derivatives of their own."""

from meshrt.core.in_place import InPlace as _InPlace
from meshrt.core.trace import eval_jaxpr as _eval_jaxpr
from meshrt.primitives.linear_call import linear_call
from meshrt.transforms.custom_arguments import zero_from_primal
from meshrt.transforms.custom_derivatives import (
    CustomVJPPrimal,
    SymbolicZero,
    closure_convert,
    custom_gradient,
    custom_jvp,
    custom_vjp,
)
from meshrt.transforms.custom_jvp import custom_jvp_call_p
from meshrt.transforms.custom_vjp import custom_vjp_call_p, custom_vjp_primal_tree_values

__all__ = [
    "CustomVJPPrimal",
    "SymbolicZero",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_jvp_call_p",
    "custom_vjp",
    "custom_vjp_call_p",
    "custom_vjp_primal_tree_values",
    "linear_call",
    "remat_opt_p",
    "zero_from_primal",
]

# What JAX writes for a forward rule under `checkpoint`: here it runs where it is bound.
remat_opt_p = _InPlace(
    "remat_opt", lambda *args, fwd_jaxpr, **params: _eval_jaxpr(fwd_jaxpr.jaxpr, fwd_jaxpr.consts, args)
)
