"""`jax._src.ad_util`."""

from typing import Any

from meshrt.interpreters.ad import Zero, add_jaxvals, add_jaxvals_p, instantiate_zeros, zeros_like_aval
from meshrt.numpy.names import missing as _missing
from meshrt.primitives.identity import stop_gradient_p
from meshrt.transforms.custom_arguments import SymbolicZero

__all__ = [
    "SymbolicZero", "Zero", "add_jaxvals", "add_jaxvals_p", "instantiate", "instantiate_zeros",
    "replace_internal_symbolic_zeros", "replace_rule_output_symbolic_zeros", "stop_gradient_p", "zeros_like_aval",
]  # fmt: skip

instantiate = instantiate_zeros


def replace_internal_symbolic_zeros(x: Any) -> Any:
    """A `SymbolicZero` for a `Zero`, anything else as it is."""
    return SymbolicZero(x.aval) if type(x) is Zero else x


def replace_rule_output_symbolic_zeros(x: Any) -> Any:
    """A `Zero` for a `SymbolicZero`, anything else as it is."""
    return Zero(x.aval) if type(x) is SymbolicZero else x


__getattr__ = _missing("jax._src.ad_util", __all__)
