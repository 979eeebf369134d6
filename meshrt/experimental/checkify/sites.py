"""The places of a program where an error may arise, and the error that is passed through it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from meshrt import tree_util
from meshrt.core.basic.shapes import zeros
from meshrt.core.types import aval_of
from meshrt.experimental.checkify.failures import Error, ErrorCategory, FailedCheckError, JaxException, Site
from meshrt.numpy import asarray, broadcast_to, expand_dims, logical_and, logical_or, maximum, shape, where
from meshrt.primitives.random import random_wrap

__all__ = ["Sites"]


class Sites:
    """The sites of one program, by what names each (the equation, and the which of its checks).

    Programs are walked twice: first to find the sites (`is_open`), then with an error for all of them, so that it has
    one structure everywhere: in loops, in branches, in the result. The error is a flat list: the code, then what each
    site tells.
    """

    def __init__(self, enabled: frozenset[ErrorCategory]):
        self.enabled = enabled
        self.is_open = True
        self._found: dict[Hashable, tuple[int, Site]] = {}

    def looks_for(self, kind: ErrorCategory) -> bool:
        """Whether errors of a kind are asked for."""
        return kind in self.enabled

    def __len__(self) -> int:
        return len(self._found)

    def initial(self) -> list[Any]:
        """No error."""
        types = [t for _, site in self._found.values() for t in site.types]
        return [np.int32(-1), *map(_zeros, types)]

    def note(self, state: Sequence[Any], key: Hashable, bad: Any, exception: JaxException) -> list[Any]:
        """The error `exception` where `bad`, if there was none before; what users check comes before all else."""
        arrays, structure = tree_util.tree_flatten(exception)
        if self.is_open:
            types = tuple(aval_of(a).bare() for a in arrays)
            self._found.setdefault(key, (len(self._found), Site(structure, types)))
            return list(state)
        number, _ = self._found[key]
        now = logical_and(bad, self._gives_way(state[0], exception))
        updated = [where(now, np.int32(number), state[0])]
        place = 1
        for other, (_, site) in self._found.items():
            mine = state[place : place + len(site.types)]
            updated += [_chosen(now, a, m) for a, m in zip(arrays, mine)] if other == key else mine
            place += len(site.types)
        return updated

    def _gives_way(self, code: Any, exception: JaxException) -> Any:
        """Whether the error of a code, if it is one, is not kept when `exception` is found."""
        automatic = np.array([s.structure.node_data()[0] is not FailedCheckError for _, s in self._found.values()])
        if not isinstance(exception, FailedCheckError) or not automatic.any():
            return code < 0
        return logical_or(code < 0, asarray(automatic)[maximum(code, 0)])

    def error(self, state: Sequence[Any]) -> Error:
        """The error of a whole program as users see it."""
        rest = iter(state[1:])
        payloads = {number: [next(rest) for _ in site.types] for number, site in self._found.values()}
        return Error(state[0], payloads, dict(self._found.values()))


def _chosen(now: Any, new: Any, old: Any) -> Any:
    """What a site tells, `new` where `now`: of each device, if there are errors of several."""
    rank, inner = len(shape(now)), shape(new)
    if not rank:
        return where(now, new, old)
    now = expand_dims(now, range(rank, rank + len(inner)))
    return where(now, new, broadcast_to(old, (*shape(now)[:rank], *inner)))


def _zeros(aval: Any) -> Any:
    return random_wrap(zeros(aval.physical()), aval.dtype.impl) if aval.is_key else zeros(aval)
