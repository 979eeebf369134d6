"""Operations over pytrees of high and low types whose derivatives are methods: `VJPHiPrimitive`.

call_hi_primitive[_prim] arguments...                                       ->  results...
call_hi_primitive_linearized[_prim ...] residuals... nonzero tangents...    ->  tangents of the results
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from meshrt import errors, tree_util
from meshrt.core.basic.parts import cotangent_of
from meshrt.core.jaxpr import Eqn
from meshrt.core.lojax import completed
from meshrt.core.primitive import is_undefined
from meshrt.core.types import aval_of, in_program
from meshrt.dtypes import float0
from meshrt.experimental.hijax.operations import AlwaysHigh, AxisData
from meshrt.interpreters.accumulators import GradAccum, NullAccum, ValAccum
from meshrt.interpreters.ad import Zero
from meshrt.transforms.batching import MappedAxis
from meshrt.transforms.linear import Purpose, purpose

__all__ = ["Static", "VJPHiPrimitive"]


@dataclass(frozen=True, slots=True)
class Static:
    """A Python value among the arguments or residuals of an operation: hashable, and no array."""

    val: Any


tree_util.register_pytree_node(Static, lambda s: ((), s.val), lambda val, _: Static(val))

_DERIVED = {
    "vjp_fwd": "define `vjp_fwd` and `vjp_bwd`, or derive them: vjp_fwd = vjp_fwd_from_jvp, vjp_bwd_retval = "
    "transpose_jvp (from `jvp`), or vjp_fwd_from_lin and transpose_linearized (from `lin`)",
    "lin": "define `lin` and `linearized`, or derive them from `jvp`: lin = linearize_from_jvp, linearized = "
    "apply_derived_linearization",
    "jvp": "define `jvp`, or derive it from `lin`: jvp = jvp_from_lin",
}


# What else has to be, or may be defined in place of a method.
_BESIDE = {"vjp_bwd": " or `vjp_bwd_retval`", "lin": " and `linearized`", "batch": " or `batch_dim_rule`"}


class VJPHiPrimitive:
    """An operation on pytrees. A subclass sets `in_avals` (a tuple), `out_aval` and `params` (static, hashable values,
    which become attributes) in `__init__` and then calls `super().__init__()`. Its methods:

        expand(*args)                               the result, from operations on the arrays inside
        vjp_fwd(nonzeros_in, *args)                 (result, residuals)
        vjp_bwd(residuals, ct, *accumulators)       gives each argument's accumulator its cotangent; or
        vjp_bwd_retval(residuals, ct)               returns a tuple with the cotangents (only one of the two)
        jvp(primals, tangents)                      (result, its tangent)
        lin(nonzeros_in, *args)                     (result, residuals), and linearized(residuals, *tangents)
        transpose(ct, *operands_or_accumulators)    for operations that are linear in some arguments
        batch(axis_data, args, dims)                (result, its dimension); or batch_dim_rule(axis_data, dims)
        dce(used)                                   (used arguments, produced results, operation or None)
        remat(policy, *args)                        (result, function that computes it again)
        check(*types)                               raises for types that it does not take

    Where operands vary over Manual axes (`shard_map`), result types of arrays that name none vary as `expand` does.

    >>> class Power(VJPHiPrimitive):
    ...     def __init__(self, aval, power):
    ...         self.in_avals, self.out_aval, self.params = (aval,), aval, dict(power=power)
    ...         super().__init__()
    ...     def expand(self, x): return x**self.power
    ...     def vjp_fwd(self, nonzeros, x): return self(x), x
    ...     def vjp_bwd_retval(self, x, ct): return (ct * self.power * x ** (self.power - 1),)
    >>> meshrt.grad(lambda x: Power(meshrt.typeof(x), 3)(x))(2.0)

    Raises (AttributeError): an attribute is not set, or both backward methods are defined.
    """

    in_avals: tuple[Any, ...]
    out_aval: Any
    params: dict[str, Hashable]
    effects: Any = frozenset()
    # The class of an operation mapped over a dimension, which derives from this one (`mapped_operations`).
    mapped: ClassVar[Any]

    def __init__(self) -> None:
        for name in ("in_avals", "out_aval", "params"):
            if not hasattr(self, name):
                raise errors.MissingRuleError(
                    f"subclass __init__ should set `self.{name}`: that of {type(self).__name__} does not, before it "
                    "calls super().__init__()"
                )
        self._refuse_two_backward_rules()
        ins, self.in_tree = tree_util.tree_flatten(self.in_avals)
        outs, self.out_tree = tree_util.tree_flatten(self.out_aval)
        self.in_avals_flat, self.out_avals_flat = [*map(in_program, ins)], [*map(in_program, outs)]
        self.__dict__.update(self.params)
        self.check(*self.in_avals)

    def _refuse_two_backward_rules(self) -> None:
        if self._defines("vjp_bwd") and self._defines("vjp_bwd_retval"):
            raise errors.MissingRuleError(
                f"subclass {type(self)} should not override both `vjp_bwd` and `vjp_bwd_retval`: one of them is used, "
                "delete the other"
            )

    def _defines(self, method: str) -> bool:
        """Whether the class does, or what the operation was given: a parameter may be a rule."""
        return method in vars(self) or getattr(type(self), method) is not getattr(VJPHiPrimitive, method)

    def _refuse(self, asker: str, method: str) -> NoReturn:
        advice = f": {_DERIVED[method]}" if method in _DERIVED else ""
        needed = f"for {asker} support, " if asker else ""
        also = _BESIDE.get(method, "")
        raise errors.UnsupportedError(f"{needed}subclass {type(self)} must implement `{method}`{also}{advice}")

    # -- what a subclass defines ---------------------------------------------------------------------------------------

    def expand(self, *args: Any) -> Any:
        """The result, from operations on the arrays that the arguments consist of."""
        self._refuse("", "expand")

    def vjp_fwd(self, nzs_in: Any, /, *args: Any) -> Any:
        """(result, residuals), and optionally which results have a cotangent, and further residuals, which the backward
        method takes as an argument behind the first ones."""
        self._refuse("grad", "vjp_fwd")

    def vjp_bwd(self, res: Any, outgrad: Any, /, *arg_accums: Any) -> None:
        """Adds to each accumulator the cotangent of its argument."""
        self._accumulate(self.vjp_bwd_retval(res, outgrad), arg_accums)

    def _accumulate(self, grads: Any, arg_accums: Any) -> None:
        accums = self.in_tree.flatten_up_to(arg_accums)
        for accum, grad in zip(accums, _flat_up_to(self.in_tree, grads)):
            accum.accum(_taken(grad))

    def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Any:
        """A tuple with the cotangent of each argument."""
        self._refuse("grad", "vjp_bwd")

    def jvp(self, primals: Any, tangents: Any) -> Any:
        """(result, its tangent)."""
        self._refuse("jvp", "jvp")

    def lin(self, nzs_in: Any, *primals: Any) -> Any:
        """(result, residuals), and optionally which results have a tangent, and further residuals, which `linearized`
        takes as an argument behind the first ones."""
        self._refuse("linearize", "lin")

    def linearized(self, residuals: Any, *tangents: Any) -> Any:
        """The tangent of the result."""
        self._refuse("linearize", "linearized")

    def transpose(self, out_ct: Any, *maybe_accums: Any) -> None:
        """Adds to each accumulator among the operands the cotangent of its operand."""
        self._refuse("transpose", "transpose")

    def batch(self, axis_data: Any, args: Any, dims: Any) -> Any:
        """(result, where its mapped dimension stands)."""
        out_dim = self.batch_dim_rule(axis_data, dims)
        return self.mapped(self, axis_data, dims, out_dim)(*args), out_dim

    def batch_dim_rule(self, axis_data: Any, dims: Any, /) -> Any:
        """Where the mapped dimension of the result stands."""
        self._refuse("vmap", "batch")

    def dce(self, used_outs: Any) -> Any:
        """(used arguments, produced results, the operation in place of this one, None for none)."""
        used = any(tree_util.tree_leaves(used_outs))
        return used, used, self if used else None

    def _without_dead(self, used_outs: Any) -> Any:
        return self.dce(used_outs)

    def remat(self, policy: Any, *args: Any) -> Any:
        """(result, what computes it again from the arguments), for an application inside of `checkpoint`: what that
        function closes over is saved, and it is what is differentiated in the backward pass."""
        return self(*args), self

    def _has_remat(self) -> bool:
        return self._defines("remat")

    def _remat(self, policy: Any, *args: Any) -> Any:
        return self.remat(policy, *args)

    def check(self, *arg_tys: Any) -> None:
        """Raises for argument types that the operation does not take."""

    # -- as a value ----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any) -> Any:
        leaves, tree = tree_util.tree_flatten(args)
        if tree != self.in_tree:
            raise errors.TreeError(f"{type(self).__name__} takes arguments of structure {self.in_tree}, and got {tree}")
        return self.out_tree.unflatten(call_hi_primitive_p.bind(*leaves, _prim=self))

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v}" for k, v in self.params.items())
        return f"{type(self).__name__}({shown})"

    def __hash__(self) -> int:
        return hash((type(self).__name__, tuple(self.params.items()), tuple(self.in_avals_flat)))

    def __eq__(self, other: object) -> bool:
        """Whether caches may take one operation for the other: one over other types gives other results."""
        return (
            type(self) is type(other) and self.params == other.params and self.effects == other.effects
            and self.in_tree == other.in_tree and self.in_avals_flat == other.in_avals_flat
        )  # fmt: skip


def _taken(t: Any) -> Any:
    if type(t) is Zero or getattr(t, "dtype", None) == float0:
        return None
    return t


def _flat_up_to(tree: Any, values: Any) -> list[Any]:
    """One entry of `values` per leaf of `tree`; a None stands for a whole subtree."""
    is_none = lambda x: x is None
    skeleton = tree.unflatten(range(tree.num_leaves))
    if not any(map(is_none, tree_util.tree_leaves(values, is_leaf=is_none))):
        return tree.flatten_up_to(values)
    out: list[Any] = []
    tree_util.tree_map(
        lambda v, part: out.extend([None] * len(tree_util.tree_leaves(part)) if v is None else [v]),
        values, skeleton, is_leaf=lambda x: x is None or type(x) is Zero,
    )  # fmt: skip
    return out


def _results(prim: VJPHiPrimitive, out: Any) -> list[Any]:
    leaves, tree = tree_util.tree_flatten(out)
    if tree != prim.out_tree:
        raise errors.TreeError(
            f"{type(prim).__name__} must give a result of structure {prim.out_tree}, and gave {tree}"
        )
    return leaves


def _zero_of(aval: Any) -> Zero:
    return Zero(aval.to_tangent_aval())


# ---------------------------------------------------------------------------------------------------------------------
# The primitives


def _to_lojax(*args: Any, _prim: VJPHiPrimitive) -> list[Any]:
    return _results(_prim, _prim.expand(*_prim.in_tree.unflatten(args)))


def _result_types(*avals: Any, _prim: VJPHiPrimitive) -> list[Any]:
    """The stated types, and over which Manual axes results vary."""
    if not _prim._defines("expand"):
        return _prim.out_avals_flat
    compute = lambda *args: _to_lojax(*args, _prim=_prim)
    return completed(_prim.out_avals_flat, avals, compute, type(_prim).__name__)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, _prim: VJPHiPrimitive) -> tuple[Any, Any]:
    shown = [_zero_of(a) if t is None else t for a, t in zip(_prim.in_avals_flat, tangents)]
    out, found = _prim.jvp(_prim.in_tree.unflatten(primals), _prim.in_tree.unflatten(shown))
    return _results(_prim, out), [_taken(t) for t in _prim.out_tree.flatten_up_to(found)]


def _linearize(linear: Any, primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]) -> Any:
    prim: VJPHiPrimitive = params["_prim"]
    why = purpose.get()
    if why is Purpose.RECOMPUTE and prim._defines("jvp") and not prim._defines("vjp_fwd"):
        return _jvp(primals, tangents, _prim=prim)
    args, nonzeros = prim.in_tree.unflatten(primals), tuple(t is not None for t in tangents)
    flags = prim.in_tree.unflatten(nonzeros)
    if why is Purpose.PUSH:
        out, residuals, *more = prim.lin(flags, *args)
        shown = [_zero_of(a) if t is None else t for a, t in zip(prim.in_avals_flat, tangents)]
        found = prim.linearized(residuals, *more[1:], *prim.in_tree.unflatten(shown))
        return _results(prim, out), [_taken(t) for t in prim.out_tree.flatten_up_to(found)]
    out, residuals, *more = prim.vjp_fwd(flags, *args)
    leaves, tree = tree_util.tree_flatten((residuals, *more[1:]))
    live, types = _live(prim, more), tuple(_result_types(*map(aval_of, primals), _prim=prim))
    moved = iter(
        linear.record(
            call_hi_primitive_linearized_p, [*leaves, *[t for t in tangents if t is not None]],
            {
                "_prim": prim, "residuals_tree": tree, "nonzeros": nonzeros, "live": live, "types": types,
                "taken": tuple([in_program(aval_of(p).to_ct_aval()) for p in primals]),
            },
        )
    )  # fmt: skip
    return _results(prim, out), [next(moved) if l else None for l in live]


def _live(prim: VJPHiPrimitive, more: Sequence[Any]) -> tuple[bool, ...]:
    """Which results have a tangent: those of differentiable types, less what the rule says are zero."""
    said = [True] * len(prim.out_avals_flat)
    if more:
        said = tree_util.broadcast_prefix(more[0], prim.out_aval)
    return tuple(bool(s) and a.is_differentiable for s, a in zip(said, prim.out_avals_flat))


def _transpose(cts: Sequence[Any], *operands: Any, _prim: VJPHiPrimitive) -> list[Any]:
    shown = [Zero(a.to_ct_aval()) if c is None else c for a, c in zip(_prim.out_avals_flat, cts)]
    accums = [ValAccum(x.aval.to_ct_aval()) if is_undefined(x) else x for x in operands]
    _prim.transpose(_prim.out_tree.unflatten(shown), *_prim.in_tree.unflatten(accums))
    return [cotangent_of(_taken(a.freeze()), a.aval) if isinstance(a, GradAccum) else None for a in accums]


def _batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    prim: VJPHiPrimitive = params["_prim"]
    out, out_dims = prim.batch(AxisData.of(axis), prim.in_tree.unflatten(args), prim.in_tree.unflatten(dims))
    return _results(prim, out), prim.out_tree.flatten_up_to(out_dims)


def _again(params: dict[str, Any]) -> Any:
    """The rule `remat` of the operation, over flat lists; None where it has none of its own."""
    prim: VJPHiPrimitive = params["_prim"]
    if not prim._has_remat():
        return None

    def rule(policy: Any, *operands: Any) -> Any:
        out, function = prim._remat(policy, *prim.in_tree.unflatten(operands))
        return _results(prim, out), lambda *again: _results(prim, function(*prim.in_tree.unflatten(again)))

    return rule


def _dce(eqn: Eqn, used: Sequence[bool]) -> Eqn:
    prim: VJPHiPrimitive = eqn.params["_prim"]
    used_in, produced, new = prim._without_dead(prim.out_tree.unflatten(used))
    if new is None or new is prim:
        return eqn
    ins = tree_util.broadcast_prefix(used_in, prim.in_avals)
    outs = tree_util.broadcast_prefix(produced, prim.out_aval)
    return eqn.replace(
        [a for a, u in zip(eqn.invars, ins) if u], [v for v, p in zip(eqn.outvars, outs) if p], {"_prim": new}
    )


call_hi_primitive_p = AlwaysHigh(
    "call_hi_primitive", _result_types, jvp=_jvp, linearize=_linearize,
    transpose=_transpose, batch=_batch, batch_axis=True, dce=_dce, again=_again, to_lojax=_to_lojax,
    effects=lambda *avals, _prim: frozenset(_prim.effects), multiple_results=True, cache_types=False,
)  # fmt: skip


def _no_forward(*_: Any, _prim: VJPHiPrimitive, **__: Any) -> NoReturn:
    raise errors.ForwardModeError(
        "can't apply forward-mode differentiation (jvp) to the derivative of an operation that is given by `vjp_fwd` "
        f"and `vjp_bwd`: {type(_prim).__name__} has no other derivative here. Define `jvp`, or `lin` and `linearized`"
    )


def _linearized_types(*avals: Any, types: tuple[Any, ...], live: tuple[bool, ...], **_: Any) -> list[Any]:
    return [in_program(a.to_tangent_aval()) for a, l in zip(types, live) if l]


def _linearized_transpose(
    cts: Sequence[Any], *operands: Any, _prim: VJPHiPrimitive, residuals_tree: Any, nonzeros: Any, live: Any,
    types: Any, taken: Any,
) -> list[Any]:  # fmt: skip
    """The cotangents that the rule gives. Of an operand that is one value along a Manual axis, which the rule need not
    know of, it is the sum of what the devices have."""
    count = residuals_tree.num_leaves
    accums = [
        ValAccum(a.to_ct_aval()) if nz else NullAccum(a.to_ct_aval()) for a, nz in zip(_prim.in_avals_flat, nonzeros)
    ]
    found = iter(cts)
    given = [next(found) if l else None for l in live]
    shown = [Zero(a.to_ct_aval()) if c is None else c for a, c in zip(types, given)]
    residuals = residuals_tree.unflatten(operands[:count])
    _prim.vjp_bwd(*residuals, _prim.out_tree.unflatten(shown), *_prim.in_tree.unflatten(accums))
    found_cts = [cotangent_of(_taken(a.freeze()), t) for a, t, nz in zip(accums, taken, nonzeros) if nz]
    return [None] * count + found_cts


call_hi_primitive_linearized_p = AlwaysHigh(
    "call_hi_primitive_linearized", _linearized_types, transpose=_linearized_transpose, to_lojax=_no_forward,
    jvp=lambda primals, tangents, **params: _no_forward(**params), multiple_results=True, cache_types=False,
    absent={"batch": "it stands on tapes only, and residuals are mapped before they get there"},
)  # fmt: skip
