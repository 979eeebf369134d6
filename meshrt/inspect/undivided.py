"""Annotations of arguments and results that propagation had to cut, as findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from collectives.cost import item_bytes
from meshrt.inspect.model import FindingRow
from propagation import Propagated
from propagation.annotations import parse_sharding
from propagation.model import TensorSharding
from propagation.program import TensorType, source

__all__ = ["undivided_annotations"]


def undivided_annotations(
    propagated: Propagated, arg_names: Sequence[str], result_names: Sequence[str]
) -> tuple[FindingRow, ...]:
    """A finding for each dimension of an argument or result that is annotated with axes that do not divide it, so that
    it is split over fewer; `bytes` are what each device holds more than if they did."""
    main, shardings = propagated.program.main, propagated.shardings
    arguments = (arg_names, (a.type for a in main.args), main.arg_attrs, [shardings.get(a) for a in main.args])
    results = (result_names, main.result_types, main.result_attrs, shardings.results[main])
    found: list[FindingRow] = []
    for names, types, dicts, decided in (arguments, results):
        for name, kind, attrs, sharding in zip(names, types, dicts, decided):
            asked: Any = attrs.get("sdy.sharding")
            if asked is not None and sharding is not None and isinstance(kind, TensorType) and kind.is_static:
                said = parse_sharding(str(asked), propagated.program.meshes)
                found += _cut(name, kind, said, sharding, source(main))
    return tuple(found)


def _cut(
    name: str, kind: TensorType, said: TensorSharding, sharding: TensorSharding, where: str | None
) -> Iterator[FindingRow]:
    held = kind.size * item_bytes(kind.dtype)
    for d, (size, asked, got) in enumerate(zip(kind.shape, said.dims, sharding.dims)):
        if got.factor < asked.factor and size % asked.factor:
            axes = "+".join(a.name for a in asked.axes)
            now = f"split into {got.factor}" if got.factor > 1 else "whole"
            message = (
                f"dimension {d} of {name} is annotated with {axes}, but its size {size} does not divide by "
                f"{asked.factor}: it is {now}; pad it to {-(-size // asked.factor) * asked.factor}"
            )
            rest = sharding.dims[:d] + sharding.dims[d + 1 :]
            others = 1
            for dim in rest:
                others *= dim.factor
            yield FindingRow(
                "undivided_annotation", message, where, held / others * (1 / got.factor - 1 / asked.factor)
            )
