"""Functions with derivatives of their own."""

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
    "zero_from_primal",
]
