"""Types of what operations on references take and give, and what they refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt import errors
from meshrt.core.basic.varying import in_order
from meshrt.core.high import unlike
from meshrt.core.references import AbstractRef, is_ref_type
from meshrt.core.spaces import DEVICE
from meshrt.core.types import ShapedArray
from meshrt.primitives.state_views import view_of, view_type

__all__: list[str] = []


def new_type(init: ShapedArray, *, memory_space: Any, kind: Any) -> AbstractRef:
    """The type of a new reference."""
    if is_ref_type(init):
        raise errors.ArgumentValueError(
            f"new_ref of a reference, {init}: a reference holds arrays. Read what it holds with ref[...]"
        )
    if init.is_high:
        return _high_type(init, memory_space, kind)
    space = memory_space
    if space is None and init.memory_space is not DEVICE:
        space = init.memory_space
    return AbstractRef(init.update(memory_space=DEVICE), space, kind)


def _high_type(init: Any, memory_space: Any, kind: Any) -> AbstractRef:
    """The type of a reference to a value of a high type, which is read and written as a whole."""
    if init.mutable or init.opens:
        why = "can be written to itself" if init.mutable else "is taken apart where it enters a function"
        raise errors.UnsupportedError(
            f"new_ref of a value of the high type {init}, which {why}: make a reference for each array inside of it"
        )
    if memory_space is not None:
        raise errors.UnsupportedError(
            f"new_ref(memory_space={memory_space}) of a value of the high type {init}: kernels keep arrays. Make a "
            "reference for each array inside of it"
        )
    return AbstractRef(init.normalize(), None, kind)


def _need_ref(name: str, aval: Any) -> None:
    if not is_ref_type(aval):
        raise errors.ArgumentValueError(f"`{name}` must be called on `Ref` types: {aval}.")


def get_type(ref: Any, *leaves: Any, tree: Any) -> ShapedArray:
    """The type of the part that a view shows."""
    _need_ref("get", ref)
    return view_type(view_of(tree, leaves), ref.inner_aval)


def written_type(name: str, ref: Any, value: ShapedArray, leaves: Sequence[Any], tree: Any) -> ShapedArray:
    """The type of the part that a value of type `value` is to replace."""
    _need_ref(name, ref)
    if is_ref_type(value):
        raise errors.ArgumentValueError(
            "Cannot store a Ref into another Ref. Did you forget to load from it using `[...]`?"
        )
    part = view_type(view_of(tree, leaves), ref.inner_aval)
    if part.is_high or value.is_high:
        if unlike(value, part):
            raise errors.ArgumentValueError(
                f"Invalid type for `{name}`. Ref type: {ref}. Value type: {value}. A reference holds values of one type"
            )
        return part
    if part.shape != value.shape:
        raise errors.ArgumentValueError(
            f"Invalid shape for `{name}`. Ref shape: {ref.shape}. Expected shape: {part.shape}. Value shape: "
            f"{value.shape}. Give a value of the shape of what is written (meshrt.numpy.broadcast_to)"
        )
    if part.dtype != value.dtype:
        raise errors.ArgumentValueError(
            f"Invalid dtype for `{name}`. Ref dtype: {part.dtype}. Value dtype: {value.dtype}. Convert it with astype"
        )
    more = value.vma.difference(part.vma)
    if more:
        axes = in_order(more)
        raise errors.ArgumentValueError(
            f"`{name}`: the value varies over {', '.join(map(repr, axes))}, and the reference of type {ref} holds one "
            f"value along {'it' if len(axes) == 1 else 'them'}. Write meshrt.lax.psum(value, {axes}), or make the "
            f"reference of a value that varies: new_ref(meshrt.lax.pcast(x, {axes}, to='varying'))"
        )
    if part.explicit is not value.explicit:
        raise errors.ArgumentValueError(
            f"Invalid sharding for `{name}`. Ref sharding: {part.explicit}. Value sharding: {value.explicit}. Use "
            "meshrt.sharding.reshard"
        )
    return part


def swap_type(ref: Any, value: ShapedArray, *leaves: Any, tree: Any) -> ShapedArray:
    """The type of what was there."""
    return written_type("swap", ref, value, leaves, tree)


def addupdate_type(ref: Any, value: ShapedArray, *leaves: Any, tree: Any) -> list[Any]:
    """No results; refuses values of other types."""
    written_type("addupdate", ref, value, leaves, tree)
    return []


def free_type(ref: Any) -> list[Any]:
    """No results."""
    _need_ref("free_ref", ref)
    return []


def freeze_type(ref: Any) -> ShapedArray:
    """The type of what a reference holds."""
    _need_ref("freeze", ref)
    inner: ShapedArray = ref.inner_aval
    return inner
