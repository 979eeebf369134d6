"""Axes of the mesh along which all devices do the same."""

from __future__ import annotations

from collections.abc import Iterator

from meshrt.inspect.lint.changes import Change, constrained
from meshrt.inspect.lint.rule import Hit, Rule
from meshrt.inspect.lint.subject import Subject, size_of
from propagation.model import DimSharding, TensorSharding
from propagation.program import Op, Value

__all__ = ["RULE"]

_TRIED = 10  # dimensions of arguments, those of the largest arguments first


def _find(subject: Subject) -> Iterator[Hit]:
    mesh = subject.mesh
    used = {a.name for s in subject.propagated.shardings.table if s is not None for a in (*s.axes, *s.unreduced)}
    for op in subject.program.ops():
        used.update((op.data or {}).get("manual_axes", ()) if isinstance(op, Op) else ())
    for name, size in mesh.axes:
        if size > 1 and name not in used:
            wasted = subject.base.figures.peak * (1 - 1 / size)
            message = f"nothing is split over the mesh axis {name!r}: {size} devices along it hold and compute the same"
            yield Hit(message, None, wasted, list(_changes(subject, name))[:_TRIED], is_certain=True)


def _changes(subject: Subject, name: str) -> Iterator[Change]:
    """The axis on each dimension of an argument that it divides, behind the axes that are there."""
    for value in sorted(subject.program.main.args, key=lambda v: -size_of(v)):
        for dim in sorted(range(value.type.rank), key=lambda d: -value.type.shape[d]):
            change = _along(subject, value, dim, name)
            if change is not None:
                yield change


def _along(subject: Subject, value: Value, dim: int, name: str) -> Change | None:
    mesh = subject.own_mesh
    have = subject.propagated.sharding(value)
    dims = [DimSharding(d.axes) for d in have.dims] if have is not None else [DimSharding()] * value.type.rank
    axis = mesh.axis(name)
    if value.type.shape[dim] % (dims[dim].factor * axis.size):
        return None
    dims[dim] = DimSharding((*dims[dim].axes, axis))
    return constrained(subject, value, TensorSharding(mesh, dims))


RULE = Rule("unused-axis", "All devices along an axis of the mesh do the same.", "seconds", _find, rank=3)
