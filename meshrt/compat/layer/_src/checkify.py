"""`jax._src.checkify`."""

from typing import Any, TypeVar

from meshrt.core.effects import Effect
from meshrt.experimental import checkify as _checkify
from meshrt.experimental.checkify import *  # noqa: F403
from meshrt.experimental.checkify import ErrorCategory as JaxException
from meshrt.numpy.names import missing as _missing

__all__ = [*_checkify.__all__, "JaxException", "Out"]  # noqa: PLE0604


class ErrorEffect(Effect):
    """That a program may note an error of a class, with arrays of these types in it."""

    __slots__ = ("error_type", "shape_dtypes")

    error_type: type
    shape_dtypes: tuple[Any, ...]

    def __init__(self, error_type: type, shape_dtypes: tuple[Any, ...]):
        super().__init__(error_type.__name__)
        object.__setattr__(self, "error_type", error_type)
        object.__setattr__(self, "shape_dtypes", shape_dtypes)

    def __eq__(self, other: object) -> bool:
        return type(other) is ErrorEffect and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.error_type, len(self.shape_dtypes)))

    def _key(self) -> Any:
        return self.error_type, tuple((x.shape, x.dtype) for x in self.shape_dtypes)


Out = TypeVar("Out", bound=Any)
__getattr__ = _missing("jax._src.checkify", __all__)
