"""References: arrays that programs write to, as types and effects.

A reference is a value of type `Ref{f32[3]}` (`AbstractRef`). Programs read and write what it refers to by the
operations of `meshrt.primitives.state`; each says by an effect what it does. References end before lowering:
`meshrt.transforms.discharge` makes of a program over references one that takes and gives what they hold.

    read    ReadEffect     a <- r[i]
    write   WriteEffect    r[i] <- a
    accum   AccumEffect    r[i] += a
    alloc   AllocEffect    r = new_ref a: the program has references of its own
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshrt.core.effects import Effect
from meshrt.core.high import UNDECLARED, register_hitype
from meshrt.core.places import place_of, without_dim
from meshrt.core.spaces import DEVICE, Space
from meshrt.core.types import AbstractValue, ShapedArray, TypeSharding, aval_of, register_aval

if TYPE_CHECKING:
    from meshrt.core.jaxpr import Effects, Eqn, Jaxpr
    from meshrt.core.manual import ManualAxisType

__all__ = [
    "ACCUM", "ALLOC", "READ", "WRITE", "AbstractRef", "AccumEffect", "AllocEffect", "HighRef", "ReadEffect",
    "RefEffect", "WriteEffect", "allocates", "effects_by_position", "inner_type", "is_ref", "is_ref_type",
    "placed_type", "ref_type", "settled_effects", "touches_refs",
]  # fmt: skip


class RefEffect(Effect):
    """That a reference is read, written or added to: `input_index` is its position among the arguments of a program.

    None stands for some reference: equations say so, and `effects_by_position` tells which.
    """

    __slots__ = ("input_index",)

    input_index: int | None

    def __init__(self, input_index: int | None = None):
        super().__init__(type(self).__name__.removesuffix("Effect"))
        object.__setattr__(self, "input_index", input_index)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.input_index == self.input_index

    def __hash__(self) -> int:
        return hash((type(self), self.input_index))

    def __repr__(self) -> str:
        return f"{self.name}<{'' if self.input_index is None else self.input_index}>"


class ReadEffect(RefEffect):
    """That a reference is read."""

    __slots__ = ()


class WriteEffect(RefEffect):
    """That a reference is written."""

    __slots__ = ()


class AccumEffect(RefEffect):
    """That something is added to what a reference holds."""

    __slots__ = ()


class AllocEffect(RefEffect):
    """That references are made which the program keeps to itself."""

    __slots__ = ()


READ, WRITE, ACCUM, ALLOC = ReadEffect(), WriteEffect(), AccumEffect(), AllocEffect()


def _first_moved(dims: Sequence[Any], place: int) -> tuple[Any, ...]:
    """What is said of dimensions, with the first one at `place`."""
    return (*dims[1 : place + 1], dims[0], *dims[place + 1 :])


class AbstractRef(AbstractValue):
    """The type of a reference to values of type `inner_aval`; interned.

    `memory_space` is where a kernel keeps what it refers to (any object; Space.Device is the usual memory), `kind` how
    transformations take it: "no_grad_no_remat" for one whose writes are neither differentiated nor repeated. `placed`
    is how Auto axes, too, split what it holds (a sharding over an AbstractMesh): only types of a function's arguments
    have it, and only where its body asked (`core_map`). (Of arguments that are arrays: `meshrt.core.places`.)

    >>> import numpy as np
    >>> AbstractRef(ShapedArray((3,), np.dtype("float32")))
    Ref{float32[3]}
    """

    __slots__ = ("__weakref__", "inner_aval", "kind", "memory_space", "placed")

    _interned: weakref.WeakValueDictionary[Any, AbstractRef] = weakref.WeakValueDictionary()

    inner_aval: ShapedArray
    kind: str | None
    placed: TypeSharding | None

    def __new__(
        cls, inner_aval: Any, memory_space: Any = None, kind: str | None = None, placed: TypeSharding | None = None
    ) -> AbstractRef:
        space = DEVICE if memory_space is None else memory_space
        key = (inner_aval, space, kind, placed)
        found = cls._interned.get(key)
        if found is None:
            found = object.__new__(cls)
            found.inner_aval, found.memory_space, found.kind, found.placed = inner_aval, space, kind, placed
            found = cls._interned.setdefault(key, found)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return (AbstractRef, (self.inner_aval, self.memory_space, self.kind, self.placed))

    # A reference to a value of a high type is of a high type itself: it consists of references to the value's arrays.
    opens = False

    @property
    def is_high(self) -> bool:  # type: ignore[override]
        return self.inner_aval.is_high

    def lo_ty(self) -> list[Any]:
        inner: Any = self.inner_aval
        return [self._with(part) for part in inner.lo_ty()]

    def lower_val(self, ref: Any) -> list[Any]:
        """The references that a reference to a value of a high type consists of."""
        return list(ref.parts)

    def raise_val(self, *refs: Any) -> HighRef:
        """The reference that consists of these: in a manual region they refer to the device's pieces."""
        inner: Any = self.inner_aval
        held = [inner_type(r) for r in refs]
        if held != inner.lo_ty():
            inner = aval_of(inner.raise_val(*map(_Typed, held)))
        return HighRef(self._with(inner), refs)

    def declared(self, name: str) -> Any:
        """Nothing: see `HiType.declared`."""
        return UNDECLARED

    def normalize(self) -> AbstractRef:
        """The type as it is compared."""
        return self

    def leading_axis_spec(self) -> Any:
        """How a batch of references is laid out: as what they refer to."""
        inner: Any = self.inner_aval
        return inner.leading_axis_spec()

    def dec_rank(self, size: int | None, spec: Any) -> AbstractRef:
        """The type of a reference to one member of a batch of values of a high type."""
        inner: Any = self.inner_aval
        return self._with(inner.dec_rank(size, spec))

    def inc_rank(self, size: int | None, spec: Any) -> AbstractRef:
        """The type of a reference to a batch of values of a high type."""
        inner: Any = self.inner_aval
        return self._with(inner.inc_rank(size, spec))

    @property
    def held_aval(self) -> ShapedArray:
        """The type of the array that stands for what it refers to: semaphores are counters."""
        inner = self.inner_aval
        return inner.physical() if not inner.is_high and inner.is_extended and inner.dtype.counts else inner

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner_aval.shape

    @property
    def dtype(self) -> Any:
        return self.inner_aval.dtype

    @property
    def ndim(self) -> int:
        return self.inner_aval.ndim

    @property
    def size(self) -> int:
        return self.inner_aval.size

    @property
    def nbytes(self) -> int:
        return self.inner_aval.nbytes

    @property
    def weak_type(self) -> bool:
        return self.inner_aval.weak_type

    @property
    def explicit(self) -> Any:
        return self.inner_aval.explicit

    @property
    def sharding(self) -> Any:
        return self.inner_aval.sharding

    @property
    def vma(self) -> frozenset[str]:  # type: ignore[override]
        return self.inner_aval.vma

    @property
    def mat(self) -> ManualAxisType:  # type: ignore[override]
        return self.inner_aval.mat

    @property
    def is_differentiable(self) -> bool:
        return False  # not by itself: what is derived is what it holds (`meshrt.transforms.discharge`)

    @property
    def is_key(self) -> bool:
        return self.inner_aval.is_key

    def strong(self) -> AbstractRef:
        return self

    def _with(self, inner: Any) -> AbstractRef:
        return AbstractRef(inner, self.memory_space, self.kind)

    def update(self, **changes: Any) -> AbstractRef:
        """The type with `inner_aval`, `memory_space`, `kind`, `placed` or something of the inner type changed.

        How it is placed stays as it is where its shape and the split that types name do.
        """
        own = {name: changes.pop(name, getattr(self, name)) for name in ("inner_aval", "memory_space", "kind")}
        placed = changes.pop("placed", self.placed)
        if changes:
            own["inner_aval"] = own["inner_aval"].update(**changes)
        changed = own["inner_aval"]
        if placed is self.placed and changed is not self.inner_aval:
            if (changed.shape, changed.explicit) != (self.shape, self.explicit):
                placed = None
        return AbstractRef(**own, placed=placed)

    def bare(self) -> AbstractRef:
        return self._with(self.inner_aval.bare())

    def inside(self, mesh: Any) -> AbstractRef:
        """As `ShapedArray.inside`, of what it refers to: the whole along Manual axes, however they split it outside."""
        return self._with(self.inner_aval.inside(mesh))

    def batched(self, size: int, along: Any = None, place: int = 0) -> AbstractRef:
        """The type of a reference to a batch of such values, whose mapped dimension is at `place`."""
        inner = self.inner_aval.batched(size, along)
        if not place:
            return self._with(inner)
        shape = _first_moved(inner.shape, place)
        if inner.explicit is None:
            return self._with(inner.with_shape(shape))
        spec = inner.explicit.spec
        sharding = inner.explicit.update(spec=spec.update(partitions=_first_moved(spec.partitions, place)))
        return self._with(inner.update(shape=shape, sharding=sharding))

    def without(self, dim: int) -> AbstractRef:
        """The type of a reference to one member of a batch."""
        return self._with(self.inner_aval.without(dim)).update(placed=without_dim(self.placed, dim))

    def to_tangent_aval(self) -> AbstractRef:
        return self._with(self.inner_aval.to_tangent_aval())

    def _written(self, inner: str) -> str:
        own = self.memory_space
        space = "" if own is DEVICE else f"<{own.name if isinstance(own, Space) else own}>"
        return f"Ref{space}{{{inner}}}"

    def str_short(self, short_dtypes: bool = False, mesh_axis_types: bool = False) -> str:
        return self.short() if short_dtypes else self._written(self.inner_aval.str_short())

    def short(self) -> str:
        return self._written(self.inner_aval.short())

    def __repr__(self) -> str:
        return self._written(str(self.inner_aval).lstrip("~"))

    __str__ = __repr__


class _Typed:
    """Stands for a value of which only the type matters."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval


register_aval(_Typed, lambda x: x.aval)


class HighRef:
    """A reference to a value of a high type, which consists of the references `parts` to the arrays of the value.

    >>> import meshrt, meshrt.numpy as jnp
    >>> from meshrt.experimental.hijax.quantized import quantize
    >>> ref = meshrt.new_ref(quantize(jnp.eye(2)))
    >>> meshrt.typeof(ref)
    Ref{q8[2,2]}
    """

    __slots__ = ("aval", "parts")

    def __init__(self, aval: AbstractRef, parts: Sequence[Any]):
        self.aval, self.parts = aval, tuple(parts)

    def __repr__(self) -> str:
        return f"<{self.aval} of {', '.join(map(repr, self.parts))}>"


register_hitype(HighRef, lambda ref: ref.aval)


def is_ref_type(aval: Any) -> bool:
    """Whether a type is that of a reference."""
    return type(aval) is AbstractRef


def inner_type(ref: Any) -> ShapedArray:
    """The type of what a value that is known to be a reference refers to."""
    aval: Any = aval_of(ref)
    inner: ShapedArray = aval.inner_aval
    return inner


def is_ref(value: Any) -> bool:
    """Whether a value, traced or not, is a reference."""
    aval = getattr(value, "aval", None)
    return type(aval) is AbstractRef


def touches_refs(effects: Effects) -> bool:
    """Whether something with these effects has to do with references, its own included."""
    return any(isinstance(e, RefEffect) for e in effects)


def allocates(effects: Effects) -> bool:
    """Whether something with these effects makes references of its own."""
    return ALLOC in effects


def settled_effects(effects: Effects, eqns: Sequence[Eqn]) -> Effects:
    """The effects of a program of these equations, which have `effects` and make references: what they do to those
    nobody else sees.
    """
    own = {id(v) for e in eqns if ALLOC in e.effects for v in e.outvars if is_ref_type(v.aval)}
    seen = {e for e in effects if not isinstance(e, RefEffect)} | {ALLOC}
    for eqn in eqns:
        if eqn.effects and not all(id(a) in own for a in eqn.invars if is_ref_type(a.aval)):
            seen |= eqn.effects
    return frozenset(seen)


def effects_by_position(jaxpr: Jaxpr) -> frozenset[RefEffect]:
    """What a program does to each of its references, by their position among constants and arguments.

    { lambda ; a:Ref{f32[3]} b:f32[3]. let a[...] <- b in () }     {Write<0>}
    """
    place = {id(v): i for i, v in enumerate((*jaxpr.constvars, *jaxpr.invars)) if is_ref_type(v.aval)}
    found: set[RefEffect] = set()
    for eqn in jaxpr.eqns:
        refs = [place[id(a)] for a in eqn.invars if id(a) in place]
        kinds = [type(e) for e in eqn.effects if isinstance(e, RefEffect) and type(e) is not AllocEffect]
        found.update([kind(i) for kind in kinds for i in refs])
    return frozenset(found)


def ref_type(value: Any) -> AbstractRef | None:
    """The type of a reference; None for other values."""
    aval: Any = aval_of(value)
    return aval if type(aval) is AbstractRef else None


def placed_type(value: Any) -> Any:
    """The type of a value; that of a reference with how axes of all types split what it holds, where that is known
    while programs are traced: of one that is there, of a member of a batch of it, of one that a constraint places.
    """
    kind: Any = aval_of(value)
    if type(kind) is not AbstractRef or kind.placed is not None:
        return kind
    place = place_of(value)
    return kind if place is None else kind.update(placed=place)
