"""ShapeDtypeStruct: the type (and sharding) of an array that need not exist."""

from __future__ import annotations

from typing import Any

from meshrt import dtypes, errors
from meshrt.core.dimensions.expression import as_size
from meshrt.core.manual import ManualAxisType
from meshrt.core.references import is_ref
from meshrt.core.types import register_aval
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.context import get_abstract_mesh
from meshrt.sharding.layout import AUTO, Format, Layout
from meshrt.sharding.named import NamedSharding, Sharding
from meshrt.sharding.set_once import SetOnce, putters
from meshrt.sharding.spec import PartitionSpec
from meshrt.sharding.typed import described

__all__ = ["ShapeDtypeStruct"]


class ShapeDtypeStruct(SetOnce):
    """Stands for an array wherever only its type matters (`jit(f).lower`, `eval_shape`).

    `shape` is a tuple of ints, `dtype` a NumPy or extended dtype, `sharding` a Sharding, None, a PartitionSpec (it is
    of the mesh in context when `sharding` is asked for) or a Format, whose layout `format` shows as well.
    `manual_axis_type` says how a value inside of a `shard_map` varies, None for one that is the same on all devices.
    With `is_ref` it stands for a reference (`meshrt.new_ref`) to such an array. Attributes cannot be set.

    Raises:
      ArgumentValueError: no dtype. ShardingTypeError: something else as `sharding`; an automatic layout, which only
        programs have; when `sharding` is asked for, a PartitionSpec without a mesh in context. ArgumentTypeError:
        something else as `manual_axis_type`. ImmutableError: an attribute is set.

    >>> meshrt.ShapeDtypeStruct((2, 3), jnp.float32)
    ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """

    __slots__ = ("_sharding", "dtype", "is_ref", "layout", "manual_axis_type", "shape", "weak_type")

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool
    layout: Layout | None
    manual_axis_type: ManualAxisType | None
    is_ref: bool
    _sharding: Sharding | PartitionSpec | None

    def __init__(
        self, shape: Any, dtype: Any, *, sharding: Any = None, weak_type: bool = False,
        manual_axis_type: ManualAxisType | None = None, is_ref: bool = False,
    ):  # fmt: skip
        if dtype is None:
            raise errors.ArgumentValueError("ShapeDtypeStruct: dtype must be specified")
        layout: Layout | None = None
        if isinstance(sharding, Format):
            if sharding.layout is AUTO:
                raise errors.ShardingTypeError(
                    "`Layout.AUTO` cannot be used in place of a device-local layout in a `ShapeDtypeStruct`. Got "
                    f"{sharding}: an array has one layout; name it, or leave it out"
                )
            layout = sharding.layout if isinstance(sharding.layout, Layout) else None
            sharding = sharding.sharding
        if sharding is not None and not isinstance(sharding, Sharding | PartitionSpec):
            raise errors.ShardingTypeError(
                "sharding of a ShapeDtypeStruct is a Sharding, a PartitionSpec, a Format or None. Got "
                f"{sharding!r} of type {type(sharding).__name__}"
            )
        if isinstance(sharding, PartitionSpec):
            sharding.padded(len(shape))
        elif isinstance(sharding, NamedSharding):
            sharding.check_compatible_aval(shape)
        if manual_axis_type is not None and not isinstance(manual_axis_type, ManualAxisType):
            raise errors.ArgumentTypeError(
                "`manual_axis_type` of a ShapeDtypeStruct should be of type `meshrt.sharding.ManualAxisType`. Got "
                f"{manual_axis_type!r} of type {type(manual_axis_type).__name__}"
            )
        _put_shape(self, _sizes(shape))
        _put_dtype(self, dtypes.named_dtype(dtype))
        _put_sharding(self, sharding)
        _put_layout(self, layout)
        _put_weak_type(self, weak_type)
        _put_manual_axis_type(self, manual_axis_type)
        _put_is_ref(self, bool(is_ref))

    @property
    def sharding(self) -> Sharding | None:
        own = self._sharding
        if not isinstance(own, PartitionSpec):
            return own
        concrete = mesh_context.concrete
        mesh = get_abstract_mesh() if concrete is None else concrete
        if mesh.empty:
            raise errors.ShardingTypeError(
                f"When specifying PartitionSpec to `ShapeDtypeStruct`, here {own}, the context mesh cannot be empty. "
                "Enter one with `with meshrt.set_mesh(mesh):`, or give NamedSharding(mesh, spec)"
            )
        return NamedSharding(mesh, own)

    @property
    def format(self) -> Format:
        """The layout, None if that is not said, with the sharding."""
        return Format(self.layout, self.sharding)

    ndim = property(lambda self: len(self.shape))

    @property
    def size(self) -> int:
        size = 1
        for d in self.shape:
            size *= d
        return size

    @classmethod
    def like(cls, x: Any) -> ShapeDtypeStruct:
        """The struct that describes `x`."""
        mat = getattr(getattr(x, "aval", None), "mat", None) or getattr(x, "manual_axis_type", None)
        return cls(
            x.shape, x.dtype, sharding=getattr(x, "sharding", None), weak_type=getattr(x, "weak_type", False),
            manual_axis_type=None if mat is None or mat.empty else mat, is_ref=is_ref(x) or getattr(x, "is_ref", False),
        )  # fmt: skip

    def update(self, **changes: Any) -> ShapeDtypeStruct:
        """The struct with some of `shape`, `dtype`, `sharding`, `weak_type`, `manual_axis_type` and `is_ref`
        replaced. ArgumentValueError for a sharding without a layout where there is one, and for other names."""
        known = ("shape", "dtype", "sharding", "weak_type", "manual_axis_type", "is_ref")
        if not changes.keys() <= set(known):
            raise errors.ArgumentValueError(f"ShapeDtypeStruct.update takes {', '.join(known)}. Got {list(changes)}")
        kept: Any = self._sharding if self.layout is None else self.format
        if self.layout is not None and not isinstance(changes.get("sharding", kept), Format):
            raise errors.ArgumentValueError(
                f"updating ShapeDtypeStruct with the sharding {changes['sharding']} while it has the layout "
                f"{self.layout}: give a Format, which says whether the layout stays"
            )
        return ShapeDtypeStruct(
            changes.get("shape", self.shape), changes.get("dtype", self.dtype),
            sharding=changes.get("sharding", kept), weak_type=changes.get("weak_type", self.weak_type),
            manual_axis_type=changes.get("manual_axis_type", self.manual_axis_type),
            is_ref=changes.get("is_ref", self.is_ref),
        )  # fmt: skip

    def _refusal(self, what: str, name: str) -> errors.ImmutableError:
        return errors.ImmutableError(
            f"Cannot reassign attributes ({name}) of immutable ShapeDtypeStruct objects, here of {self!r}; make "
            f"another one with .update({name}=...)"
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def _key(self) -> tuple:
        own = self._sharding, self.layout, self.weak_type, self.manual_axis_type, self.is_ref
        return (self.shape, self.dtype, *own)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, ShapeDtypeStruct) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        extra = f", sharding={self._sharding}" if self._sharding is not None else ""
        extra += f", format={self.layout}" if self.layout is not None else ""
        extra += ", weak_type=True" if self.weak_type else ""
        extra += f", manual_axis_type={self.manual_axis_type}" if self.manual_axis_type is not None else ""
        extra += ", is_ref=True" if self.is_ref else ""
        return f"ShapeDtypeStruct(shape={self.shape}, dtype={self.dtype}{extra})"


_put_shape, _put_dtype, _put_sharding, _put_layout = putters(ShapeDtypeStruct, "shape", "dtype", "_sharding", "layout")
_put_weak_type, _put_manual_axis_type, _put_is_ref = putters(
    ShapeDtypeStruct, "weak_type", "manual_axis_type", "is_ref"
)


def _sizes(shape: Any) -> tuple[int, ...]:
    try:
        return tuple([as_size(n) for n in shape])
    except TypeError:
        why = "" if hasattr(shape, "__iter__") else f": {type(shape).__name__!r} object is not iterable"
        raise errors.ArgumentTypeError(
            f"ShapeDtypeStruct: the shape must be a tuple of integers, such as (8, 4), got {shape!r}{why}"
        ) from None


# A function that is traced may return one, or compute with one: a constant of which only the type is known, so that the
# program has types but cannot run.
register_aval(ShapeDtypeStruct, described, has_value=False)
