"""Arrays of given values: the conversion that every other room starts from."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.basic.shapes import reshape_p
from meshrt.core.operators import ArrayOperators
from meshrt.core.source import user_stacklevel
from meshrt.core.trace import EvalTrace, Tracer, context
from meshrt.core.types import aval_of, refuse_masked, without_mask
from meshrt.lax.filled import constrained_to
from meshrt.numpy import prims as el
from meshrt.numpy.operands import PYTHON_SCALARS, ShapeError, in_one_dtype, operand
from meshrt.primitives.axis_types import constrained, is_explicit
from meshrt.primitives.device_put import device_put
from meshrt.primitives.reshape import expand_dims
from meshrt.primitives.traced_scalars import as_constant
from meshrt.runtime import transfer
from meshrt.runtime.array import Array
from meshrt.runtime.transfer import from_numpy
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec
from meshrt.sharding.typed import check_mesh, check_out_sharding, fitted

__all__ = ["array", "asarray", "copy", "from_dlpack"]


def asarray(
    a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None, device: Any = None,
    out_sharding: Any = None,
) -> Any:  # fmt: skip
    """``a`` as an array; an array of the wanted dtype is returned as it is.

    Args:
      a: an array, a NumPy array, a scalar, or (nested) lists and tuples of these.
      dtype: dtype of the result; without it, what the elements promote to.
      device: a device or sharding to put the array on.

    Raises:
      DeviceAssignmentMismatchError: ``a`` is an array committed to other devices.

    >>> jnp.asarray([1.0, 2.0])
    Array([1., 2.], dtype=float32)
    """
    if isinstance(a, ArrayOperators) and dtype is None and device is None and out_sharding is None and not copy:
        if not a.aval.is_high and order in (None, "K"):
            return a
    return array(a, dtype, copy=bool(copy), order=order, device=device, out_sharding=out_sharding)


def array(
    object: Any, dtype: Any = None, *args: Any, copy: bool = True, order: str | None = "K", ndmin: int = 0,
    device: Any = None, out_sharding: Any = None,
) -> Any:  # fmt: skip
    """A new array with the values of ``object``; see :func:`asarray`.

    Args:
      object: an array, a number, or nested sequences of such.
      dtype: the dtype of the result; by default the one that follows from the operands.
      copy: whether the result is sure to be a copy.
      order: must be None or "K": arrays have no memory order.
      ndmin: the least number of dimensions.
      device: a device or a sharding to put the result on.
      out_sharding: the sharding of the result over Explicit axes.

    >>> jnp.array([[1, 2], [3, 4]])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    >>> jnp.array([1, 2], dtype=jnp.float32)
    Array([1., 2.], dtype=float32)
    """
    if args:
        copy, order, ndmin = _by_position(args, copy, order, ndmin)
    if order not in (None, "K"):
        raise errors.UnsupportedError(f"array: order={order!r}: Only implemented for order='K': arrays have no other")
    if dtype is not None:
        dtype = dtypes.check_user_dtype(dtype, "array")
    if copy:
        object = without_mask(object)
    out = _make(object, dtype, copy)
    if ndmin > out.ndim:
        out = reshape_p.bind(out, new_sizes=(1,) * (ndmin - out.ndim) + out.shape)
    if device is None and out_sharding is None:
        return out
    there = placed(out, device, out_sharding)
    if type(object) is Array and object.committed and type(there) is Array:
        _check_stays(object, there)
    return there


def _by_position(args: tuple[Any, ...], *others: Any) -> tuple[Any, ...]:
    """The options `copy`, `order` and `ndmin` of :func:`array`, the first of which were given by position."""
    if len(args) > len(others):
        raise errors.ArgumentTypeError(f"array() takes at most 5 positional arguments, got {2 + len(args)}")
    warnings.warn(
        "Passing the copy, order, and ndmin arguments to jnp.array positionally is deprecated. Name them",
        DeprecationWarning,
        stacklevel=user_stacklevel(),
    )
    return args + others[len(args) :]


def _check_stays(given: Array, there: Array) -> None:
    """DeviceAssignmentMismatchError if an array that was committed somewhere would go to other devices."""
    if given.sharding.device_set != there.sharding.device_set:
        here, others = ([d.id for d in x.sharding.device_assignment] for x in (given, there))
        raise errors.DeviceAssignmentMismatchError(
            f"Received incompatible devices for jitted computation. Got the argument of array with shape "
            f"{given.aval.short()} and with device ids {here}, where it was committed to, and device ids {others} "
            "that it is asked for. Move it with meshrt.device_put(x, device)"
        )


def operand_array(name: str, x: Any, position: int = 0) -> Any:
    """Operand number ``position`` of the function ``name`` as an array; lists are refused."""
    x = operand(name, x, position)
    return x if isinstance(x, ArrayOperators) else asarray(x)


def promoted(name: str, *xs: Any) -> list[Any]:
    """The operands of ``name`` as arrays of one dtype, whatever their shapes."""
    return [asarray(x) for x in in_one_dtype(name, xs)]


def promoted_inexact(name: str, *xs: Any) -> list[Any]:
    """As :func:`promoted`; integers and bool become floating."""
    return [asarray(x) for x in in_one_dtype(name, xs, inexact=True)]


def placed(out: Any, device: Any, out_sharding: Any) -> Any:
    """``out`` moved to ``device`` or ``out_sharding``, at most one of them given; constrained to it while tracing."""
    if device is not None and out_sharding is not None:
        raise errors.ArgumentTypeError("give either device or out_sharding, not both")
    if out_sharding is not None:
        check_out_sharding(out_sharding, "jnp.array")
        if isinstance(out_sharding, NamedSharding):
            check_mesh(out_sharding.mesh.abstract_mesh, "jnp.array")
        out_sharding = fitted(out_sharding, aval_of(out).ndim)
    where = device if device is not None else out_sharding
    if where is None:
        return out
    if isinstance(out, Tracer):
        if isinstance(where, NamedSharding | PartitionSpec) and (where is out_sharding or is_explicit(where)):
            return constrained(out, where, "array")
        return constrained_to(out, where)
    return device_put(out, where)


def _make(a: Any, dtype: Any, copy: bool) -> Any:
    convert = getattr(a, "__jax_array__", None)
    if convert is not None:
        a = convert()
    if isinstance(a, ArrayOperators):
        a = a if dtype is None else el.convert_element_type(a, dtype)
        return el.copy_p.bind(a) if copy and not isinstance(a.dtype, dtypes.ExtendedDType) else a
    if isinstance(a, PYTHON_SCALARS):
        return _scalar(a, dtype)
    if isinstance(a, (list, tuple)):
        return _nested(a, dtype)
    return _constant(_numpy(a, dtype))


def _scalar(a: Any, dtype: Any) -> Any:
    aval = aval_of(a)
    target = aval.dtype if dtype is None else dtype
    try:
        value = np.asarray(a, target)[()]
    except OverflowError:
        fix = "give a wider dtype (64 bits need meshrt.config.update('enable_x64', True)) or a float"
        told = f"Python int {a} too large to convert to {target}: Python integer {a} out of bounds for {target}"
        raise errors.IntegerOverflowError(f"array: {told}; {fix}") from None
    value = a if dtype is None and aval.weak_type else value
    traced = as_constant(value)
    return el.copy_p.bind(value) if traced is None else traced


def _numpy(a: Any, dtype: Any) -> np.ndarray:
    """Any object that NumPy understands as an array of a dtype that we can hold."""
    if a is None:
        raise errors.ArgumentShapeError("None is not a valid value for jnp.array; pass numbers")
    refuse_masked(a)
    value = np.asarray(a)
    held = held_dtype("array", a, value)
    return np.asarray(value, held if dtype is None else dtype)


def held_dtype(name: str, given: Any, value: np.ndarray) -> np.dtype:
    """The dtype of `value`, which NumPy made of what was given to the function `name`."""
    return dtypes.check_value_dtype(value.dtype, lambda: f"{name}: {reprlib.repr(given)}")


def _constant(value: np.ndarray) -> Any:
    """A NumPy array as an array of ours: where operations run if nothing is being traced, else a program's constant.

    That is every device of the mesh in context, as for what operations make of no arrays (to which it is committed
    unless the context is `with mesh:`), or the default device.
    """
    if type(context.trace) is EvalTrace:
        mesh = mesh_context.concrete
        if mesh is None or mesh.empty:
            return from_numpy(value)
        everywhere = NamedSharding(mesh, PartitionSpec())
        if mesh_context.loose and not mesh.is_multi_process:
            return from_numpy(value, everywhere, committed=False)
        return device_put(value, everywhere)
    traced = as_constant(value)
    return el.copy_p.bind(value) if traced is None else traced


def _nested(a: Sequence[Any], dtype: Any) -> Any:
    leaves = list(_leaves(a))
    if dtype is None:
        pairs = [dtypes.dtype_and_weak_type(leaf) for leaf in leaves]
        dtype = dtypes.promote_dtypes(*pairs)[0] if pairs else dtypes.default_float_dtype()
    if not any(isinstance(leaf, ArrayOperators) for leaf in leaves):
        try:
            return _constant(np.asarray(a, dtype=dtype))
        except OverflowError as e:
            raise errors.IntegerOverflowError(f"array: an element does not fit dtype {dtype} ({e})") from None
        except ValueError as e:
            raise ShapeError(f"array: the nested sequence has no common shape: {e}") from None
    return _stack_nested(a, dtype)


def _leaves(a: Any) -> Iterator[Any]:
    if isinstance(a, (list, tuple)):
        for x in a:
            yield from _leaves(x)
    elif a is None:
        raise errors.ArgumentShapeError("None is not a valid value for jnp.array; pass numbers")
    elif isinstance(a, (str, bytes)):
        held_dtype("array", a, np.asarray(a))  # says what to do about text
    else:
        convert = getattr(a, "__jax_array__", None)
        yield a if convert is None else convert()


def _stack_nested(a: Any, dtype: Any) -> Any:
    if not isinstance(a, (list, tuple)):
        return asarray(a, dtype)
    rows = [_stack_nested(x, dtype) for x in a]
    shapes = {r.shape for r in rows}
    if len(shapes) != 1:
        raise ShapeError(f"array: the elements of a sequence must have one shape, got {sorted(shapes)}")
    return lax.concatenate([expand_dims(r, (0,)) for r in rows], 0)


def copy(a: Any, order: str | None = None) -> Any:
    """A copy of ``a``.

    Args:
      a: an array, or what `asarray` makes one of.
      order: must be None or "K": arrays have no memory order.

    >>> jnp.copy(jnp.array([1, 2]))
    Array([1, 2], dtype=int32)
    """
    return array(a, copy=True, order=order)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """An array with the values of an object that speaks DLPack, sharing its memory where it can; see
    :func:`meshrt.dlpack.from_dlpack`.

    Args:
      x: an array, or what `asarray` makes one of.
      device: a device or a sharding to put the result on.
      copy: whether the result may share its buffer with the operand.

    >>> jnp.from_dlpack(np.arange(3, dtype=np.float32))
    Array([0., 1., 2.], dtype=float32)
    """
    return transfer.from_dlpack(x, device, copy)
