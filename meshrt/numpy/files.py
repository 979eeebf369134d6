"""Arrays from and to files and buffers, in NumPy's formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.numpy.arrays import asarray

__all__ = ["frombuffer", "fromfile", "fromiter", "fromstring", "load", "save", "savez"]


def save(file: Any, arr: Any, allow_pickle: bool = True) -> None:
    """Writes an array in NumPy's file format.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/x.npy"
    >>> jnp.save(path, jnp.arange(3))
    >>> jnp.load(path)
    Array([0, 1, 2], dtype=int32)
    """
    np.save(file, np.asarray(arr), allow_pickle=allow_pickle)


def savez(file: Any, *args: Any, allow_pickle: bool = True, **kwds: Any) -> None:
    """Writes several arrays in NumPy's zip format.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/x.npz"
    >>> jnp.savez(path, x=jnp.arange(3))
    >>> np.load(path)["x"]
    array([0, 1, 2], dtype=int32)
    """
    named: dict[str, Any] = {k: np.asarray(v) for k, v in kwds.items()}
    np.savez(file, *map(np.asarray, args), allow_pickle=allow_pickle, **named)


def load(file: Any, *args: Any, **kwargs: Any) -> Any:
    """Reads an array, or a mapping of arrays, that :func:`save` or :func:`savez` wrote; arguments are ``numpy.load``'s.

    It unpickles only with ``allow_pickle=True``. Elements that no array of ours can have, objects among them, stay in
    NumPy's.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/x.npy"
    >>> jnp.save(path, jnp.arange(3))
    >>> jnp.load(path)
    Array([0, 1, 2], dtype=int32)
    """
    out = np.load(file, *args, **kwargs)
    if not isinstance(out, np.ndarray):
        return out
    if out.dtype == np.dtype("V2"):  # the format has no bfloat16
        return asarray(out.view(dtypes.bfloat16))
    return asarray(out) if dtypes.is_held(out.dtype) else out


def frombuffer(buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0) -> Any:
    """The bytes of a buffer as a vector of ``dtype``, from ``offset`` on.

    Args:
      buffer: an object with the buffer protocol.
      dtype: the dtype of the result; by default the one that follows from the operands.
      count: how many elements; -1 for all.
      offset: how many bytes are left out at the front.

    >>> jnp.frombuffer(bytes([1, 2]), dtype=jnp.uint8)
    Array([1, 2], dtype=uint8)
    """
    return asarray(np.frombuffer(buffer, dtype=dtype, count=count, offset=offset))


def fromstring(string: str, dtype: Any = float, count: int = -1, *, sep: str) -> Any:
    """The numbers in a text, separated by ``sep``.

    Args:
      string: the text.
      dtype: the dtype of the result; by default the one that follows from the operands.
      count: how many numbers; -1 for all.
      sep: what separates them.

    >>> jnp.fromstring("1 2 3", dtype=int, sep=" ")
    Array([1, 2, 3], dtype=int32)
    """
    return asarray(np.fromstring(string, dtype=dtype, count=count, sep=sep))


def _refused(name: str) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        raise errors.UnsupportedError(
            f"{name} is not implemented: reading changes what is read from, which traced programs must not do; use "
            f"asarray(numpy.{name}(...))"
        )

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""Raises UnsupportedError: it would be no pure function.

    >>> jnp.{name}("numbers")
    Traceback (most recent call last):
    meshrt.errors.UnsupportedError: {name} is not implemented: reading changes what is read from
    """
    return function


fromfile, fromiter = _refused("fromfile"), _refused("fromiter")
