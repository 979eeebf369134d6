"""`custom_vjp`: functions whose reverse-mode derivative is given by a pair of rules.

    custom_vjp_call[call_jaxpr num_consts rule] consts... arguments...  ->  results...
    custom_lin[backward num_residuals ...] residuals... tangents...  ->  tangents of the results

The function is staged to a Jaxpr; the rules stay Python functions. Linearizing the call runs `fwd` and records the
second primitive, which has nothing but a transpose: `bwd`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from meshrt import errors, tree_util
from meshrt.core import source
from meshrt.core.basic.parts import in_front
from meshrt.core.basic.pointwise import PYTHON_SCALARS
from meshrt.core.basic.shapes import reduce_sum_p
from meshrt.core.basic.varying import declared, into_branch
from meshrt.core.high import told_apart
from meshrt.core.jaxpr import Eqn
from meshrt.core.lojax import inlined_call
from meshrt.core.naming import take_names
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.told import Told
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
    has_no_derivative,
    instantiate_zero,
    leaf_aval,
    lower_call,
    mapped_in_front,
    nondiff_positions,
    positional,
    refuse_tracers,
    split_arguments,
    type_mismatch,
)
from meshrt.transforms.custom_cotangents import checked, matched, unlike_arguments
from meshrt.transforms.custom_eager import Call, closed_over, is_known, known_call, traced
from meshrt.transforms.custom_pushes import no_forward_mode, push_batched, push_differentiated, push_lowered, pushed
from meshrt.transforms.discharge import run_discharged, without_cells
from meshrt.transforms.high import flatten, leaf_paths
from meshrt.transforms.linear import LinearTracer, given_linear, taken_as_linear
from meshrt.transforms.ordering import thread_call
from meshrt.transforms.references import check_distinct, refuse_returned_by_rule
from meshrt.transforms.staged import stage, told_places
from meshrt.transforms.tools import WeakCache

__all__ = ["CustomVJPPrimal", "custom_vjp", "custom_vjp_call_p"]


@dataclass(frozen=True, slots=True)
class CustomVJPPrimal:
    """An argument of `fwd` in rules with `symbolic_zeros`: its value, and whether it is being differentiated.

    A leaf of pytrees.
    """

    value: Any
    perturbed: bool


def custom_vjp_primal_tree_values(tree: Any) -> Any:
    """The values of a pytree of `CustomVJPPrimal`, as `fwd` gets them with `symbolic_zeros`.

    Raises:
      ArgumentTypeError: a leaf is something else.

    >>> meshrt.custom_derivatives.custom_vjp_primal_tree_values({"a": meshrt.custom_derivatives.CustomVJPPrimal(1.0,
    ...     True)})
    {'a': 1.0}
    """

    def value(leaf: Any) -> Any:
        if type(leaf) is not CustomVJPPrimal:
            raise errors.ArgumentTypeError(
                f"unexpected leaf type {type(leaf)} instead of CustomVJPPrimal; `fwd` gets such leaves where the rule "
                "was set with defvjp(..., symbolic_zeros=True)"
            )
        return leaf.value

    return tree_util.tree_map(value, tree)


class custom_vjp(CustomFunction):
    """A function whose reverse-mode derivative is defined by `defvjp`.

    Args:
      fun: a function of pytrees of arrays.
      nondiff_argnums, nondiff_argnames: arguments that are no arrays and have no derivative. `fwd` gets them in their
        places, `bwd` before the residuals.

    >>> @meshrt.custom_vjp
    ... def f(x, y): return jnp.sin(x) * y
    >>> f.defvjp(lambda x, y: (f(x, y), (jnp.cos(x), jnp.sin(x), y)),
    ...          lambda saved, g: (saved[0] * g * saved[2], saved[1] * g))
    """

    __name__: str

    def __init__(
        self, fun: Callable[..., Any], nondiff_argnums: Sequence[int] = (), nondiff_argnames: Iterable[str] = ()
    ):
        take_names(self, fun)
        self.fun = fun
        self.nondiff_argnums = nondiff_positions(fun, nondiff_argnums, nondiff_argnames)
        self.fwd: Callable[..., Any] | None = None
        self.bwd: Callable[..., Any] | None = None
        # Of residuals and tangents, None where they are zero, the tangents of the results: for functions of the
        # library's own.
        self.push: Callable[[Any, Sequence[Any]], Sequence[Any]] | None = None
        self.symbolic_zeros = self.optimize_remat = False
        # What was staged and which rules were made for it. Tables of one's own: rules refer to the function that they
        # belong to, which in a global table would keep both alive.
        self._staged: dict[Any, Any] = {}
        self._rules = WeakCache()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Sets the rules.

        Args:
          fwd: takes the arguments of the function; returns (its result, residuals), the residuals a pytree of arrays.
          bwd: takes the non-differentiable arguments, the residuals and the cotangent of the result; returns a tuple
            with a cotangent per differentiable argument, None for zero.
          symbolic_zeros: `fwd` gets `CustomVJPPrimal`s and `bwd` may get `SymbolicZero`s.
          optimize_remat: accepted for compatibility. What it asks for is always so: under `checkpoint` the forward pass
            runs the function and the backward pass `fwd`.
        """
        self.fwd, self.bwd = fwd, bwd
        self.symbolic_zeros, self.optimize_remat = symbolic_zeros, optimize_remat

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name, fwd, bwd = fun_name(self.fun), self.fwd, self.bwd
        if fwd is None or bwd is None:
            raise errors.MissingRuleError(f"No VJP defined for custom_vjp function {name} using defvjp.")
        split = split_arguments(positional(self.fun, args, kwargs, "custom_vjp"), self.nondiff_argnums)
        refuse_tracers(split.fixed, name, "custom_vjp")
        leaves, tree = flatten(split.dynamic)
        call = lambda *dynamic: self.fun(*split.join(dynamic))
        paths = split.paths(self.fun, tree)
        check_distinct("custom_vjp", f"custom_vjp function {name}", leaves, (), paths)
        if is_known(leaves):
            known = Call(call, tree)
            rule = VjpRule(fwd, bwd, self.symbolic_zeros, name, split, tree, push=self.push)
            outs = custom_vjp_known_p.bind(*leaves, call=known, rule=rule)
            refuse_returned_by_rule("primal", name, outs)
            return tree_util.tree_unflatten(known.out_tree or rule.out_tree, outs)
        leaves = into_branch(leaves)
        key = split.cache_key
        own = None if key is None else self._staged
        told = Told(self.fun, name, "custom_vjp fun", paths)
        staged = told_places(
            leaves, lambda types: stage(call, tree, types, call, ("custom_vjp", key, name), own, told=told)
        )
        rule = self._rules.get(
            staged.jaxpr, (fwd, bwd, self.symbolic_zeros, key),
            lambda: VjpRule(
                fwd, bwd, self.symbolic_zeros, name, split, tree, staged.out_tree, tuple(staged.out_avals), self.push
            ),
        )  # fmt: skip
        outs = custom_vjp_call_p.bind(
            *staged.consts, *leaves, call_jaxpr=staged.jaxpr, num_consts=len(staged.consts), rule=rule
        )
        return tree_util.tree_unflatten(staged.out_tree, outs)


class VjpRule(MappableRule):
    """A user's pair of rules over flat lists.

    `rule(primals, nonzeros) -> (results, residuals, backward)`, and `backward(residuals, cotangents)` gives a cotangent
    per argument; None is zero.
    """

    __slots__ = ("bwd", "fixed", "fwd", "in_tree", "join", "name", "out_avals", "out_tree", "push", "symbolic_zeros")

    def __init__(
        self, fwd: Callable[..., Any], bwd: Callable[..., Any], symbolic_zeros: bool, name: str, split: SplitArguments,
        in_tree: Any, out_tree: Any = None, out_avals: Sequence[ShapedArray] = (), push: Any = None,
    ) -> None:  # fmt: skip
        """Without `out_tree`, what the function returns is not known: it is what `fwd` gives."""
        self.push = push
        self.fwd, self.bwd, self.symbolic_zeros, self.name = fwd, bwd, symbolic_zeros, name
        # Not `split` itself, which holds the arguments of the call that made the rule.
        self.fixed = split.fixed
        self.join = type(split)(split.fixed, split.positions, ()).join
        self.in_tree, self.out_tree, self.out_avals = in_tree, out_tree, out_avals

    def __repr__(self) -> str:
        return fun_name(self.fwd)

    @property
    def function(self) -> Callable[..., Any]:
        """The user's."""
        return self.fwd

    def __call__(self, primals: Sequence[Any], nonzeros: Sequence[bool]) -> tuple[list[Any], list[Any], Any]:
        in_avals = tuple(aval_of(p) for p in primals)
        primals = [as_typed(p) for p in primals]
        if self.symbolic_zeros:
            primals = [CustomVJPPrimal(p, nz) for p, nz in zip(primals, nonzeros)]
        pair = self.fwd(*self.join(tree_util.tree_unflatten(self.in_tree, primals)))
        title = f"Custom VJP fwd rule {fun_name(self.fwd)} for function {self.name}"
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise errors.ArgumentTypeError(
                f"{title} must produce a pair (list or tuple of length two) where the first element represents the "
                f"primal output (equal to those of the custom_vjp-decorated function {self.name}) and the second "
                "element represents residuals (i.e. values stored from the forward pass for use on the backward pass), "
                f"but instead of a pair the fwd rule {fun_name(self.fwd)} produced {pair}."
            )
        outs, out_tree = flatten(pair[0])
        residuals, residual_tree = flatten(pair[1])
        refuse_returned_by_rule("fwd", fun_name(self.fwd), outs)
        refuse_returned_by_rule("fwd", fun_name(self.fwd), residuals, primals)
        if self.out_tree is None:
            self.out_tree, self.out_avals = out_tree, tuple(leaf_aval(out, title) for out in outs)
        if out_tree != self.out_tree:
            raise errors.ArgumentTypeError(
                f"{title} must produce, as its first element, an output of the structure that {self.name} "
                f"returns, {self.out_tree}, "
                f"but got {out_tree}"
            )
        for out, want in zip(outs, self.out_avals):
            got = leaf_aval(out, title)
            if type_mismatch(got, want):
                expected, found = told_apart(want, got)
                raise errors.ArgumentTypeError(
                    f"{title} must produce, as its first element, an output of the types that {self.name} "
                    f"returns: expected {expected} but got {found}"
                )
        for r in residuals:
            leaf_aval(r, f"{title}: residuals must be arrays")
        numbers = tuple((i, type(r), r) for i, r in enumerate(residuals) if type(r) in PYTHON_SCALARS)
        traced = [r for r in residuals if type(r) not in PYTHON_SCALARS]
        return outs, traced, Backward(self, residual_tree, in_avals, numbers)


class Backward(NamedTuple):
    """The second half of a VjpRule, for residuals of one structure. Equal for equal parts.

    `numbers` are the residuals that are Python's own numbers, (position, type, number): `bwd` gets them as they are, so
    that it may branch on them. The type stands beside the number because True equals 1 and 1.0.
    """

    rule: VjpRule
    residual_tree: Any
    in_avals: tuple[ShapedArray, ...]
    numbers: tuple[tuple[int, type, Any], ...] = ()

    def __repr__(self) -> str:
        return fun_name(self.rule.bwd)

    def __call__(self, residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        rule = self.rule
        full = []
        for ct, out in zip(cts, rule.out_avals):
            aval = out.to_tangent_aval()
            zero = SymbolicZero if rule.symbolic_zeros else instantiate_zero
            full.append(zero(aval) if ct is None else ct)
        pulled = rule.bwd(*rule.fixed, self._tree(residuals), tree_util.tree_unflatten(rule.out_tree, full))
        return self._flatten(pulled)

    def _tree(self, residuals: Sequence[Any]) -> Any:
        leaves = list(residuals)
        for position, _, number in self.numbers:  # (in ascending order)
            leaves.insert(position, number)
        return tree_util.tree_unflatten(self.residual_tree, leaves)

    @property
    def push(self) -> Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]] | None:
        """Of residuals and tangents, None for zeros, the tangents of the results; None where there is no such rule."""
        push = self.rule.push
        return None if push is None else lambda residuals, tangents: push(self._tree(residuals), tangents)

    def _flatten(self, pulled: Any) -> list[Any]:
        """One cotangent or None per flat argument, with structure and types checked."""
        rule = self.rule
        wanted = tree_util.treedef_children(rule.in_tree)
        title = f"Custom VJP bwd rule {fun_name(rule.bwd)} for function {rule.name}"
        if isinstance(pulled, list) and len(pulled) == len(wanted):
            pulled = tuple(pulled)
        if not isinstance(pulled, tuple) or len(pulled) != len(wanted):
            raise errors.ArgumentTypeError(unlike_arguments(title, pulled, rule.in_tree))
        flat: list[Any] = []
        for i, (part, tree) in enumerate(zip(pulled, wanted)):
            try:
                flat += matched(part, tree, f"{title}: output[{i}]")
            except errors.ArgumentTypeError as e:
                raise errors.ArgumentTypeError(f"{unlike_arguments(title, pulled, rule.in_tree)} {e}") from None
        paths = leaf_paths(rule.in_tree)
        return [
            checked(ct, aval, title, f"output{tree_util.keystr(p)}") for ct, aval, p in zip(flat, self.in_avals, paths)
        ]


class BatchedVjpRule(MappableRule):
    """A VjpRule mapped over a leading dimension of the flagged arguments; all results have it."""

    __slots__ = ("axis", "batched", "rule")

    def __init__(self, rule: Any, axis: MappedAxis, batched: tuple[bool, ...]):
        self.rule, self.axis, self.batched = rule, axis, batched

    def __repr__(self) -> str:
        return repr(self.rule)  # whose derivative it is

    def __call__(self, primals: Sequence[Any], nonzeros: Sequence[bool]) -> tuple[list[Any], list[Any], Any]:
        with mapping(self.axis) as trace:
            wrapped = [mapped_in_front(trace, p) if b else p for p, b in zip(primals, self.batched)]
            outs, residuals, backward = self.rule(wrapped, nonzeros)
        pairs = [trace.unwrap(r) for r in residuals]
        dims = tuple(d for _, d in pairs)
        outs = [in_front(self.axis.extent, *trace.unwrap(o)) for o in outs]
        return outs, [v for v, _ in pairs], BatchedBackward(backward, self.axis, dims, self.batched)


VjpRule.batched_class = BatchedVjpRule.batched_class = BatchedVjpRule


class BatchedBackward(NamedTuple):
    """A backward rule mapped over a dimension; the cotangents of arguments that all members share are summed."""

    backward: Any
    axis: MappedAxis
    residual_dims: tuple[int | None, ...]
    batched: tuple[bool, ...]

    def __call__(self, residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        with mapping(self.axis) as trace:
            wrapped = [trace.wrap(r, d) for r, d in zip(residuals, self.residual_dims)]
            pulled = self.backward(wrapped, [mapped_in_front(trace, c) for c in cts])
        out: list[Any] = []
        for ct, batched in zip(pulled, self.batched):
            if ct is None:
                out.append(None)
                continue
            front = in_front(self.axis.extent, *trace.unwrap(ct))
            out.append(front if batched else self._summed(front))
        return out

    @property
    def push(self) -> Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]] | None:
        """As that of the rule that is mapped."""
        return None if self.backward.push is None else self._pushed

    def _pushed(self, residuals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        with mapping(self.axis) as trace:
            wrapped = [trace.wrap(r, d) for r, d in zip(residuals, self.residual_dims)]
            given = [mapped_in_front(trace, t) if b else t for t, b in zip(tangents, self.batched)]
            moved = self.backward.push(wrapped, given)
        return [None if t is None else in_front(self.axis.extent, *trace.unwrap(t)) for t in moved]

    def _summed(self, cts: Any) -> Any:
        kind: Any = aval_of(cts)
        if kind.is_high:
            raise errors.UnsupportedError(
                f"vmap of the derivative of a custom_vjp function, with the backward rule {self.backward}: an argument "
                f"that all members share has cotangents of the high type {kind.str_short()}, which would have to be "
                "added up over the members. Map that argument too"
            )
        return reduce_sum_p.bind(cts, axes=(0,))


# ---------------------------------------------------------------------------------------------------------------------
# The primitives


def _linearize(linear_trace, primals, tangents, params):
    num_consts, rule = params.get("num_consts", 0), params["rule"]
    tangents = without_cells(tangents)
    if any(t is not None for t in tangents[:num_consts]):
        raise closed_over(f"the custom_vjp function with the rule {rule}")
    nonzeros = tuple(t is not None for t in tangents[num_consts:])
    inputs = primals[num_consts:]
    linear = given_linear.get()
    if linear:
        inputs = [p if t is None else t for p, t in zip(inputs, tangents[num_consts:])]
    with taken_as_linear(False):
        outs, residuals, backward = rule(inputs, nonzeros)
    if linear and any(type(r) is LinearTracer and r._trace is linear_trace for r in residuals):
        raise errors.DifferentiationError(
            f"a function that is not linear cannot be transposed: the custom_vjp function with the rule {rule} at "
            f"{source.capture()} is applied to tangents, and keeps them for its backward rule. Linearize it first "
            "(meshrt.linearize, meshrt.vjp)"
        )
    t_in = [t for t in tangents[num_consts:] if t is not None]
    params, live = _application(backward, outs, residuals, nonzeros)
    return outs, _tangents(linear_trace.record(custom_vjp_linear_p, [*residuals, *t_in], params), live)


def _jvp(primals, tangents, *, rule, num_consts=0, **params):
    """As linearized. Without a rule `push` it is a program whose tangents nobody may use: whoever runs an application
    of the linear map raises, since whether a tangent is needed shows when the program that computes it is whole.
    """
    tangents = without_cells(tangents)
    if any(t is not None for t in tangents[:num_consts]):
        raise closed_over(f"the custom_vjp function with the rule {rule}")
    nonzeros = tuple(t is not None for t in tangents[num_consts:])
    outs, residuals, backward = rule(primals[num_consts:], nonzeros)
    t_in = [t for t in tangents[num_consts:] if t is not None]
    params, live = _application(backward, outs, residuals, nonzeros)
    return outs, _tangents(custom_vjp_linear_p.bind(*residuals, *t_in, **params), live)


def _application(
    backward: Any, outs: Sequence[Any], residuals: Sequence[Any], nonzeros: tuple[bool, ...]
) -> tuple[dict[str, Any], tuple[bool, ...]]:
    """The parameters of the linear map that a rule left, and which results have a tangent."""
    avals = tuple(aval_of(o).to_tangent_aval() for o in outs)
    live = tuple(not has_no_derivative(a) for a in avals)
    return {
        "backward": backward, "num_residuals": len(residuals), "nonzeros": nonzeros,
        "out_avals": tuple(a for a, l in zip(avals, live) if l), "live": live,
    }, live  # fmt: skip


def _tangents(found: Sequence[Any], live: Sequence[bool]) -> list[Any]:
    moved = iter(found)
    return [next(moved) if l else None for l in live]


def _linear_transpose(cts, *operands, backward, num_residuals, nonzeros, out_avals, live):
    residuals, tangents = operands[:num_residuals], operands[num_residuals:]
    found = iter(cts)
    pulled = backward(residuals, [next(found) if l else None for l in live])
    pulled = [ct for ct, nz in zip(pulled, nonzeros) if nz]
    return [None] * num_residuals + [ct if is_undefined(t) else None for ct, t in zip(pulled, tangents)]


def _known_jvp(primals, tangents, *, call, rule):
    if rule.push is None:
        no_forward_mode()
    return _jvp(primals, tangents, rule=rule)


custom_vjp_known_p = known_call("custom_vjp_known", jvp=_known_jvp, linearize=_linearize)


def _shown(eqn: Eqn) -> dict[str, Any]:
    """What is printed of a call, under the names that JAX's programs have."""
    rule = getattr(eqn.params["rule"], "written", eqn.params["rule"])
    return {
        "name": getattr(rule, "name", rule), "call_jaxpr": eqn.params["call_jaxpr"], "fwd": getattr(rule, "fwd", rule),
        "bwd": getattr(rule, "bwd", rule), "symbolic_zeros": getattr(rule, "symbolic_zeros", False),
    }  # fmt: skip


custom_vjp_call_p: Primitive = Primitive(
    "custom_vjp_call",
    lambda *avals, call_jaxpr, num_consts, rule: call_jaxpr.out_avals,
    lower=lower_call, impl=evaluated_call(lambda: custom_vjp_call_p), shown=_shown, scope="",
    jvp=lambda primals, tangents, **params: _jvp(traced(primals), tangents, **params),
    linearize=lambda trace, primals, tangents, params: _linearize(trace, traced(primals), tangents, params),
    batch=batched_call(lambda: custom_vjp_call_p), batch_axis=True,
    discharge=lambda args, params: run_discharged(params["call_jaxpr"], args), on_cells=True,
    effects=lambda *avals, call_jaxpr, num_consts, rule: call_jaxpr.effects, thread=thread_call,
    multiple_results=True, cache_types=False, varies=lambda params: declared(params["call_jaxpr"].in_avals),
    applies=lambda params: [(params["call_jaxpr"], range(len(params["call_jaxpr"].invars)))],
    to_lojax=inlined_call, once=True,
    absent={"transpose": "reverse mode goes by its linearize rule"},
)  # fmt: skip

custom_vjp_linear_p = Primitive(
    "custom_lin",
    lambda *avals, out_avals, **_: out_avals,
    lower=push_lowered, jvp=push_differentiated, impl=pushed, batch=push_batched, batch_axis=True,
    transpose=_linear_transpose, multiple_results=True, cache_types=False, pulls_zeros=True,
)  # fmt: skip
