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
from meshrt.core.told import operations
from meshrt.core.tracebacks import is_boundary, strip
from meshrt.core.types import ShapedArray, in_program, no_truth_value, register_aval

if TYPE_CHECKING:
    from meshrt.core.jaxpr import Eqn
    from meshrt.core.told import Told
    from meshrt.core.trace import Trace

__all__ = ["Tracer", "answering", "ask_types", "concretization_message", "not_concrete", "why_unknown"]


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

    def below(self) -> Any:
        """The value of an enclosing trace that it stands for together with what its own trace knows of it, if any."""
        return None

    def origin(self) -> str:
        """Where the tracer was made, for error messages."""
        below = self.below()
        return below.origin() if isinstance(below, Tracer) else ""

    def made(self) -> str:
        """A sentence that says where the tracer was made."""
        origin = self.origin()
        return f"It {origin}." if origin else ""

    def traced_for(self) -> Told | None:
        """The function that is being traced, for error messages; None where it is not known."""
        below = self.below()
        return below.traced_for() if isinstance(below, Tracer) else None

    def computed_by(self) -> list[Eqn]:
        """The operations from which the value was computed since its function was entered, for error messages."""
        below = self.below()
        return below.computed_by() if isinstance(below, Tracer) else []

    def depends_on(self) -> list[str]:
        """The names of the traced function's arguments from which the value was computed, for error messages."""
        below = self.below()
        return below.depends_on() if isinstance(below, Tracer) else []

    @property
    def has_tangent(self) -> bool:
        """Whether a derivative with respect to what the value is computed from is being taken."""
        return False

    def _need(
        self, what: str, error: type[errors.ConcretizationError] = errors.ConcretizationError, context: str = ""
    ) -> Any:
        value = self.concrete()
        if value is None:
            raise error(concretization_message(self, what, context))
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
        return np.asarray(self._need(_VALUE, context="This occurred in the item() method of meshrt.Array")).item(*args)

    def _scalar(self, kind: str) -> Any:
        if self.aval.shape:
            raise errors.ArgumentTypeError(
                f"Only scalar arrays can be converted to Python scalars; got arr.ndim={self.aval.ndim}, {self.aval}"
            )
        how = (
            f"The problem arose with the `{kind}` function. If trying to convert the data type of a value, try using "
            f"`x.astype({kind})` or `jnp.array(x, {kind})` instead."
        )
        if kind != "int" and self.has_tangent:  # the number would have no derivative, and nobody would see that
            raise not_concrete(self, how)
        return self._need(_VALUE, context=how)

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

    def __getattr__(self, name: str) -> Any:
        """What a high type has for its values (`HiType.declared`). Asked where all else fails."""
        if (name[:2] != "__" or name == "__jax_array__") and name not in ("aval", "_trace"):
            found = _own(self, name)
            if found is not UNDECLARED:
                return found
        if name in _OF_TRANSFERS:
            told = f"The '{name}' method is not available on traced array with shape {str(self.aval).lstrip('~')}."
            raise AttributeError(f"{told} {why_unknown(self)}")
        return object.__getattribute__(self, name)  # which raises, with the words of a property if it was one


def _own(value: Tracer, name: str) -> Any:
    """The attribute that the high type of a value has for it, else UNDECLARED."""
    kind: Any = value.aval
    found = kind.declared(name) if kind.is_high else UNDECLARED
    if type(found) is aval_method:
        return functools.partial(found.fun, value)
    return found.fget(value) if type(found) is aval_property else found


def answering(value: Tracer, name: str) -> Callable[[Any], Any] | None:
    """How a value of a high type answers an array on the other side of an operator: if its type declares the operator
    `name`. One that makes arrays of its values (`__jax_array__`) is taken for an array, as in JAX."""
    kind: Any = value.aval
    found = _own_operator(value, name)
    return None if found is UNDECLARED or kind.declared("__jax_array__") is not UNDECLARED else found


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
# What programs ask for before they call it (`hasattr`), so that there must be none.
_OF_TRANSFERS = ("block_until_ready", "copy_to_host_async")


def _without_buffers(asked: str) -> Callable[..., Any]:
    def refused(self: Tracer, *args: Any, **kwargs: Any) -> Any:
        told = f"{asked} traced array with shape {str(self.aval).lstrip('~')}."
        raise errors.ConcretizationError(concretization_message(self, _VALUE, told))

    return refused


# What everybody who looks for such an error looks for.
NOT_CONCRETE = "Abstract tracer value encountered where concrete value is expected"
_NOT_AVAILABLE = "This concrete value was not available in Python because it depends on"
_VALUE = f"{NOT_CONCRETE}: traced array"
_BRANCH = "Attempted boolean conversion of traced array"
_BECAME = "This value became a tracer due to JAX operations on these lines"
_ADVICE = (
    "A traced function is run once, without data, for all values of its arguments. Use meshrt.numpy.where or "
    "meshrt.lax.cond for branches, meshrt.lax.while_loop or fori_loop for loops, or make the argument static "
    "(jit(..., static_argnums=...))"
)
_INDEX = "The __index__() method was called on traced array"
_NUMPY = "The numpy.ndarray conversion method __array__() was called on traced array"


def _arguments(names: Sequence[str]) -> str:
    """`argument x`, `arguments x and y`, `arguments x, y, and z`."""
    *first, last = names
    if not first:
        return f"argument {last}"
    return f"arguments {', '.join(first)}{',' * (len(first) > 1)} and {last}"


def named_operands(error: errors.ShardingTypeError, behind: Iterable[Sequence[str]]) -> errors.ShardingTypeError:
    """An error about the operands of an operation, which says from which arguments each was computed."""
    told = [f"operand {i} depends on {_arguments(names)}" for i, names in enumerate(behind) if names]
    if told:
        error.args = (f"{error}. Here {', '.join(told)}", *error.args[1:])
    return error


def concretization_message(tracer: Tracer, what: str, context: str = "") -> str:
    """What is said where the value of a tracer is needed; `context` says by what, if `what` does not."""
    lines = [f"{what} with shape {str(tracer.aval).lstrip('~')}.", context, why_unknown(tracer)]
    return "\n".join(filter(None, lines))


def why_unknown(tracer: Tracer) -> str:
    """Which function was being traced, and what in it the value of a tracer depends on."""
    told, where = tracer.traced_for(), []
    if told is not None:
        where.append(f"The error occurred while tracing {told}.")
    if behind := tracer.depends_on():
        where.append(f"{_NOT_AVAILABLE} the value{'s' * (len(behind) > 1)} of the {_arguments(behind)}.")
    rest = " ".join(filter(None, (tracer.made(), _ADVICE)))
    if not behind and (found := tracer.computed_by()):
        return " ".join([*where, f"{_BECAME}:\n\n{operations(found)}\n\n{rest}"])
    return " ".join([*where, rest])


def not_concrete(tracer: Any, context: str) -> errors.ConcretizationError:
    """The error where the value of a traced array is needed; `context` says by what."""
    return errors.ConcretizationError(concretization_message(tracer, _VALUE, context))


for _name in _OF_BUFFERS:
    setattr(Tracer, _name, property(_without_buffers(f"The '{_name}' attribute is not available on")))
for _name in _METHODS_OF_BUFFERS:
    setattr(Tracer, _name, _without_buffers(f"The {_name}() method was called on"))
