"""Kernels as operations that propagation and the partitioner place.

`placed` makes one operation of a function around kernels. Its rule, einsum-like, names the loops (factors) of the
computation; once shardings are known every device runs the function on its pieces, and is told along which mesh axes
each factor is split, so that it can add up over devices, or find its own place:

    @placed
    def total(split, x):
        return split.sum(x.sum(), "i")

    total.rule("i ->")(x)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from meshrt import lax
from meshrt.experimental.custom_partitioning import custom_partitioning
from meshrt.experimental.pallas.ops.heuristics import CORES, on_gpus
from meshrt.heuristics import KEPT_OVER_JAXPRS
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.rules import ArrayMapping, CompoundFactor, ShardingRule, parse_rule
from meshrt.sharding.spec import PartitionSpec, axes_of
from meshrt.tree_util import tree_leaves, tree_structure, tree_unflatten

__all__ = ["WHOLE", "Split", "placed", "sized"]


class Split:
    """Along which mesh axes the factors of a computation are split, within the program of one device."""

    __slots__ = ("axes",)

    def __init__(self, axes: Mapping[str, tuple[str, ...]]):
        self.axes = axes

    def along(self, *factors: str) -> tuple[str, ...]:
        """The mesh axes that split any of these factors; empty where nothing does."""
        return tuple(a for f in factors for a in self.axes.get(f, ()))

    def sum(self, x: Any, *factors: str) -> Any:
        """The sum over the devices among which these factors are split."""
        axes = self.along(*factors)
        return lax.psum(x, axes) if axes else x

    def max(self, x: Any, *factors: str) -> Any:
        """The largest over the devices among which these factors are split."""
        axes = self.along(*factors)
        return lax.pmax(x, axes) if axes else x

    def start(self, factor: str, size: int) -> Any:
        """Where a device's part of a factor begins, whose parts have this size: int32 or the int 0."""
        axes = self.along(factor)
        return lax.axis_index(axes) * size if axes else 0


WHOLE = Split({})


def sized(name: str, on_gpus: Callable[..., Any] | None = None) -> Callable[[Callable[..., Any]], placed]:
    """The decorator `placed` for a function whose blocks have the sizes of the row `name` of `heuristics.Sizes`;
    `on_gpus` is what takes its place in programs for GPUs, unless sizes are given."""
    return functools.partial(placed, sizes=name, on_gpus=on_gpus)


class placed:
    """A function of a `Split` and arrays as an operation with a sharding rule.

    `function.rule(text, **statics)` gives the function of arrays alone: `text` as in `parse_rule`, `statics` hashable
    keyword arguments of the function. With `sizes`, the name of a row of `heuristics.Sizes`, the function has a keyword
    `blocks`; where that is None it is what the table says for the platform that the program is written for.
    """

    def __init__(self, fun: Callable[..., Any], sizes: str | None = None, on_gpus: Any = None):
        self.fun, self.on_gpus, self.sizes, self.__doc__ = fun, on_gpus or fun, sizes, fun.__doc__
        self._made = functools.lru_cache(maxsize=KEPT_OVER_JAXPRS)(self._make)

    def rule(
        self, text: str, *, factor_sizes: tuple[tuple[str, int], ...] = (), whole: tuple[str, ...] = (),
        summed: tuple[str, ...] = (), **statics: Any,
    ) -> Callable[..., Any]:  # fmt: skip
        """The operation over arrays.

        Args:
          text: "b i, i j -> b j"; each factor is a letter, then letters and digits.
          factor_sizes: of factors that stand in compound ones only.
          whole: factors that are never split.
          summed: factors that the function sums over, by `Split.sum`.
        """
        return self._made(text, factor_sizes, whole, summed, tuple(sorted(statics.items())))

    def _sized(self, statics: dict[str, Any]) -> Callable[..., Any]:
        name = self.sizes
        if name is None or statics["blocks"] is not None:
            return functools.partial(self.fun, **statics)
        on_cores = functools.partial(self.fun, **{**statics, "blocks": getattr(CORES, name)})

        def by_platform(split: Split, *arrays: Any) -> Any:
            blocks = on_gpus(name, arrays)
            gpus = functools.partial(self.on_gpus, split, **{**statics, "blocks": blocks})
            return lax.platform_dependent(*arrays, cuda=gpus, default=functools.partial(on_cores, split))

        return by_platform

    def _make(self, text: str, sizes: Any, whole: Any, summed: Any, statics: Any) -> Callable[..., Any]:
        rule = parse_rule(text, need_replication_factors=whole, reduction_factors=summed, **dict(sizes))
        fun = self._sized(dict(statics))

        def unsplit(*arrays: Any) -> Any:
            return fun(WHOLE, *arrays)

        def partition(mesh: Any, args: Any, results: Any) -> Any:
            tensors = [*args, *tree_leaves(results)]
            axes = _factor_axes(rule, tensors)
            laid = [
                NamedSharding(mesh, PartitionSpec(*[_split_of(d, axes) for d in dims]))
                for dims in (*rule.operand_mappings, *rule.result_mappings)
            ]
            outs = tree_unflatten(tree_structure(results), laid[len(args) :])
            return mesh, functools.partial(fun, Split(axes)), outs, tuple(laid[: len(args)])

        unsplit.__name__ = unsplit.__qualname__ = self.fun.__name__.strip("_")
        made = custom_partitioning(unsplit)
        made.def_partition(partition, sharding_rule=rule)
        return made


def _factors(dim: str | CompoundFactor) -> tuple[str, ...]:
    return tuple(dim) if isinstance(dim, CompoundFactor) else (dim,)


def _split_of(dim: str | CompoundFactor, axes: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    return tuple(a for f in _factors(dim) for a in axes.get(f, ())) or None


def _factor_axes(rule: ShardingRule, tensors: list[Any]) -> dict[str, tuple[str, ...]]:
    """The axes of each factor, as the tensors are split; where these disagree, as the largest one is, for that is the
    one which it would cost most to lay out anew."""
    mappings: tuple[ArrayMapping, ...] = (*rule.operand_mappings, *rule.result_mappings)
    sizes = dict(rule.factor_sizes)
    for dims, tensor in zip(mappings, tensors):
        sizes.update({d: n for d, n in zip(dims, tensor.shape) if not isinstance(d, CompoundFactor)})
    found: dict[str, tuple[str, ...]] = dict.fromkeys(rule.need_replication_factors, ())
    taken: set[str] = set()
    order = sorted(range(len(tensors)), key=lambda i: -math.prod(tensors[i].shape))
    for i in order:
        spec = tensors[i].sharding.spec.padded(len(tensors[i].shape))
        for dim, entry in zip(mappings[i], spec):
            free = [a for a in map(str, axes_of(entry)) if a not in taken]
            for factor, own in _among_factors(_factors(dim), free, sizes, tensors[i].sharding.mesh).items():
                if own and factor not in found:
                    found[factor] = own
                    taken.update(own)
    return found


def _among_factors(
    factors: tuple[str, ...], axes: list[str], sizes: Mapping[str, int], mesh: Any
) -> dict[str, tuple[str, ...]]:
    """The axes of a dimension, given to its factors from the major one on. Only where a factor is split down to single
    steps is the next one split, else a device's part would be no range of positions."""
    found: dict[str, tuple[str, ...]] = {}
    rest = list(axes)
    for factor in factors:
        left, own = sizes[factor], []
        while rest and left % mesh.shape[rest[0]] == 0:
            own.append(rest.pop(0))
            left //= mesh.shape[own[-1]]
        found[factor] = tuple(own)
        if left > 1:
            break
    return found
