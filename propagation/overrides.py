"""Shardings of a module's arguments other than those that it says, and a mesh for modules that name none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jaxlib.mlir import ir

from .annotations import read_shardings
from .errors import BadOptionError
from .graph import Program
from .model import AxisRef, DimSharding, Mesh, TensorSharding
from .shardings import Shardings, map_shardings
from .write import write

__all__ = ["ArgumentAxes", "annotating", "overridden", "set_argument", "set_returned"]

# Per dimension the axes that split it, from major to minor.
ArgumentAxes = Sequence[Sequence[str]]


def annotating(
    mesh: Mapping[str, int] | None, arguments: Sequence[ArgumentAxes | None]
) -> Callable[[Program, Shardings], None]:
    """What `run(..., annotate=)` takes: gives the arguments of the entry function these shardings in place of their
    own, closed; None leaves an argument as it is. A result that takes the place of a donated argument is sharded as
    that. `mesh` are the axes of the mesh (None: the module's own); shardings over a mesh of the module's own are then
    over this one, whose axes have their names.

    Raises `BadOptionError` when it is run on a module with shardings over an axis that `mesh` has not, over parts of
    axes, over several meshes or for computations on parts, with another number of arguments, or with an argument of
    another rank.
    """

    def annotate(program: Program, shardings: Shardings) -> None:
        over = _mesh(program, shardings, mesh)
        main = program.main
        if len(arguments) != len(main.args):
            raise BadOptionError(
                f"the module has {len(main.args)} arguments, and shardings were given for {len(arguments)}"
            )
        for number, (value, axes) in enumerate(zip(main.args, arguments)):
            if axes is None:
                continue
            if len(axes) != value.type.rank:
                raise BadOptionError(
                    f"argument {number} has {value.type.rank} dimensions ({value.type.text}), and axes were given for "
                    f"{len(axes)}"
                )
            dims = [DimSharding(tuple(over.axis(name) for name in dim)) for dim in axes]
            set_argument(program, shardings, number, TensorSharding(over, dims))

    return annotate


def overridden(program: Program, annotate: Callable[[Program, Shardings], None]) -> ir.Module:
    """The module that says what `annotate` (see `annotating`) makes of a program's shardings; nothing is propagated."""
    shardings = read_shardings(program)
    annotate(program, shardings)
    return write(program, shardings)


def set_argument(program: Program, shardings: Shardings, number: int, sharding: TensorSharding | None) -> None:
    """Gives an argument of the entry function a sharding in place of its own, and the result that takes its place if it
    is donated: the next run takes that as this argument. None: nothing is said."""
    main = program.main
    shardings.set(main.args[number], sharding)
    shardings.asked.pop(main.args[number], None)
    alias = main.arg_attrs[number].get("tf.aliasing_output")
    if alias is not None:
        set_returned(program, shardings, ir.IntegerAttr(alias).value, sharding)


def set_returned(program: Program, shardings: Shardings, number: int, sharding: TensorSharding | None) -> None:
    """Gives a result of the entry function a sharding in place of its own. None: nothing is said."""
    shardings.results[program.main][number] = sharding
    shardings.asked.pop((program.main, number), None)


def _mesh(program: Program, shardings: Shardings, wanted: Mapping[str, int] | None) -> Mesh:
    """The program's mesh of these axes, which is added if there is none."""
    named = [m for m in program.meshes.values() if m.axes]
    if wanted is None:
        if not named:
            raise BadOptionError("the module names no mesh; give one")
        return named[0]
    axes = tuple(wanted.items())
    found = next((m for m in named if m.axes == axes and m.device_ids is None), None)
    if found is not None:
        return found
    used = next((s.mesh for s in shardings.table if s is not None and s.mesh.axes), None)
    if used is not None:
        return _resized(program, shardings, used, axes)
    for mesh in named:  # nothing is said over them
        del program.meshes[mesh.name]
    made = Mesh("mesh", axes)
    program.meshes[made.name] = made
    return made


def _resized(program: Program, shardings: Shardings, used: Mesh, axes: tuple[tuple[str, int], ...]) -> Mesh:
    """The mesh of these axes, over which the program's shardings then are: those of its own mesh by their names."""
    have, wanted = ",".join(f"{n}={s}" for n, s in used.axes), ",".join(f"{n}={s}" for n, s in axes)
    lacking = sorted(set(used.axis_names).difference(dict(axes)))
    if lacking:
        raise BadOptionError(
            f"the module has shardings over its own mesh {have}, and {wanted} has no axis {', '.join(lacking)}; "
            "give its axes other sizes, add axes, or leave the mesh out"
        )
    if "sdy.manual_computation" in program.names:
        raise BadOptionError(
            f"the module computes on parts of arrays as its own mesh {have} cuts them, so it has no meaning over "
            f"{wanted}; leave the mesh out, or make the module over that one"
        )
    others = {m.name: m for m in program.meshes.values() if m.axes and m.layout != used.layout}
    if others:
        several = ", ".join(f"@{name}" for name in (used.name, *others))
        raise BadOptionError(
            f"the module has several meshes ({several}), which cannot all become {wanted}; leave the mesh out"
        )
    made = Mesh(used.name, axes)

    def full(axis: AxisRef) -> AxisRef:
        if not axis.is_full(used):
            raise BadOptionError(
                f"the module splits the axis {axis.name} of its own mesh {have} into parts, so that it has no meaning "
                f"over {wanted}; leave the mesh out"
            )
        return made.axis(axis.name)

    def moved(sharding: TensorSharding) -> TensorSharding:
        if not sharding.mesh.axes:  # it is on one device, or says nothing of axes
            return sharding
        dims = [DimSharding(map(full, d.axes), d.is_open, d.priority) for d in sharding.dims]
        replicated, unreduced = map(full, sharding.replicated), map(full, sharding.unreduced)
        return TensorSharding(made, dims, replicated, unreduced, sharding.reduction)

    map_shardings(program, shardings, moved)
    for name in [name for name, mesh in program.meshes.items() if mesh.axes]:
        del program.meshes[name]
    program.meshes[made.name] = made
    return made
