"""High (hijax) types: types of values that consist of several arrays, such as a quantized matrix with its scales.

A class of values gets a high type with `register_hitype`. Compiled programs work on arrays, so high types end at some
point, in one of two ways:

    open types      those that do not say what their derivatives are (no `to_tangent_aval`). Their values are taken
                    apart at the boundary of every function that is staged or transformed (`meshrt.transforms.high`):
                    inside, a value is an object that holds tracers. Its derivative is a value like it.
    closed types    those that do. Inside functions their values are tracers of the high type, on which only primitives
                    with a `to_lojax` rule work; transformations apply these primitives' rules, programs record them.

A Jaxpr with high types or primitives in it `is_high`. `meshrt.core.lojax` makes of it the program over the arrays that
its arguments and results consist of, which is what is compiled; an application whose Jaxprs are high is lowered in the
same way. Traces say what they take: those with `requires_low` have applications of high
primitives lowered (`Trace.process_high`), all others process them as they are.

Where no high type is registered, nothing here costs more than a look at an empty set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from inspect import signature
from typing import Any, NamedTuple, NoReturn

from meshrt import errors
from meshrt.core.attributes import UNDECLARED, DeclaresAttributes, aval_method, aval_property
from meshrt.core.axes import axes_in_scope
from meshrt.core.placed import placed
from meshrt.core.types import AbstractValue, ShapedArray, aval_of, in_program, register_aval

__all__ = [
    "UNDECLARED", "HiType", "MutableHiType", "StateCell", "TypeInState", "TypeWrittenTo", "aval_method",
    "aval_property", "has_high_types", "is_high_value", "is_mutable", "is_open_value", "register_hitype", "says_arrays",
    "told_apart", "unlike",
]  # fmt: skip


class HiType(DeclaresAttributes, AbstractValue):
    """A type whose values consist of arrays. Subclasses are hashable, and equal where they mean the same type.

    Which methods a type needs depends on what is done with its values:

        all                             lo_ty, lower_val, raise_val
        derivatives                     to_tangent_aval; of tangent types vspace_zero, vspace_add
        vmap                            dec_rank, inc_rank
        arguments and results of scan   these two, leading_axis_spec
        shard_map                       a HiPspec, whose to_lo gives the arrays' specs; shard and unshard where the type
                                        of a part is not that of the value that consists of parts

    One that is missing is named where it is asked for (UnsupportedError).

    >>> @dataclass(frozen=True)
    ... class PairType(HiType):
    ...     part: ShapedArray
    ...     def lo_ty(self): return [self.part, self.part]
    ...     def lower_val(self, pair): return [pair.first, pair.second]
    ...     def raise_val(self, first, second): return Pair(first, second)
    >>> register_hitype(Pair, lambda pair: PairType(typeof(pair.first)))
    """

    __slots__ = ()
    is_high = True
    has_qdd = False
    weak_type = False

    # -- what a value consists of --------------------------------------------------------------------------------------

    def lo_ty(self) -> list[ShapedArray]:
        """The types of the arrays that a value consists of."""
        _missing(self, "lo_ty", "a high type")

    def lo_tree(self) -> Any:
        """The types `lo_ty()` as a pytree, in that order: how what is said of each array (shardings) may be nested."""
        return self.lo_ty()

    def lower_val(self, value: Any) -> list[Any]:
        """The arrays of a value, of the types `lo_ty()`."""
        _missing(self, "lower_val", "a high type")

    def raise_val(self, *arrays: Any) -> Any:
        """The value that consists of these arrays (or tracers of them)."""
        _missing(self, "raise_val", "a high type")

    @property
    def nbytes(self) -> int:
        """Size of a value in memory, in bytes."""
        return sum(t.nbytes for t in self.lo_ty())

    # -- derivatives ---------------------------------------------------------------------------------------------------

    def to_tangent_aval(self) -> Any:
        """The type of derivatives of values, which may be one of arrays. A type without it is open (see above)."""
        _missing(self, "to_tangent_aval", "differentiation")

    def to_ct_aval(self) -> Any:
        """The type of cotangents."""
        return self.to_tangent_aval()

    def vspace_zero(self) -> Any:
        """Zero, of a type that is the tangent type of another."""
        _missing(self, "vspace_zero", "differentiation")

    def vspace_add(self, x: Any, y: Any) -> Any:
        """The sum of two values, of a type that is the tangent type of another."""
        _missing(self, "vspace_add", "differentiation")

    @property
    def is_differentiable(self) -> bool:
        """Whether values have derivatives."""
        tangent = self.to_tangent_aval()
        return bool(tangent.is_high or tangent.is_differentiable)

    # -- dimensions ----------------------------------------------------------------------------------------------------

    def dec_rank(self, size: int | None, spec: Any) -> Any:
        """The type of one member of a batch of `size` values; `spec` (a MappingSpec) says how the batch is laid out."""
        _missing(self, "dec_rank", "vmap")

    def inc_rank(self, size: int | None, spec: Any) -> Any:
        """The type of a batch of `size` values of this type."""
        _missing(self, "inc_rank", "vmap")

    def leading_axis_spec(self) -> Any:
        """How a batch is laid out that loops run over: along the leading dimensions of its arrays."""
        _missing(self, "leading_axis_spec", "scan")

    def batch_dims(self, spec: Any) -> list[int | None]:
        """Which dimension of each of its arrays a batch of this type, laid out by `spec`, is mapped along; None for one
        that all members share. Found by comparing the shapes with those of a member.

        Raises:
          UnsupportedError: an array could have the batch in several places. The type can say.
        """
        return [_mapped_dim(self, spec, *pair) for pair in zip(self.lo_ty(), self.dec_rank(None, spec).lo_ty())]

    def batched(self, size: int, along: Any = None) -> Any:
        """The type of `size` values side by side, as loops and mapped programs lay them out."""
        return self.inc_rank(size, self.leading_axis_spec())

    def without(self, dim: Any) -> Any:
        """The type of one member of a batch that is laid out as `dim` says, 0 as loops do."""
        return self.dec_rank(None, self.leading_axis_spec() if isinstance(dim, int) else dim)

    # -- devices -------------------------------------------------------------------------------------------------------

    def shard(self, mesh: Any, manual_axes: frozenset[Any], check_vma: bool, spec: Any) -> Any:
        """The type of one device's part of a value in a manual region, by a HiPspec."""
        _missing(self, "shard", "shard_map")

    def unshard(self, mesh: Any, check_vma: bool, spec: Any) -> Any:
        """The type of the whole whose parts have this type."""
        _missing(self, "unshard", "shard_map")

    def tangent_spec(self, *specs: Any) -> Any:
        """The PartitionSpec (HiPspec) of derivatives of a value whose arrays are split by these PartitionSpecs: where
        these were given in place of a HiPspec, whose `to_tangent_spec` says it."""
        _missing(self, "tangent_spec", "the derivative of a shard_map, whose specs are no HiPspec,")

    def nospec(self, mesh: Any, check_vma: bool, all_names: tuple[Any, ...]) -> Any:
        """The HiPspec of a value that leaves a manual region only as a residual."""
        _missing(self, "nospec", "shard_map")

    # -- comparison ----------------------------------------------------------------------------------------------------

    def normalize(self) -> Any:
        """The type as it is compared: its arrays' types as programs have them, without weakness. Those are looked for
        in the fields of a dataclass; a type that has them elsewhere, or is made of something else than its fields, says
        itself."""
        if not is_dataclass(self):
            return self
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        compared = {name: _compared(x) for name, x in own.items()}
        if all(compared[name] is x for name, x in own.items()) or signature(type(self)).parameters.keys() != own.keys():
            return self
        return replace(self, **compared)

    def strong(self) -> Any:
        """The same type without weakness."""
        return self.normalize()

    def update(self, **changes: Any) -> Any:
        """The type itself: what shardings and varying axes say concerns types of arrays."""
        return self

    @property
    def opens(self) -> bool:
        """Whether values are taken apart where they enter a function."""
        return type(self).to_tangent_aval is HiType.to_tangent_aval


class MutableHiType(HiType):
    """The type of values that programs write to, and whose contents may change their type by that.

    What is known of a value at some point beside its type is its type state (JAX: quasi-dynamic data): hashable, and
    equal where contents have equal types. Subclasses say what a value consists of in each state: `lo_ty_qdd(state)`,
    `new_from_loval(state, *arrays)`, `read_loval(state, value)`, `update_from_loval(state, value, *arrays)`.
    """

    __slots__ = ()
    has_qdd = True
    mutable = True

    def lo_ty(self) -> list[ShapedArray]:
        _missing(self, "lo_ty_qdd, as it is mutable: lo_ty says nothing of a state", "a high type")

    def lo_ty_qdd(self, state: Any) -> list[ShapedArray]:
        """The types of the arrays that the contents of a value consist of in a type state."""
        _missing(self, "lo_ty_qdd", "a mutable type")

    def lo_tree_qdd(self, state: Any) -> Any:
        """These types as a pytree, in that order."""
        return self.lo_ty_qdd(state)

    def new_from_loval(self, state: Any, *arrays: Any) -> Any:
        """A new value with these contents."""
        _missing(self, "new_from_loval", "a mutable type")

    def read_loval(self, state: Any, value: Any) -> list[Any]:
        """The arrays that the contents of a value consist of."""
        _missing(self, "read_loval", "a mutable type")

    def update_from_loval(self, state: Any, value: Any, *arrays: Any) -> None:
        """Writes contents that consist of these arrays."""
        _missing(self, "update_from_loval", "a mutable type")

    # The same four of *contents*, which may be of closed high types: what transformations see, so that derivatives and
    # batches of such contents are theirs. A type that does not say has arrays for contents.

    def held_types(self, state: Any) -> list[Any]:
        """The types of what a value holds in a type state."""
        return self.lo_ty_qdd(state)

    def new_from_held(self, state: Any, *contents: Any) -> Any:
        """A new value with these contents."""
        return self.new_from_loval(state, *contents)

    def read_held(self, state: Any, value: Any) -> list[Any]:
        """What a value holds."""
        return self.read_loval(state, value)

    def update_from_held(self, state: Any, value: Any, *contents: Any) -> None:
        """Writes contents."""
        self.update_from_loval(state, value, *contents)

    def to_tangent_aval(self) -> Any:
        return self

    @property
    def is_differentiable(self) -> bool:
        """No: what is in a value may be, and has its derivative in a value of its own."""
        return False

    @property
    def opens(self) -> bool:
        return False


class TypeInState(HiType):
    """The type of a mutable value and its type state at some point: what traces know of one (JAX: AvalQDD)."""

    __slots__ = ("aval", "state")

    has_qdd = True
    mutable = True

    def __init__(self, aval: Any, state: Any):
        self.aval, self.state = aval, state

    @property
    def qdd(self) -> Any:
        """The type state under JAX's name."""
        return self.state

    def in_state(self, state: Any) -> TypeInState:
        """The same type in another state."""
        return self if state is self.state else TypeInState(self.aval, state)

    def __hash__(self) -> int:
        return hash((self.aval, self.state))

    def __eq__(self, other: object) -> bool:
        return type(other) is TypeInState and self.aval == other.aval and self.state == other.state

    def __getattr__(self, name: str) -> Any:
        if name in ("aval", "state") or name[:2] == "__":
            raise AttributeError(name)
        return getattr(self.aval, name)

    def declared(self, name: str) -> Any:
        return self.aval.declared(name)

    def lo_ty(self) -> list[ShapedArray]:
        found: list[ShapedArray] = self.aval.lo_ty_qdd(self.state)
        return found

    def lo_tree(self) -> Any:
        return self.aval.lo_tree_qdd(self.state)

    def lower_val(self, value: Any) -> list[Any]:
        found: list[Any] = self.aval.read_loval(self.state, value)
        return found

    def raise_val(self, *arrays: Any) -> Any:
        return self.aval.new_from_loval(self.state, *arrays)

    def to_tangent_aval(self) -> Any:
        """That of a value of its own, whose state follows from what is written to it."""
        return TypeInState(self.aval.to_tangent_aval(), self.state.to_tangent_qdd())

    @property
    def is_differentiable(self) -> bool:
        return False

    @property
    def opens(self) -> bool:
        return False

    def normalize(self) -> Any:
        return TypeInState(self.aval, self.state.normalize()) if hasattr(self.state, "normalize") else self

    def __str__(self) -> str:
        return f"{self.aval.short()}{{{self.state}}}"

    __repr__ = __str__


class StateCell:
    """The type state of a mutable operand, before an operation (`init_val`) and after it (`cur_val`)."""

    __slots__ = ("cur_val", "init_val")

    def __init__(self, state: Any):
        self.init_val = self.cur_val = state

    def update(self, state: Any) -> None:
        """States how the operation leaves the operand."""
        self.cur_val = state


class TypeWrittenTo(NamedTuple):
    """A mutable operand as a type rule sees it, which may state another state by `mutable_qdd.update(state)`
    (JAX: AvalMutableQDD)."""

    aval: Any
    mutable_qdd: StateCell


def _compared(field: Any) -> Any:
    """What a field of a type is compared as: types in it, of arrays and high ones."""
    if isinstance(field, ShapedArray):
        return in_program(field).strong()
    if isinstance(field, HiType):
        return field.normalize()
    if type(field) is not tuple:
        return field
    found = tuple(map(_compared, field))
    return field if all(x is y for x, y in zip(found, field)) else found


def _missing(kind: HiType, method: str, asker: str) -> NoReturn:
    raise errors.UnsupportedError(
        f"{asker} requires the type {type(kind).__name__} ({kind!r}) to implement the `{method}` method: "
        f"{type(kind).__name__} requires a method {method}, see meshrt.experimental.hijax.HiType"
    )


def _mapped_dim(kind: HiType, spec: Any, batch: Any, member: Any) -> int | None:
    """The dimension that an array of a batch has more than that of a member; None if it has none more."""
    if batch.shape == member.shape:
        return None
    found = [d for d in range(len(batch.shape)) if (*batch.shape[:d], *batch.shape[d + 1 :]) == member.shape]
    if len(found) != 1:
        raise errors.UnsupportedError(
            f"a value of the high type {kind.short()} that is mapped along {spec}, in a loop, branch or reference: "
            f"those hold batches along {kind.leading_axis_spec()}, and which dimension of {batch.short()} to move in "
            f"front is not told by the type of a member, {member.short()}. Map the value along that, or give "
            f"{type(kind).__name__} a method `batch_dims`"
        )
    return found[0]


def unlike(got: Any, wanted: Any) -> bool:
    """Whether values of type `got` are no operands of a Jaxpr that takes `wanted`. Weak types, and shardings, are."""
    if got.mutable and wanted.mutable:  # a variable has the state in which its value came, not that in which it is
        return bool(got.aval != wanted.aval)
    if got.is_high or wanted.is_high:
        return bool(got.normalize() != wanted.normalize())
    return bool(got.shape != wanted.shape or got.dtype != wanted.dtype)


def told_apart(*kinds: Any, shown: Callable[[Any], str] = lambda kind: str(kind.short())) -> list[str]:
    """How messages show types that differ: as `shown` says, and where that is the same text for two of them, with what
    values consist of too: their structure, weakness and shardings; at last with the type's own text."""
    texts = list(map(shown, kinds))
    for further in (_structure, _arrays, _whole):
        if all(one == two or a != b for one, a in zip(kinds, texts) for two, b in zip(kinds, texts)):
            break
        texts = [f"{shown(kind)}{more}" if (more := further(kind)) else text for kind, text in zip(kinds, texts)]
    return texts


def _structure(kind: Any) -> str:
    treedef = getattr(getattr(kind, "state", None), "treedef", None)
    return "" if treedef is None else f" in {treedef}"


def _arrays(kind: Any) -> str:
    if not kind.is_high:
        return f" ({kind})"
    parts = ", ".join(str(t) for t in kind.lo_ty())
    return f"{_structure(kind)} of {parts}"


def _whole(kind: Any) -> str:
    return f" ({kind!r})"


def says_arrays(kind: Any) -> bool:
    """Whether a closed high type says which arrays its values consist of: nobody has asked those that do not."""
    return not (kind.mutable or kind.opens) and type(kind).lo_ty is not HiType.lo_ty


_classes: set[type] = set()


def register_hitype(cls: type, typeof: Callable[[Any], HiType]) -> None:
    """Makes instances of `cls` usable as operands and arguments: `typeof(value)` is the high type of one.

    Values of mutable types have a method `cur_qdd()`, which gives the type state of what they hold.
    """
    _classes.add(cls)

    def handler(value: Any) -> Any:
        kind: Any = typeof(value)
        if kind.mutable:
            return TypeInState(kind, value.cur_qdd())
        if axes_in_scope() and says_arrays(kind):
            return placed(kind, [aval_of(x).vma for x in kind.lower_val(value)])
        return kind

    register_aval(cls, handler)


def has_high_types() -> bool:
    """Whether any class of high values is registered."""
    return bool(_classes)


def is_high_value(value: Any) -> bool:
    """Whether a value is of a class registered with a high type."""
    return type(value) in _classes


def is_mutable(value: Any) -> bool:
    """Whether a value, traced or not, is one that programs write to and that is no reference: a Box."""
    kind = aval_of(value) if type(value) in _classes else getattr(value, "aval", None)
    return isinstance(kind, AbstractValue) and kind.mutable


def is_open_value(value: Any) -> bool:
    """Whether a value is of a class registered with an open type: it is taken apart where it enters a function."""
    if type(value) not in _classes:
        return False
    kind: Any = aval_of(value)
    return bool(kind.opens)
