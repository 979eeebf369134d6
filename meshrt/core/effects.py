"""What running an equation does beside computing its results.

`Eqn.effects` and `Jaxpr.effects` are sets of these (and of what other rooms add, references for one). Equations with
effects are never dropped as dead code. Those with *ordered* effects run in the order of the program: before lowering
`meshrt.transforms.ordering` threads a token through them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = [
    "CELLS", "DEBUG", "IO", "NO_DCE", "ORDERED_DEBUG", "ORDERED_IO", "DebugEffect", "Effect", "EffectTypes", "IOEffect",
    "OrderedDebugEffect", "OrderedIOEffect", "control_flow_allowed_effects", "has_ordered", "is_debug",
    "lowerable_effects",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Effect:
    """A side effect, equal to others of its name.

    `is_ordered`: such effects happen in program order. `is_debug`: they may be dropped, repeated or reordered by
    transformations, since nothing depends on them.
    """

    name: str = ""
    is_ordered: bool = False
    is_debug: bool = False

    def __repr__(self) -> str:
        return self.name or type(self).__name__


class DebugEffect(Effect):
    """Of callbacks for people: they may be dropped, repeated or reordered."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("Debug", is_debug=True)


class OrderedDebugEffect(Effect):
    """Of callbacks for people that come in the order of the program."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("OrderedDebug", is_ordered=True, is_debug=True)


class IOEffect(Effect):
    """Of callbacks that do something to the world, in any order."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("IO")


class OrderedIOEffect(Effect):
    """Of callbacks that do something to the world, in the order of the program."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("OrderedIO", is_ordered=True)


DEBUG = DebugEffect()
ORDERED_DEBUG = OrderedDebugEffect()
IO = IOEffect()
# Of what is kept though nothing uses it.
NO_DCE = Effect("NoDCE", is_debug=True)
ORDERED_IO = OrderedIOEffect()
# Of reading and writing mutable values of high types; none is left in a lowered program.
CELLS = Effect("Cells")


def has_ordered(effects: Iterable[Any]) -> bool:
    """Whether some effect has to happen in program order."""
    return any(isinstance(e, Effect) and e.is_ordered for e in effects)


def is_debug(effect: Any) -> bool:
    """Whether transformations may drop, repeat or reorder an effect."""
    return isinstance(effect, Effect) and effect.is_debug


class EffectTypes:
    """Classes of effects that programs declare for operations of their own, and say may be somewhere."""

    def __init__(self) -> None:
        self._types: set[type] = set()

    def add_type(self, effect: type) -> None:
        """Adds a class."""
        self._types.add(effect)

    def contains(self, effect: object) -> bool:
        """Whether an effect is of one of the classes."""
        return isinstance(effect, tuple(self._types))

    def filter_in(self, effects: Iterable[Any]) -> list[Any]:
        """The effects that are of one of the classes."""
        return [e for e in effects if self.contains(e)]

    def filter_not_in(self, effects: Iterable[Any]) -> list[Any]:
        """The effects that are of none of the classes."""
        return [e for e in effects if not self.contains(e)]

    def refused(self, effects: Iterable[Any]) -> list[Any]:
        """The effects of a program's own classes that are of none of these. (Those of meshrt's classes are refused
        where it is found out that something cannot be done.)"""
        return [e for e in effects if not (self.contains(e) or type(e).__module__.startswith("meshrt."))]


# What may be in loops and branches, and what programs that are compiled may have.
control_flow_allowed_effects, lowerable_effects = EffectTypes(), EffectTypes()
