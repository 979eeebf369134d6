"""`jax.version`."""

from meshrt.compat.modules import VERSION, VERSION_INFO

__all__ = ["__version__", "__version_info__"]

__version__ = VERSION
__version_info__ = VERSION_INFO
