"""`checkpoint` (`remat`): recomputing values in the backward pass instead of saving them.

    remat2[jaxpr prevent_cse differentiated policy] arguments...  ->  results...

Linearizing the call runs it forward and keeps its arguments and the values that the policy allows to be saved. The
linear equation holds a Jaxpr that computes the other residuals again and then applies the linear program; its transpose
computes them again and then the transposed program. An optimization barrier around the recomputation keeps the
compiler from merging it with the forward pass (`prevent_cse`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from meshrt import config, errors, tree_util
from meshrt.core.basic.varying import declared, into_branch
from meshrt.core.effects import CELLS, is_debug
from meshrt.core.jaxpr import Eqn, Jaxpr, Literal, Var, subjaxprs
from meshrt.core.lojax import opened_call
from meshrt.core.naming import wraps
from meshrt.core.primitive import Primitive, also, is_undefined
from meshrt.core.references import RefEffect
from meshrt.core.told import Told
from meshrt.core.trace import EvalTrace, eval_jaxpr
from meshrt.core.tracebacks import boundary
from meshrt.core.types import aval_of
from meshrt.transforms.arguments import as_tuple, fun_name, resolve_argnums
from meshrt.transforms.batching import batch_jaxpr, flags_of, led
from meshrt.transforms.custom_arguments import split_arguments
from meshrt.transforms.discharge import call_rule
from meshrt.transforms.high import flatten
from meshrt.transforms.jvp import jvp_jaxpr
from meshrt.transforms.linear import Purpose, given_linear, linearizing_for, purpose, transpose_jaxpr
from meshrt.transforms.linearize import linearize_jaxpr
from meshrt.transforms.ordering import thread_call
from meshrt.transforms.recompute import Policy, inlined, split
from meshrt.transforms.references import check_distinct
from meshrt.transforms.residuals import renamed, residual_vars
from meshrt.transforms.run_again import run_twice
from meshrt.transforms.staged import stage, told_places
from meshrt.transforms.tools import WeakCache, dce

__all__ = ["checkpoint", "checkpoint_p", "remat"]


def checkpoint(
    fun: Callable[..., Any],
    *,
    prevent_cse: bool = True,
    policy: Policy | None = None,
    static_argnums: int | tuple[int, ...] = (),
    static_argnames: str | Iterable[str] = (),
    concrete: bool = False,
) -> Callable[..., Any]:
    """`fun`, whose intermediate values are computed again in the backward pass instead of being saved for it.

    Args:
      prevent_cse: keeps the compiler from merging the recomputation with the forward pass, which would undo the saving.
        Not needed (False is faster) when the result is the body of a `scan`, where nothing can be merged.
      policy: says what is saved all the same: `policy(primitive, *operand_types, **params) -> bool` for each
        operation; see `meshrt.checkpoint_policies`. None saves nothing but the arguments.
      static_argnums, static_argnames: arguments that are no arrays.

    >>> meshrt.grad(meshrt.remat(lambda x: jnp.sin(jnp.sin(x))))(0.0)
    Array(1., dtype=float32, weak_type=True)
    """
    if concrete:
        raise errors.UnsupportedError(
            "The `concrete` option to `meshrt.checkpoint` does not exist any more; mark the arguments that Python "
            "control flow depends on with static_argnums"
        )
    if not isinstance(prevent_cse, bool):
        raise errors.UnsupportedError(
            "checkpoint takes one bool for prevent_cse; a choice per argument is not implemented"
        )
    if policy is not None and not callable(policy):
        raise errors.ArgumentTypeError(f"the policy of checkpoint must be a function, not {type(policy).__name__}")
    names = tuple([static_argnames] if isinstance(static_argnames, str) else static_argnames)
    nums, names = resolve_argnums(fun, as_tuple(static_argnums), names)

    @boundary
    @wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        positions = tuple(sorted(n % len(args) if n < 0 else n for n in nums if -len(args) <= n < len(args)))
        split = split_arguments(args, positions)
        fixed = {k: v for k, v in kwargs.items() if k in names}
        dynamic = {k: v for k, v in kwargs.items() if k not in names}
        leaves, tree = flatten((split.dynamic, dynamic))
        paths = split.paths(fun, *tree_util.treedef_children(tree))
        check_distinct("checkpoint", fun_name(fun), leaves, (), paths)
        for leaf in leaves:
            _aval(leaf, fun)  # raises for what is no array
        leaves = into_branch(leaves)
        call = lambda arguments, keywords: fun(*split.join(arguments), **fixed, **keywords)
        plain = split.cache_key is not None and not fixed
        told = Told(fun, fun_name(fun), "checkpoint / remat", paths)
        owner, kind = fun if plain else call, ("checkpoint", split.cache_key, positions)
        staged = told_places(leaves, lambda types: stage(call, tree, types, owner, kind, told=told))
        outs = checkpoint_p.bind(
            *staged.consts, *leaves, jaxpr=staged.jaxpr, prevent_cse=prevent_cse, differentiated=False, policy=policy
        )
        return tree_util.tree_unflatten(staged.out_tree, outs)

    return wrapped


remat = checkpoint


def _aval(leaf: Any, fun: Callable[..., Any]) -> Any:
    try:
        return aval_of(leaf)
    except TypeError as e:
        raise errors.ArgumentTypeError(
            f"checkpoint of {fun_name(fun)}: {e}. Arguments that are not arrays can be made static (static_argnums)"
        ) from None


# ---------------------------------------------------------------------------------------------------------------------
# What is saved


class _Plan(NamedTuple):
    """`forward` gives the results, then the `saved` values; it takes `consts` before the arguments.

    `linear` takes the needed arguments (`needed`: positions in [*consts, *arguments]), the saved values, then the
    nonzero tangents; it recomputes the residuals and applies the linear program.
    """

    consts: list[Any]
    forward: Jaxpr
    needed: list[int]
    linear: Jaxpr
    nonzeros_out: tuple[bool, ...]


_plans: WeakCache = WeakCache()
_twice: WeakCache = WeakCache()


def _why() -> Purpose:
    """What the inside is linearized for: what is applied to tangents is no program to be transposed."""
    return Purpose.PUSH if purpose.get() is Purpose.PUSH else Purpose.RECOMPUTE


def _plan(jaxpr: Jaxpr, nonzeros: tuple[bool, ...], policy: Policy | None) -> _Plan:
    with linearizing_for(_why()):
        lin = linearize_jaxpr(jaxpr, nonzeros)
    body = lin.forward.jaxpr if policy is None else inlined(lin.forward.jaxpr)
    num_outs = len(jaxpr.outvars)
    residuals = residual_vars(lin, body)
    parts = split(body, residuals, policy)
    saved, again = parts.saved, parts.again
    forward, _ = dce(Jaxpr((), body.invars, (*body.outvars[:num_outs], *saved), parts.forward, name=body.name))
    inputs = {a for e in again for a in e.invars if type(a) is Var} | set(residuals)
    needed = [i for i, v in enumerate(body.invars) if v in inputs]
    names = dict(zip(lin.linear.invars, residuals))
    rest = [renamed(e, names) for e in lin.linear.eqns]
    linear = Jaxpr(
        (), [*[body.invars[i] for i in needed], *saved, *lin.linear.invars[len(residuals) :]],
        [names.get(v, v) if type(v) is Var else v for v in lin.linear.outvars], [*again, *rest], name=body.name,
    )  # fmt: skip
    return _Plan(lin.forward.consts, forward, needed, linear, lin.nonzeros_out)


# ---------------------------------------------------------------------------------------------------------------------
# The primitive


def _lower(ctx: Any, eqn: Eqn, *refs: Any) -> Any:
    operands = list(refs)
    if eqn.params["differentiated"] and eqn.params["prevent_cse"]:
        at = [i for i, a in enumerate(eqn.invars) if type(a) is not Literal]
        if at:
            behind = ctx.ops(
                "stablehlo.optimization_barrier", [operands[i] for i in at], [eqn.invars[i].aval for i in at]
            )
            for i, ref in zip(at, behind):
                operands[i] = ref
    return ctx.jaxpr(eqn.params["jaxpr"], operands, "rematted_computation" if eqn.params["differentiated"] else "")


def _jvp(primals, tangents, *, jaxpr, **params):
    closed, nonzeros = jvp_jaxpr(jaxpr, tuple(t is not None for t in tangents))
    live = [t for t in tangents if t is not None]
    outs = checkpoint_p.bind(*closed.consts, *primals, *live, jaxpr=closed.jaxpr, **params)
    count = len(nonzeros)
    found = iter(outs[count:])
    return outs[:count], [next(found) if nz else None for nz in nonzeros]


def _linearize(linear_trace, primals, tangents, params):
    jaxpr, policy = params["jaxpr"], params["policy"]
    refused = [e for e in jaxpr.effects if not is_debug(e) and not isinstance(e, RefEffect) and e is not CELLS]
    if refused:
        raise errors.UnsupportedError(
            f"Effects not supported in partial-eval of `checkpoint`/`remat`: {refused}, in {jaxpr.name}: functions "
            "with side effects cannot be run again in the backward pass; move the effect out of it"
        )
    twice = _twice.get(jaxpr, policy, lambda: run_twice(jaxpr, policy)) if jaxpr.is_high else None
    count, first = len(jaxpr.outvars), None
    if twice is not None:
        forward = twice.forward
        first = checkpoint_p.bind(*forward.consts, *primals, **{**params, "jaxpr": forward.jaxpr})
        kept = iter(first[count:])
        before = [next(kept) if c is None else c for c in twice.consts]
        jaxpr, primals, tangents = twice.again, [*before, *primals], [*[None] * len(before), *tangents]
    nonzeros = tuple(t is not None for t in tangents)
    key = (nonzeros, policy, given_linear.get(), _why() if jaxpr.is_high else None)
    plan = _plans.get(jaxpr, key, lambda: _plan(jaxpr, nonzeros, policy))
    operands = [*plan.consts, *primals]
    outs, saved = _run_forward(plan.forward, count, operands, params) if first is None else (first[:count], [])
    if first is not None and len(plan.forward.outvars) > count:
        _, saved = _run_forward(_without_results(plan.forward, count), 0, operands, params)
    if not any(plan.nonzeros_out):
        return outs, [None] * count
    t_in = [t for t in tangents if t is not None]
    moved = iter(
        linear_trace.record(
            checkpoint_p, [*[operands[i] for i in plan.needed], *saved, *t_in],
            {**params, "jaxpr": plan.linear, "differentiated": True},
        )
    )  # fmt: skip
    return outs, [next(moved) if nz else None for nz in plan.nonzeros_out]


def _run_forward(forward: Jaxpr, count: int, operands: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    """(the results, what is saved behind them)."""
    outs = checkpoint_p.bind(*operands, **{**params, "jaxpr": forward})
    return outs[:count], outs[count:]


def _without_results(forward: Jaxpr, count: int) -> Jaxpr:
    flags = (False,) * count + (True,) * (len(forward.outvars) - count)
    found: Jaxpr = _live(forward, flags, True)[0]
    return found


def _transpose(cts, *operands, jaxpr, **params):
    linear = tuple(map(is_undefined, operands))
    closed, nonzeros = transpose_jaxpr(jaxpr, linear, tuple(c is not None for c in cts))
    known = [x for x in operands if not is_undefined(x)]
    outs = iter(
        checkpoint_p.bind(*closed.consts, *known, *[c for c in cts if c is not None], jaxpr=closed.jaxpr, **params)
    )
    flags = iter(nonzeros)
    return [(next(outs) if next(flags) else None) if lin else None for lin in linear]


def _batch(axis, args, dims, params):
    moved = [led(a, d) for a, d in zip(args, dims)]
    closed, flags = batch_jaxpr(params["jaxpr"], axis, flags_of(args, dims))
    outs = checkpoint_p.bind(*closed.consts, *moved, **{**params, "jaxpr": closed.jaxpr})
    return outs, [0 if f else None for f in flags]


_dce_cache: WeakCache = WeakCache()


def _live(jaxpr: Jaxpr, used: tuple[bool, ...], keep_inputs: bool) -> Any:
    return _dce_cache.get(jaxpr, (used, keep_inputs), lambda: dce(jaxpr, used, keep_inputs))


def _dce(eqn: Eqn, used: Sequence[bool]) -> Eqn:
    used = tuple(used)
    body, needed = _live(eqn.params["jaxpr"], used, False)
    invars = [a for a, n in zip(eqn.invars, needed) if n]
    return eqn.replace(invars, [v for v, u in zip(eqn.outvars, used) if u], {**eqn.params, "jaxpr": body})


_compilable: WeakCache = WeakCache()


def _evaluate(*args: Any, **params: Any) -> list[Any]:
    """One compiled program, or where single operations are asked for, or one of them can only be evaluated (a
    library's own primitive without a lowering), an operation after the other."""
    jaxpr = params["jaxpr"]
    if config.read("disable_jit") or not _compilable.get(jaxpr, "compilable", lambda: _has_lowerings(jaxpr)):
        return eval_jaxpr(jaxpr, (), args)
    return EvalTrace.evaluate(checkpoint_p, args, params)


def _has_lowerings(jaxpr: Jaxpr) -> bool:
    return all(_is_lowered(e.primitive) and all(map(_has_lowerings, subjaxprs(e.params))) for e in jaxpr.eqns)


def _is_lowered(primitive: Primitive) -> bool:
    """Itself, or as what it becomes before: operations on references and high types."""
    return not (primitive.lower is None and primitive.discharge is None and primitive.to_lojax is None)


def _bind(*args: Any, **params: Any) -> Any:
    return checkpoint_p.bind(*args, **params)


checkpoint_p: Primitive = Primitive(
    "remat2", lambda *avals, jaxpr, **_: jaxpr.out_avals, shown=also("policy"), lower=_lower, jvp=_jvp,
    scope="checkpoint", linearize=_linearize, transpose=_transpose, batch=_batch, batch_axis=True, batches_refs=True,
    dce=_dce, discharge=call_rule(lambda: checkpoint_p), impl=_evaluate, repeats=True, once=True,
    effects=lambda *avals, jaxpr, **_: jaxpr.effects,
    thread=thread_call, multiple_results=True, cache_types=False,
    varies=lambda params: declared(params["jaxpr"].in_avals),
    applies=lambda params: [(params["jaxpr"], range(len(params["jaxpr"].invars)))],
    to_lojax=opened_call(_bind, True), unbox=opened_call(_bind, False),
)  # fmt: skip
