"""Which processor of a device computes an operation, where the program says so; its pieces are computed by the same.

Frontends say it in `mhlo.frontend_attributes` (`_xla_compute_type = "host"`, or a stream). What communicates is left to
the device, whose links are its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from propagation.graph import Op

from ..analysis.bodies import FRONTEND
from ..ir.attributes import Given
from ..ir.program import LocalOp

__all__ = ["keep"]

_SAYS_WHO = ("_xla_compute_type", "_xla_stream_annotation")


def keep(op: Op, items: Iterable[LocalOp]) -> None:
    """Says of the operations that `op` became who computes them, if it is said of `op`.

    What has no operands is no work. What has such attributes is a copy of `op`, which says it already.
    """
    said = str(op.attrs[FRONTEND])
    if not any(key in said for key in _SAYS_WHO) or "_xla_buffer_placement" in said:
        return
    for item in items:
        if item.collective is None and item.operands and item.attribute(FRONTEND) is None:
            item.extra = item.extra.also({FRONTEND: Given(op.attrs[FRONTEND])})
