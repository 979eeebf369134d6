"""Arguments of a function as a text, for `--args`.

    f32[8,128], i32[8], params.json, rate=0.1, state=f32[8@data,128@data+model]

An item is an array's element type and sizes, each with the axes of the mesh that split it, if any do; a JSON file of
such texts in objects and lists, which is a tree; or a value as JSON writes it (`3`, `0.1`, `true`, `"mean"`), which
a function takes as it is. `NAME=` before an item makes it a keyword argument.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from meshrt.dtypes import short_dtype_name
from meshrt.errors import InspectError
from meshrt.inspect.files import read_json

__all__ = ["ArrayMaker", "WrittenArguments", "dtype_of"]

# Makes what stands for an array, of its shape, element type and axes per dimension.
ArrayMaker = Callable[[tuple[int, ...], np.dtype, tuple[tuple[str, ...], ...]], Any]

_ARRAY = re.compile(r"([A-Za-z]\w*)\s*\[([^\[\]]*)\]")
_SIZE = re.compile(r"([0-9]{1,18})(?:@(\w+(?:\+\w+)*))?")
_NAMED = re.compile(r"([A-Za-z_]\w*)\s*=\s*(.+)", re.DOTALL)
_OTHER_NAMES = {"pred": "bool", "i1": "bool"}


@dataclass(frozen=True, slots=True)
class WrittenArguments:
    """The text of `--args`."""

    text: str

    def made(self, mesh: Mapping[str, int], array: ArrayMaker) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments, arrays made by `array`.

        Raises:
          InspectError: an item is none, a file cannot be read, an axis is not in the mesh or does not divide.
        """
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for item in _items(self.text):
            found = _NAMED.fullmatch(item)
            if found is None:
                if kwargs:
                    raise InspectError(f"--args: {item!r} stands behind a keyword argument; positional ones come first")
                args.append(_value(item, mesh, array))
            elif found[1] in kwargs:
                raise InspectError(f"--args: {found[1]!r} is given twice")
            else:
                kwargs[found[1]] = _value(found[2].strip(), mesh, array)
        return tuple(args), kwargs


def _items(text: str) -> Iterator[str]:
    """What stands between the commas outside of brackets and quotes."""
    start, depth, quote = 0, 0, False
    for i, c in enumerate(text):
        if c == '"' and (i == 0 or text[i - 1] != "\\"):
            quote = not quote
        elif not quote:
            depth += (c in "[{") - (c in "]}")
            if c == "," and depth == 0:
                yield _item(text, text[start:i])
                start = i + 1
    if text.strip():
        yield _item(text, text[start:])


def _item(text: str, item: str) -> str:
    if not item.strip():
        raise InspectError(f"--args {text!r}: nothing stands between two commas; write items such as f32[8,128]")
    return item.strip()


def _value(item: str, mesh: Mapping[str, int], array: ArrayMaker) -> Any:
    if _ARRAY.fullmatch(item):
        return _array(item, mesh, array)
    if item.endswith(".json"):
        return _tree(item, mesh, array)
    try:
        return _leaves(json.loads(item), mesh, array, f"--args {item}")
    except (ValueError, RecursionError):
        raise InspectError(
            f'--args: {item!r} is no argument; write f32[8,128], a file FILE.json, or a value such as 3, true or "text"'
        ) from None


def _tree(path: str, mesh: Mapping[str, int], array: ArrayMaker) -> Any:
    try:
        data = read_json(path, 'a tree of texts such as "f32[8,128]"')
    except InspectError as e:
        raise InspectError(f"--args: {e}") from None
    return _leaves(data, mesh, array, f"--args: {path}")


def _leaves(data: Any, mesh: Mapping[str, int], array: ArrayMaker, where: str) -> Any:
    """A tree of JSON in which texts like `f32[8,128]` stand for arrays; all other leaves are values."""
    if isinstance(data, dict):
        return {k: _leaves(v, mesh, array, where) for k, v in data.items()}
    if isinstance(data, list):
        return [_leaves(v, mesh, array, where) for v in data]
    if isinstance(data, str) and _ARRAY.fullmatch(data):
        try:
            return _array(data, mesh, array)
        except InspectError as e:
            raise InspectError(f"{where}: {str(e).removeprefix('--args: ')}") from None
    return data


def _array(text: str, mesh: Mapping[str, int], array: ArrayMaker) -> Any:
    found = _ARRAY.fullmatch(text)
    assert found is not None, "it has the form of an array"
    dtype = dtype_of(found[1])
    sizes = [part.strip() for part in found[2].split(",")] if found[2].strip() else []
    dims = [_SIZE.fullmatch(part) for part in sizes]
    wrong = next((part for part, dim in zip(sizes, dims) if dim is None), None)
    if wrong is not None:
        raise InspectError(f"--args: {wrong!r} in {text} is no size; write it as 128, or as 128@data if it is split")
    shape = tuple(int(dim[1]) for dim in dims if dim is not None)
    axes = tuple(tuple(dim[2].split("+")) if dim[2] else () for dim in dims if dim is not None)
    _check(text, shape, axes, mesh)
    return array(shape, dtype, axes)


def _check(text: str, shape: Sequence[int], axes: Sequence[Sequence[str]], mesh: Mapping[str, int]) -> None:
    every = [a for dim in axes for a in dim]
    unknown = next((a for a in every if a not in mesh), None)
    if unknown is not None:
        raise InspectError(f"--args: {text} names axis {unknown!r}; the mesh has {', '.join(mesh)}")
    if len(set(every)) < len(every):
        raise InspectError(f"--args: {text} names an axis twice; an axis splits one dimension once")
    for size, dim in zip(shape, axes):
        parts = 1
        for axis in dim:
            parts *= mesh[axis]
        if size % parts:
            raise InspectError(f"--args: {text}: size {size} does not divide by {parts} ({'+'.join(dim)})")


def dtype_of(name: str) -> np.dtype:
    """The element type of a name, short (`f32`, `bf16`, `s32`) or long (`float32`). InspectError if there is none.

    >>> dtype_of("bf16"), dtype_of("s32"), dtype_of("float32")
    (dtype(bfloat16), dtype('int32'), dtype('float32'))
    """
    wanted = _OTHER_NAMES.get(name, name)
    if re.fullmatch(r"s\d+", wanted):
        wanted = f"i{wanted[1:]}"
    names = ["bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))]
    names += ["float16", "float32", "float64", "complex64", "complex128"]
    known = [np.dtype(n) for n in names]
    known += [np.dtype(getattr(ml_dtypes, n)) for n in sorted(dir(ml_dtypes)) if _is_type(getattr(ml_dtypes, n))]
    for dtype in known:
        if wanted in (dtype.name, short_dtype_name(dtype)):
            return dtype
    raise InspectError(f"--args: there is no element type {name!r}; there are f32, bf16, i32, bool and others")


def _is_type(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, np.generic)
