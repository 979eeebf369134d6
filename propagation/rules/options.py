"""Options that change derived rules."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RuleOptions"]


@dataclass(frozen=True, slots=True)
class RuleOptions:
    """conservative  no sub-axes, no factors for concatenated and convolved spatial dimensions, size-changing factors
                     of pad, slice and windows are blocked
    version       which jaxlib's Shardy to follow where versions differ: (0, 10) or (0, 12), or more parts. 0.11 is as
                  0.10.2, but for `dynamic_update_slice`, which is as in 0.12 since 0.11.2
    chlo          rules for CHLO operations, which Shardy does not have
    faults        what Shardy gets wrong is copied (`Options.shardy_faults`)
    """

    conservative: bool = False
    version: tuple[int, ...] = (0, 12)
    chlo: bool = False
    faults: bool = False

    @property
    def is_newest(self) -> bool:
        return self.version >= (0, 12)
