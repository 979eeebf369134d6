"""Annotations of arguments and results that propagation had to cut, or that there are none, as findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from collectives.cost import item_bytes
from meshrt.inspect.model import FindingRow
from propagation import Propagated
from propagation.annotations import parse_sharding
from propagation.model import TensorSharding
from propagation.program import TensorType, source
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
    arguments = (arg_names, [a.type for a in main.args], main.arg_attrs, [shardings.get(a) for a in main.args])
    results = (result_names, main.result_types, main.result_attrs, shardings.results[main])
    found: list[Cut] = []
    sides: tuple[tuple[Literal["argument", "result"], Any], ...] = (("argument", arguments), ("result", results))
    for side, (names, types, dicts, decided) in sides:
        for number, (name, kind, attrs, sharding) in enumerate(zip(names, types, dicts, decided)):
            asked: Any = attrs.get("sdy.sharding")
            if asked is not None and sharding is not None and isinstance(kind, TensorType) and kind.is_static:
                said = parse_sharding(str(asked), propagated.program.meshes)
                found += _cut(side, number, name, kind, said, sharding, source(main))
    return found


def _cut(
    side: Literal["argument", "result"], number: int, name: str, kind: TensorType, said: TensorSharding,
    sharding: TensorSharding, where: str | None,
) -> Iterator[Cut]:  # fmt: skip
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
