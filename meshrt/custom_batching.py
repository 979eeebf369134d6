"""Functions that are mapped by rules of their own: names and signatures are those of ``jax.custom_batching``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshrt import tree_util
from meshrt.primitives.control import map as _map
from meshrt.transforms.custom_vmap import custom_vmap

__all__ = ["custom_vmap", "sequential_vmap"]


def sequential_vmap(f: Callable[..., Any]) -> custom_vmap:
    """A function that `vmap` calls for one member of the batch after another, in a loop.

    For functions that cannot be mapped, such as a kernel of a fixed rank, or that had better not be, for memory.

    >>> f = sequential_vmap(lambda x: x + 1)
    >>> meshrt.vmap(f)(jnp.arange(3))
    Array([1, 2, 3], dtype=int32)
    """
    mapped = custom_vmap(f)

    @mapped.def_vmap
    def rule(axis_size: int, in_batched: list[Any], *args: Any) -> Any:
        leaves, tree = tree_util.tree_flatten(args)
        flags = tree_util.tree_leaves(in_batched)

        def member(values: list[Any]) -> Any:
            each = iter(values)
            return mapped(*tree_util.tree_unflatten(tree, [next(each) if b else x for x, b in zip(leaves, flags)]))

        out = _map(member, [x for x, b in zip(leaves, flags) if b])
        return out, tree_util.tree_map(lambda _: True, out)

    return mapped
