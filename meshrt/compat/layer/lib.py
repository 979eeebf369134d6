"""`jax.lib`, of which nothing public is left."""

from meshrt.numpy.names import missing as _missing

__getattr__ = _missing("jax.lib", ())
