"""Whether a program fits into a device's memory, as far as that is certain before a compiler has seen it.

Certain are the arguments and results, what a collective moves, and what a contraction or its like makes for another one
to read. Compilers may fuse all else away; of that there is an estimate (`passes.memory`).
"""

from __future__ import annotations

from collections.abc import Sequence

from propagation.locations import location_text, value_source
from propagation.ops import having
from propagation.parsing import parse
from propagation.program import Func

from ..boundary import argument_text, result_text
from ..errors import DeviceMemoryError
from ..findings import human
from ..heuristics import SHOWN_SHARE, SHOWN_VALUES
from ..ir.program import LocalFunction, LocalOp, LocalValue, ModuleBuilder, Region
from ..ir.walker import inputs, walk
from ..layout import Atoms, Dims
from ..machine import ref_bytes
from ..passes.memory import boundary
from .communication import origin

__all__ = ["Capacity"]

_WHOLE = having("library")  # what they read and make for each other is in memory


class Capacity:
    """What a device of a machine, called `machine`, holds: `limit` bytes."""

    def __init__(self, atoms: Atoms, machine: str, limit: float):
        self._atoms, self._machine, self._limit = atoms, machine, limit

    def check_boundary(self, main: Func, item: LocalFunction, ins: Sequence[Dims], outs: Sequence[Dims]) -> None:
        """Raises `DeviceMemoryError` for arguments and results that do not fit: no compiler can help."""
        need = boundary(item)
        if need <= self._limit:
            return
        sized = [
            (ref_bytes(ref), name(main, i), v, dims)
            for refs, values, layouts, name in (
                (item.region.args, main.args, ins, argument_text),
                (item.results, main.returned, outs, result_text),
            )
            for i, (ref, v, dims) in enumerate(zip(refs, values, layouts))
        ]
        sized.sort(key=lambda s: -s[0])
        largest = [
            f"{name} {self._atoms.text(v.type.shape, v.type.dtype, dims)} {human(n)}{_at(value_source(v))}"
            for n, name, v, dims in sized[:SHOWN_VALUES]
        ]
        raise DeviceMemoryError(
            f"the program does not fit {self._machine}: a device needs {human(need)} for its arguments and "
            f"results alone and has {human(self._limit)}; the largest are {'; '.join(largest)}. Shard them over more "
            "axes (what is replicated is whole on every device), use a larger topology, or donate arguments that are "
            "replaced",
            value_source(sized[0][2]),
        )

    def refused(self, main: LocalFunction, builder: ModuleBuilder) -> DeviceMemoryError | None:
        """The error for an operation whose operands and results do not fit beside the arguments that the caller keeps;
        None if there is no such one."""
        donated = set(main.donated)
        fixed = sum(ref_bytes(a) for a in main.region.args if a not in donated)
        worst: tuple[float, Region, LocalOp] | None = None
        for function in builder.functions:
            for region in walk(function.region):
                for item in (*region.prologue, *region.items):
                    held = _held(item)
                    if fixed + held > self._limit and (worst is None or held > worst[0]):
                        worst = held, region, item
        if worst is None:
            return None
        held, region, item = worst
        return self._too_large(item, region, fixed + held, fixed, builder)

    def _too_large(
        self, item: LocalOp, region: Region, need: float, fixed: float, builder: ModuleBuilder
    ) -> DeviceMemoryError:
        does = f"{item.name} reads {', '.join(r.type for r in item.operands)}"
        if item.collective is not None:
            results = ", ".join(r.type for r in item.results)
            does = f"{item.collective.kind} for {origin(item.collective)[1]} makes {results}"
        beside = f" ({human(fixed)} of it for arguments)" if fixed else ""
        alive = _alive(region, item)
        shown = [r for r in alive[:SHOWN_VALUES] if ref_bytes(r) > SHOWN_SHARE * ref_bytes(alive[0])]
        largest = "; ".join(f"{r.type} {human(ref_bytes(r))}{_at(_made(r, builder))}" for r in shown)
        return DeviceMemoryError(
            f"the program does not fit {self._machine}: the {does}, for which a device needs "
            f"{human(need)}{beside} and has {human(self._limit)}; the largest values there are {largest}. Shard what "
            "is gathered or made over more axes, annotate its users so that they take it sharded, use smaller batches, "
            "or use a larger topology",
            _where(item, builder),
        )


def _held(item: LocalOp) -> float:
    """Bytes that are in memory at once for an item, whatever compilers fuse, besides arguments."""
    if item.collective is None and item.name not in _WHOLE:
        return 0.0
    read = [r for r in item.operands if r.item is not None and (item.collective or r.item.name in _WHOLE)]
    if item.collective is not None:
        kind = item.collective.facts
        in_place = not kind.gathers and not kind.scatters  # operand and result of one size
        return sum(map(ref_bytes, item.results)) + (0 if in_place else sum(map(ref_bytes, read)))
    return sum(map(ref_bytes, dict.fromkeys(read)))


def _alive(region: Region, item: LocalOp) -> list[LocalValue]:
    """What lives in a region while an item runs, the largest first."""
    items = [*region.prologue, *region.items]
    at = items.index(item)
    later = {r for other in items[at:] for r in inputs(other)}
    refs = [r for other in items[:at] for r in other.results if r in later]
    return sorted({*refs, *region.args, *item.results}, key=lambda r: -ref_bytes(r))


def _made(ref: LocalValue, builder: ModuleBuilder) -> str | None:
    return None if ref.item is None else _where(ref.item, builder)


def _where(item: LocalOp, builder: ModuleBuilder) -> str | None:
    """The user's line of an item."""
    if item.collective is not None:
        return origin(item.collective)[0]
    text = next((text for text, alias in builder.locations.items() if alias == item.loc), None)
    if text is None:
        return None
    return location_text(parse(f"module {{}} loc({text})", trusted=True).operation.location)


def _at(where: str | None) -> str:
    return f" at {where}" if where else ""
