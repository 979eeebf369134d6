"""The place of ``jax.experimental.pallas.tpu_sc``: sparse cores have no back end, which each name says."""

from meshrt.experimental.pallas.names import absent

__all__: list[str] = []
__getattr__ = absent(__name__, __all__)
