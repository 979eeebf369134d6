"""Names and values that XLA reads at operations (`jax.experimental.xla_metadata`)."""

from meshrt.primitives.xla_metadata import set_xla_metadata

__all__ = ["set_xla_metadata"]
