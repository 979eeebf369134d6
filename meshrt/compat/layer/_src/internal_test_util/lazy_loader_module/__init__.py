"""A package whose module is loaded when it is asked for."""

from meshrt.compat.layer._src import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach("jax._src.internal_test_util.lazy_loader_module", ["lazy_test_submodule"])
