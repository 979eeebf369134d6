"""Two values that are to be sharded alike: members of one sharding group.

shard_alike x y  ->  x, y
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.basic.shapes import bring_to_front
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.source import capture
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.transforms.high import flatten

__all__: list[str] = []


def _lower(ctx: LoweringContext, eqn: Eqn, x: Any, y: Any) -> Any:
    if ctx.module.mesh is None:
        return x, y
    number = ctx.module.fresh_group()
    for value in (x, y):
        ctx.ops("sdy.sharding_group", [value], (), f"group_id = {number} : i64")
    return x, y


def _jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    return shard_alike_p.bind(*primals), _alike(*tangents)


def _alike(x: Any, y: Any) -> Sequence[Any]:
    """Tangents or cotangents; where one is zero there is nothing to be like."""
    return [x, y] if x is None or y is None else shard_alike_p.bind(x, y)


def _batch(size: int, args: list[Any], dims: list[int | None], params: dict[str, Any]) -> tuple[Any, Any]:
    x, y = args
    if dims[0] != dims[1]:
        x, y = (bring_to_front(size, a, d) for a, d in zip(args, dims))
        dims = [0, 0]
    return shard_alike_p.bind(x, y), dims


def _infer(x: ShapedArray, y: ShapedArray) -> Any:
    return x, y


shard_alike_p = Primitive(
    "shard_alike", _infer, lower=_lower, jvp=_jvp, transpose=lambda cts, x, y: list(_alike(*cts)), batch=_batch,
    multiple_results=True, cheap=True,
)  # fmt: skip


def shard_alike(x: Any, y: Any) -> tuple[Any, Any]:
    """`(x, y)`, of which propagation shards each array of `x` as it does the one at the same place of `y`.

    >>> x, y = shard_alike(jnp.ones(8), jnp.zeros(8))      # doctest: +SKIP

    Derivatives are sharded alike as well. Raises ShardingError for trees that differ, and for arrays of unequal shapes.
    """
    xs, tree = flatten(x)
    ys, other = flatten(y)
    if tree != other:
        raise errors.ShardingError(
            f"shard_alike at {capture()}: Trees should be equal. Got x_tree: {tree}, y_tree: {other}"
        )
    for path, a, b in zip(tree_util.tree_leaves_with_path(x), xs, ys):
        shapes = aval_of(a).shape, aval_of(b).shape
        if shapes[0] != shapes[1]:
            raise errors.ShardingError(
                f"shard_alike at {capture()}: the leaves shapes of `x` and `y` should match. Got `x` leaf shape: "
                f"{shapes[0]} and `y` leaf shape: {shapes[1]} at x{tree_util.keystr(path[0])}; reshape or broadcast one"
            )
    pairs = [shard_alike_p.bind(a, b) for a, b in zip(xs, ys)]
    return tree_util.tree_unflatten(tree, [p[0] for p in pairs]), tree_util.tree_unflatten(tree, [p[1] for p in pairs])
