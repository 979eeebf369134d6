"""`jax._src.dispatch`."""

from meshrt.interpreters.xla import apply_primitive
from meshrt.numpy.names import missing as _missing
from meshrt.runtime.host_calls import effects_barrier as wait_for_tokens

__all__ = ["apply_primitive", "wait_for_tokens"]
__getattr__ = _missing("jax._src.dispatch", __all__)
