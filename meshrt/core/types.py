"""The types of values: `ShapedArray` and the protocol behind it.

Types are interned: two equal types are one object, so comparison is identity and the hash is the object's own.
Every cache of the pipeline is keyed by them.
"""

from __future__ import annotations

import reprlib
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.interning import sweep
from meshrt.core.low import LowType
from meshrt.core.manual import NOWHERE, ManualAxisType
from meshrt.core.spaces import DEVICE, Space
from meshrt.heuristics import KEPT_TYPES

__all__ = [
    "AbstractValue", "ShapedArray", "TypeSharding", "aval_of", "in_program", "present", "refuse_masked",
    "register_aval", "require_value", "without_mask",
]  # fmt: skip

NOT_VARYING: frozenset[str] = frozenset()


class AbstractValue:
    """What a trace knows of a value before it exists. `is_high` marks types that lower to several array types, and
    `mutable` those of values that programs write to (see `meshrt.core.high`).
    """

    __slots__ = ()
    is_high = False
    mutable = False
    # Only types of arrays have them: see ShapedArray.
    explicit: Any = None
    sharding: Any = None
    vma: frozenset[str] = NOT_VARYING
    mat: ManualAxisType = NOWHERE
    memory_space: Space = DEVICE
    manual_axis_type = property(lambda self: self.mat)  # what scripts call it

    def bare(self) -> AbstractValue:
        """The type without sharding, varying axes and memory space."""
        return self

    def to_tangent_aval(self) -> AbstractValue:
        """The type of derivatives of values of this type."""
        raise NotImplementedError(f"{type(self).__name__} has no tangent type")

    def str_short(self) -> str:
        """The type as users are shown it."""
        return str(self)

    def short(self) -> str:
        """The type as printed programs and messages show it."""
        return self.str_short()


class TypeSharding(Protocol):
    """What a type needs of a sharding: to be hashable and comparable, and to name the axes that split each dimension.

    `meshrt.sharding.NamedSharding` over an AbstractMesh is one. Dimensions beyond the spec's length are not split.
    """

    @property
    def spec(self) -> Any: ...

    @property
    def mesh(self) -> Any: ...

    def update(self, **changes: Any) -> TypeSharding: ...

    def replicated(self, ndim: int) -> TypeSharding:
        """The sharding over the same mesh that splits none of `ndim` dimensions."""


class ShapedArray(LowType, AbstractValue):
    """The type of an array: `shape` (ints), `dtype` (NumPy or extended) and `weak_type`.

    >>> ShapedArray((4, 2), np.dtype("float32")) is ShapedArray((4, 2), np.dtype("float32"))
    True

    On meshes with Explicit axes a type also says how they split its dimensions (`explicit`); inside manual regions,
    over which Manual axes the value differs (`vma`, varying manual axes); and of values beside the devices' memory, in
    which space they lie (`memory_space`). Where nobody uses them, which is everywhere on meshes of Auto axes, all are
    absent (None, the empty set, Space.Device) and no part of the key that types are interned by. Changing the shape
    drops the sharding, which belonged to the old dimensions; everything else keeps them:

        x                          f32[8@data,4]{V:pipe}      f32<host>[8,4]
        x.with_shape((4, 8))       f32[4,8]{V:pipe}           f32<host>[4,8]
        x.update(dtype=bfloat16)   bf16[8@data,4]{V:pipe}     bf16<host>[8,4]
    """

    __slots__ = (
        "_physical",
        "_str",
        "_strong",
        "_tangent",
        "dtype",
        "explicit",
        "memory_space",
        "mlir",
        "ndim",
        "shape",
        "size",
        "vma",
        "weak_type",
    )

    _interned: ClassVar[dict[tuple[Any, ...], ShapedArray]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _sweep_at: ClassVar[int] = KEPT_TYPES  # interned types from which those are dropped that nobody uses

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool
    explicit: TypeSharding | None
    vma: frozenset[str]
    memory_space: Space
    ndim: int
    size: int
    mlir: str | None  # as StableHLO writes the type: filled by `meshrt.lowering.types`
    _str: str | None
    _strong: ShapedArray | None
    _tangent: ShapedArray | None
    _physical: ShapedArray | None

    # The sharding of a type in full over the mesh in context, by `meshrt.sharding.typed`, which knows of meshes.
    in_full: ClassVar[Callable[[ShapedArray], Any]]

    def __new__(
        cls,
        shape: tuple[int, ...],
        dtype: Any,
        weak_type: bool = False,
        sharding: TypeSharding | None = None,
        vma: frozenset[str] = NOT_VARYING,
        memory_space: Space = DEVICE,
    ) -> ShapedArray:
        if sharding is not None or vma or memory_space is not DEVICE:
            return cls._make(shape, dtype, weak_type, sharding, vma, memory_space)
        try:
            return cls._interned[(shape, dtype, weak_type)]
        except KeyError:
            pass
        except TypeError:
            shape = tuple(shape)
        return cls._make(shape, dtype, weak_type, None, NOT_VARYING, DEVICE)

    @classmethod
    def _make(
        cls,
        shape: Any,
        dtype: Any,
        weak_type: Any,
        sharding: TypeSharding | None,
        vma: frozenset[str],
        memory_space: Space,
    ) -> ShapedArray:
        if not isinstance(dtype, dtypes.ExtendedDType):
            dtype = np.dtype(dtype)
        shape = tuple([d.plain if isinstance(d, DimExpr) else int(d) for d in shape])
        weak_type = bool(weak_type)
        key: tuple[Any, ...] = (shape, dtype, weak_type)
        if sharding is not None or vma or memory_space is not DEVICE:
            key = (*key, sharding, frozenset(vma))
            if memory_space is not DEVICE:
                key = (*key, memory_space)
        with cls._lock:
            aval = cls._interned.get(key)
            if aval is None:
                aval = object.__new__(cls)
                aval.shape, aval.dtype, aval.weak_type = shape, dtype, weak_type
                aval.explicit, aval.vma = sharding, frozenset(vma) if vma else NOT_VARYING
                aval.memory_space = memory_space
                aval.ndim = len(shape)
                size = 1
                for d in shape:
                    size *= d
                aval.size = size
                aval._str = aval._tangent = aval._physical = aval.mlir = None
                aval._strong = aval if not weak_type else None
                if len(cls._interned) >= cls._sweep_at:
                    sweep(cls._interned, ("_strong", "_tangent", "_physical"))
                    cls._sweep_at = max(KEPT_TYPES, 2 * len(cls._interned))
                cls._interned[key] = aval
        return aval

    def __reduce__(self) -> tuple[Any, ...]:
        said = (self.shape, self.dtype, self.weak_type, self.explicit, self.vma, self.memory_space)
        return (ShapedArray, said)

    @property
    def sharding(self) -> Any:
        """The sharding as users are told of it: a NamedSharding with an entry for every dimension, over the mesh in
        context (an empty one without) where the type itself has none. What the type has is `explicit`.
        """
        return self.explicit if self.explicit is not None else ShapedArray.in_full(self)

    @property
    def mat(self) -> ManualAxisType:  # type: ignore[override]
        """What the type says of the Manual axes around the value: of all together what it varies, is unreduced and is
        reduced over. `unreduced` and `reduced` in the sharding name Explicit axes too.
        """
        if self.explicit is None:
            return ManualAxisType(varying=self.vma) if self.vma else NOWHERE
        spec, manual = self.explicit.spec, self.explicit.mesh.manual_axes
        sums = [axes.intersection(manual) for axes in (spec.unreduced, spec.reduced)]
        return ManualAxisType(varying=self.vma, unreduced=sums[0], reduced=sums[1])

    @property
    def is_key(self) -> bool:
        """Whether the elements are PRNG keys."""
        return isinstance(self.dtype, dtypes.KeyType)

    @property
    def is_extended(self) -> bool:
        """Whether the elements are of an extended dtype, keys among them: the buffer may have further dimensions."""
        return isinstance(self.dtype, dtypes.ExtendedDType)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.physical().size * int(self.physical().dtype.itemsize)

    def update_weak_type(self, weak_type: bool) -> ShapedArray:
        """The same type, weak or not."""
        return self.update(weak_type=weak_type)

    def strip_weak_type(self) -> ShapedArray:
        return self.strong()

    def strong(self) -> ShapedArray:
        """The same type without weakness."""
        if self._strong is None:
            self._strong = self.update(weak_type=False)
        return self._strong

    @property
    def is_bare(self) -> bool:
        """Whether the type says nothing beside shape and dtype."""
        return self.explicit is None and not self.vma and self.memory_space is DEVICE

    def bare(self) -> ShapedArray:
        """The type without sharding, varying axes and memory space."""
        return self if self.is_bare else ShapedArray(self.shape, self.dtype, self.weak_type)

    def with_shape(self, shape: tuple[int, ...]) -> ShapedArray:
        """The same type with another shape, of whose sharding nothing is known."""
        if self.explicit is not None and shape == self.shape:
            return self
        return ShapedArray(shape, self.dtype, self.weak_type, None, self.vma, self.memory_space)

    def update(self, **changes: Any) -> ShapedArray:
        """The type with some of `shape`, `dtype`, `weak_type`, `sharding`, `vma`, `memory_space` changed."""
        shape = changes.get("shape", self.shape)
        return ShapedArray(
            shape,
            changes.get("dtype", self.dtype),
            changes.get("weak_type", self.weak_type),
            changes.get("sharding", self.explicit if shape == self.shape else None),
            changes.get("vma", self.vma),
            changes.get("memory_space", self.memory_space),
        )

    def without(self, dim: int) -> ShapedArray:
        """The type without one dimension: that of one member of a batch."""
        shape = self.shape[:dim] + self.shape[dim + 1 :]
        if self.explicit is None:
            return ShapedArray(shape, self.dtype, self.weak_type, None, self.vma, self.memory_space)
        spec = self.explicit.spec
        rest = spec.partitions[:dim] + spec.partitions[dim + 1 :]
        return self.update(shape=shape, sharding=present(self.explicit.update(spec=spec.update(partitions=rest))))

    def batched(self, size: int, along: TypeSharding | None = None) -> ShapedArray:
        """The type with a leading dimension, which is split as dimension 0 of `along` (None: not)."""
        own = self.explicit
        if own is None and along is None:
            return self.with_shape((size, *self.shape))
        entry = None if along is None else along.spec.partitions[0]
        known: Any = own if own is not None else along.replicated(self.ndim) if along is not None else None
        spec = known.spec.update(partitions=(entry, *known.spec.partitions))
        return self.update(shape=(size, *self.shape), sharding=present(known.update(spec=spec)))

    def inside(self, mesh: Any) -> ShapedArray:
        """The type in a manual region of a value from outside of it, of which each device has the whole along the
        Manual axes of `mesh`.
        """
        own = self.explicit
        if own is None or own.mesh is mesh:
            return self
        manual, spec = mesh.manual_axes, own.spec
        rest = [tuple(a for a in ((e,) if isinstance(e, str) else e or ()) if a not in manual) for e in spec.partitions]
        return self.update(sharding=present(own.update(mesh=mesh, spec=spec.update(partitions=rest))))

    def physical(self) -> ShapedArray:
        """The type of the buffer that holds the value.

        PRNG keys are `uint32[..., 2]`; the dimension of a key is beyond the spec of a sharding, so it is not split.
        Tangents of integers (float0), which hold nothing, are booleans.
        """
        if self._physical is None:
            self._physical = self
            if self.dtype == dtypes.float0:
                self._physical = ShapedArray(self.shape, np.dtype(bool), False, self.explicit, self.vma)
            if self.is_extended:
                shape, dtype = self.shape + self.dtype.physical_suffix, self.dtype.physical_dtype
                self._physical = ShapedArray(shape, dtype, False, self.explicit, self.vma, self.memory_space)
        return self._physical

    def to_tangent_aval(self) -> ShapedArray:
        """The type of derivatives: itself for floating and complex types, else of `dtypes.tangent_dtype`."""
        if self._tangent is None:
            kind = dtypes.tangent_dtype(self.dtype)
            self._tangent = self if kind == self.dtype else self.update(dtype=kind, weak_type=False)
        return self._tangent

    @property
    def is_differentiable(self) -> bool:
        return bool(self.to_tangent_aval().dtype != dtypes.float0)

    def _dimensions(self) -> str:
        """`[8,4]`; `[8@data,4]` with a sharding; `[8,4]{V:pipe}` where the value varies over manual axes; `<host>[8,4]`
        in the host's memory.
        """
        sizes = [str(d) for d in self.shape]
        if self.explicit is not None:
            for i, axes in zip(range(self.ndim), self.explicit.spec.partitions):
                if isinstance(axes, str | tuple):  # else it is open
                    sizes[i] += f"@{axes if isinstance(axes, str) else '(' + ','.join(axes) + ')'}"
        space = "" if self.memory_space is DEVICE else f"<{self.memory_space.name.lower()}>"
        return f"{space}[{','.join(sizes)}]{self._sums()}"

    def _sums(self) -> str:
        """`{V:pipe, U:data}`: the axes that the value varies, is unreduced or is reduced over, in the mesh's order."""
        if not self.vma and self.explicit is None:
            return ""
        spec, order = None, sorted(self.vma)
        if self.explicit is not None:
            spec, names = self.explicit.spec, self.explicit.mesh.axis_names
            order = [*[a for a in names if a in self.vma], *[a for a in order if a not in names]]
        found = [("V", order)]
        if spec is not None:
            found += [(k, [a for a in names if a in s]) for k, s in (("U", spec.unreduced), ("R", spec.reduced))]
        texts = [f"{k}:{axes[0] if len(axes) == 1 else '(' + ','.join(axes) + ')'}" for k, axes in found if axes]
        return f"{{{', '.join(texts)}}}" if texts else ""

    def str_short(self, short_dtypes: bool = False, mesh_axis_types: bool = False) -> str:
        """`float32[8,4]`, with `short_dtypes` `f32[8,4]`. `mesh_axis_types` is for JAX's sake: types name Explicit
        axes only."""
        return self.short() if short_dtypes else dtypes_name(self.dtype) + self._dimensions()

    def short(self) -> str:
        """`f32[8,4]`: the type as printed programs and messages show it."""
        if self._str is None:
            self._str = short_dtype(self.dtype) + self._dimensions()
        return self._str

    def __repr__(self) -> str:
        weak = ", weak_type=True" if self.weak_type else ""
        return f"ShapedArray({dtypes_name(self.dtype)}{self._dimensions()}{weak})"

    def __str__(self) -> str:
        return ("~" if self.weak_type else "") + dtypes_name(self.dtype) + self._dimensions()


def present(sharding: Any) -> Any:
    """The sharding of a type as types have it: None where it splits nothing and nothing is summed up over it."""
    spec = sharding.spec
    return sharding if any(spec.partitions) or spec.unreduced or spec.reduced else None


def in_program(aval: Any) -> Any:
    """The type as programs have it: what users are told of a type (`typeof`) has a sharding even where it splits
    nothing, and so have the types that they make high types of.
    """
    if aval.is_high or aval.explicit is None:
        return aval
    sharding = present(aval.explicit)
    return aval if sharding is aval.explicit else aval.update(sharding=sharding)


def dtypes_name(dtype: Any) -> str:
    """The name of a NumPy or extended dtype."""
    return "float0" if dtype == dtypes.float0 else str(getattr(dtype, "name", dtype))


_SHORT = {"float": "f", "bfloat": "bf", "complex": "c", "uint": "u", "int": "i"}


def short_dtype(dtype: Any) -> str:
    """`f32`, `bf16`, `i1` is `bool`."""
    name = dtypes_name(dtype)
    for long, short in _SHORT.items():
        if name.startswith(long) and name[len(long) : len(long) + 1].isdigit():
            return short + name[len(long) :]
    return name


# Of which type values of a Python type are, by that type. It may be written to: `register_aval`.
aval_rules: dict[type, Callable[[Any], ShapedArray]] = {}


# Classes whose instances are of a type but have no value: programs that use them have types and cannot run.
_without_value: set[type] = set()


def register_aval(cls: type, handler: Callable[[Any], Any], *, has_value: bool = True) -> None:
    """Makes values of `cls` usable as operands: `handler(value)` is the type of one, a ShapedArray or a high type."""
    aval_rules[cls] = handler
    if not has_value:
        _without_value.add(cls)


def require_value(x: Any, what: str = "a constant") -> None:
    """Raises ArgumentTypeError for what only stands for an array, where it would be `what` of a program that runs."""
    if type(x) in _without_value:
        raise errors.ArgumentTypeError(
            f"{x!r} is not a valid JAX type here: a {type(x).__name__} does not have a value and cannot be used as "
            f"{what}. Give an array (of numpy.zeros_like, say), or ask for types only (eval_shape, make_jaxpr, lower)"
        )


def aval_of(value: Any) -> ShapedArray:
    """The type of a tracer, array, NumPy value or Python scalar; TypeError for anything else."""
    handler = aval_rules.get(type(value))
    if handler is not None:
        return handler(value)
    for cls in type(value).__mro__:
        handler = aval_rules.get(cls)
        if handler is not None:
            refuse_masked(value)
            aval_rules[type(value)] = handler
            return handler(value)
    if hasattr(type(value), "__jax_array__"):
        raise errors.ArgumentShapeError(
            "Triggering __jax_array__() during abstractification is no longer supported. A transformation, such as "
            f"jit, was given an object of type {type(value)}: call its method before, or register the type as a pytree"
        )
    raise errors.ArgumentTypeError(
        f"Argument {reprlib.repr(value)} of type {type(value)} is not a valid JAX type. Expected an array, a NumPy "
        "array or scalar, or a Python bool, int, float or complex; convert it first (for example with "
        "meshrt.numpy.asarray)"
    )


def _numpy_aval(value: Any) -> ShapedArray:
    dtype = dtypes.check_value_dtype(value.dtype, lambda: f"a value of type {type(value).__name__}")
    return ShapedArray(value.shape, dtype)


def _is_masked(value: Any) -> bool:
    module = sys.modules.get("numpy.ma")  # not imported for this: who has such an array has the module
    return module is not None and isinstance(value, module.MaskedArray)


def without_mask(value: Any) -> Any:
    """The data of a NumPy masked array, as ``numpy.array`` takes them; other values as they are."""
    return value.data if _is_masked(value) else value


def no_truth_value(aval: ShapedArray) -> errors.ArgumentValueError:
    """The error for a branch on an array of another size than 1."""
    if not aval.size:
        return errors.ArgumentValueError("The truth value of an empty array is ambiguous. Use `array.size > 0`")
    return errors.ArgumentValueError(
        f"The truth value of an array with more than one element is ambiguous. It has {aval.size}: use a.any() or "
        "a.all()"
    )


def refuse_masked(value: Any) -> None:
    """Raises ArgumentValueError for a NumPy masked array."""
    if _is_masked(value):
        raise errors.ArgumentValueError(
            "numpy masked arrays are not supported as arguments: no array of meshrt has a mask. Use x.filled(...) to "
            "give what is masked a value"
        )


def _python_scalar(kind: type) -> Callable[[Any], ShapedArray]:
    def handler(value: Any) -> ShapedArray:
        return ShapedArray((), dtypes.canonicalize_dtype(dtypes.python_scalar_dtypes[kind]), kind is not bool)

    return handler


for _kind in (bool, int, float, complex):
    register_aval(_kind, _python_scalar(_kind))
register_aval(np.ndarray, _numpy_aval)
register_aval(np.generic, _numpy_aval)
# The size of a dimension, where a value is asked for: a scalar like a Python int.
register_aval(DimExpr, _python_scalar(int))
