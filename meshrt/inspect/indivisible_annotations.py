"""Annotations of arguments and results that propagation had to cut, or that there are none, as findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from collectives.cost import item_bytes
from meshrt.inspect.model import FindingRow
from propagation import Propagated
from propagation.model import TensorSharding
from propagation.program import OtherType, TensorType, source
from propagation.replicas import replicas_of

__all__ = ["Cut", "replicas_finding", "undivided", "undivided_annotations"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Dimension `dim` of argument or result `number` is annotated with `axes` that do not divide it, so that it is
    split over fewer; `bytes` are what each device holds more than if they did."""

    kind: Literal["argument", "result"]
    number: int
    dim: int
    axes: tuple[str, ...]
    message: str
    where: str | None
    bytes: float


def undivided_annotations(
    propagated: Propagated, arg_names: Sequence[str], result_names: Sequence[str]
) -> tuple[FindingRow, ...]:
    """A finding for each dimension of an argument or result that is annotated with axes that do not divide it."""
    cuts = undivided(propagated, arg_names, result_names)
    return tuple(FindingRow("undivided_annotation", c.message, c.where, c.bytes) for c in cuts)


def replicas_finding(propagated: Propagated) -> tuple[FindingRow, ...]:
    """A finding if replicas run the program, so that nothing says what their arguments and results are pieces of."""
    count = replicas_of(propagated.program)
    if count is None:
        return ()
    return (
        FindingRow(
            "replicas",
            f"this is the program of one device, which {count} replicas run, each with values of its own: arguments "
            "and results are shown as one of them holds them, and mesh axes as parts of the replicas' numbers",
            None,
            0.0,
        ),
    )


def undivided(propagated: Propagated, arg_names: Sequence[str], result_names: Sequence[str]) -> list[Cut]:
    """Each dimension of an argument or result that is annotated with axes that do not divide it."""
    main, shardings = propagated.program.main, propagated.shardings
    where = source(main)
    found: list[Cut] = []
    for number, (name, value) in enumerate(zip(arg_names, main.args)):
        said, sharding = shardings.asked.get(value), shardings.get(value)
        found += _cut("argument", number, name, value.type, said, sharding, where)
    for number, (name, kind, sharding) in enumerate(zip(result_names, main.result_types, shardings.results[main])):
        said = shardings.asked.get((main, number))
        found += _cut("result", number, name, kind, said, sharding, where)
    return found


def _cut(
    side: Literal["argument", "result"], number: int, name: str, kind: TensorType | OtherType,
    said: TensorSharding | None, sharding: TensorSharding | None, where: str | None,
) -> Iterator[Cut]:  # fmt: skip
    if said is None or sharding is None or not isinstance(kind, TensorType):
        return
    held = kind.size * item_bytes(kind.dtype)
    for d, (size, asked, got) in enumerate(zip(kind.shape, said.dims, sharding.dims)):
        if got.factor < asked.factor and size % asked.factor:
            axes = tuple(a.name for a in asked.axes)
            now = f"split into {got.factor}" if got.factor > 1 else "whole"
            message = (
                f"dimension {d} of {name} is annotated with {'+'.join(axes)}, but its size {size} does not divide by "
                f"{asked.factor}: it is {now}; pad it to {-(-size // asked.factor) * asked.factor}"
            )
            others = 1
            for dim in sharding.dims[:d] + sharding.dims[d + 1 :]:
                others *= dim.factor
            more = held / others * (1 / got.factor - 1 / asked.factor)
            yield Cut(side, number, d, axes, message, where, more)
