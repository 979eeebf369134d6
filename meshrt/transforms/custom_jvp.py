"""`custom_jvp`: functions whose forward derivative is given by a rule.

    custom_jvp_call[call_jaxpr num_consts rule] consts... arguments...  ->  results...

The function is staged to a Jaxpr; the rule stays a Python function and is run when the call is differentiated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshrt import dtypes, errors, tree_util
from meshrt.core.basic.parts import in_front
from meshrt.core.basic.pointwise import add_tangents
from meshrt.core.basic.varying import declared, in_order, into_branch, vary
from meshrt.core.high import told_apart
from meshrt.core.jaxpr import Eqn
from meshrt.core.lojax import inlined_call
from meshrt.core.naming import take_names
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.told import Told
from meshrt.core.trace import Tracer, context, eval_jaxpr
from meshrt.core.typed_numbers import as_typed
from meshrt.core.types import ShapedArray, aval_of
from meshrt.transforms.arguments import fun_name
from meshrt.transforms.batching import MappedAxis, mapping
from meshrt.transforms.custom_arguments import (
    CustomFunction,
    MappableRule,
    SplitArguments,
    SymbolicZero,
    batched_call,
    evaluated_call,
    instantiate_zero,
    leaf_aval,
    lower_call,
    mapped_in_front,
    nondiff_positions,
    positional,
    split_arguments,
    type_mismatch,
)
from meshrt.transforms.custom_eager import Call, closed_over, is_known, known_call, traced
from meshrt.transforms.discharge import run_discharged, without_cells
from meshrt.transforms.high import flatten
from meshrt.transforms.linear import LinearTrace, LinearTracer, transpose_jaxpr
from meshrt.transforms.ordering import thread_call
from meshrt.transforms.references import check_distinct
from meshrt.transforms.staged import stage, told_places
from meshrt.transforms.tools import WeakCache

__all__ = ["custom_jvp", "custom_jvp_call_p", "fused_custom_jvp"]


class custom_jvp(CustomFunction):
    """A function whose derivative is defined by `defjvp` (or `defjvps`) instead of by its operations.

    Args:
      fun: a function of pytrees of arrays.
      nondiff_argnums, nondiff_argnames: arguments that are no arrays (functions, say) and have no derivative; the rule
        gets them first.

    >>> @meshrt.custom_jvp
    ... def f(x, y): return jnp.sin(x) * y
    >>> @f.defjvp
    ... def f_jvp(primals, tangents):
    ...     (x, y), (tx, ty) = primals, tangents
    ...     return f(x, y), jnp.cos(x) * tx * y + jnp.sin(x) * ty
    """

    # Whether the function may look at values that are known, or runs as one program at all times.
    looks_at_values = True

    def __init__(
        self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = (), nondiff_argnames: Iterable[str] = ()
    ):
        take_names(self, fun)
        self.fun = fun
        self.nondiff_argnums = nondiff_positions(fun, nondiff_argnums, nondiff_argnames)
        self.jvp: Callable[..., Any] | None = None
        self.symbolic_zeros = False
        # What was staged and which rules were made for it. Tables of one's own: rules refer to the function that they
        # belong to, which in a global table would keep both alive.
        self._staged: dict[Any, Any] = {}
        self._rules = WeakCache()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def defjvp(self, jvp: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Sets the rule: `jvp(*nondiff_args, primals, tangents) -> (result, result's tangent)`.

        Both tuples have one entry per remaining argument. Zero tangents arrive as arrays of zeros, or as
        `SymbolicZero` with `symbolic_zeros`. Returns `jvp`, so it serves as a decorator.
        """
        self.jvp, self.symbolic_zeros = jvp, symbolic_zeros
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Sets one rule per argument: `jvps[i](tangent, result, *primals)` is its contribution; None means zero."""
        if self.nondiff_argnums:
            raise errors.ArgumentTypeError("defjvps cannot be used with nondiff_argnums; use defjvp")

        def jvp(primals: Any, tangents: Any) -> Any:
            result = self(*primals)
            total = None
            for rule, t in zip(jvps, tangents, strict=True):
                if rule is not None:
                    part = rule(t, result, *primals)
                    total = part if total is None else tree_util.tree_map(add_tangents, total, part)
            if total is None:
                total = tree_util.tree_map(lambda r: instantiate_zero(aval_of(r).to_tangent_aval()), result)
            return result, total

        self.defjvp(jvp)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name, jvp = fun_name(self.fun), self.jvp
        if jvp is None:
            raise errors.MissingRuleError(f"No JVP defined for custom_jvp function {name} using defjvp.")
        split = split_arguments(positional(self.fun, args, kwargs, "custom_jvp"), self.nondiff_argnums)
        if any(isinstance(x, Tracer) for x in tree_util.tree_leaves(split.fixed)):
            return self._with_traced(jvp, split)
        leaves, tree = flatten(split.dynamic)
        call = lambda *dynamic: self.fun(*split.join(dynamic))
        paths = split.paths(self.fun, tree)
        check_distinct("custom_jvp", f"custom_jvp function {name}", leaves, (), paths)
        call.__name__ = name
        if self.looks_at_values and is_known(leaves):
            known = Call(call, tree)
            rule = JvpRule(jvp, self.symbolic_zeros, name, split.fixed, tree)
            outs = custom_jvp_known_p.bind(*leaves, call=known, rule=rule)
            return tree_util.tree_unflatten(known.out_tree or rule.out_tree, outs)
        leaves = into_branch(leaves)
        key = split.cache_key
        own = None if key is None else self._staged
        told = Told(self.fun, name, "custom_jvp fun", paths)
        staged = told_places(
            leaves, lambda types: stage(call, tree, types, call, ("custom_jvp", key, name), own, told=told)
        )
        rule = self._rules.get(
            staged.jaxpr, (jvp, self.symbolic_zeros, key),
            lambda: JvpRule(jvp, self.symbolic_zeros, name, split.fixed, tree, staged.out_tree, staged.out_avals),
        )  # fmt: skip
        outs = custom_jvp_call_p.bind(
            *staged.consts, *leaves, call_jaxpr=staged.jaxpr, num_consts=len(staged.consts), rule=rule
        )
        return tree_util.tree_unflatten(staged.out_tree, outs)

    def _with_traced(self, jvp: Callable[..., Any], split: SplitArguments) -> Any:
        """The call where arguments without derivative are traced: those are passed like the others, and the rule is
        given no tangents of them."""
        leaves, tree = tree_util.tree_flatten(split.fixed)
        known = [None if isinstance(x, Tracer) else x for x in leaves]
        traced = [x for x in leaves if isinstance(x, Tracer)]

        def fixed(values: Sequence[Any]) -> tuple[Any, ...]:
            rest = iter(values)
            whole = [next(rest) if isinstance(x, Tracer) else k for x, k in zip(leaves, known)]
            return tuple(tree_util.tree_unflatten(tree, whole))

        def call(values: Sequence[Any], *dynamic: Any) -> Any:
            return self.fun(*split._replace(fixed=fixed(values)).join(dynamic))

        def rule(primals: Any, tangents: Any) -> Any:
            return jvp(*fixed(primals[0]), primals[1:], tangents[1:])

        call.__name__, rule.__name__ = fun_name(self.fun), fun_name(jvp)
        own = type(self)(call)
        own.defjvp(rule, self.symbolic_zeros)
        return own(traced, *split.dynamic)


class fused_custom_jvp(custom_jvp):
    """A `custom_jvp` whose function looks at no values: it runs as one program, also where they are known."""

    looks_at_values = False


class JvpRule(MappableRule):
    """A user's rule over flat lists: `(primals, tangents) -> (results, tangents)`; None is a zero tangent."""

    __slots__ = ("fixed", "in_tree", "jvp", "name", "out_avals", "out_tree", "symbolic_zeros")

    def __init__(
        self, jvp: Callable[..., Any], symbolic_zeros: bool, name: str, fixed: Sequence[Any], in_tree: Any,
        out_tree: Any = None, out_avals: Sequence[ShapedArray] = (),
    ) -> None:  # fmt: skip
        """Without `out_tree`, what the function returns is not known: it is what the rule gives."""
        self.jvp, self.symbolic_zeros, self.name, self.fixed = jvp, symbolic_zeros, name, fixed
        self.in_tree, self.out_tree, self.out_avals = in_tree, out_tree, out_avals

    def __repr__(self) -> str:
        return fun_name(self.jvp)

    @property
    def function(self) -> Callable[..., Any]:
        """The user's."""
        return self.jvp

    def __call__(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        primals = [as_typed(p) for p in primals]
        tangents = [self._tangent(p, t) for p, t in zip(primals, tangents)]
        unflatten = lambda leaves: tuple(tree_util.tree_unflatten(self.in_tree, leaves))
        pair = self.jvp(*self.fixed, unflatten(primals), unflatten(tangents))
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise errors.ArgumentTypeError(
                f"{self._title} must produce a pair (list or tuple of length two) representing primal and tangent "
                f"outputs, but got {pair}"
            )
        is_zero = lambda x: isinstance(x, SymbolicZero)
        outs, out_tree = flatten(pair[0])
        t_outs, t_tree = tree_util.tree_flatten(pair[1], is_leaf=is_zero)
        if out_tree != t_tree:
            raise errors.ArgumentTypeError(
                f"{self._title} must produce primal and tangent outputs with equal container (pytree) "
                "structures, but got "
                f"{out_tree} and {t_tree} respectively."
            )
        if self.out_tree is None:
            self.out_tree, self.out_avals = out_tree, [leaf_aval(out, self._title) for out in outs]
        if out_tree != self.out_tree:
            raise errors.ArgumentTypeError(
                f"{self._title} must produce primal outputs of the structure that {self.name} returns, "
                f"{self.out_tree}, but got {out_tree}"
            )
        for out, t, want in zip(outs, t_outs, self.out_avals):
            self._check(out, t, want)
        return outs, [_varying_as(_live_tangent(t), o) for t, o in zip(t_outs, outs)]

    @property
    def _title(self) -> str:
        return f"Custom JVP rule {fun_name(self.jvp)} for function {self.name}"

    def _tangent(self, primal: Any, tangent: Any) -> Any:
        if tangent is not None:
            return tangent
        aval = aval_of(primal).to_tangent_aval()
        return SymbolicZero(aval) if self.symbolic_zeros else instantiate_zero(aval)

    def _check(self, out: Any, tangent: Any, want: ShapedArray) -> None:
        got = leaf_aval(out, self._title)
        if type_mismatch(got, want):
            wanted, found = told_apart(want, got)
            raise errors.ArgumentTypeError(
                f"{self._title} must produce primal outputs of the types that {self.name} returns: expected "
                f"{wanted} but got {found}"
            )
        expected, t = got.to_tangent_aval(), leaf_aval(tangent, self._title)
        if type_mismatch(t, expected):
            raise errors.ArgumentTypeError(
                "Custom JVP rule must produce primal and tangent outputs with corresponding shapes and dtypes. "
                f"Expected {_plain(expected)} (tangent type of {_plain(got)}) but got {_plain(t)}. The rule is "
                f"{self!r}, of {self.name}"
            )


def _plain(aval: ShapedArray) -> str:
    return str(aval).lstrip("~")


def _varying_as(tangent: Any, out: Any) -> Any:
    """A tangent (None for zero) that varies over the Manual axes over which its result does."""
    axes = aval_of(out).vma
    return vary(tangent, in_order(axes)) if axes and tangent is not None else tangent


def _live_tangent(t: Any) -> Any:
    """None for tangents that are known to be zero.

    A linear function of no linear input is zero: while linearizing, a tangent that is a known value is one.
    """
    if isinstance(t, SymbolicZero) or (not hasattr(t, "aval") and getattr(t, "dtype", None) == dtypes.float0):
        return None
    trace = context.trace
    if type(trace) is LinearTrace and not (type(t) is LinearTracer and t._trace is trace):
        return None
    return t


class BatchedJvpRule(MappableRule):
    """A rule mapped over a leading dimension of the flagged arguments; all results have it."""

    __slots__ = ("axis", "batched", "rule")

    def __init__(self, rule: Any, axis: MappedAxis, batched: tuple[bool, ...]):
        self.rule, self.axis, self.batched = rule, axis, batched

    def __repr__(self) -> str:
        return repr(self.rule)  # whose derivative it is

    def __call__(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        with mapping(self.axis) as trace:
            wrap = lambda values: [mapped_in_front(trace, v) if b else v for v, b in zip(values, self.batched)]
            outs, t_outs = self.rule(wrap(primals), wrap(tangents))
        front = lambda v: in_front(self.axis.extent, *trace.unwrap(v))
        return [front(o) for o in outs], [None if t is None else _live_tangent(front(t)) for t in t_outs]


JvpRule.batched_class = BatchedJvpRule.batched_class = BatchedJvpRule


def _jvp(primals, tangents, *, call_jaxpr, num_consts, rule):
    tangents = without_cells(tangents)
    if any(t is not None for t in tangents[:num_consts]):
        raise closed_over(f"the custom_jvp function with the rule {rule}")
    return rule(traced(primals[num_consts:]), tangents[num_consts:])


def _transpose(cts, *args, call_jaxpr, num_consts, rule):
    """Of a linear function: nobody asks the rule any more, as a tangent went in."""
    linear = tuple(is_undefined(a) for a in args)
    back, nonzeros = transpose_jaxpr(call_jaxpr, linear, tuple(c is not None for c in cts))
    known = [a for a in args if not is_undefined(a)]
    pulled = iter(eval_jaxpr(back.jaxpr, back.consts, [*known, *(c for c in cts if c is not None)]))
    flags = iter(nonzeros)
    return [(next(pulled) if next(flags) else None) if lin else None for lin in linear]


custom_jvp_known_p = known_call(
    "custom_jvp_known", jvp=lambda primals, tangents, call, rule: rule(primals, without_cells(tangents))
)


def _shown(eqn: Eqn) -> dict[str, Any]:
    """What is printed of a call, under the names that JAX's programs have."""
    rule = getattr(eqn.params["rule"], "written", eqn.params["rule"])
    return {
        "name": getattr(rule, "name", rule), "call_jaxpr": eqn.params["call_jaxpr"], "jvp": rule,
        "symbolic_zeros": getattr(rule, "symbolic_zeros", False),
    }  # fmt: skip


custom_jvp_call_p: Primitive = Primitive(
    "custom_jvp_call",
    lambda *avals, call_jaxpr, num_consts, rule: call_jaxpr.out_avals,
    lower=lower_call, impl=evaluated_call(lambda: custom_jvp_call_p), shown=_shown, scope="",
    jvp=_jvp, transpose=_transpose, batch=batched_call(lambda: custom_jvp_call_p), batch_axis=True,
    discharge=lambda args, params: run_discharged(params["call_jaxpr"], args), on_cells=True,
    effects=lambda *avals, call_jaxpr, num_consts, rule: call_jaxpr.effects,
    thread=thread_call, multiple_results=True, cache_types=False,
    varies=lambda params: declared(params["call_jaxpr"].in_avals),
    applies=lambda params: [(params["call_jaxpr"], range(len(params["call_jaxpr"].invars)))],
    to_lojax=inlined_call, once=True,
)  # fmt: skip
