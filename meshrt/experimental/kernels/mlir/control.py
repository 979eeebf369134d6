"""Loops, branches and calls, in the dialect scf.

Loops that count (`fori_loop` with bounds known while tracing or not) become `scf.for` over the counter itself, which
compilers know more about than about a value that a loop carries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, scf

from meshrt.core.basic.shapes import broadcast_in_dim_p, reshape_p
from meshrt.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from meshrt.core.naming import body_name
from meshrt.core.primitive import Primitive
from meshrt.experimental.kernels.mlir.conversions import converted
from meshrt.experimental.kernels.mlir.walk import Rule, Walk
from meshrt.primitives.call import jit_p
from meshrt.primitives.control import scan_p
from meshrt.primitives.control_branches import cond_p
from meshrt.primitives.control_while import while_p
from meshrt.primitives.elementwise import add_p, lt_p
from meshrt.primitives.slice import slice_p
from meshrt.transforms.checkpoint import checkpoint_p
from meshrt.transforms.custom_jvp import custom_jvp_call_p
from meshrt.transforms.custom_vjp import custom_vjp_call_p
from meshrt.transforms.custom_vmap import custom_vmap_call_p

__all__ = ["RULES"]

_INT32 = np.dtype(np.int32)
_VIEWS = (slice_p, reshape_p, broadcast_in_dim_p)


def _call(walk: Walk, eqn: Eqn, *operands: Any) -> list[Any]:
    """A call is what it calls."""
    return walk.jaxpr(eqn.params[body_name(eqn.params)], operands)


# ----------------------------------------------------------------------------------------------------------------------
# What crosses the edge of a region


def _passed(walk: Walk, avals: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Values as regions take and give them: arrays of bools are numbers there where the back end says so."""
    return [converted(walk, v, a.shape, a.dtype, _INT32) if _is_mask(walk, a) else v for v, a in zip(values, avals)]


def _taken(walk: Walk, avals: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """The values of which `_passed` made these."""
    return [converted(walk, v, a.shape, _INT32, a.dtype) if _is_mask(walk, a) else v for v, a in zip(values, avals)]


def _is_mask(walk: Walk, aval: Any) -> bool:
    return not walk.passes_masks and bool(aval.shape) and aval.dtype == np.bool_


# ----------------------------------------------------------------------------------------------------------------------
# Branches


def _cond(walk: Walk, eqn: Eqn, which: ir.Value, *operands: Any) -> Sequence[Any]:
    return _branches(walk, eqn, which, eqn.params["branches"], operands)


def _is_view(jaxpr: Jaxpr) -> bool:
    """Whether a program only shows parts of its arguments, or constants."""
    return all(e.primitive in _VIEWS for e in jaxpr.eqns)


def _branches(walk: Walk, eqn: Eqn, which: ir.Value, branches: Sequence[Jaxpr], operands: Any) -> Sequence[Any]:
    """An `scf.if` between the first branch and the others. Indices out of range take the nearest."""
    if len(branches) == 1:
        return walk.nested(branches[0], operands)
    dtype = eqn.invars[0].aval.dtype
    is_bool = dtype == np.bool_
    others = which if is_bool else arith.cmpi(arith.CmpIPredicate.sgt, which, walk.constant(0, (), dtype))
    avals = [v.aval for v in eqn.outvars]
    if not walk.branches_on_views and len(branches) == 2 and all(map(_is_view, branches)):
        low, high = [_passed(walk, avals, walk.jaxpr(b, operands)) for b in branches]
        return _taken(walk, avals, [arith.select(others, b, a) for a, b in zip(low, high)])
    kinds = [walk.like(a.shape, _INT32 if _is_mask(walk, a) else a.dtype) for a in avals]
    op = scf.IfOp(others, kinds, has_else=True)
    with ir.InsertionPoint(op.then_block):
        if len(branches) > 2:
            which = arith.subi(which, walk.constant(1, (), dtype))
        scf.yield_(_passed(walk, avals, _branches(walk, eqn, which, branches[1:], operands)))
    with ir.InsertionPoint(op.else_block):
        scf.yield_(_passed(walk, avals, walk.nested(branches[0], operands)))
    return _taken(walk, avals, op.results)


# ----------------------------------------------------------------------------------------------------------------------
# Loops


@dataclass(frozen=True)
class _Counted:
    """A loop whose carry at position `counter` goes from `start` to `stop` by ones."""

    counter: int
    start: ir.Value
    stop: ir.Value

    def write(
        self, walk: Walk, carry: Sequence[Any], body: Callable[[Sequence[Any]], Sequence[Any]], unroll: int = 1
    ) -> list[Any]:
        """`body` takes and gives the whole carry."""
        rest = [v for i, v in enumerate(carry) if i != self.counter]
        count = lambda values, at: [*values[: self.counter], at, *values[self.counter :]]
        op = scf.ForOp(self.start, self.stop, walk.i32(unroll), rest)
        with ir.InsertionPoint(op.body):
            at, values = op.induction_variable, list(op.inner_iter_args)
            for n in range(unroll):
                here = at if n == 0 else arith.addi(at, walk.i32(n))
                outs = list(body(count(values, here)))
                values = [v for i, v in enumerate(outs) if i != self.counter]
            scf.yield_(values)
        return count(list(op.results), self.stop)


def _adds_one(jaxpr: Jaxpr, argument: Var, out: Atom) -> bool:
    """Whether a result of a program is one of its arguments plus one."""
    eqn = next((e for e in jaxpr.eqns if out in e.outvars), None)
    if eqn is None or eqn.primitive is not add_p or argument.aval.shape or argument.aval.dtype != _INT32:
        return False
    one = eqn.invars[1]
    return eqn.invars[0] is argument and type(one) is Literal and one.val == 1


def _counter(jaxpr: Jaxpr, consts: int, carry: int) -> int | None:
    """The position in the carry of a counter."""
    arguments = jaxpr.invars[consts : consts + carry]
    return next((i for i in range(carry) if _adds_one(jaxpr, arguments[i], jaxpr.outvars[i])), None)


def _scan(walk: Walk, eqn: Eqn, *operands: Any) -> list[Any]:
    jaxpr, length, unroll = eqn.params["jaxpr"], eqn.params["length"], eqn.params["unroll"]
    n_consts, n_carry = eqn.params["num_consts"], eqn.params["num_carry"]
    if len(operands) > n_consts + n_carry or len(eqn.outvars) > n_carry:
        walk.refuse("a loop in a kernel reads and writes no stacks of values; use fori_loop and index a reference")
    consts, carry = operands[:n_consts], list(operands[n_consts:])
    body = lambda values: walk.nested(jaxpr, [*consts, *values])
    if unroll >= length:
        for _ in range(length):
            carry = body(carry)
        return carry
    avals = [v.aval for v in eqn.outvars]
    carry = _passed(walk, avals, carry)
    body = lambda values: _passed(walk, avals, walk.nested(jaxpr, [*consts, *_taken(walk, avals, values)]))
    rest = length % unroll
    counter = _counter(jaxpr, n_consts, n_carry)
    if counter is not None:
        start = carry[counter]
        stop = arith.addi(start, walk.i32(length - rest)) if _nonzero(eqn.invars[n_consts + counter]) else None
        loop = _Counted(counter, start, walk.i32(length - rest) if stop is None else stop)
        carry = loop.write(walk, carry, body, unroll)
    else:
        turn = lambda values: body(values[1:])
        loop = _Counted(0, walk.i32(0), walk.i32(length - rest))
        carry = loop.write(walk, [walk.i32(0), *carry], lambda values: [None, *turn(values)], unroll)[1:]
    for _ in range(rest):
        carry = body(carry)
    return _taken(walk, avals, carry)


def _nonzero(atom: Atom) -> bool:
    return not (type(atom) is Literal and atom.val == 0)


def _bound(eqn: Eqn) -> tuple[int, Any] | None:
    """Of a `while` that goes on while a counter is below a bound: the counter's position in the carry, and the bound,
    as the position in the carry of something that stays as it is or as the number itself."""
    test, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    n_test, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    if (
        n_test
        or len(test.eqns) != 1
        or test.eqns[0].primitive is not lt_p
        or test.outvars[0] not in test.eqns[0].outvars
    ):
        return None
    low, high = test.eqns[0].invars
    if type(low) is not Var or low not in test.invars:
        return None
    counter = test.invars.index(low)
    if not _adds_one(body, body.invars[n_body + counter], body.outvars[counter]):
        return None
    if type(high) is Literal:
        return counter, int(high.val)
    position = test.invars.index(high)
    return (counter, (position,)) if body.outvars[position] is body.invars[n_body + position] else None


def _while(walk: Walk, eqn: Eqn, *operands: Any) -> list[Any]:
    test, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    n_test, n_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    of_test, of_body = operands[:n_test], operands[n_test : n_test + n_body]
    avals = [v.aval for v in eqn.outvars]
    carry = _passed(walk, avals, operands[n_test + n_body :])
    turn = lambda values: _passed(walk, avals, walk.nested(body, [*of_body, *_taken(walk, avals, values)]))
    bound = _bound(eqn)
    if bound is not None:
        counter, high = bound
        stop = walk.i32(high) if isinstance(high, int) else carry[high[0]]
        loop = _Counted(counter, carry[counter], arith.maxsi(carry[counter], stop))
        return _taken(walk, avals, loop.write(walk, carry, turn))
    kinds = [v.type for v in carry]
    op = scf.WhileOp(kinds, carry)
    before = op.before.blocks.append(*kinds)
    with ir.InsertionPoint(before):
        (go_on,) = walk.jaxpr(test, [*of_test, *_taken(walk, avals, before.arguments)])
        scf.condition(go_on, list(before.arguments))
    after = op.after.blocks.append(*kinds)
    with ir.InsertionPoint(after):
        scf.yield_(turn(after.arguments))
    return _taken(walk, avals, op.results)


RULES: dict[Primitive, Rule] = {
    **dict.fromkeys([jit_p, custom_jvp_call_p, custom_vjp_call_p, custom_vmap_call_p, checkpoint_p], _call),
    cond_p: _cond,
    scan_p: _scan,
    while_p: _while,
}
