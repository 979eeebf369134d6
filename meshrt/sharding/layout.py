"""How the elements of an array lie in a device's memory, and, with its sharding, where all of it lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshrt import errors
from meshrt.sharding.named import Sharding

__all__ = ["AUTO", "Format", "Layout"]


class _AutoLayout:
    """`Layout.AUTO`: the compiler chooses."""

    def __repr__(self) -> str:
        return "AUTO"

    def __reduce__(self) -> str:
        return "AUTO"


AUTO = _AutoLayout()


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of a device's elements in memory, under the names of `jax.experimental.layout.Layout`.

    `Layout.AUTO`, in a Format for `jit`, leaves it to the compiler.

    major_to_minor   dimensions, the slowest to vary first: (0, 1) is row-major, (1, 0) column-major
    tiling           tiles of the minor dimensions, outermost first, as a TPU has them: ((8, 128), (2, 1)); () is none,
                     None is not said
    sub_byte_element_size_in_bits   of packed elements, such as 4 for int4; 0 of all others

    Raises:
      ArgumentValueError: `major_to_minor` does not name each dimension once.

    >>> Layout((1, 0)).is_default, Layout((0, 1)).is_default
    (False, True)
    """

    major_to_minor: tuple[int, ...]
    tiling: tuple[tuple[int, ...], ...] | None = None
    sub_byte_element_size_in_bits: int = 0

    AUTO: ClassVar[_AutoLayout] = AUTO

    def __post_init__(self) -> None:
        object.__setattr__(self, "major_to_minor", tuple(self.major_to_minor))
        if self.tiling is not None:
            object.__setattr__(self, "tiling", tuple(tuple(tile) for tile in self.tiling))
        if sorted(self.major_to_minor) != list(range(len(self.major_to_minor))):
            raise errors.ArgumentValueError(
                f"major_to_minor names each dimension once, as (1, 0) does. Got {self.major_to_minor}"
            )

    def check_rank(self, shape: tuple[int, ...], what: str) -> None:
        """ArgumentValueError unless it is for values of as many dimensions; `what` says whose layout it is."""
        if len(self.major_to_minor) != len(shape):
            raise errors.ArgumentValueError(
                f"{what} is incompatible with its layout annotation {self}: Length of major_to_minor and the rank of "
                f"the value should match. Got major_to_minor={self.major_to_minor} and shape={shape}"
            )

    def agrees(self, found: Layout) -> bool:
        """Whether the layout `found` of an array is this one, in all that both say."""
        tilings = (self.tiling, found.tiling)
        return self.major_to_minor == found.major_to_minor and (None in tilings or tilings[0] == tilings[1])

    @property
    def is_default(self) -> bool:
        """Whether it is row-major and not tiled, as arrays lie in memory unless asked otherwise."""
        return self.major_to_minor == tuple(range(len(self.major_to_minor))) and not self.tiling


@dataclass(frozen=True, slots=True)
class Format:
    """Where an array lies: the layout of each device's part and the sharding over devices. None is what is not known
    of an array, or was not asked for; an array with a layout has a sharding.

    Raises:
      ArgumentTypeError: neither None nor a Layout, `Layout.AUTO`, a Sharding. ArgumentValueError: a Layout without a
        sharding.
    """

    layout: Layout | _AutoLayout | None = None
    sharding: Sharding | None = None

    def __post_init__(self) -> None:
        if self.layout is not None and not isinstance(self.layout, (Layout, _AutoLayout)):
            raise errors.ArgumentTypeError(
                "Invalid value received for the layout argument. Expected values are `None`, `Layout.AUTO` or an "
                f"instance of `Layout`. Got {self.layout} of type {type(self.layout)}"
            )
        if self.sharding is not None and not isinstance(self.sharding, Sharding):
            raise errors.ArgumentTypeError(
                "Invalid value received for the sharding argument. Expected values are `None` or an instance of "
                f"`meshrt.sharding.Sharding`. Got {self.sharding} of type {type(self.sharding)}"
            )
        if isinstance(self.layout, Layout) and self.sharding is None:
            raise errors.ArgumentValueError(
                f"Sharding has to be concrete when layout is of type {type(self.layout)}. Please pass a "
                "`meshrt.sharding.NamedSharding` or `meshrt.sharding.SingleDeviceSharding` to the sharding argument. "
                f"Got sharding {self.sharding}"
            )

    @property
    def is_auto(self) -> bool:
        """Whether the compiler chooses the layout."""
        return self.layout is AUTO
