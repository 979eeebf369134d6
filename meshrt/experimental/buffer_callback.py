"""Python functions that are given the memory of their results, to write into it. Names are JAX's.

They run on the host: operands that lie elsewhere are brought there, and results back. Built on `pure_callback` and,
where there are side effects, on `io_callback`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.callback import call_purely, call_with_effects
from meshrt.primitives.random import random_unwrap
from meshrt.shape_dtype import ShapeDtypeStruct

__all__ = ["Buffer", "ExecutionContext", "ExecutionStage", "buffer_callback"]


class ExecutionStage(enum.IntEnum):
    """What a program is doing when it calls: `EXECUTE`, always, on the host."""

    INSTANTIATE = 0
    PREPARE = 1
    INITIALIZE = 2
    EXECUTE = 3


class ExecutionContext:
    """What a call knows of the program that makes it."""

    __slots__ = ()

    @property
    def stage(self) -> ExecutionStage:
        return ExecutionStage.EXECUTE

    @property
    def stream(self) -> int:
        """UnsupportedError: the host has no streams."""
        raise errors.UnsupportedError("ExecutionContext.stream: callbacks run on the host, which has no streams")


class Buffer:
    """The memory of an operand, which may be read, or of a result, which is `writeable`.

    NumPy (`np.asarray(buffer)`) and what takes DLPack see the memory itself.
    """

    __slots__ = ("_memory",)

    def __init__(self, memory: np.ndarray):
        self._memory = memory

    @property
    def shape(self) -> tuple[int, ...]:
        return self._memory.shape

    @property
    def dtype(self) -> np.dtype:
        return self._memory.dtype

    @property
    def ndim(self) -> int:
        return self._memory.ndim

    @property
    def writeable(self) -> bool:
        """Whether it is the memory of a result."""
        return self._memory.flags.writeable

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        same = dtype is None or np.dtype(dtype) == self.dtype
        if same and not copy:
            return self._memory
        if copy is False:
            raise errors.ArgumentValueError(f"a buffer of {self.dtype} is no array of {np.dtype(dtype)} without a copy")
        return self._memory.astype(self.dtype if dtype is None else dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self._memory.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._memory.__dlpack_device__()

    def __repr__(self) -> str:
        return f"Buffer(shape={self.shape}, dtype={self.dtype}, writeable={self.writeable})"


@dataclass(frozen=True)
class _Filling:
    """A function of arrays that gives what `callback` writes. Equal for equal parts, as callbacks are to be.

    `ranks` are those of the operands that it is written for: a mapped call has more dimensions in front.
    """

    callback: Callable[..., Any]
    ranks: tuple[int, ...]
    results: tuple[ShapedArray, ...]
    out_tree: Any
    aliases: tuple[tuple[int, int], ...]

    @property
    def __name__(self) -> str:
        return str(getattr(self.callback, "__name__", type(self.callback).__name__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree_util.tree_flatten((args, kwargs))
        given = [np.asarray(x) for x in leaves]
        front = np.broadcast_shapes(*[x.shape[: x.ndim - n] for x, n in zip(given, self.ranks)])
        outs = [np.empty((*front, *a.shape), a.dtype) for a in self.results]
        for i, o in self.aliases:
            outs[o][...] = given[i]
        for x in given:
            x.flags.writeable = False
        operands, keywords = tree_util.tree_unflatten(in_tree, [Buffer(x) for x in given])
        out = tree_util.tree_unflatten(self.out_tree, [Buffer(x) for x in outs])
        if self.callback(ExecutionContext(), out, *operands, **keywords) is not None:
            raise errors.ArgumentValueError(
                f"buffer_callback callback must not return any values, but {self.__name__} did: write results into the "
                "Buffers that it is given"
            )
        return tree_util.tree_unflatten(self.out_tree, outs)


def buffer_callback(
    callback: Callable[..., None],
    result_shape_dtypes: Any,
    *,
    has_side_effect: bool = False,
    vmap_method: str | None = None,
    input_output_aliases: Mapping[int, int] | None = None,
    command_buffer_compatible: bool = False,
) -> Callable[..., Any]:
    """A function of arrays that gives what a Python function writes into the memory of its results.

    Args:
      callback: takes an `ExecutionContext`, a pytree of Buffers to write the results into, and the operands as Buffers
        in their structure (random keys as the numbers that hold them). It returns nothing.
      result_shape_dtypes: a pytree of things with `shape` and `dtype`, of numbers.
      has_side_effect: it is called once for each time that the program gets there, also if nobody uses the results, and
        element by element where it is mapped.
      vmap_method: how it is mapped, as for `pure_callback`; the Buffers have the mapped dimensions in front.
      input_output_aliases: operands whose values results have at first, by their positions among the leaves.
      command_buffer_compatible: of no effect on the host.

    >>> import numpy as np, meshrt, meshrt.numpy as jnp
    >>> from meshrt.experimental.buffer_callback import buffer_callback
    >>> def add_one(ctx, out, x):
    ...     np.add(x, 1, out=np.asarray(out))
    >>> buffer_callback(add_one, meshrt.ShapeDtypeStruct((2,), np.float32))(jnp.zeros(2))
    Array([1., 1.], dtype=float32)

    Raises:
      ArgumentTypeError: results, or operands other than random keys, that are no numbers.
      ArgumentValueError: aliases that name no operand or result, or of different types.
      UnsupportedError: it is mapped without a `vmap_method`.
      CallbackError: `callback` raised, when the program runs.
    """
    leaves, out_tree = tree_util.tree_flatten(result_shape_dtypes)
    results = tuple([ShapedArray(tuple(x.shape), _number_dtype(x.dtype)) for x in leaves])
    pairs = tuple(sorted((int(i), int(o)) for i, o in (input_output_aliases or {}).items()))
    shapes = tree_util.tree_unflatten(out_tree, [ShapeDtypeStruct(a.shape, a.dtype) for a in results])

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_util.tree_map(_numbers, (args, kwargs))
        avals = [aval_of(x) for x in tree_util.tree_leaves((args, kwargs))]
        _check_aliases(pairs, avals, results)
        filling = _Filling(callback, tuple(a.ndim for a in avals), results, out_tree, pairs)
        if has_side_effect:
            return call_with_effects("buffer_callback", filling, shapes, args, kwargs)
        return call_purely("buffer_callback", filling, shapes, args, kwargs, vmap_method)

    return call


def _number_dtype(dtype: Any) -> np.dtype:
    if dtypes.issubdtype(dtype, dtypes.extended):
        raise errors.ArgumentTypeError(
            f"buffer_callback: callbacks take and give numbers, not elements of {dtype}: convert them "
            "(meshrt.random.wrap_key_data makes keys of numbers, lax.convert_element_type other extended dtypes)"
        )
    return np.dtype(dtype)


def _numbers(x: Any) -> Any:
    dtype = aval_of(x).dtype
    if dtypes.issubdtype(dtype, dtypes.prng_key):
        return random_unwrap(x)
    _number_dtype(dtype)
    return x


def _check_aliases(pairs: tuple[tuple[int, int], ...], operands: Any, results: Any) -> None:
    for i, o in pairs:
        said = f"input_output_aliases contains the mapping '{i}:{o}'"
        for kind, at, avals in (("input", i, operands), ("output", o, results)):
            if not 0 <= at < len(avals):
                raise errors.ArgumentValueError(
                    f"{said} with {kind} index {at} outside the range [0, {len(avals)}). Count the leaves of all "
                    f"{kind}s"
                )
        if (operands[i].shape, operands[i].dtype) != (results[o].shape, results[o].dtype):
            raise errors.ArgumentValueError(
                f"{said} referring to an input with abstract value {operands[i]} and an output with a different "
                f"abstract value {results[o]}. Both have to have one shape and dtype"
            )
