"""One's own sharding rules and partition functions, for functions that are to be one operation of a program.

`custom_partitioning` is JAX's: a rule for propagation and a function that says what each device runs. `sharding_rule`
is the short way, for functions that may simply be run on shards:

    @sharding_rule("b i, i j -> b j", reduction_factors=("i",))
    def project(x, w):
        return x @ w

Both work under `jit`, `vmap` (which adds a factor to the rule), `scan`, and eagerly, on meshes of any shape, with
either partitioner. They have no derivative of their own: put `custom_vjp` around, with functions of this kind in both
directions.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from meshrt import config, errors, tree_util
from meshrt.core.axes import axes_in_scope
from meshrt.core.naming import take_names
from meshrt.core.source import capture
from meshrt.core.trace import Tracer, trace_to_jaxpr
from meshrt.core.tracebacks import boundary
from meshrt.heuristics import KEPT_OVER_JAXPRS
from meshrt.primitives.custom_partitioning import Partitioning, TensorInfo, custom_partitioning_p
from meshrt.sharding.rules import BATCHING, ArrayMapping, CompoundFactor, ShardingRule, parse_rule
from meshrt.staging import abstract
from meshrt.transforms.arguments import StaticValue, as_tuple, fun_name, signature_of
from meshrt.transforms.high import flatten

__all__ = [
    "BATCHING", "ArrayMapping", "CompoundFactor", "SdyShardingRule", "TensorInfo", "custom_partitioning",
    "custom_partitioning_p", "sharding_rule",
]  # fmt: skip

SdyShardingRule = ShardingRule


class _Opaque:
    """A function that programs see as one operation. Subclasses say how it is partitioned."""

    def __init__(self, fun: Callable[..., Any], static_argnums: int | Sequence[int] = ()):
        if not callable(fun):
            raise errors.ArgumentTypeError(f"{type(self).__name__} takes a function, got {fun!r}")
        take_names(self, fun)
        self.fun = fun
        self.static_argnums = as_tuple(static_argnums)
        self.sharding_rule: Any = None
        self._calls: OrderedDict[Any, Any] = OrderedDict()

    def __getattr__(self, name: str) -> Any:
        if name == "fun":  # not set yet: while being unpickled or copied
            raise AttributeError(name)
        return getattr(self.fun, name)

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        positions = self._positional(args, kwargs)
        count = len(positions)
        static = sorted({i % count for i in self.static_argnums if -count <= i < count})
        fixed = tuple(positions[i] for i in static)
        self._check_static(fixed)
        leaves, tree = flatten(tuple(a for i, a in enumerate(positions) if i not in static))
        avals = tuple(abstract(x).bare() for x in leaves)
        for aval in avals:
            if aval.is_high or aval.is_key:
                raise errors.UnsupportedError(
                    f"{fun_name(self.fun)} at {capture()} takes arrays of numbers, but got {aval.short()}; pass "
                    "the arrays that it consists of (meshrt.random.key_data of a key)"
                )
        call, partitioning = self._staged(static, fixed, tree, avals)
        outs = custom_partitioning_p.bind(*leaves, call=call, partitioning=partitioning)
        return tree_util.tree_unflatten(partitioning.out_tree, outs)

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, defaults included. Keyword-only ones keep their defaults."""
        signature = signature_of(self.fun)
        if signature is None and not kwargs:
            return args
        named: Any = kwargs
        if signature is not None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args, named = bound.args, [k for k in bound.kwargs if k in kwargs]
        if named:
            raise errors.ArgumentTypeError(
                f"keyword arguments could not be resolved to positions: {', '.join(named)} of {fun_name(self.fun)}; "
                "make them positional"
            )
        return args

    def _check_static(self, fixed: tuple[Any, ...]) -> None:
        if any(isinstance(leaf, Tracer) for leaf in tree_util.tree_leaves(fixed)):
            raise errors.LeakedTracerError(
                f"Found a Tracer object passed as an argument to the custom_partitioning function {fun_name(self.fun)} "
                f"at {capture()} in a position indicated as static by static_argnums; pass a Python value there"
            )

    def _staged(self, static: Sequence[int], fixed: tuple[Any, ...], tree: Any, avals: tuple[Any, ...]) -> Any:
        """(Jaxpr, how it is partitioned) of calls of these types; one object for equal calls, so that they share what
        is cached by it."""
        try:
            key = (tree, avals, tuple(map(StaticValue, fixed)), config.trace_key(), axes_in_scope(), self._definition())
            found: Any = self._calls.get(key)
        except TypeError:  # static arguments need not be hashable
            key, found = None, None
        if found is None:
            found = self._stage(static, fixed, tree, avals)
            if key is not None:
                self._calls[key] = found
                if len(self._calls) > KEPT_OVER_JAXPRS:
                    self._calls.popitem(last=False)
        return found

    def _stage(self, static: Sequence[int], fixed: tuple[Any, ...], tree: Any, avals: tuple[Any, ...]) -> Any:
        given = dict(zip(static, fixed))
        out_trees: list[Any] = []

        def whole(*dynamic: Any) -> Any:
            rest = iter(dynamic)
            return self.fun(*[given[i] if i in given else next(rest) for i in range(len(dynamic) + len(given))])

        def flat(*leaves: Any) -> list[Any]:
            outs, structure = flatten(whole(*tree.unflatten(leaves)))
            out_trees.append(structure)
            return outs

        name = fun_name(self.fun)
        call = trace_to_jaxpr(flat, avals, name)
        captured = [c for c in call.consts if isinstance(c, Tracer)]
        if captured:
            raise errors.LeakedTracerError(
                f"{name} at {capture()} uses a value of type {captured[0].aval.short()} that is traced outside of "
                "it and that no sharding rule speaks of; pass it as an argument"
            )
        return call, self._partitioning(name, whole, fixed, tree, out_trees[-1])

    def _definition(self) -> Any:
        """What of the definition a staged call depends on."""
        return self.sharding_rule

    def _partitioning(self, name: str, whole: Callable[..., Any], fixed: tuple[Any, ...], tree: Any, out: Any) -> Any:
        raise NotImplementedError


class custom_partitioning(_Opaque):
    """A function that is one operation of a program, partitioned by a function of the user's.

    >>> @custom_partitioning
    ... def scale(x):
    ...     return x * 2
    >>> def partition(mesh, arg_shapes, result_shape):
    ...     return mesh, lambda x: x * 2, result_shape.sharding, (arg_shapes[0].sharding,)
    >>> _ = scale.def_partition(partition, sharding_rule="... -> ...")

    Args:
      fun: a function of arrays. It says the types of the results, and runs where there is one device only.
      static_argnums: positions of arguments that are no arrays; they come first in calls of the functions below.

    Keyword arguments of calls are resolved to positions. Raises ArgumentTypeError where that cannot be done,
    LeakedTracerError for tracers among static arguments and for values that `fun` captures from a trace outside.
    """

    def __init__(self, fun: Callable[..., Any], static_argnums: int | Sequence[int] = ()):
        super().__init__(fun, static_argnums)
        self.partition: Callable[..., Any] | None = None
        self.propagate_user_sharding: Callable[..., Any] | None = None
        self.infer_sharding_from_operands: Callable[..., Any] | None = None
        self.decode_shardings = True

    def def_partition(
        self,
        partition: Callable[..., Any],
        infer_sharding_from_operands: Callable[..., Any] | None = None,
        propagate_user_sharding: Callable[..., Any] | None = None,
        decode_shardings: bool = True,
        sharding_rule: str | ShardingRule | Callable[..., Any] | None = None,
        *,
        reduction_factors: tuple[str, ...] = (),
        need_replication_factors: tuple[str, ...] = (),
        permutation_factors: tuple[str, ...] = (),
        **factor_sizes: int,
    ) -> Callable[..., Any]:
        """Says how the operation is partitioned; returns `partition`.

        Args:
          partition: `(*static, mesh, arg_shapes, result_shape) -> (mesh, lower_fn, result_shardings, arg_shardings)`.
            Shapes are ShapeDtypeStructs in the structures of arguments and result, with the NamedShardings over the
            AbstractMesh that propagation decided (of dimensions that these divide). `lower_fn` takes one device's
            pieces of the arguments, laid out as `arg_shardings`, to pieces of the results, laid out as
            `result_shardings`; it may use collectives over the axes of the mesh.
          sharding_rule: what propagation follows: text, a rule, or a function of (*static, mesh, operand types, result
            types) of either, or of the pair of a text and keyword arguments for it. None: nothing passes through.
          reduction_factors, need_replication_factors, permutation_factors, factor_sizes: of a rule in text, as in
            `ShardingRule`.
          infer_sharding_from_operands, propagate_user_sharding: for partitioners that have no rules. A call without a
            `sharding_rule` is refused where one of these is given.
          decode_shardings: accepted for JAX's sake; shardings are always NamedShardings here.

        Raises ShardingRuleError for a rule that cannot be read.
        """
        if not callable(partition):
            raise errors.ArgumentTypeError(f"partition must be a function, got {partition!r}")
        kinds: dict[str, Any] = {
            "reduction_factors": reduction_factors, "need_replication_factors": need_replication_factors,
            "permutation_factors": permutation_factors,
        }  # fmt: skip
        if isinstance(sharding_rule, str):
            sharding_rule = parse_rule(sharding_rule, **{**kinds, **factor_sizes})
        else:
            _check_rule(sharding_rule, {**factor_sizes, **{k: v for k, v in kinds.items() if v}})
        self.partition, self.sharding_rule, self.decode_shardings = partition, sharding_rule, decode_shardings
        self.propagate_user_sharding = propagate_user_sharding
        self.infer_sharding_from_operands = infer_sharding_from_operands
        return partition

    def _definition(self) -> Any:
        return self.partition, self.sharding_rule

    def _partitioning(self, name: str, whole: Callable[..., Any], fixed: tuple[Any, ...], tree: Any, out: Any) -> Any:
        if self.partition is None:
            raise errors.ArgumentValueError(
                f"{name} has no partition function; give it one, {name}.def_partition(partition, sharding_rule=...), "
                "before it is called, or use sharding_rule if it may be run on shards as it is"
            )
        if self.sharding_rule is None and (self.propagate_user_sharding or self.infer_sharding_from_operands):
            raise errors.UnsupportedError(
                "Shardy is used, but sharding propagation callbacks instead of sharding_rule are provided. Need to "
                f"provide sharding_rule to migrate to Shardy: {name}.def_partition(..., sharding_rule='i j -> i j')"
            )
        bind = lambda f: functools.partial(f, *fixed) if fixed and callable(f) else f
        return Partitioning(name, whole, bind(self.partition), bind(self.sharding_rule), tree, out)


class _Ruled(_Opaque):
    """A function that each device runs on its shards."""

    def __init__(self, fun: Callable[..., Any], rule: Any, static_argnums: Any):
        super().__init__(fun, static_argnums)
        self.sharding_rule = rule

    def _partitioning(self, name: str, whole: Callable[..., Any], fixed: tuple[Any, ...], tree: Any, out: Any) -> Any:
        rule = self.sharding_rule
        if fixed and callable(rule):
            rule = functools.partial(rule, *fixed)
        return Partitioning(name, whole, None, rule, tree, out)


def sharding_rule(
    rule: str | ShardingRule | Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] = (),
    reduction_factors: tuple[str, ...] = (),
    need_replication_factors: tuple[str, ...] = (),
    permutation_factors: tuple[str, ...] = (),
    **factor_sizes: int,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that makes a function one operation of a program, with a rule; each device runs it on shards.

    >>> @sharding_rule("... i -> ... i", need_replication_factors=("i",))
    ... def normalise(x):
    ...     return x / x.sum(-1, keepdims=True)

    The rule promises that the function, run on the shards of its operands that the rule gives a device, makes that
    device's shards of the results, or addends of them where reduction factors are split (they are added up when
    somebody needs the sum). Axes are dropped from factors that this cannot hold for: those that need replication or
    permute, or that stand in only some of the results; and where sizes do not divide. A function that makes other
    shapes of shards raises ShardingError; whether its numbers are right is the promise.

    Args:
      rule: text such as "i j, j k -> i k", a `SdyShardingRule`, or a function as in
      `custom_partitioning.def_partition`. static_argnums: positions of arguments that are no arrays.
      reduction_factors, need_replication_factors, permutation_factors, factor_sizes: of a rule in text.

    Raises ShardingRuleError for a rule that cannot be read.
    """
    kinds: dict[str, Any] = {
        "reduction_factors": reduction_factors, "need_replication_factors": need_replication_factors,
        "permutation_factors": permutation_factors,
    }  # fmt: skip
    if isinstance(rule, str):
        rule = parse_rule(rule, **{**kinds, **factor_sizes})
    elif rule is None:
        raise errors.ShardingRuleError("sharding_rule needs a rule, such as 'i j -> i j'; got None")
    else:
        _check_rule(rule, {**factor_sizes, **{k: v for k, v in kinds.items() if v}})
    return lambda fun: _Ruled(fun, rule, static_argnums)


def _check_rule(rule: Any, keywords: dict[str, Any]) -> None:
    if keywords:
        raise errors.ShardingRuleError(
            f"Unknown keyword arguments: {keywords}; they are for rules in text. A SdyShardingRule has them itself, a "
            "function returns (text, keywords)"
        )
    if rule is not None and not isinstance(rule, ShardingRule) and not callable(rule):
        raise errors.ArgumentTypeError(f"sharding_rule must be text, a SdyShardingRule or a function, got {rule!r}")
