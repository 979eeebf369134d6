"""Which devices talk in the collectives that programs write themselves: checked, and in terms of atoms."""

from __future__ import annotations

import re

import numpy as np
from jaxlib.mlir import ir

from propagation.model import AxisRef
from propagation.program import Op, source
from propagation.quoting import unquote

from ..errors import GroupsError, UnsupportedOpError
from ..kinds import by_op
from ..layouts.context import Context

__all__ = ["crossed_atoms", "differing_atoms", "groups_of", "members_of"]

_AXIS = re.compile(r'axis_ref<name = "((?:[^"\\]|\\.)*)"(?:, sub_axis_info = \((\d+)\)(\d+))?')


def members_of(ctx: Context, op: Op) -> np.ndarray:
    """i64[groups, members]: the replica groups, or source-target pairs. Rows of smaller groups end in -1."""
    kind = by_op()[op.name]
    is_permute = kind.pairs
    attr = op.attrs[kind.groups_attribute]
    if not isinstance(attr, ir.DenseIntElementsAttr):
        return ctx.atoms.groups(_axes(ctx, op, ctx.text_of(attr)))
    talking = np.array(attr, dtype=np.int64)
    if not talking.size and not is_permute:
        return np.arange(ctx.atoms.count, dtype=np.int64)[None]  # an empty list stands for one group of all devices
    _check_groups(ctx, op, talking, is_permute)
    return talking


def _check_groups(ctx: Context, op: Op, talking: np.ndarray, is_permute: bool) -> None:
    """Raises `GroupsError` for groups that compilers refuse without naming the operation, or crash on."""
    count = ctx.atoms.count
    lists = talking.T if is_permute else [talking[talking >= 0]]
    wrong = None
    if talking.max(initial=-1) >= count or talking.min(initial=0) < (0 if is_permute else -1):
        wrong = f"names devices beyond the {count} of the mesh {ctx.atoms.mesh.to_text()}"
    elif any(len(np.unique(some)) < len(some) for some in lists):
        wrong = "has a device twice" + (" as source or as target" if is_permute else "")
    elif not is_permute and by_op()[op.name].everyone and len(lists[0]) < count:
        wrong = f"leaves out some of the {count} devices of the mesh"
    if wrong is not None:
        raise GroupsError(
            f"{op.name} {wrong}: {talking.tolist()}; number the devices of the flattened mesh from 0, and put each in "
            + ("no more than one pair on either side" if is_permute else "one group"),
            source(op),
        )


def _axes(ctx: Context, op: Op, text: str) -> tuple[int, ...]:
    """The atoms of groups that are written as axes of a mesh; the bindings know this attribute as text only."""
    mesh = ctx.atoms.mesh
    if not text.startswith("#stablehlo.replica_group_mesh_axes<"):
        raise UnsupportedOpError(f"{op.name} has groups of a kind that is not known: {text}", source(op))
    axes = []
    for name, pre, size in _AXIS.findall(text):
        name = unquote(name)
        if name not in dict(mesh.axes):
            raise UnsupportedOpError(
                f"{op.name} talks over axis {name!r}, which the program's mesh {mesh.to_text()} does not have",
                source(op),
            )
        axes.append(AxisRef(name, int(pre), int(size)) if pre else mesh.axis(name))
    return ctx.atoms.of_axes(axes)


def differing_atoms(ctx: Context, talking: np.ndarray) -> tuple[int, ...] | None:
    """The atoms whose groups these are (devices that differ in these atoms only); None if there are none."""
    if not talking.size or talking.min() < 0:
        return None
    differ = [a for a in range(len(ctx.sizes)) if np.ptp(ctx.atoms.coordinate((a,))[talking[0]])]
    groups = ctx.atoms.groups(differ)
    rows = talking[np.argsort(talking[:, 0])]
    same = groups.shape == rows.shape and (groups[np.argsort(groups[:, 0])] == rows).all()
    return tuple(differ) if same else None


def groups_of(ctx: Context, op: Op) -> tuple[int, ...] | None:
    """The atoms in which the members of a program's own collective differ: over these it makes values equal, or
    different. None if its groups are not those of some atoms."""
    talking = members_of(ctx, op)
    if op.name != "stablehlo.collective_permute":
        return differing_atoms(ctx, talking)
    return tuple(a for a, n in enumerate(ctx.sizes) if not _repeats(talking, ctx.atoms.strides[a], n))


def crossed_atoms(ctx: Context, pairs: np.ndarray) -> tuple[int, ...]:
    """The atoms along which some sender and its receiver have different coordinates."""
    digits = [(pairs // stride % size) for stride, size in zip(ctx.atoms.strides, ctx.sizes)]
    return tuple(a for a, digit in enumerate(digits) if (digit[:, 0] != digit[:, 1]).any())


def _repeats(pairs: np.ndarray, stride: int, size: int) -> bool:
    """Whether all pairs stay at one coordinate along an atom, and are the same at every coordinate."""
    digit = pairs // stride % size
    if (digit[:, 0] != digit[:, 1]).any():
        return False
    moved = pairs + np.where(digit == size - 1, -(size - 1) * stride, stride)
    return {tuple(p) for p in pairs.tolist()} == {tuple(p) for p in moved.tolist()}
