"""References as users have them: functions, indexing, views."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.varying import vary
from meshrt.core.jaxpr import Eqn
from meshrt.core.places import place_of, register_placing
from meshrt.core.references import AbstractRef, HighRef, is_ref, ref_type
from meshrt.core.trace import EVAL, JaxprTrace, JaxprTracer, Trace, Tracer, current_trace
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.control_staging import joined
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.sharding import device_put_p, sharding_constraint_p
from meshrt.primitives.state import addupdate_p, empty_ref_p, free_ref_p, freeze_p, get_p, new_ref_p, swap_p
from meshrt.primitives.state_indices import indexer
from meshrt.primitives.state_steps import Bitcast, Reshape, Step, Transpose, new_shape
from meshrt.primitives.state_views import View, view_type
from meshrt.runtime.reference import Ref
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec
from meshrt.sharding.typed import abstract
from meshrt.tree_util import tree_flatten

# `meshrt.ref` publishes them, `meshrt.lax` nothing.
__all__: list[str] = []


@boundary
def new_ref(init_val: Any, *, memory_space: Any = None, kind: str | None = None) -> Any:
    """A reference to a copy of the array `init_val`, to which programs write.

    Args:
      init_val: an array, or what becomes one; or a value of a high type (docs/hijax.md), which is read and written as a
        whole.
      memory_space: where a kernel keeps what the reference holds; inside jitted functions only.
      kind: "no_grad_no_remat" for a reference whose writes are neither differentiated nor repeated by `checkpoint`.

    >>> import meshrt, meshrt.numpy as jnp
    >>> count = meshrt.new_ref(jnp.int32(0))
    >>> @meshrt.jit
    ... def step(x):
    ...     count[...] += 1
    ...     return 2 * x
    >>> step(1.0), count[...]
    (Array(2., dtype=float32, weak_type=True), Array(1, dtype=int32))

    Raises:
      ArgumentValueError: `init_val` is a reference itself, or `kind` is unknown.
      UnsupportedError: a memory space outside of jitted functions.
    """
    if kind not in (None, "no_grad_no_remat"):
        raise errors.ArgumentValueError(f"new_ref: kind must be None or 'no_grad_no_remat', got {kind!r}")
    return new_ref_p.bind(init_val, memory_space=memory_space, kind=kind)


@boundary
def empty_ref(ty: Any, memory_space: Any = None) -> Any:
    """A reference to an array of type `ty` (a ShapeDtypeStruct) whose elements nobody has written yet: zeros, here.

    >>> import meshrt, numpy as np
    >>> meshrt.empty_ref(meshrt.ShapeDtypeStruct((2,), np.float32))[...]
    Array([0., 0.], dtype=float32)
    """
    return empty_ref_p.bind(ty=abstract(ty), memory_space=memory_space)


@boundary
def freeze(ref: Any) -> Any:
    """What a reference holds, which nothing is to be written to any more.

    >>> meshrt.freeze(meshrt.new_ref(jnp.arange(2)))
    Array([0, 1], dtype=int32)
    """
    return freeze_p.bind(_here(ref))


@boundary
def free_ref(ref: Any) -> tuple[()]:
    """Gives the memory of a reference back; it cannot be read or written any more.

    >>> ref = meshrt.new_ref(jnp.ones(2))
    >>> meshrt.free_ref(ref)
    ()
    """
    free_ref_p.bind(ref)
    return ()


def _adopted(ref: Any) -> Any:
    """A reference as the programs being recorded have it: in a region in which each device has a part of what it holds
    (`core_map`), the one to this part."""
    below: Trace = current_trace()
    own = ref._trace if isinstance(ref, Tracer) else None
    around: list[JaxprTrace] = []
    while below is not EVAL and below is not own:
        if isinstance(below, JaxprTrace):
            around.append(below)
            below = below.outer
        else:
            below = getattr(below, "parent", EVAL)
    for trace in reversed(around):
        ref = trace.adopted(ref)
    return ref


def _here(ref: Any, view: View = ()) -> Any:
    """A reference as the program being traced has it, of which a view was made (`_adopted`).

    Raises:
      ArgumentValueError: it was made of the whole, where each device has a part only.
    """
    if not is_ref(ref):
        return ref
    if type(ref) is HighRef:
        parts = list(map(_adopted, ref.parts))
        return ref if all(map(operator.is_, parts, ref.parts)) else ref.aval.raise_val(*parts)
    part = _adopted(ref)
    if view and part is not ref and part.aval.shape != aval_of(ref).shape:
        raise errors.ArgumentValueError(
            f"a view of {aval_of(ref)} is used in the body of a core_map, where each device has a part of that: "
            f"{part.aval}. Make the view in the body, of the reference"
        )
    return part


def _place(ref: Any, idx: Any, name: str) -> tuple[Any, View]:
    """The reference and the view that `idx` of a reference, or of a view of one, means."""
    view: View = ()
    if type(ref) is RefView:
        ref, view = ref.ref, ref.steps
    ref = _here(ref, view)
    try:
        kind = ref_type(ref)
    except errors.ArgumentTypeError:
        kind = None
    if kind is None:
        raise errors.ArgumentValueError(f"Can only call `{name}` on a `Ref`: {ref}.")
    if idx is None or idx is Ellipsis or (type(idx) is tuple and not idx):
        return ref, view
    if kind.inner_aval.is_high:
        raise errors.UnsupportedError(
            f"`{name}` of a part of {kind}: what is held is one value of a high type, read and written as a whole, by "
            "ref[...]. Make a reference for each array inside of it to index these"
        )
    return ref, (*view, indexer(idx, view_type(view, kind.inner_aval).shape))


@boundary
def ref_get(ref: Any, idx: Any = None) -> Any:
    """The part of what a reference holds that `idx` names, as `ref[idx]`.

    >>> import meshrt, meshrt.numpy as jnp
    >>> meshrt.ref.get(meshrt.new_ref(jnp.arange(5)), slice(1, 3))
    Array([1, 2], dtype=int32)
    """
    ref, view = _place(ref, idx, "ref_get")
    leaves, tree = tree_flatten(view)
    return get_p.bind(ref, *leaves, tree=tree)


@boundary
def ref_swap(ref: Any, idx: Any, value: Any, _function_name: str = "ref_swap") -> Any:
    """Replaces the part of what a reference holds that `idx` names by `value`; returns what was there.

    >>> import meshrt, meshrt.numpy as jnp
    >>> ref = meshrt.new_ref(jnp.arange(5))
    >>> meshrt.ref.swap(ref, 3, 10)
    Array(3, dtype=int32)
    >>> ref
    Ref([ 0,  1,  2, 10,  4], dtype=int32)
    """
    ref, view = _place(ref, idx, _function_name)
    leaves, tree = tree_flatten(view)
    return swap_p.bind(ref, _as_held(ref, view, value), *leaves, tree=tree)


@boundary
def ref_set(ref: Any, idx: Any, value: Any) -> None:
    """Replaces the part of what a reference holds that `idx` names by `value`, as `ref[idx] = value`.

    >>> ref = meshrt.new_ref(jnp.zeros(3))
    >>> meshrt.ref.set(ref, 1, 5.0)
    >>> ref[...]
    Array([0., 5., 0.], dtype=float32)
    """
    ref_swap(ref, idx, value, "ref_set")


@boundary
def ref_addupdate(ref: Any, idx: Any, x: Any) -> None:
    """Adds `x` to the part of what a reference holds that `idx` names; where an index is given twice, twice.

    >>> import meshrt, meshrt.numpy as jnp
    >>> ref = meshrt.new_ref(jnp.arange(5))
    >>> meshrt.ref.addupdate(ref, 2, 10)
    >>> ref
    Ref([ 0,  1, 12,  3,  4], dtype=int32)
    """
    ref, view = _place(ref, idx, "ref_addupdate")
    leaves, tree = tree_flatten(view)
    addupdate_p.bind(ref, x, *leaves, tree=tree)


def _as_held(ref: Any, view: View, value: Any) -> Any:
    """A value of weak type, an integer, or one of a high type, as the reference holds them."""
    kind: Any = aval_of(value)
    inner: Any = aval_of(ref)  # a reference's, of a high type or not
    if kind.is_high and inner.is_high and not is_ref(value) and not view:
        return vary(value, joined(kind, inner.inner_aval))
    if type(kind) is not ShapedArray or inner.is_high:
        return value
    dtype = view_type(view, inner.inner_aval).dtype
    both = lambda family: dtypes.issubdtype(dtype, family) and dtypes.issubdtype(kind.dtype, family)
    if kind.dtype != dtype and ((kind.weak_type and both(np.floating)) or both(np.integer)):
        return convert_element_type(value, dtype)
    return value


# ----------------------------------------------------------------------------------------------------------------------
# Views


class RefView:
    """A part of what a reference holds: `ref.at[index]`, reshaped or seen as another dtype; made by `ref.at`.

    >>> import meshrt, meshrt.numpy as jnp
    >>> ref = meshrt.new_ref(jnp.arange(8))
    >>> ref.at[2:6].reshape(2, 2)[1]
    Array([4, 5], dtype=int32)
    """

    __slots__ = ("ref", "steps")

    def __init__(self, ref: Any, steps: View):
        self.ref, self.steps = _here(ref, steps), steps

    @property
    def type(self) -> AbstractRef:
        """The type of a reference to the part alone."""
        whole: Any = aval_of(self.ref)
        made: AbstractRef = whole.update(inner_aval=view_type(self.steps, whole.inner_aval, masked=True))
        return made

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> Any:
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return self.type.ndim

    @property
    def size(self) -> int:
        return self.type.size

    @property
    def at(self) -> _At:
        """`view.at[index]` is a view of a part of it."""
        return _At(self.ref, self.steps)

    @property
    def T(self) -> RefView:
        """The view with its dimensions in reverse order."""
        return self.transpose(*range(self.ndim)[::-1])

    def _then(self, step: Step) -> RefView:
        made = RefView(self.ref, (*self.steps, step))
        _ = made.type  # raises where the step does not fit
        return made

    def bitcast(self, dtype: Any) -> RefView:
        """The same bytes as elements of `dtype`."""
        return self._then(Bitcast(np.dtype(dtype)))

    def reshape(self, *shape: Any) -> RefView:
        """The same elements in another shape."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        return self._then(Reshape(new_shape(self.shape, sizes)))

    def transpose(self, *permutation: Any) -> RefView:
        """The dimensions in another order."""
        order = permutation[0] if len(permutation) == 1 and isinstance(permutation[0], tuple | list) else permutation
        return self._then(Transpose(tuple(order)))

    def get(self, idx: Any = ()) -> Any:
        """What the view shows, or a part of it."""
        return ref_get(self, idx)

    def set(self, value: Any, idx: Any = ()) -> None:
        """Writes to what the view shows."""
        ref_set(self, idx, value)

    def swap(self, value: Any, idx: Any = ()) -> Any:
        """Writes to what the view shows and returns what was there."""
        return ref_swap(self, idx, value)

    def addupdate(self, value: Any, idx: Any = ()) -> None:
        """Adds to what the view shows."""
        ref_addupdate(self, idx, value)

    def __getitem__(self, idx: Any) -> Any:
        return ref_get(self, idx)

    def __setitem__(self, idx: Any, value: Any) -> None:
        ref_set(self, idx, value)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{self.ref!r}" + "".join(step.show(str) for step in self.steps)


class _At:
    """`ref.at`, which is indexed."""

    __slots__ = ("ref", "steps")

    def __init__(self, ref: Any, steps: View = ()):
        self.ref, self.steps = _here(ref, steps), steps

    def __getitem__(self, idx: Any) -> RefView:
        whole: Any = aval_of(self.ref)
        shape = view_type(self.steps, whole.inner_aval, masked=True).shape
        return RefView(self.ref, (*self.steps, indexer(idx, shape, masked=True)))


# The methods that references have beside those of arrays of their names, traced or not: by name.
METHODS: dict[str, Any] = {
    "__getitem__": ref_get,
    "__setitem__": ref_set,
    "get": lambda ref, idx=(): ref_get(ref, idx),
    "set": lambda ref, value, idx=(): ref_set(ref, idx, value),
    "swap": lambda ref, value, idx=(): ref_swap(ref, idx, value),
    "addupdate": lambda ref, value, idx=(): ref_addupdate(ref, idx, value),
    "bitcast": lambda ref, dtype: RefView(ref, ()).bitcast(dtype),
    "reshape": lambda ref, *shape: RefView(ref, ()).reshape(*shape),
    "transpose": lambda ref, *permutation: RefView(ref, ()).transpose(*permutation),
}
PROPERTIES: dict[str, Any] = {"at": _At, "T": lambda ref: RefView(ref, ()).T}

for _kind in (Ref, HighRef):
    for _name, _method in METHODS.items():
        setattr(_kind, _name, _method)
    for _name, _getter in PROPERTIES.items():
        setattr(_kind, _name, property(_getter))


# ----------------------------------------------------------------------------------------------------------------------
# How what a traced function is given or makes lies


def _placing(value: JaxprTracer) -> NamedSharding | None:
    """How axes split a value of the function being traced, or what a reference that it made holds: as somebody said
    of the argument, by a constraint or `device_put`, or as it lies that comes from outside. None where nobody said."""
    trace, var = value._trace, value._var
    if not is_ref(value):
        return _said_of(trace, var)
    made = _maker(trace, var)
    return _said_of(trace, made.invars[0]) if made is not None and made.primitive is new_ref_p else None


def _said_of(trace: JaxprTrace, atom: Any) -> Any:
    eqn = _maker(trace, atom)
    if eqn is None:
        if trace.places is not None and atom in trace.places:
            return trace.places[atom]
        return next((place_of(value) for var, value in trace.consts.values() if var is atom), None)
    if eqn.primitive not in (sharding_constraint_p, device_put_p) or eqn.params.get("advice"):
        return None
    said = eqn.params["sharding"]
    is_open = atom.aval.explicit is not None  # its type says what the others do that it names
    if is_open or not isinstance(said, NamedSharding) or PartitionSpec.UNCONSTRAINED in said.spec.partitions:
        return None
    return said.abstract()


def _maker(trace: JaxprTrace, var: Any) -> Eqn | None:
    return next((e for e in reversed(trace.eqns) if any(v is var for v in e.outvars)), None)


register_placing(JaxprTracer, _placing)
