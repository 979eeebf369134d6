"""Layouts and kinds of memory that `jit` was told, in a Format or a sharding, beside those that values have."""

from __future__ import annotations

from typing import Any

from meshrt import errors
from meshrt.pipeline.origins import Origin, said
from meshrt.runtime.array import Array
from meshrt.sharding.layout import AUTO, Format, Layout
from meshrt.sharding.named import Sharding

__all__ = ["check_layout", "check_memory", "layout_asked", "memory_of"]


def layout_asked(asked: Any) -> Layout | None:
    """The layout that a result is to have, if it is another than that which programs return."""
    layout = asked.layout if isinstance(asked, Format) and isinstance(asked.layout, Layout) else None
    return None if layout is None or layout.is_default else layout


def memory_of(asked: Any) -> str | None:
    """The kind of memory that a sharding or Format names beside the devices' own one."""
    sharding = asked.sharding if isinstance(asked, Format) else asked
    return sharding.other_memory if isinstance(sharding, Sharding) else None


def check_layout(given: Any, leaf: Array, origin: Origin) -> None:
    """ShardingError if a committed argument has another layout than jit was told, or jit was told to choose one."""
    layout = given.layout if isinstance(given, Format) else None
    found = leaf._sig.layout
    if layout is AUTO or (isinstance(layout, Layout) and (found is not None or not layout.is_default)):
        if not isinstance(layout, Layout) or found is None or not layout.agrees(found):
            raise errors.ShardingError(
                f"Layout passed to jit does not match the layout on the respective arg. Got jit layout: {layout},\n"
                f"arg layout: {leaf.layout} for {said(origin)}. Bring it into that layout with meshrt.device_put(x, "
                "Format(layout, sharding)), or leave the layout out"
            )


def check_memory(given: Any, leaf: Array, origin: Origin) -> None:
    """ShardingError if an argument, committed or not, lies in another memory than jit was told."""
    asked, here = given.sharding if isinstance(given, Format) else given, leaf.sharding
    if not isinstance(asked, Sharding) or not asked.is_concrete:
        return
    if not asked.is_in_memory_of(here):
        raise errors.ShardingError(
            "Memory kinds passed to jit does not match memory kind on the respective arg. Got jit memory kind: "
            f"{asked.memory_kind}, arg memory kind: {here.memory_kind} for {said(origin)}. Move it "
            "with meshrt.device_put, or drop the memory kind"
        )
