"""Which processor of a device computes an operation: what `compute_on` asked, as XLA's compilers read it."""

from __future__ import annotations

from typing import Any

from meshrt.lowering.frontend_attributes import with_marks

__all__ = ["is_compute_type", "say_who_computes"]

# As people say it and as XLA does.
_PROCESSORS = {"device_host": "host", "device": "dense", "tpu_sparsecore": "sparseoffload"}
_STREAM = "gpu_stream:"
_SAYS_WHO = ("_xla_compute_type", "_xla_stream_annotation")
_CONTROL = frozenset({"stablehlo.while", "stablehlo.case", "stablehlo.if"})


def is_compute_type(kind: str) -> bool:
    """Whether `compute_on` knows this kind of processor."""
    return kind in _PROCESSORS or kind.startswith(_STREAM)


def _marks(kind: str) -> list[tuple[str, str]]:
    if kind.startswith(_STREAM):
        return [("_xla_stream_annotation", kind.removeprefix(_STREAM)), ("inlineable", "false")]
    return [("_xla_compute_type", _PROCESSORS[kind])]


def say_who_computes(items: list[Any], start: int, kind: str) -> None:
    """Says of the items of a body from `start` on, inside of control flow as well, that this processor computes them.

    An inner `compute_on` has spoken before. Constants are copied to their uses.
    """
    for i in range(start, len(items)):
        name, operands, results, attrs, regions, loc, other = items[i]
        if name in _CONTROL:
            for body in regions:
                say_who_computes(body.items, 0, kind)
        if name != "stablehlo.constant" and results and not any(key in other for key in _SAYS_WHO):
            items[i] = (name, operands, results, attrs, regions, loc, with_marks(other, _marks(kind)))
