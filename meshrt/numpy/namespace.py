"""What the array API standard asks a namespace about itself: ``meshrt.numpy.__array_namespace_info__``."""

from __future__ import annotations

from typing import Any

from meshrt import dtypes
from meshrt._dtype_kinds import KINDS
from meshrt.runtime import backend

__all__ = ["API_VERSION", "ArrayNamespaceInfo"]

API_VERSION = "2024.12"
_OF_THE_STANDARD = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float32", "complex64"]
_OF_64_BITS = ["int64", "uint64", "float64", "complex128"]


class ArrayNamespaceInfo:
    """Devices, dtypes and limits of ``meshrt.numpy``, in the array API standard's words.

    >>> meshrt.numpy.__array_namespace_info__().default_dtypes()["integral"]
    dtype('int32')
    """

    def capabilities(self) -> dict[str, Any]:
        """What a traced program may do: no shape depends on values there."""
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 64}

    def default_device(self) -> None:
        """None: arrays that nobody placed follow those that they are combined with."""

    def devices(self) -> list[Any]:
        """None, which leaves the choice open, and all devices."""
        return [None, *backend.devices()]

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """The dtypes of results for which nothing else says one, on any device."""
        integer = dtypes.default_int_dtype()
        return {
            "real floating": dtypes.default_float_dtype(),
            "complex floating": dtypes.canonicalize_dtype(dtypes.python_scalar_dtypes[complex]),
            "integral": integer,
            "indexing": integer,
        }

    def dtypes(self, *, device: Any = None, kind: str | tuple[str, ...] | None = None) -> dict[str, Any]:
        """The standard's dtypes by name, those of 64 bits under ``enable_x64`` only.

        Args:
          kind: which of them: "bool", "integral", "real floating", ..., as of ``isdtype``, or a tuple of these.

        Raises:
          KeyError: for a kind that the standard does not have.
        """
        kinds = kind if isinstance(kind, tuple) else ("numeric", "bool") if kind is None else (kind,)
        names = [*_OF_THE_STANDARD, *(_OF_64_BITS if dtypes.x64_enabled() else ())]
        found: dict[str, Any] = {}
        for k in kinds:
            of_kind = KINDS[k]
            found |= {t.name: t for t in sorted(of_kind, key=str) if t.name in names}
        return found
