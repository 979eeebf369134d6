"""`jax.experimental.shard_map`: the older spelling of `meshrt.shard_map`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshrt.shard_map import shard_map as _shard_map

__all__ = ["shard_map"]


def shard_map(
    f: Callable[..., Any],
    mesh: Any,
    in_specs: Any,
    out_specs: Any,
    check_rep: bool = True,
    auto: frozenset[Any] = frozenset(),
) -> Callable[..., Any]:
    """As `meshrt.shard_map`: `check_rep` is its `check_vma`, `auto` are the axes that are not in its `axis_names`."""
    names = frozenset(mesh.axis_names) - frozenset(auto)
    mapped: Callable[..., Any] = _shard_map(
        f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=names, check_vma=check_rep
    )
    return mapped
