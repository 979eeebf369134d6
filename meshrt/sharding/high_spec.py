"""How values of high types, which consist of several arrays, are split over a mesh."""

from __future__ import annotations

from meshrt import errors
from meshrt.sharding.spec import PartitionSpec

__all__ = ["HiPspec"]


class HiPspec:
    """How a value of a high type is split over a mesh, in `shard_map`. Subclasses are hashable and comparable."""

    def to_lo(self) -> tuple[PartitionSpec, ...]:
        """The PartitionSpec of each array that a value consists of. UnsupportedError where a subclass does not say."""
        raise errors.UnsupportedError(
            f"shard_map requires {type(self).__name__} ({self!r}) to implement the `to_lo` method, see "
            "meshrt.experimental.hijax.HiPspec"
        )

    def to_tangent_spec(self) -> HiPspec | PartitionSpec:
        """The spec of derivatives: a PartitionSpec where these are of a type of arrays."""
        return self

    def to_ct_spec(self) -> HiPspec | PartitionSpec:
        """The spec of cotangents."""
        return self.to_tangent_spec()
