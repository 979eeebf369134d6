"""The place of ``jax.experimental.pallas.fuser``, of which nothing is here: each name says so."""

from meshrt.experimental.pallas.names import absent

__all__: list[str] = []
__getattr__ = absent(__name__, __all__)
