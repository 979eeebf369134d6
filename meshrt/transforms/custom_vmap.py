"""`custom_vmap`: functions that are mapped by a rule of their own.

    custom_vmap_call[jaxpr rule] consts... arguments...  ->  results...

The function is staged to a Jaxpr; the rule stays a Python function and is run when the call is mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.basic.shapes import bring_to_front, instantiate, move_dim
from meshrt.core.basic.varying import declared
from meshrt.core.jaxpr import Eqn
from meshrt.core.naming import take_names
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.transforms.arguments import fun_name
from meshrt.transforms.batching import MappedAxis, mapping
from meshrt.transforms.custom_arguments import CustomFunction, positional
from meshrt.transforms.high import flatten
from meshrt.transforms.jvp import jvp_flat, jvp_jaxpr
from meshrt.transforms.ordering import thread_call
from meshrt.transforms.staged import stage, told_places
from meshrt.transforms.tools import WeakCache

__all__ = ["custom_vmap", "custom_vmap_call_p"]


class custom_vmap(CustomFunction):
    """A function that `vmap` maps by the rule given to `def_vmap`, instead of mapping its operations.

    It is differentiated forward, by the derivative of the function and, mapped, of the rule. For reverse mode put
    `custom_vjp` around it; a `vmap` inside the `grad` needs none, since the rule's operations are differentiated.

    >>> @meshrt.custom_batching.custom_vmap
    ... def f(x, y): return x + y
    >>> @f.def_vmap
    ... def f_vmap(axis_size, in_batched, xs, ys):
    ...     return xs * ys, True
    >>> meshrt.vmap(f)(jnp.arange(3), jnp.arange(1, 4))
    Array([0, 2, 6], dtype=int32)

    Raises (when it is called):
      MissingRuleError: no rule was defined.
      ArgumentTypeError: arguments that the function does not take.
      TreeError: the rule's results, its flags and the function's results differ in structure.
      DifferentiationError: reverse mode.
    """

    def __init__(self, fun: Callable[..., Any]):
        take_names(self, fun)
        self.fun = fun
        self.vmap_rule: Callable[..., Any] | None = None
        self._rules = WeakCache()

    def def_vmap(self, vmap_rule: Callable[..., Any]) -> Callable[..., Any]:
        """Sets the rule: `vmap_rule(axis_size, in_batched, *args) -> (result, out_batched)`.

        `in_batched` is a list with, for each argument, a pytree of bools of its structure; the flagged arrays have a
        leading dimension of size `axis_size`. `out_batched` says so of the results. Returns `vmap_rule`, so it serves
        as a decorator.
        """
        self.vmap_rule = vmap_rule
        return vmap_rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name, rule = fun_name(self.fun), self.vmap_rule
        args = positional(self.fun, args, kwargs, "custom_vmap")
        if rule is None:
            raise errors.MissingRuleError(f"No batching rule defined for custom_vmap function {name} using def_vmap.")
        leaves, tree = flatten(args)
        staged = told_places(leaves, lambda types: stage(self.fun, tree, types, self.fun, "custom_vmap"))
        flat_rule = self._rules.get(
            staged.jaxpr, rule, lambda: _Rule(rule, name, len(staged.consts), tree, staged.out_tree)
        )
        outs = custom_vmap_call_p.bind(*staged.consts, *leaves, jaxpr=staged.jaxpr, rule=flat_rule)
        return tree_util.tree_unflatten(staged.out_tree, outs)


class _FlatRule:
    """A rule over flat lists: `(axis, flags, values) -> (results, flags)`. Flagged values have the axis in front."""

    __slots__ = ("_pushed",)

    def __init__(self) -> None:
        self._pushed: dict[Any, _FlatRule] = {}

    def __call__(self, axis: MappedAxis, batched: Sequence[bool], args: Sequence[Any]) -> tuple[list[Any], list[bool]]:
        raise NotImplementedError

    def pushed(self, nonzeros: tuple[bool, ...], out_nonzeros: tuple[bool, ...]) -> _FlatRule:
        """The rule of the derivative; equal requests give the same object (a parameter of Jaxprs)."""
        key = (nonzeros, out_nonzeros)
        if key not in self._pushed:
            self._pushed[key] = _PushedRule(self, *key)
        return self._pushed[key]


class _Rule(_FlatRule):
    """The user's rule."""

    __slots__ = ("fun", "in_tree", "name", "num_consts", "out_tree")

    def __init__(self, fun: Callable[..., Any], name: str, num_consts: int, in_tree: Any, out_tree: Any):
        super().__init__()
        self.fun, self.name, self.num_consts, self.in_tree, self.out_tree = fun, name, num_consts, in_tree, out_tree

    def __repr__(self) -> str:
        return fun_name(self.fun)

    def __call__(self, axis: MappedAxis, batched: Sequence[bool], args: Sequence[Any]) -> tuple[list[Any], list[bool]]:
        if any(batched[: self.num_consts]):
            raise errors.UnsupportedError(
                f"the custom_vmap function {self.name} closes over a value that is mapped, of which its rule "
                f"{self} is not told; pass the value to the function as an argument"
            )
        unflatten = lambda leaves: tree_util.tree_unflatten(self.in_tree, leaves[self.num_consts :])
        pair = self.fun(axis.size, list(unflatten(batched)), *unflatten(args))
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise errors.ArgumentValueError(
                f"the vmap rule {self} of {self.name} must return a pair (results, which of them are batched), it "
                f"returned {pair!r}"
            )
        outs, out_tree = flatten(pair[0])
        flags, flag_tree = tree_util.tree_flatten(pair[1])
        if out_tree != flag_tree:
            raise errors.TreeError(
                "structure of output value and output batching specification returned by custom vmap rule "
                f"({self}) do not match: {out_tree} and {flag_tree}"
            )
        if out_tree != self.out_tree:
            raise errors.TreeError(
                f"structure of output returned by custom vmap rule ({self}) does not match that of original "
                f"custom-vmapped function.\nOriginal output: {self.out_tree}\nRule output: {out_tree}\n(of {self.name})"
            )
        for out, flag in zip(outs, flags):
            shape = aval_of(out).shape
            if flag and any(batched) and shape[:1] != (axis.size,):
                raise errors.ArgumentValueError(
                    f"the vmap rule {self} of {self.name} says that a result of shape {shape} is batched; its leading "
                    f"dimension must have the size {axis.size} of the mapped axis"
                )
        return outs, [bool(f) for f in flags]


class _PushedRule(_FlatRule):
    """The rule of the derivative of a call: the derivative of its rule.

    A rule treats an argument as batched or not, and its derivative that argument's tangent alike. So it gets those
    arguments as batched that are so with their tangents, and is mapped over the others.
    """

    __slots__ = ("nonzeros", "out_nonzeros", "rule")

    def __init__(self, rule: _FlatRule, nonzeros: tuple[bool, ...], out_nonzeros: tuple[bool, ...]):
        super().__init__()
        self.rule, self.nonzeros, self.out_nonzeros = rule, nonzeros, out_nonzeros

    def __repr__(self) -> str:
        return f"jvp({self.rule})"

    def __call__(self, axis: MappedAxis, batched: Sequence[bool], args: Sequence[Any]) -> tuple[list[Any], list[bool]]:
        n = len(self.nonzeros)
        given, flags = iter(args[n:]), iter(batched[n:])
        tangents = [next(given) if nz else None for nz in self.nonzeros]
        p_batched, t_batched = list(batched[:n]), [next(flags) if nz else False for nz in self.nonzeros]
        primals, together = list(args[:n]), [p and t for p, t in zip(p_batched, t_batched)]
        if any(together) and together != [p or t for p, t in zip(p_batched, t_batched)]:
            self._join(axis, primals, p_batched, tangents, t_batched)
            together = p_batched
        own: list[bool] = []

        def flat(*values: Any) -> list[Any]:
            outs, out_flags = self.rule(axis, together, values)
            own[:] = out_flags
            return outs

        with mapping(axis._replace(name=None)) as trace:
            wrap = lambda value, is_batched, with_rule: trace.wrap(value, 0 if is_batched and not with_rule else None)
            outs, t_outs = jvp_flat(
                flat,
                [wrap(a, b, w) for a, b, w in zip(primals, p_batched, together)],
                [None if t is None else wrap(t, b, w) for t, b, w in zip(tangents, t_batched, together)],
            )
            t_outs = [instantiate(t, o) for t, o, nz in zip(t_outs, outs, self.out_nonzeros) if nz]
        t_own = [flag for flag, nz in zip(own, self.out_nonzeros) if nz]
        pairs = [trace.unwrap(out) for out in [*outs, *t_outs]]
        flags_out = [with_rule or dim is not None for (_, dim), with_rule in zip(pairs, [*own, *t_own])]
        return [value if dim is None else move_dim(value, dim, 0) for value, dim in pairs], flags_out

    def _join(self, axis: MappedAxis, primals: Any, p_batched: Any, tangents: Any, t_batched: Any) -> None:
        """Batches each argument and its tangent where one of them is: else results would have two such dimensions."""
        for i, (p, t) in enumerate(zip(p_batched, t_batched)):
            if p and not t:
                if tangents[i] is not None:  # a zero one is of any shape
                    tangents[i] = bring_to_front(axis.extent, tangents[i], None)
            elif t and not p:
                primals[i] = bring_to_front(axis.extent, primals[i], None)
            p_batched[i] = t_batched[i] = p or t


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any, rule: _FlatRule) -> tuple[Any, Any]:
    nonzeros = tuple(t is not None for t in tangents)
    closed, out_nonzeros = jvp_jaxpr(jaxpr, nonzeros, True)
    outs = custom_vmap_call_p.bind(
        *primals, *[t for t in tangents if t is not None], jaxpr=closed.jaxpr, rule=rule.pushed(nonzeros, out_nonzeros)
    )
    rest = iter(outs[len(out_nonzeros) :])
    return outs[: len(out_nonzeros)], [next(rest) if nz else None for nz in out_nonzeros]


def _linearize(linear: Any, primals: Any, tangents: Any, params: dict[str, Any]) -> Any:
    raise errors.DifferentiationError(
        f"a custom_vmap function with the rule {params['rule']} cannot be differentiated in reverse mode: nothing says "
        "what its backward pass needs. Put meshrt.custom_vjp around it, or take the derivative of a vmap"
    )


def _batch(axis: MappedAxis, args: list[Any], dims: list[int | None], params: dict[str, Any]) -> tuple[Any, Any]:
    moved = [a if d is None else move_dim(a, d, 0) for a, d in zip(args, dims)]
    outs, flags = params["rule"](axis, [d is not None for d in dims], moved)
    return outs, [0 if f else None for f in flags]


def _shown(eqn: Eqn) -> dict[str, Any]:
    """What is printed of a call, under the names that JAX's programs have."""
    rule = eqn.params["rule"]
    in_tree = getattr(rule, "in_tree", None)
    return {"call": eqn.params["jaxpr"], "in_tree": in_tree, "out_tree": getattr(rule, "out_tree", None), "rule": rule}


custom_vmap_call_p = Primitive(
    "custom_vmap_call",
    lambda *avals, jaxpr, rule: jaxpr.out_avals,
    shown=_shown,
    lower=lambda ctx, eqn, *operands: ctx.jaxpr(eqn.params["jaxpr"], operands),
    jvp=_jvp, linearize=_linearize, batch=_batch, batch_axis=True, effects=lambda *avals, jaxpr, rule: jaxpr.effects,
    thread=thread_call, multiple_results=True, cache_types=False,
    varies=lambda params: declared(params["jaxpr"].in_avals),
    absent={"transpose": "its derivative in reverse mode is refused before"},
)  # fmt: skip
