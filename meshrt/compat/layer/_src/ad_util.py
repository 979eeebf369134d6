"""`jax._src.ad_util`."""

from meshrt.interpreters.ad import Zero, add_jaxvals, instantiate_zeros, zeros_like_aval
from meshrt.numpy.names import missing as _missing
from meshrt.primitives.identity import stop_gradient_p
from meshrt.transforms.custom_arguments import SymbolicZero

__all__ = ["SymbolicZero", "Zero", "add_jaxvals", "instantiate_zeros", "stop_gradient_p", "zeros_like_aval"]
__getattr__ = _missing("jax._src.ad_util", __all__)
