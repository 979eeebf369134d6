"""Options that change derived rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RuleOptions"]


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """conservative  no sub-axes, no factors for concatenated and convolved spatial dimensions, size-changing factors
                     of pad, slice and windows are blocked
    version       which jaxlib's Shardy to follow where versions differ: (0, 10) or (0, 12)
    chlo          rules for CHLO operations, which Shardy does not have
    """

    conservative: bool = False
    version: tuple[int, int] = (0, 12)
    chlo: bool = False

    @property
    def is_newest(self) -> bool:
        return self.version >= (0, 12)
