"""Finds random keys that a program uses twice.

`KEY_USES` says of each primitive what it does to keys; one that it does not name uses up all that it is given.
`jaxpr_signature` follows the keys through a program and says the same of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.memory import memory_put_p
from meshrt.core.basic.reshard import reshard_p
from meshrt.core.basic.shapes import broadcast_in_dim_p, reshape_p, transpose_p
from meshrt.core.basic.varying import pvary_p
from meshrt.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from meshrt.core.key_use import Forward, KeyReuseSignature, Mask, Sink, Source, fitted
from meshrt.core.primitive import Primitive
from meshrt.primitives import random as rn
from meshrt.primitives.call import jit_p
from meshrt.primitives.callback import debug_callback_p
from meshrt.primitives.composite import composite_p
from meshrt.primitives.concatenate import concatenate_p, rev_p
from meshrt.primitives.control_cond import cond_p
from meshrt.primitives.control_scan import scan_p
from meshrt.primitives.control_while import while_p
from meshrt.primitives.conversion import convert_element_type_p
from meshrt.primitives.dynamic_slice import dynamic_slice_p, dynamic_update_slice_p
from meshrt.primitives.gather import gather_p
from meshrt.primitives.identity import copy_p, optimization_barrier_p, stop_gradient_p
from meshrt.primitives.key_marks import assert_consumed_value_p, consume_p, random_clone_p
from meshrt.primitives.layout_constraint import layout_constraint_p
from meshrt.primitives.scatter import scatter_p
from meshrt.primitives.selection import select_n_p
from meshrt.primitives.shard_map import shard_map_p
from meshrt.primitives.sharding import device_put_p, sharding_constraint_p
from meshrt.primitives.slice import slice_p
from meshrt.transforms import checkpoint, checkpoint_policies, custom_jvp, custom_vjp, custom_vmap
from meshrt.transforms.tools import WeakCache

__all__: list[str] = []

_signatures = WeakCache()


def jaxpr_signature(jaxpr: Jaxpr) -> KeyReuseSignature:
    """What a program does to the keys among its arguments, which are followed by the values that it captures.

    Raises:
      KeyReuseError: it uses a key twice.
    """
    found: KeyReuseSignature = _signatures.get(jaxpr, None, lambda: _Walk(jaxpr).signature())
    return found


def signature_of(eqn: Eqn) -> KeyReuseSignature:
    """What an equation does to keys."""
    use = KEY_USES.get(eqn.primitive)
    if use is None:
        return KeyReuseSignature(*(Sink(i) for i, a in enumerate(eqn.invars) if a.aval.is_key))
    return use if isinstance(use, KeyReuseSignature) else use(eqn)


class _Walk:
    """Follows keys through a program; `used` says which are used up, `where` by which equation first."""

    def __init__(self, jaxpr: Jaxpr):
        self.jaxpr = jaxpr
        self.used: dict[Var, Mask] = {}
        self.where: dict[Var, Any] = {}
        self.roots: dict[Var, Var] = {}
        self.read = {a for e in jaxpr.eqns for a in e.invars if isinstance(a, Var)}
        self.read.update(a for a in jaxpr.outvars if isinstance(a, Var))

    def signature(self) -> KeyReuseSignature:
        for eqn in self.jaxpr.eqns:
            # Updates at an index take the old elements out in case that they are needed.
            if eqn.primitive is not slice_p or eqn.outvars[0] in self.read:
                self.step(eqn)
        inputs = [*self.jaxpr.invars, *self.jaxpr.constvars]
        places = {v: i for i, v in reversed([*enumerate(inputs)])}
        parts: list[Any] = [Sink(i, self.of(v)) for i, v in enumerate(inputs) if np.any(self.of(v))]
        for i, a in enumerate(self.jaxpr.outvars):
            if isinstance(a, Var) and a.aval.is_key:
                root = self.root(a)
                if root in places:
                    parts.append(Forward(places[root], i))
                elif not np.all(used := self.of(a)):
                    parts.append(Source(i, ~np.asarray(used)))
        return KeyReuseSignature(*parts)

    def step(self, eqn: Eqn) -> None:
        if not any(a.aval.is_key for a in (*eqn.invars, *eqn.outvars)):
            return
        signature = signature_of(eqn)
        if eqn.primitive is assert_consumed_value_p:
            _check_expected(eqn, self.of(eqn.invars[0]))
        for forward in signature.forwards:
            given, made = eqn.invars[forward.in_idx], eqn.outvars[forward.out_idx]
            if isinstance(given, Var) and made.aval.is_key:
                self.roots[made] = self.root(given)
        for sink in signature.sinks:
            self.sink(eqn, sink)
        new = {source.idx: source.mask for source in signature.sources}
        for i, v in enumerate(eqn.outvars):
            if v.aval.is_key and v not in self.roots:
                self.used[v] = fitted(~np.asarray(new.get(i, False)), v.aval.shape)

    def sink(self, eqn: Eqn, sink: Sink) -> None:
        given = eqn.invars[sink.idx]
        if not isinstance(given, Var) or not given.aval.is_key:
            return
        root = self.root(given)
        before = self.used.get(root, False)
        mask = fitted(fitted(sink.mask, given.aval.shape), root.aval.shape)
        if np.any(np.logical_and(before, mask)):
            first = f" It was first used on line {self.where[root]}." if root in self.where else ""
            raise errors.KeyReuseError(
                f"In {eqn.primitive.name}, argument {sink.idx} is already consumed. It is a random key of type "
                f"{given.aval.short()}, used on line {eqn.source}.{first} {_FIX}"
            )
        self.used[root] = np.logical_or(before, mask)
        self.where.setdefault(root, eqn.source)

    def root(self, v: Var) -> Var:
        """The variable whose keys `v` has."""
        return self.roots.get(v, v)

    def of(self, a: Atom) -> Mask:
        """Which keys of a variable are used up."""
        if isinstance(a, Literal):
            return False
        return fitted(self.used.get(self.root(a), False), a.aval.shape) if a.aval.is_key else False


_FIX = "Split it (random.split) and use each new key once, or say that it is meant with random.clone(key)"


def _check_expected(eqn: Eqn, used: Mask) -> None:
    expected = eqn.params["value"].val
    if np.all(np.asarray(used) == expected):
        return
    if expected.all():
        raise AssertionError(f"Expected key to be consumed in {eqn} on line {eqn.source}")
    if not expected.any():
        raise AssertionError(f"Expected key to not be consumed in {eqn} on line {eqn.source}")
    raise AssertionError(f"Expected {expected}, got {used} in {eqn} on line {eqn.source}")


# ----------------------------------------------------------------------------------------------------------------------
# Primitives whose parameters decide


def _each_forward(eqn: Eqn) -> KeyReuseSignature:
    return KeyReuseSignature(*(Forward(i, i) for i in range(len(eqn.invars))))


def _rearranged(eqn: Eqn) -> KeyReuseSignature:
    """The elements of operands in another order: the operands are used up for the result."""
    return KeyReuseSignature(*(Sink(i) for i, a in enumerate(eqn.invars) if a.aval.is_key), Source(0))


def _concatenated(eqn: Eqn) -> KeyReuseSignature:
    return _FORWARDS if len(eqn.invars) == 1 else _rearranged(eqn)


def _sliced(eqn: Eqn) -> KeyReuseSignature:
    aval = eqn.invars[0].aval
    if not all(isinstance(d, int) for d in aval.shape):
        return _FORWARDS
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params.get("strides") or (1,) * len(starts)
    mask = np.zeros(aval.shape, bool)
    mask[tuple(map(slice, starts, limits, strides))] = True
    return KeyReuseSignature(Sink(0, mask), Source(0))


def _body(parameter: str) -> Callable[[Eqn], KeyReuseSignature]:
    """Of a primitive that runs the program in that parameter on its operands."""
    return lambda eqn: jaxpr_signature(eqn.params[parameter])


def _checkpointed(eqn: Eqn) -> KeyReuseSignature:
    # What runs in the backward pass uses again what the forward pass has used, on purpose.
    return KeyReuseSignature() if eqn.params["differentiated"] else jaxpr_signature(eqn.params["jaxpr"])


def _branched(eqn: Eqn) -> KeyReuseSignature:
    """A key is used up if any branch does that."""
    branches = [jaxpr_signature(b) for b in eqn.params["branches"]]
    offset = len(eqn.invars) - len(eqn.params["branches"][0].invars)
    shapes = [a.aval.shape for a in eqn.invars[offset:]]
    sinks: dict[int, Mask] = {}
    sources: dict[int, Mask] = {}
    for b in branches:
        for sink in b.sinks:
            sinks[sink.idx] = np.logical_or(sinks.get(sink.idx, False), fitted(sink.mask, shapes[sink.idx]))
        for source in b.sources:
            sources[source.idx] = np.logical_and(sources.get(source.idx, True), source.mask)
    common = frozenset.intersection(*(frozenset(b.forwards) for b in branches))
    return KeyReuseSignature(
        *(Sink(i + offset, m) for i, m in sinks.items()),
        *(Source(i, m) for i, m in sources.items()),
        *(Forward(f.in_idx + offset, f.out_idx) for f in common),
    )


def _repeats(eqn: Eqn, what: str, why: str) -> errors.KeyReuseError:
    return errors.KeyReuseError(
        f"{what} leads to key reuse when repeatedly executed, because {why}; it is on line {eqn.source}. Carry the "
        "key, split it in each step, and return a new one, or loop over keys that were split before"
    )


def _check_loop(eqn: Eqn, what: str, signature: KeyReuseSignature, consts: int, carry: int, new: set[int]) -> set[int]:
    """The positions in the carry whose keys a part of a loop uses up.

    KeyReuseError for a constant, or for a key of the carry that is not new in each step.
    """
    used = {s.idx for s in signature.sinks}
    if any(i < consts for i in used):
        raise _repeats(eqn, what, "key constants are repeatedly consumed")
    carried = {i - consts for i in used if i - consts < carry}
    if not carried <= new:
        raise _repeats(eqn, what, "consumed inputs don't match sourced outputs")
    return carried


def _scanned(eqn: Eqn) -> KeyReuseSignature:
    signature = jaxpr_signature(eqn.params["jaxpr"])
    consts, carry = eqn.params["num_consts"], eqn.params["num_carry"]
    new = {s.idx for s in signature.sources}
    _check_loop(eqn, "scan body function", signature, consts, carry, new)
    return signature


def _looped(eqn: Eqn) -> KeyReuseSignature:
    test, body = jaxpr_signature(eqn.params["cond_jaxpr"]), jaxpr_signature(eqn.params["body_jaxpr"])
    test_consts, body_consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    carry, new = len(eqn.outvars), {s.idx for s in body.sources}
    tested = _check_loop(eqn, "while_loop cond function", test, test_consts, carry, new)
    used = _check_loop(eqn, "while_loop body function", body, body_consts, carry, new)
    if tested & used:
        raise errors.KeyReuseError(
            f"while_loop cond and body functions both use the same key; the loop is on line {eqn.source}. {_FIX}"
        )
    first = test_consts + body_consts
    return KeyReuseSignature(
        *(Sink(i + first) for i in sorted(tested | used)),
        *body.sources,
        *(Forward(f.in_idx + test_consts, f.out_idx) for f in body.forwards),
    )


# ----------------------------------------------------------------------------------------------------------------------
# The table

CONSUMES = KeyReuseSignature(Sink(0))
_NOTHING = KeyReuseSignature()
_MAKES = KeyReuseSignature(Source(0))
_FORWARDS = KeyReuseSignature(Forward(0, 0))

#: What each primitive does to keys: a signature, or a function that says it of an equation.
KEY_USES: dict[Primitive, KeyReuseSignature | Callable[[Eqn], KeyReuseSignature]] = {
    rn.random_bits_p: CONSUMES,
    rn.random_split_p: KeyReuseSignature(Sink(0), Source(0)),
    # A key may be folded with many numbers, and be used itself.
    rn.random_fold_in_p: _MAKES,
    rn.random_seed_p: _MAKES,
    rn.random_wrap_p: _MAKES,
    rn.random_unwrap_p: _NOTHING,
    random_clone_p: _MAKES,
    consume_p: KeyReuseSignature(Sink(0), Forward(0, 0)),
    assert_consumed_value_p: _FORWARDS,
    debug_callback_p: _NOTHING,
    **dict.fromkeys(
        (
            broadcast_in_dim_p, convert_element_type_p, copy_p, device_put_p, dynamic_slice_p, gather_p,
            layout_constraint_p, memory_put_p, checkpoint_policies.name_p, pvary_p, reshape_p, reshard_p,
            sharding_constraint_p, stop_gradient_p,
        ),
        _FORWARDS,
    ),
    optimization_barrier_p: _each_forward,
    dynamic_update_slice_p: KeyReuseSignature(Sink(1), Forward(0, 0)),
    scatter_p: KeyReuseSignature(Sink(2), Forward(0, 0)),
    **dict.fromkeys((rev_p, select_n_p, transpose_p), _rearranged),
    concatenate_p: _concatenated,
    slice_p: _sliced,
    **dict.fromkeys(
        (jit_p, shard_map_p, custom_vmap.custom_vmap_call_p, composite_p),
        _body("jaxpr"),
    ),
    **dict.fromkeys((custom_jvp.custom_jvp_call_p, custom_vjp.custom_vjp_call_p), _body("call_jaxpr")),
    checkpoint.checkpoint_p: _checkpointed,
    cond_p: _branched,
    scan_p: _scanned,
    while_p: _looped,
}  # fmt: skip


def check_unused(signature: KeyReuseSignature, consumed: Sequence[Mask], who: str, first: Sequence[Any]) -> None:
    """KeyReuseError if a call would use up keys that `consumed` says are used up; `first` says where they were."""
    for sink in signature.sinks:
        if np.any(np.logical_and(consumed[sink.idx], sink.mask)):
            where = f" It was first used on line {first[sink.idx]}." if first[sink.idx] is not None else ""
            raise errors.KeyReuseError(f"Previously-consumed key passed to {who} at index {sink.idx}.{where} {_FIX}")
