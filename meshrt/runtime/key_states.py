"""Which arrays of random keys have been used up, for the setting `debug_key_reuse`.

Arrays do not say it themselves: what is known of them stands here, for as long as they live.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np

from meshrt.runtime.array import Array

__all__ = ["UNUSED", "KeyState", "set_state", "state_of"]


class KeyState(NamedTuple):
    """`used` is True or a mask of the keys that are used up, `where` the line that first used one."""

    used: Any
    where: Any


UNUSED = KeyState(False, None)

_states: dict[int, tuple[weakref.ref[Array], KeyState]] = {}


def state_of(x: Any) -> KeyState:
    """What is known of an argument; of what is no array, nothing."""
    entry = _states.get(id(x))
    return UNUSED if entry is None or entry[0]() is not x else entry[1]


def set_state(x: Any, state: KeyState) -> None:
    """Says it of an array of keys; of anything else nothing is kept."""
    if type(x) is not Array or not x.aval.is_key:
        return
    place = id(x)
    if not np.any(state.used):
        _states.pop(place, None)
        return

    def forget(gone: weakref.ref[Array]) -> None:
        if place in _states and _states[place][0] is gone:
            del _states[place]

    _states[place] = (weakref.ref(x, forget), state)
