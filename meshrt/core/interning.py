"""Interned values that nobody uses any more are dropped, so that a program of ever new shapes does not grow.

Interned values are compared by identity, so one may be dropped only if nobody can hold it: then a later equal one is
simply the first of its kind. Weak dictionaries would do the same and cost five times as much at every lookup.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["sweep"]


def sweep(interned: dict[Any, Any], links: tuple[str, ...] = ()) -> None:
    """Drops the values of `interned` that only it refers to; `links` are attributes by which one may refer to itself.

    The caller holds the lock that values are added under. Values are looked up without it: whoever found one before it
    was taken out holds it, and it goes back; whoever comes later waits for the lock.
    """
    keys: dict[int, list[Any]] = {}
    for key in list(interned):
        keys.setdefault(id(interned[key]), []).append(key)
    for same in keys.values():
        for key in same:
            value = interned.pop(key)
        itself = sum(getattr(value, name, None) is value for name in links)
        if sys.getrefcount(value) > 2 + itself:  # `value` here, and the argument of getrefcount
            interned.update(dict.fromkeys(same, value))
        del value
