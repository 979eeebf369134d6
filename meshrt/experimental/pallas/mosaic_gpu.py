"""The place of ``jax.experimental.pallas.mosaic_gpu``, whose kernels have no back end: each name says so."""

from meshrt.experimental.pallas.names import absent

__all__: list[str] = []
__getattr__ = absent(__name__, __all__)
