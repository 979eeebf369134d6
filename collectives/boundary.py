"""What stands at the edges of a program: the mesh that it is over, its arguments and results, and whether these are
such as one device can take and return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from propagation.locations import value_source
from propagation.model import Mesh, TensorSharding
from propagation.program import Func, Op, Program, Value, argument_names, source

from .annotations import KnownShardings
from .errors import MeshMismatchError, UnreducedResultError, UnsupportedShardingError
from .layout import Atoms, Dims

__all__ = ["argument_text", "check_divided", "check_reduced", "mesh_of", "result_cause", "result_text"]


def argument_text(main: Func, i: int) -> str:
    """`argument 1 (state['w'])`; the name is what the module's locations say."""
    name = argument_names(main)[i]
    return f"argument {i} ({name})" if name else f"argument {i}"


def result_text(main: Func, i: int) -> str:
    """`result 0 (result['loss'])`."""
    attr = main.result_attrs[i].get("jax.result_info") if i < len(main.result_attrs) else None
    name = "" if attr is None else str(attr).strip('"')  # printed, it is text whatever bytes it holds
    return f"result {i} ({name})" if name else f"result {i}"


def result_cause(func: Func, i: int) -> str:
    """`result 0 (result['loss']) of @main`: what collectives that lay out a result are caused by."""
    return f"{result_text(func, i)} of @{func.name}"


# -- the mesh -------------------------------------------------------------------------------------------------


def mesh_of(known: KnownShardings) -> Mesh:
    """The one mesh that the program's shardings are over; a program without any runs on one device.

    Raises `MeshMismatchError` if there are several, or several orders of devices, or if an argument or result is on one
    device alone. An operation may be placed on one device: callbacks run there (see `partition/callback.py`), any other
    is as good as replicated.
    """
    meshes = [m for m in known.program.meshes.values() if not m.is_empty]
    real = {(m.axes, m.device_ids): m for m in meshes if not m.is_maximal}
    if len(real) < 2 and len(real) == len({m.name for m in meshes}):
        return next(iter(real.values()), Mesh("mesh", ()))
    used: dict[tuple[Any, ...], tuple[Mesh, str | None, str]] = {}
    for sharding, where, what, is_boundary in _uses(known):
        mesh = sharding.mesh
        if mesh.is_maximal:
            if not is_boundary:
                continue
            assert mesh.device_ids, "a maximal mesh names its device"
            raise MeshMismatchError(
                f"{what()} is placed on device {mesh.device_ids[0]} alone, by mesh @{mesh.name}; a partitioned program "
                "runs on all devices of one mesh: remove that sharding, or replicate the value over the mesh",
                where(),
            )
        if not mesh.is_empty:
            key = mesh.axes, mesh.device_ids
            if key not in used:
                used[key] = mesh, where(), what()
    if len(used) > 1:
        raise _several(list(used.values()))
    if not used and len(real) > 1:
        raise _several([(m, None, "nothing") for m in real.values()])
    return next((mesh for mesh, _, _ in used.values()), None) or next(iter(real.values()), Mesh("mesh", ()))


def _several(found: list[tuple[Mesh, str | None, str]]) -> MeshMismatchError:
    shapes = {m.axes for m, _, _ in found}
    texts = ", ".join(f"@{m.name} {m.to_text()} of {what}" for m, _, what in found)
    if len(shapes) == 1:
        message = f"the module has meshes of one shape in several orders of devices ({texts}); use one order"
    else:
        message = f"the module has meshes of different shapes ({texts}); use one mesh shape per program"
    return MeshMismatchError(message, found[1][1])


def _uses(known: KnownShardings) -> Iterator[tuple[TensorSharding, Callable[[], str | None], Callable[[], str], bool]]:
    """(sharding, its source line, what has it, whether that is an argument or result of the program), in the order of
    the program."""
    program: Program = known.program
    for func in program.funcs.values():
        is_main = func is program.main
        for i, v in enumerate(func.args):
            if (s := known.shardings.get(v)) is not None:
                yield s, partial(value_source, v), partial(_of, argument_text, func, i), is_main and v.type.is_tensor
        for i, s in enumerate(known.shardings.results.get(func, ())):
            if s is not None:
                is_tensor = func.returned[i].type.is_tensor
                yield s, partial(source, func), partial(_of, result_text, func, i), is_main and is_tensor
    for op in program.ops():
        for s in (op.data or {}).get("in_shardings", ()):
            if s is not None:
                yield s, partial(source, op), partial("an operand of {}".format, op.name), False
        for v in op.results:
            if (s := known.shardings.get(v)) is not None:
                yield s, partial(source, op), partial("a result of {}".format, op.name), False


def _of(text: Callable[[Func, int], str], func: Func, i: int) -> str:
    return f"{text(func, i)} of @{func.name}"


# -- arguments and results ------------------------------------------------------------------------------------


def check_divided(atoms: Atoms, main: Func, ins: Sequence[Dims], outs: Sequence[Dims]) -> None:
    """Raises `UnsupportedShardingError` for an argument or result of which devices would hold pieces of several sizes:
    most runtimes know no such arrays."""
    groups = ((main.args, ins, argument_text), (main.returned, outs, result_text))
    for values, layouts, name in groups:
        for i, (v, dims) in enumerate(zip(values, layouts)):
            for d, (n, split) in enumerate(zip(v.type.shape, dims)):
                p = atoms.product(split)
                if n % p:
                    raise UnsupportedShardingError(
                        f"{name(main, i)} of @{main.name} is {atoms.text(v.type.shape, v.type.dtype, dims)}: dimension "
                        f"{d} has size {n}, which {atoms.axes_text(split)} ({p} devices) does not divide; make it "
                        f"{-(-n // p) * p}, shard another dimension, let propagation keep the axes that divide it "
                        "(python -m propagation closed), or fill the pieces up and pass uneven_boundary=True",
                        value_source(v) if values is main.args else source(main),
                    )


def check_reduced(atoms: Atoms, main: Func, shardings: Sequence[TensorSharding | None]) -> None:
    """Raises `UnreducedResultError` for a result that is declared unreduced."""
    for i, (s, v) in enumerate(zip(shardings, main.returned)):
        axes = atoms.of_axes(s.unreduced) if s is not None else ()
        if s is not None and axes:
            text = atoms.text(v.type.shape, v.type.dtype, atoms.dims(s))
            by = f"made by {v.op.name}" if v.op is not None else _as_argument(main, v)
            raise UnreducedResultError(
                f"{result_text(main, i)} of @{main.name} ({text}, {by}) is declared unreduced over "
                f"{atoms.axes_text(axes)}: each of {atoms.product(axes)} devices would return an addend, and nobody "
                "adds them up; declare it without unreduced axes to have the sum, or pass unreduced_results=True if "
                "the caller adds them up",
                source(v.owner) if isinstance(v.owner, Op) else value_source(v),
            )


def _as_argument(main: Func, value: Value) -> str:
    return argument_text(main, value.number)
