"""What kernels are written with beside references: conditions, loops, sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors, lax, tree_util
from meshrt import numpy as jnp
from meshrt.core.dimensions.expression import is_symbolic_dim
from meshrt.core.references import inner_type, is_ref
from meshrt.core.tracebacks import boundary
from meshrt.experimental.kernels.copies import SelectedRef
from meshrt.experimental.kernels.hints import multiple_of
from meshrt.experimental.kernels.memory import MemoryRef, MemorySpace
from meshrt.experimental.kernels.scopes import run_scoped
from meshrt.primitives.references import RefView, new_ref
from meshrt.primitives.state_views import view_type

__all__ = [
    "align_to", "broadcast_to", "cdiv", "empty", "empty_like", "empty_ref_like", "loop", "multiple_of",
    "next_power_of_2", "select_ref", "strides_from_shape", "when", "with_scoped",
]  # fmt: skip


@boundary
def when(condition: Any, /) -> Callable[[Callable[[], None]], None]:
    """Runs the decorated function, which returns nothing, if `condition` holds.

    >>> @when(True)
    ... def _():
    ...     print("now")
    now
    """

    def run(f: Callable[[], None]) -> None:
        if isinstance(condition, bool | np.bool_):
            if condition:
                f()
        else:
            lax.cond(condition, f, lambda: None)

    return run


@boundary
def loop(
    lower: Any, upper: Any, *, init_carry: Any = None, step: Any = 1, unroll: int | bool | None = None
) -> Callable[[Callable[..., Any]], Any]:
    """Runs the decorated function for `lower`, `lower + step`, ... below `upper`; with `init_carry` it takes and
    returns a value that each turn hands to the next, and the result is the last one.

    >>> @loop(0, 4, init_carry=0)
    ... def total(i, carry):
    ...     return carry + i
    >>> int(total)
    6
    """
    static = all(isinstance(x, int | np.integer) for x in (lower, upper, step))
    zero: Any = 0
    if not static:
        kind = jnp.result_type(lower, upper, step)
        lower, upper, step = [lax.convert_element_type(x, kind) for x in (lower, upper, step)]
        zero = jnp.array(0, kind)

    def run(body: Callable[..., Any]) -> Any:
        if init_carry is None:
            turn = lambda i, _: body(lower + i * step)
        else:
            turn = lambda i, carry: body(lower + i * step, carry)
        return lax.fori_loop(zero, cdiv(upper - lower, step), turn, init_carry, unroll=unroll)

    return run


def _is_size(x: Any) -> bool:
    return isinstance(x, int | np.integer) or is_symbolic_dim(x)


def cdiv(a: Any, b: Any) -> Any:
    """a / b, rounded up.

    >>> cdiv(9, 2)
    5
    """
    return -(-a // b) if _is_size(a) and _is_size(b) else lax.div(a + (b - 1), b)


def align_to(a: Any, alignment: Any) -> Any:
    """The least multiple of `alignment` that is not below `a`.

    >>> align_to(9, 4)
    12
    """
    return cdiv(a, alignment) * alignment


def next_power_of_2(x: int) -> int:
    """The least power of two that is not below `x`.

    >>> next_power_of_2(9)
    16
    """
    if x < 0:
        raise errors.ArgumentValueError(f"`next_power_of_2` requires a non-negative integer, got {x}.")
    return 1 if x == 0 else 1 << (x - 1).bit_length()


def select_ref(idx: Any, *refs: Any) -> SelectedRef:
    """One of several references, chosen by a number that is known when the kernel runs: what copies take.

    Args:
      idx: an integer scalar; one beyond the ends means the first or the last.
      refs: references, or views of some, of the same shape, element type and memory.

    >>> import meshrt, numpy as np
    >>> from meshrt.experimental import pallas as pl
    >>> from meshrt.experimental.pallas import tpu as pltpu
    >>> def kernel(which_ref, x_ref, y_ref, o_ref):
    ...     pltpu.sync_copy(pl.select_ref(which_ref[0], x_ref, y_ref), o_ref)
    >>> choose = pl.pallas_call(kernel, meshrt.ShapeDtypeStruct((2,), np.int32))
    >>> choose(np.array([1]), np.array([1, 2], np.int32), np.array([3, 4], np.int32))
    Array([3, 4], dtype=int32)

    Raises:
      ArgumentValueError: fewer than two references. ArgumentTypeError: references of different types.
    """
    return SelectedRef(idx, refs)


def strides_from_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """How far apart, in elements, neighbours along each dimension of a dense array lie.

    >>> strides_from_shape((2, 3, 4))
    (12, 4, 1)
    """
    return tuple([int(np.prod(shape[d + 1 :], dtype=int)) for d in range(len(shape))])


def broadcast_to(a: Any, shape: Sequence[int]) -> Any:
    """`a` with dimensions added and repeated as needed."""
    return jnp.broadcast_to(a, tuple(shape))


def empty(shape: Sequence[int], dtype: Any, *, memory_space: Any = None, out_sharding: Any = None) -> Any:
    """An array of which nobody has written the elements."""
    return jnp.empty(tuple(shape), dtype, out_sharding=out_sharding)


def empty_like(x: Any) -> Any:
    """Arrays, of which nobody has written the elements, like those of a pytree of types."""
    is_type = lambda y: isinstance(y, MemoryRef)
    return tree_util.tree_map(lambda y: jnp.empty(y.shape, y.dtype), x, is_leaf=is_type)


def empty_ref_like(x: Any) -> Any:
    """A reference to an array like `x`, a type, of which nobody has written the elements."""
    if not isinstance(x, MemoryRef) and not (hasattr(x, "shape") and hasattr(x, "dtype")):
        raise errors.ArgumentValueError(f"empty_ref_like does not support {type(x)}")
    space = x.memory_space if isinstance(x, MemoryRef) else MemorySpace.ANY
    return new_ref(empty_like(x), memory_space=space)


def with_scoped(*types: Any, collective_axes: Any = (), **kw_types: Any) -> Callable[..., Any]:
    """A decorator: the function gets references of these types behind its own arguments, as `run_scoped` gives them."""

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(f)
        def inner(*args: Any) -> Any:
            return run_scoped(functools.partial(f, *args), *types, collective_axes=collective_axes, **kw_types)

        return inner

    return decorate


def shown_type(ref: Any) -> Any:
    """The type of what a reference, or a view of one, shows."""
    if type(ref) is RefView:
        return view_type(ref.steps, inner_type(ref.ref))
    if not is_ref(ref):
        raise errors.ArgumentTypeError(f"expected a reference, or a view of one, got {ref!r}")
    return inner_type(ref)
