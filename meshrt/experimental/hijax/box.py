"""`Box`: a mutable value that holds a pytree of arrays and of values of high types, also inside of compiled functions.

    new_box[]  ->  box          box_get[avals] box  ->  leaves...          box_set[treedef] box leaves...

What a box holds may change its structure and its types; what is known of it at some point of a program is its
`BoxTypeState`. Programs that are lowered have its contents among their arguments and results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.basic.shapes import instantiate, move_dim
from meshrt.core.effects import CELLS
from meshrt.core.high import MutableHiType, TypeInState, aval_method, register_hitype
from meshrt.core.lojax import arrays_of, raised
from meshrt.core.trace import JaxprTracer, Tracer, set_trace, type_state
from meshrt.core.types import aval_of
from meshrt.experimental.hijax.operations import AlwaysHigh
from meshrt.sharding.context import get_abstract_mesh
from meshrt.sharding.typed import sharding_of
from meshrt.transforms.batching import BatchTrace
from meshrt.transforms.jvp import JVPTrace

__all__ = ["Box", "BoxTy", "BoxTypeState", "box_effect", "box_get", "box_set", "new_box"]

box_effect = CELLS


def new_box() -> Any:
    """An empty box: one that holds None."""
    return new_box_p.bind()


def box_get(box: Any) -> Any:
    """What a box holds."""
    state = type_state(box)
    return tree_util.tree_unflatten(state.treedef, box_get_p.bind(box, avals=tuple(state.leaf_avals)))


def box_set(box: Any, val: Any) -> None:
    """Puts a pytree of arrays and values of high types into a box, in place of what it held."""
    leaves, treedef = tree_util.tree_flatten(val)
    if any(_reaches(leaf, box) for leaf in leaves):
        raise errors.ArgumentValueError("a Box was to be put into itself, so that what it holds would have no end")
    if any(isinstance(leaf, JaxprTracer) and leaf.aval.mutable for leaf in leaves):
        raise errors.UnsupportedError(
            "a Box that a function being traced makes or takes was to be put into another Box: put in what it holds "
            "(inner.get()), or put the one into the other outside of the function"
        )
    box_set_p.bind(box, *leaves, treedef=treedef)


def _reaches(value: Any, box: Any) -> bool:
    """Whether a value is a box, or one that holds it."""
    if value is box:
        return True
    return type(value) is Box and any(_reaches(leaf, box) for leaf in tree_util.tree_leaves(value._val))


def box_state(box: Any) -> BoxTypeState:
    """The types of what a box holds, as `typeof` tells them."""
    state: BoxTypeState = type_state(box)
    mesh = get_abstract_mesh()
    told = lambda a: a if a.is_high or a.explicit is not None else a.update(sharding=sharding_of(a, mesh))
    return state.with_avals(map(told, state.leaf_avals))


class BoxTypeState:
    """What is known of a box: the types of the leaves that it holds, and their structure."""

    __slots__ = ("leaf_avals", "treedef")

    def __init__(self, leaf_avals: Iterable[Any], treedef: Any):
        self.leaf_avals, self.treedef = tuple(leaf_avals), treedef

    def __hash__(self) -> int:
        return hash((self.leaf_avals, self.treedef))

    def __eq__(self, other: object) -> bool:
        return type(other) is BoxTypeState and self.leaf_avals == other.leaf_avals and self.treedef == other.treedef

    def with_avals(self, leaf_avals: Iterable[Any]) -> BoxTypeState:
        """The same structure of leaves of other types."""
        return BoxTypeState(leaf_avals, self.treedef)

    def to_tangent_qdd(self) -> BoxTypeState:
        """The state of a box that holds derivatives of what this one holds."""
        return self.with_avals(a.to_tangent_aval() for a in self.leaf_avals)

    def normalize(self) -> BoxTypeState:
        """The state as it is compared, without the weakness of types."""
        return self.with_avals(a.normalize() for a in self.leaf_avals)

    def __str__(self) -> str:
        return ", ".join(a.short() for a in self.leaf_avals)

    __repr__ = __str__


class BoxTy(MutableHiType):
    """The type of boxes."""

    __slots__ = ()
    get = aval_method(box_get)
    set = aval_method(box_set)
    type_state = aval_method(box_state)
    cur_qdd = aval_method(box_state)

    def __hash__(self) -> int:
        return hash(BoxTy)

    def __eq__(self, other: object) -> bool:
        return type(other) is BoxTy

    def __str__(self) -> str:
        return "Box"

    def lo_ty_qdd(self, state: BoxTypeState) -> list[Any]:
        return [lo for a in state.leaf_avals for lo in a.lo_ty()]

    def lo_tree_qdd(self, state: BoxTypeState) -> Any:
        parts = [a.lo_tree() if a.is_high else a for a in state.leaf_avals]
        return tree_util.tree_unflatten(state.treedef, parts)

    def new_from_loval(self, state: BoxTypeState, *arrays: Any) -> Box:
        return self._with(_contents(state, arrays))

    def _with(self, contents: Any) -> Box:
        box = Box._new(contents)
        for leaf in tree_util.tree_leaves(box._val):
            if type(leaf) is Box:
                leaf._copied = True
        return box

    def read_loval(self, state: BoxTypeState, value: Any) -> list[Any]:
        return arrays_of(tree_util.tree_leaves(box_get(value)))

    def update_from_loval(self, state: BoxTypeState, value: Any, *arrays: Any) -> None:
        box_set(value, _contents(state, arrays))

    def held_types(self, state: BoxTypeState) -> list[Any]:
        return [t for a in state.leaf_avals for t in _held_types(a)]

    def new_from_held(self, state: BoxTypeState, *contents: Any) -> Box:
        return self._with(_held(state, contents))

    def read_held(self, state: BoxTypeState, value: Any) -> list[Any]:
        return [x for leaf in tree_util.tree_leaves(box_get(value)) for x in _read_held(leaf)]

    def update_from_held(self, state: BoxTypeState, value: Any, *contents: Any) -> None:
        box_set(value, _held(state, contents))


# What transformations see of a leaf: of a box what that holds, of an open type the arrays, all others whole.


def _held_types(kind: Any) -> list[Any]:
    if kind.mutable:
        inner: list[Any] = kind.aval.held_types(kind.state)
        return inner
    return kind.lo_ty() if kind.is_high and kind.opens else [kind]


def _read_held(leaf: Any) -> list[Any]:
    kind: Any = aval_of(leaf)
    if kind.mutable:
        inner: list[Any] = kind.aval.read_held(kind.state, leaf)
        return inner
    return kind.lower_val(leaf) if kind.is_high and kind.opens else [leaf]


def _leaf_of_held(kind: Any, contents: Iterator[Any]) -> Any:
    mine = islice(contents, len(_held_types(kind)))
    if kind.mutable:
        return kind.aval.new_from_held(kind.state, *mine)
    return kind.raise_val(*mine) if kind.is_high and kind.opens else next(mine)


def _held(state: BoxTypeState, contents: Sequence[Any]) -> Any:
    given = iter(contents)
    return tree_util.tree_unflatten(state.treedef, [_leaf_of_held(a, given) for a in state.leaf_avals])


def _contents(state: BoxTypeState, arrays: Sequence[Any]) -> Any:
    return tree_util.tree_unflatten(state.treedef, raised(state.leaf_avals, iter(arrays)))


class _BoxMeta(type):
    def __instancecheck__(cls, value: Any) -> bool:
        if isinstance(value, Tracer):
            kind: Any = value.aval
            return type(kind) is TypeInState and type(kind.aval) is BoxTy
        return super().__instancecheck__(value)


class Box(metaclass=_BoxMeta):
    """A mutable value that holds a pytree: `get()` gives it, `set(value)` replaces it.

    Inside of functions that are compiled, differentiated or mapped, a box may be an argument, closed over, or made
    there; what it holds may change structure, shapes and dtypes. After the call it holds what the function put into it.
    Derivatives flow through boxes; one that is given a tangent box, `jvp(f, (box, x), (tangent_box, x_dot))`, leaves
    the tangents there, and the derivative of what others hold after the function is not known.

    >>> count = Box(0)
    >>> @meshrt.jit
    ... def step(x):
    ...     count.set(count.get() + 1)
    ...     return 2 * x
    >>> y = step(step(1.0))
    >>> count.get()
    Array(2, dtype=int32, weak_type=True)

    Raises:
      ArgumentTypeError: the body of a loop changes the type of what a box from outside of it holds, or the branches of
        a cond leave it with different ones.
      ArgumentValueError: a function is given the same box twice; a mapped function sets a box from outside of it to
        something that differs between the members of the batch.
    """

    _val: Any
    # Whether it stands in a program for one that another box outside of the program holds.
    _copied = False

    def __new__(cls, init_val: Any = None) -> Any:
        box = new_box()
        if init_val is not None:
            box_set(box, init_val)
        return box

    @classmethod
    def _new(cls, value: Any) -> Box:
        box = object.__new__(cls)
        box._val = value
        return box

    def get(self) -> Any:
        """What the box holds."""
        return box_get(self)

    def set(self, value: Any) -> None:
        """Puts a value into the box."""
        box_set(self, value)

    def cur_qdd(self) -> BoxTypeState:
        """The types of what the box holds outside of any trace."""
        leaves, treedef = tree_util.tree_flatten(self._val)
        return BoxTypeState(map(aval_of, leaves), treedef)

    def type_state(self) -> BoxTypeState:
        """The types of what the box holds, as the function being traced sees it."""
        return box_state(self)

    @property
    def ty(self) -> BoxTy:
        """The type."""
        return BoxTy()

    def __repr__(self) -> str:
        return f"Box({self._val!r})"


register_hitype(Box, lambda box: BoxTy())

_EMPTY = BoxTypeState((), tree_util.tree_structure(None))


# ---------------------------------------------------------------------------------------------------------------------
# How boxes pass through transformations
#
# The trace below has the box, with values (JVPTrace) or whole batches (BatchTrace) in it. The trace itself remembers
# the tangents or the mapped dimensions that belong to them.


class _Get:
    def jvp(self, trace: JVPTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
        box, tangent_box = trace.unwrap(args[0])
        avals = params["avals"]
        with set_trace(trace.parent):
            values = box_get_p.bind(box, avals=avals)
            if tangent_box is not None:
                tangents = box_get_p.bind(tangent_box, avals=tuple(a.to_tangent_aval() for a in avals))
                tangents = [t if a.is_differentiable else None for t, a in zip(tangents, avals)]
            else:
                tangents = trace.contents.get(id(box), (box, [None] * len(values)))[1]
        return [trace.wrap(v, t) for v, t in zip(values, tangents)]

    def batch(self, trace: BatchTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
        box, _ = trace.unwrap(args[0])
        with set_trace(trace.parent):
            values = box_get_p.bind(box, avals=tuple(type_state(box).leaf_avals))
        dims = trace.contents.get(id(box), (box, [None] * len(values)))[1]
        return [trace.wrap(v, d) for v, d in zip(values, dims)]


class _Set:
    def jvp(self, trace: JVPTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
        (box, tangent_box), *pairs = [trace.unwrap(a) for a in args]
        with set_trace(trace.parent):
            box_set_p.bind(box, *[p for p, _ in pairs], **params)
            if tangent_box is not None:
                box_set_p.bind(tangent_box, *[instantiate(t, p) for p, t in pairs], **params)
            else:
                trace.contents[id(box)] = box, [t for _, t in pairs]
        return []

    def batch(self, trace: BatchTrace, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
        (box, _), *pairs = [trace.unwrap(a) for a in args]
        if any(d is not None for _, d in pairs) and id(box) not in trace.contents:
            raise errors.ArgumentValueError(
                "vmap: a Box from outside of the mapped function is set to a value that differs between the "
                f"{trace.axis.size} members of the batch, and it holds one value. Return the value from the function, "
                "or make the box inside of it"
            )
        with set_trace(trace.parent):
            moved = [move_dim(v, d, 0) if type(d) is int else v for v, d in pairs]
            box_set_p.bind(box, *moved, **params)
        if id(box) in trace.contents:
            trace.contents[id(box)] = box, [0 if type(d) is int else d for _, d in pairs]
        return []


class _New:
    def jvp(self, trace: JVPTrace, args: Sequence[Any], params: dict[str, Any]) -> Any:
        with set_trace(trace.parent):
            return new_box_p.bind()

    def batch(self, trace: BatchTrace, args: Sequence[Any], params: dict[str, Any]) -> Any:
        with set_trace(trace.parent):
            box = new_box_p.bind()
        trace.contents[id(box)] = box, []
        return box


def _write(box: Any, *leaves: Any, treedef: Any) -> list[Any]:
    if box._copied:
        raise errors.UnsupportedError(
            "a Box that stands in another Box is written to in a function that is compiled or transformed, where what "
            "is written would not come back to it: pass the inner Box as an argument of its own, or close over it"
        )
    box._val = tree_util.tree_unflatten(treedef, leaves)
    return []


new_box_p = AlwaysHigh(
    "new_box", lambda: TypeInState(BoxTy(), _EMPTY), to_lojax=lambda: Box._new(None), boxes=_New(),
    effects=lambda: frozenset([CELLS]), cache_types=False,
)  # fmt: skip
box_get_p = AlwaysHigh(
    "box_get", lambda box, *, avals: avals, to_lojax=lambda box, *, avals: tree_util.tree_leaves(box._val),
    boxes=_Get(), effects=lambda box, *, avals: frozenset([CELLS]), multiple_results=True, cache_types=False,
)  # fmt: skip
box_set_p = AlwaysHigh(
    "box_set", lambda box, *leaves, treedef: [], to_lojax=_write, boxes=_Set(),
    mutates=lambda avals, params: {0: BoxTypeState(avals[1:], params["treedef"])},
    effects=lambda *avals, treedef: frozenset([CELLS]), multiple_results=True, cache_types=False,
)  # fmt: skip
