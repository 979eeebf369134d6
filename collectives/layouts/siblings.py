"""Which value a tensor of the per-device program is a version of, for values that share tensors.

After an all-gather of x from `((0,), ())` to `((), ())`, a consumer that passes x on under another name and wants it
split again gets the shard from before the gather, instead of a slice of what was gathered. (The shape tells apart
values that share a tensor, as a slice may whose missing positions are padding.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..ir.overlay import Overlay
from ..ir.program import LocalValue, Region
from ..layout import Dims
from .state import NONE_YET, Source, State

__all__ = ["Siblings", "versions_in"]

_Tensor = tuple[LocalValue, tuple[int, ...]]  # a version, and the global shape of the value that it is one of


def versions_in(state: State, region: Region) -> Mapping[Dims, LocalValue]:
    """The versions of a value that `region` (its home, or one inside it) has for all inside of it."""
    return state.versions if region.origin is state.home else region.known.get(state, NONE_YET)


class Siblings:
    """The values that were resharded, by their versions: what was remembered of a state in a region."""

    __slots__ = ("_owners",)

    def __init__(self, owners: dict[_Tensor, tuple[State, Region]] | None = None) -> None:
        self._owners: dict[_Tensor, tuple[State, Region]] = {} if owners is None else owners

    def draft(self) -> Siblings:
        """What may be added to this."""
        return Siblings(Overlay(self._owners))

    def adopt(self, draft: Siblings) -> None:
        """Takes what was added to a draft of this."""
        self._owners.update(draft._owners)

    def remember(self, state: State, region: Region, dims: Dims, ref: LocalValue) -> None:
        """Adds a version of `state` that is visible in `region`, unless there is one in that layout."""
        versions = versions_in(state, region)
        if dims in versions:
            return
        if region.origin is state.home:
            state.remember(dims, ref)
        else:
            region.known[state] = {**versions, dims: ref}
        for other in (*versions.values(), ref):
            self._owners[other, state.shape] = state, region.origin

    def of(self, ref: LocalValue, shape: tuple[int, ...], region: Region) -> Mapping[Dims, LocalValue]:
        """All versions of the value of global `shape` that `ref` is a version of, if they are visible in `region`; none
        if it was never resharded."""
        owner = self._owners.get((ref, shape))
        at = None if owner is None else region.around(owner[1])
        return NONE_YET if owner is None or at is None else versions_in(owner[0], at)

    def sibling(
        self, ref: LocalValue, shape: tuple[int, ...], have: Dims, dims: Dims, region: Region
    ) -> LocalValue | None:
        """Another version of the same value: given that `ref` is the version laid out as `have` of a value of global
        `shape`, the version laid out as `dims`. None if `ref` was never resharded, or if none is visible in `region`.
        """
        versions = self.of(ref, shape, region)
        return versions.get(dims) if versions.get(have) is ref else None

    def more(self, sources: Sequence[Source], shape: tuple[int, ...], region: Region) -> list[Source]:
        """Further sources for a reshard to start from: of each complete one in `sources`, the other versions (visible
        in `region`) of the value that it is a version of, as `sibling` finds them."""
        out: list[Source] = []
        for have, parts in sources:
            ref = parts[()] if tuple(parts) == ((),) else None
            if ref is None:
                continue
            versions = self.of(ref, shape, region)
            if versions.get(have) is ref:
                out += [(dims, {(): other}) for dims, other in versions.items() if dims != have]
        return out
