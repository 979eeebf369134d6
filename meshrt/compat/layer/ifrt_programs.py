"""`jax.extend.ifrt_programs`: programs of IFRT plugins, of which meshrt has none."""

from meshrt.compat.absent import AbsentModule
from meshrt.numpy.names import missing as _missing

__all__ = ["ifrt_programs"]

ifrt_programs = AbsentModule("jax.extend.ifrt_programs.ifrt_programs")
__getattr__ = _missing("jax.extend.ifrt_programs", __all__)
