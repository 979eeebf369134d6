"""`jax._src.checkify`."""

from typing import Any, TypeVar

from meshrt.experimental import checkify as _checkify
from meshrt.experimental.checkify import *  # noqa: F403
from meshrt.experimental.checkify import ErrorCategory as JaxException
from meshrt.numpy.names import missing as _missing

__all__ = [*_checkify.__all__, "JaxException", "Out"]  # noqa: PLE0604

Out = TypeVar("Out", bound=Any)
__getattr__ = _missing("jax._src.checkify", __all__)
