"""How the elements of an array lie in a device's memory, and, with its sharding, where all of it lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshrt import errors
from meshrt.sharding.named import Sharding

__all__ = ["Format", "Layout"]


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of a device's elements in memory, under the names of `jax.experimental.layout.Layout`.

    major_to_minor   dimensions, the slowest to vary first: (0, 1) is row-major, (1, 0) column-major
    tiling           tiles of the minor dimensions, outermost first, as a TPU has them: ((8, 128), (2, 1)); () is none,
                     None is not said
    sub_byte_element_size_in_bits   of packed elements, such as 4 for int4; 0 of all others
    """

    major_to_minor: tuple[int, ...]
    tiling: tuple[tuple[int, ...], ...] | None = None
    sub_byte_element_size_in_bits: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "major_to_minor", tuple(self.major_to_minor))
        if self.tiling is not None:
            object.__setattr__(self, "tiling", tuple(tuple(tile) for tile in self.tiling))
        if sorted(self.major_to_minor) != list(range(len(self.major_to_minor))):
            raise errors.ArgumentValueError(
                f"major_to_minor names each dimension once, as (1, 0) does. Got {self.major_to_minor}"
            )


@dataclass(frozen=True, slots=True)
class Format:
    """Where an array lies: the layout of each device's part and the sharding over devices. None is what is not known
    of an array, or was not asked for; an array with a layout has a sharding."""

    layout: Layout | None = None
    sharding: Sharding | None = None

    def __post_init__(self) -> None:
        _check("layout", self.layout, Layout)
        _check("sharding", self.sharding, Sharding)
        if self.layout is not None and self.sharding is None:
            raise errors.ArgumentValueError(
                f"a Format with the layout {self.layout} needs a sharding too: give a NamedSharding, or a "
                "SingleDeviceSharding for one device"
            )


def _check(name: str, value: Any, kind: type) -> None:
    if value is not None and not isinstance(value, kind):
        raise errors.ArgumentTypeError(
            f"the {name} of a Format is a {kind.__name__} or None. Got {value!r} of type {type(value).__name__}"
        )
