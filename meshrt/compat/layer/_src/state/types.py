"""`jax._src.state.types`."""

from meshrt.core.types import AbstractValue
from meshrt.numpy.names import missing as _missing

__all__ = ["AbstractRef"]


class AbstractRef(AbstractValue):
    """The type of references to arrays that programs write to. Nothing has it: meshrt has no references."""


__getattr__ = _missing("jax._src.state.types", __all__)
