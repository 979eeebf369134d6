"""Tracers: the stand-ins for values while a function is traced.

What processes the operations on them, a `Trace`, is in `meshrt.core.trace`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt import errors
from meshrt.core.high import UNDECLARED, aval_method, aval_property
from meshrt.core.manual import ManualAxisType
from meshrt.core.operators import ArrayOperators
from meshrt.core.tracebacks import is_boundary, strip
from meshrt.core.types import ShapedArray, in_program, no_truth_value, register_aval

if TYPE_CHECKING:
    from meshrt.core.trace import Trace

__all__ = ["NOT_CONCRETE", "Tracer", "ask_types", "concretization_message"]


class Tracer(ArrayOperators):
    """A stand-in for an array while a function is being traced."""

    __slots__ = ("__weakref__", "_trace", "aval")

    _trace: Trace
    aval: ShapedArray

    def __init__(self, trace: Trace, aval: ShapedArray):
        """For tracers of libraries' own: `aval` is a type that they have been told, such as `typeof` gives."""
        self._trace, self.aval = trace, in_program(aval)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return self.aval.ndim

    @property
    def size(self) -> int:
        return self.aval.size

    @property
    def nbytes(self) -> int:
        return self.aval.nbytes

    @property
    def itemsize(self) -> int:
        return int(self.aval.dtype.itemsize)

    @property
    def weak_type(self) -> bool:
        return self.aval.weak_type

    @property
    def mat(self) -> ManualAxisType:
        return self.aval.mat

    @property
    def sharding(self) -> Any:
        raise AttributeError(
            "The 'sharding' attribute is not available on traced array with shape "
            f"{str(self.aval).lstrip('~')}. Where a traced value lies is decided later. What its type says of it is "
            "meshrt.typeof(x).sharding"
        )

    def concrete(self) -> Any:
        """The array behind the tracer if there is one, else None (a JVP tracer over concrete values has one)."""
        return None

    def origin(self) -> str:
        """Where the tracer was made, for error messages."""
        return ""

    def depends_on(self) -> list[str]:
        """The names of the traced function's arguments from which the value was computed, for error messages."""
        return []

    @property
    def has_tangent(self) -> bool:
        """Whether a derivative with respect to what the value is computed from is being taken."""
        return False

    def _need(self, what: str, error: type[errors.ConcretizationError] = errors.ConcretizationError) -> Any:
        value = self.concrete()
        if value is None:
            raise error(concretization_message(self, what))
        return value

    def __bool__(self) -> bool:
        if self.aval.size != 1:
            raise no_truth_value(self.aval)
        return bool(self._need(_BRANCH, errors.TracerBoolConversionError))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if self.aval.shape or self.aval.dtype.kind not in "iu":
            raise errors.ArgumentTypeError(
                f"Only integer scalar arrays can be converted to a scalar index. Got {self.aval}"
            )
        return operator.index(self._need(_INDEX, errors.TracerIntegerConversionError))

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        # Never the known value of a tracer that has one: what NumPy computes with it would have no derivative.
        raise errors.TracerArrayConversionError(concretization_message(self, _NUMPY))

    def item(self, *args: int) -> Any:
        """One element as a Python scalar, of a tracer whose value is known."""
        return np.asarray(self._need(f"{NOT_CONCRETE}: item() was applied to a traced array")).item(*args)

    def _scalar(self, kind: str) -> Any:
        if self.aval.shape:
            raise errors.ArgumentTypeError(f"Only scalar arrays can be converted to Python scalars. Got {self.aval}")
        what = f"{NOT_CONCRETE}: {kind}() was applied (try using `x.astype({kind})`) to a traced array"
        if kind != "int" and self.has_tangent:  # the number would have no derivative, and nobody would see that
            raise errors.ConcretizationError(concretization_message(self, what))
        return self._need(what)

    def __copy__(self) -> Tracer:
        return self  # tracers are never written to

    def __deepcopy__(self, memo: Any) -> Tracer:
        return self

    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError("len() of unsized object: the array has no dimensions")
        return self.aval.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.aval})"

    def block_until_ready(self) -> Tracer:
        return self

    def __getattr__(self, name: str) -> Any:
        """What a high type has for its values (`HiType.declared`). Asked where all else fails."""
        if (name[:2] != "__" or name == "__jax_array__") and name not in ("aval", "_trace"):
            found = _own(self, name)
            if found is not UNDECLARED:
                return found
        return object.__getattribute__(self, name)  # which raises, with the words of a property if it was one


def _own(value: Tracer, name: str) -> Any:
    """The attribute that the high type of a value has for it, else UNDECLARED."""
    kind: Any = value.aval
    found = kind.declared(name) if kind.is_high else UNDECLARED
    if type(found) is aval_method:
        return functools.partial(found.fun, value)
    return found.fget(value) if type(found) is aval_property else found


def ask_types(members: dict[str, Any]) -> None:
    """Makes tracers of high types use what their type has in place of `members`, methods and properties of arrays:
    operators under the name with one underscore and with the value first, `_add(self, value, other)` for `__add__`.
    """
    conversions = dict.fromkeys(("__bool__", "__int__", "__float__", "__complex__", "__index__"))
    for name, of_arrays in (members | conversions).items():
        plain: Any = vars(Tracer).get(name, of_arrays)  # tracers have a few of their own
        if isinstance(plain, property):
            setattr(Tracer, name, property(_asking(_own, name, plain.fget, lambda found: found)))
        elif name.startswith("__"):
            setattr(Tracer, name, _asking(_own_operator, f"_{name.strip('_')}", plain, _called))
        else:
            setattr(Tracer, name, _asking(_own, name, plain, _called))


def _own_operator(value: Tracer, name: str) -> Any:
    kind: Any = value.aval
    found = kind.declared(name) if kind.is_high else UNDECLARED
    return found if found is UNDECLARED else functools.partial(getattr(found, "fun", found), value)


def _called(found: Any, *args: Any, **kwargs: Any) -> Any:
    return found(*args, **kwargs)


def _asking(own: Callable[..., Any], name: str, plain: Any, use: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def method(self: Tracer, *args: Any, **kwargs: Any) -> Any:
        try:
            found = own(self, name) if self.aval.is_high else UNDECLARED
            return plain(self, *args, **kwargs) if found is UNDECLARED else use(found, *args, **kwargs)
        except Exception as e:
            strip(e)
            raise

    return is_boundary(method)


register_aval(Tracer, lambda t: t.aval)


# What arrays tell of their buffers, which traced values have none of.
_OF_BUFFERS = ("addressable_shards", "committed", "global_shards", "is_fully_addressable", "is_fully_replicated")
_METHODS_OF_BUFFERS = (
    "addressable_data", "delete", "devices", "is_deleted", "on_device_size_in_bytes", "unsafe_buffer_pointer",
)  # fmt: skip


def _without_buffers(asked: str) -> Callable[..., Any]:
    def refused(self: Tracer, *args: Any, **kwargs: Any) -> Any:
        raise errors.ConcretizationError(concretization_message(self, f"{NOT_CONCRETE}: {asked} traced array"))

    return refused


# What everybody who looks for such an error looks for.
NOT_CONCRETE = "Abstract tracer value encountered where concrete value is expected"
_NOT_AVAILABLE = "This concrete value was not available in Python because it depends on"
_BRANCH = "Attempted boolean conversion of traced array"
_INDEX = "The __index__() method was called on traced array"
_NUMPY = "The numpy.ndarray conversion method __array__() was called on traced array"


def _arguments(names: Sequence[str]) -> str:
    """`argument x`, `arguments x, y and z`."""
    *first, last = names
    return f"arguments {', '.join(first)} and {last}" if first else f"argument {last}"


def named_operands(error: errors.ShardingTypeError, behind: Iterable[Sequence[str]]) -> errors.ShardingTypeError:
    """An error about the operands of an operation, which says from which arguments each was computed."""
    told = [f"operand {i} depends on {_arguments(names)}" for i, names in enumerate(behind) if names]
    if told:
        error.args = (f"{error}. Here {', '.join(told)}", *error.args[1:])
    return error


def concretization_message(tracer: Tracer, what: str) -> str:
    made, behind = tracer.origin(), tracer.depends_on()
    values = f"{_NOT_AVAILABLE} the value{'s' * (len(behind) > 1)} of the {_arguments(behind)}. " if behind else ""
    return (
        f"{what} with shape {str(tracer.aval).lstrip('~')}.\n{'It ' + made + '. ' if made else ''}{values}"
        "A traced function is run once, without data, "
        "for all values of its arguments. Use meshrt.numpy.where or meshrt.lax.cond for branches, "
        "meshrt.lax.while_loop or fori_loop for loops, or make the argument static (jit(..., static_argnums=...))"
    )


for _name in _OF_BUFFERS:
    setattr(Tracer, _name, property(_without_buffers(f"the '{_name}' attribute is not available on")))
for _name in _METHODS_OF_BUFFERS:
    setattr(Tracer, _name, _without_buffers(f"the {_name}() method was called on"))
