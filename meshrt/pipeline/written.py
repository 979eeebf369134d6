"""Shardings as a user wrote them, which is how results show them again."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from meshrt.sharding.layout import Layout
from meshrt.sharding.mesh import AbstractMesh, AxisType
from meshrt.sharding.named import NamedSharding, Sharding
from meshrt.sharding.spec import UNCONSTRAINED

__all__ = ["Written", "written"]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Written:
    """The shardings of a call as its user wrote them: with trailing Nones, axes of size 1, and the user's own mesh.

    Keys and stages know canonical shardings only, in which P("x", None) is P("x"); results get back what was written:
    `outs` are the `out_shardings` (None where none was given), `args` what was chosen for each argument, `example` that
    of the first argument that is used. `layouts` are those that were asked for results, where they are others than
    those that programs return, and `arg_layouts` those for arguments; empty if none are. `named` says whether something
    names the one device that the call runs on: an option, a committed argument, the function; results are committed to
    it. Equal ones are one object (`written`), as they stand in keys.
    """

    outs: tuple[Sharding | None, ...]
    example: NamedSharding | None = None
    example_ndim: int = -1
    layouts: tuple[Layout | None, ...] = ()
    arg_layouts: tuple[Layout | None, ...] = ()
    named: bool = False
    args: tuple[NamedSharding | None, ...] = ()

    def of(self, out: int, sharding: Sharding, ndim: int) -> Sharding:
        """How the concrete `sharding` of a result of `ndim` dimensions is to be shown: an equal one, or itself."""
        if not isinstance(sharding, NamedSharding):
            return sharding
        asked, example = self.outs[out], self.example
        # Not as one over Explicit axes is written: they would stand in the type of a result that has none.
        if asked is None and example is not None and self.example_ndim == ndim:
            types = (*sharding.mesh.axis_types, *example.mesh.axis_types)
            asked = None if AxisType.Explicit in types else example
        return _spelled_as(asked, sharding, ndim)

    def of_argument(self, i: int, sharding: Sharding, ndim: int) -> Sharding:
        """As `of`, for the argument `i`."""
        chosen = self.args[i] if self.args else None
        return _spelled_as(chosen, sharding, ndim) if isinstance(sharding, NamedSharding) else sharding

    def argument_layout(self, i: int) -> Layout | None:
        """The layout that was asked for an argument (None: row-major)."""
        return self.arg_layouts[i] if self.arg_layouts else None

    def layout(self, out: int) -> Layout | None:
        """The layout of a result (None: row-major)."""
        return self.layouts[out] if self.layouts else None


def _spelled_as(asked: Sharding | None, sharding: NamedSharding, ndim: int) -> NamedSharding:
    """`asked` on the devices of `sharding`, if both say the same of values of `ndim` dimensions; else `sharding`."""
    if not isinstance(asked, NamedSharding) or UNCONSTRAINED in asked.spec.partitions:
        return sharding
    if isinstance(asked.mesh, AbstractMesh):
        if isinstance(sharding.mesh, AbstractMesh) or asked.mesh.size != sharding.mesh.size:
            return sharding
        asked = asked.update(mesh=sharding.mesh.reshaped(asked.mesh))
    return asked if asked.is_equivalent_to(sharding, ndim) else sharding


_Shardings = tuple[NamedSharding | None, ...]
_Layouts = tuple[Layout | None, ...]
_Key = tuple[tuple[Sharding | None, ...], NamedSharding | None, int, _Layouts, _Layouts, bool, _Shardings]
_known: weakref.WeakValueDictionary[_Key, Written] = weakref.WeakValueDictionary()


def written(
    outs: tuple[Sharding | None, ...],
    example: NamedSharding | None = None,
    example_ndim: int = -1,
    layouts: tuple[Layout | None, ...] = (),
    arg_layouts: tuple[Layout | None, ...] = (),
    named: bool = False,
    args: tuple[NamedSharding | None, ...] = (),
) -> Written:
    """The Written of these shardings; the same object for the same ones."""
    key = (outs, example, example_ndim, layouts, arg_layouts, named, args)
    return _known.setdefault(key, Written(*key))
