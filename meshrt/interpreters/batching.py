"""Rules for vmap, as libraries give them. Names are ``jax.interpreters.batching``'s."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors
from meshrt.core.basic.shapes import bring_to_front, move_dim
from meshrt.core.primitive import Primitive as _Record
from meshrt.core.types import aval_of
from meshrt.extend.core.declared import declared
from meshrt.transforms.batching import BatchTrace, BatchTracer
from meshrt.transforms.mapped import LAID_OUT as _LAID_OUT

__all__ = [
    "BatchTrace", "BatchTracer", "axis_primitive_batchers", "bdim_at_front", "defbroadcasting", "defreducer",
    "defvectorized", "fancy_primitive_batchers", "is_vmappable", "moveaxis", "not_mapped", "primitive_batchers",
    "register_vmappable", "unregister_vmappable",
]  # fmt: skip

Rule = Callable[..., Any]
not_mapped = None


def moveaxis(x: Any, src: int, dst: int) -> Any:
    """`x` with dimension `src` at position `dst`."""
    return move_dim(x, src, dst)


def bdim_at_front(x: Any, bdim: int | None, size: int, mesh_axis: Any = None) -> Any:
    """`x` with its mapped dimension `bdim` first, or repeated `size` times along a new one if it has none."""
    return bring_to_front(size, x, bdim)


def _set(primitive: Any, rule: Callable[[Any, Sequence[Any], Sequence[Any], dict[str, Any]], Any], given: Rule) -> None:
    own = declared(primitive, "batching")

    def batch(axis: Any, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
        outs, out_dims = rule(axis, args, dims, params)
        if not own.multiple_results:
            return outs, _position(outs, out_dims)
        if out_dims is None or isinstance(out_dims, int):
            out_dims = [out_dims] * len(outs)
        return list(outs), [_position(o, d) for o, d in zip(outs, out_dims)]

    object.__setattr__(own, "batch_axis", True)
    own.set_rule("batch", batch, given)


def _position(out: Any, dim: int | None) -> int | None:
    return dim if dim is None or dim >= 0 else dim + len(aval_of(out).shape)


class _Batchers:
    """Rules by primitive. `call` says how one that was given is called."""

    def __init__(self, call: Callable[[Rule, Any, Sequence[Any], Sequence[Any], dict[str, Any]], Any]):
        self._call = call

    def __setitem__(self, primitive: Any, rule: Rule) -> None:
        call = self._call
        _set(primitive, lambda axis, args, dims, params: call(rule, axis, tuple(args), tuple(dims), params), rule)

    def __getitem__(self, primitive: Any) -> Rule:
        given: dict[str, Rule] = getattr(primitive, "given", {})
        if "batch" in given:
            return given["batch"]
        record = primitive if isinstance(primitive, _Record) else None
        if record is None or record.batch is None:
            raise KeyError(primitive)
        rule, named = record.batch, record.batch_axis

        def shown(args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
            size = next(aval_of(a).shape[d] for a, d in zip(args, dims) if d is not None)
            if named:
                raise errors.UnsupportedError(f"the batching rule of {record.name} needs to know the mapped axis")
            return rule(size, args, dims, params)

        return shown

    def __contains__(self, primitive: Any) -> bool:
        return isinstance(primitive, _Record) and primitive.batch is not None


# rule(operands, dims, **params) -> (results, dims); None stands for what is not mapped
primitive_batchers = _Batchers(lambda rule, axis, args, dims, params: rule(args, dims, **params))
# rule(axis, operands, dims, **params): the axis has a `size` and a `name`
fancy_primitive_batchers = _Batchers(lambda rule, axis, args, dims, params: rule(axis, args, dims, **params))
# rule(size, name, None, operands, dims, **params)
axis_primitive_batchers = _Batchers(
    lambda rule, axis, args, dims, params: rule(axis.size, axis.name, None, args, dims, **params)
)


def defvectorized(primitive: Any) -> None:
    """For elementwise primitives of one operand, or of several that are mapped over one dimension."""

    def rule(args: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        if any(d != dims[0] for d in dims):
            raise errors.ArgumentValueError(
                f"{primitive} was declared with defvectorized, so its operands have to be mapped over one dimension, "
                f"but they are over {tuple(dims)}; use defbroadcasting"
            )
        return primitive.bind(*args, **params), dims[0]

    primitive_batchers[primitive] = rule


def defbroadcasting(primitive: Any) -> None:
    """For elementwise primitives of several operands of one shape."""

    def rule(axis: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        ready = [bring_to_front(axis.extent, a, d) for a, d in zip(args, dims)]
        return primitive.bind(*ready, **params), 0

    fancy_primitive_batchers[primitive] = rule


def defreducer(primitive: Any) -> None:
    """For primitives that reduce over the dimensions in their parameter `axes`."""

    def rule(args: Sequence[Any], dims: Sequence[Any], *, axes: Sequence[int], **params: Any) -> tuple[Any, Any]:
        ((operand,), (dim,)) = args, dims
        moved = tuple(a if a < dim else a + 1 for a in axes)
        return primitive.bind(operand, axes=moved, **params), dim - sum(a < dim for a in moved)

    primitive_batchers[primitive] = rule


def register_vmappable(
    data_type: type, spec_type: type, axis_size_type: type, to_elt: Rule, from_elt: Rule, make_iota: Rule | None
) -> None:
    """Makes a class known whose values have a layout of their own in batches, for libraries that declare such classes
    where they are imported. vmap over a value of it raises UnsupportedError.
    """
    _LAID_OUT.add(data_type)


def unregister_vmappable(data_type: type) -> None:
    """Takes the class back."""
    _LAID_OUT.discard(data_type)


def is_vmappable(x: Any) -> bool:
    """Whether the class of `x` was registered."""
    return type(x) in _LAID_OUT


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise errors.MissingFunctionError(f"module {__name__!r} has no attribute {name!r}: it is not implemented")
