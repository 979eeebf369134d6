"""`jax._src.cudnn.fused_attention_stablehlo`: attention by cuDNN, which meshrt does not call."""

from __future__ import annotations

from meshrt import errors
from meshrt.numpy.names import missing as _missing

__all__ = ["check_cudnn_version"]


class CudnnMissingError(errors.MeshrtError, RuntimeError):
    """What needs cuDNN is asked for."""


def check_cudnn_version() -> int:
    """Raises a RuntimeError, as JAX does where there is no cuDNN: meshrt does not use it where there is."""
    raise CudnnMissingError("cuDNN is not detected: meshrt calls none; nn.dot_product_attention has kernels of its own")


__getattr__ = _missing("jax._src.cudnn.fused_attention_stablehlo", __all__)
