"""Steps of views of references: what a step says, and those that show all elements in another form."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from meshrt import errors, tree_util
from meshrt.core.basic.shapes import reshape, transpose
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.bitcast import bitcast_convert_type

__all__: list[str] = []


class Step:
    """One step of a view."""

    def infer(self, aval: ShapedArray) -> ShapedArray:
        """The type of what the step gives of a value of type `aval`."""
        raise NotImplementedError

    def read(self, x: Any) -> Any:
        """What the step gives of `x`."""
        raise NotImplementedError

    def write(self, x: Any, value: Any) -> Any:
        """`x` with what the step gives of it replaced by `value`."""
        raise NotImplementedError

    def places(self, numbers: Any) -> Any:
        """What the step gives of `numbers`, which name elements; beyond the end the least number that there is."""
        return self.read(numbers)

    def show(self, atom: Any) -> str:
        """The step as printed programs show it; `atom` writes an operand."""
        raise NotImplementedError


def _refuse_sharded(aval: ShapedArray, what: str) -> None:
    if aval.explicit is not None:
        raise errors.UnsupportedError(
            f"{what} of a reference to {aval.short()}, which Explicit axes split, is not implemented: read the "
            "whole with ref[...] and change the array"
        )


@dataclass(frozen=True)
class Bitcast(Step):
    """The same bytes as elements of `dtype`; where it is wider or narrower, the second-last dimension says so."""

    dtype: Any

    _LEAVES: ClassVar[tuple[str, ...]] = ()

    def _shape(self, aval: ShapedArray) -> tuple[int, ...]:
        old, new = aval.dtype.itemsize, np.dtype(self.dtype).itemsize
        if old == new:
            return aval.shape
        if aval.ndim < 2:
            raise errors.ArgumentValueError(
                f"a bitcast of {aval.short()} to {self.dtype}, of another width, needs two dimensions or more"
            )
        rows, *rest = aval.shape[-2:]
        if rows * old % new:
            raise errors.ArgumentValueError(
                f"Expected input and output to have the same number of bytes: {aval.short()} as {self.dtype}"
            )
        return (*aval.shape[:-2], rows * old // new, *rest)

    def infer(self, aval: ShapedArray) -> ShapedArray:
        _refuse_sharded(aval, "a bitcast")
        return ShapedArray(self._shape(aval), np.dtype(self.dtype), False, None, aval.vma)

    def _cast(self, x: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
        """Rows of a narrower type lie beside one another in one row of the wider."""
        kind = aval_of(x)
        old, new = kind.dtype.itemsize, np.dtype(dtype).itemsize
        if old == new:
            return bitcast_convert_type(x, dtype)
        order = (*range(kind.ndim - 1), kind.ndim, kind.ndim - 1)
        *lead, rows, columns = kind.shape
        if old < new:
            ratio = new // old
            x = transpose(reshape(x, (*lead, rows // ratio, ratio, columns)), order)
            return bitcast_convert_type(x, dtype)
        return reshape(transpose(bitcast_convert_type(x, dtype), order), shape)

    def read(self, x: Any) -> Any:
        return self._cast(x, self.dtype, self._shape(aval_of(x)))

    def write(self, x: Any, value: Any) -> Any:
        kind = aval_of(x)
        return self._cast(value, kind.dtype, kind.shape)

    def show(self, atom: Any) -> str:
        return f"{{bitcast({np.dtype(self.dtype).name})}}"


@dataclass(frozen=True)
class Reshape(Step):
    """The same elements, in the same order, in another shape."""

    shape: tuple[int, ...]

    def infer(self, aval: ShapedArray) -> ShapedArray:
        _refuse_sharded(aval, "a reshape")
        if math.prod(self.shape) != aval.size:
            raise errors.ArgumentValueError(f"cannot reshape ref of shape {aval.shape} into shape {self.shape}")
        return aval.with_shape(self.shape)

    def read(self, x: Any) -> Any:
        return reshape(x, self.shape)

    def write(self, x: Any, value: Any) -> Any:
        return reshape(value, aval_of(x).shape)

    def show(self, atom: Any) -> str:
        return f"{{reshape({list(self.shape)})}}"


@dataclass(frozen=True)
class Transpose(Step):
    """The dimensions in another order."""

    permutation: tuple[int, ...]

    def infer(self, aval: ShapedArray) -> ShapedArray:
        _refuse_sharded(aval, "a transposition")
        if sorted(self.permutation) != list(range(aval.ndim)):
            raise errors.ArgumentValueError(
                f"Permutation {self.permutation} does not match the rank of the type ({aval.ndim})"
            )
        return aval.with_shape(tuple([aval.shape[i] for i in self.permutation]))

    def read(self, x: Any) -> Any:
        return transpose(x, self.permutation)

    def write(self, x: Any, value: Any) -> Any:
        return transpose(value, np.argsort(self.permutation).tolist())

    def show(self, atom: Any) -> str:
        return f"{{transpose({list(self.permutation)})}}"


for _kind in (Bitcast, Reshape, Transpose):
    tree_util.register_pytree_node(
        _kind,
        lambda step: ((), tuple(vars(step).values())),
        lambda aux, _, kind=_kind: kind(*aux),  # type: ignore[misc]
    )


def new_shape(old: Sequence[int], sizes: Sequence[Any]) -> tuple[int, ...]:
    """The shape that `reshape(*sizes)` asks for, in which -1 stands for what is left."""
    shape = tuple(map(operator.index, sizes))
    if shape.count(-1) > 1:
        raise errors.ArgumentValueError(f"At most one dimension can be -1, but got {shape}")
    if -1 not in shape:
        if math.prod(shape) != math.prod(old):
            raise errors.ArgumentValueError(f"cannot reshape shape {tuple(old)} into shape {shape}")
        return shape
    known = math.prod([n for n in shape if n != -1])
    if not known or math.prod(old) % known:
        raise errors.ArgumentValueError(
            f"Specified dims {shape} do not evenly divide the size of the ref ({math.prod(old)})."
        )
    return tuple([math.prod(old) // known if n == -1 else n for n in shape])
