"""Runs a program with an error beside its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt.core import source
from meshrt.core.jaxpr import Eqn, Jaxpr, Literal, subjaxprs
from meshrt.core.naming import body_name
from meshrt.core.primitive import Primitive
from meshrt.core.trace import context, trace_to_jaxpr
from meshrt.core.types import aval_of
from meshrt.experimental.checkify.automatic import failures_of
from meshrt.experimental.checkify.checks import CHECK, check_p
from meshrt.experimental.checkify.failures import Error, ErrorCategory, FailedCheckError, user_checks
from meshrt.experimental.checkify.sites import Sites
from meshrt.jit import jit
from meshrt.lax import cond_p, scan_p, stop_gradient, switch, while_loop, while_p
from meshrt.lax import scan as scan_over
from meshrt.numpy import expand_dims
from meshrt.primitives.call import jit_p
from meshrt.primitives.shard_map import shard_map_p
from meshrt.shard_map import shard_map
from meshrt.sharding.spec import PartitionSpec
from meshrt.transforms.arguments import fun_name
from meshrt.transforms.checkpoint import checkpoint_p
from meshrt.transforms.custom_jvp import custom_jvp_call_p
from meshrt.transforms.custom_vjp import custom_vjp_call_p
from meshrt.transforms.high import flatten

__all__ = ["checkify", "take_as"]


def checkify(f: Callable[..., Any], errors: frozenset[ErrorCategory] = user_checks) -> Callable[..., tuple[Error, Any]]:
    """A function that returns (error, result) where `f` returns its result.

    The error says what went wrong first: `error.get()` gives the message or None, `error.throw()` raises it. The
    function can be compiled, mapped and differentiated as any other; the result is what `f` gives, whatever goes wrong.

    Args:
      errors: what is looked for: `user_checks` (of `check`, the default), `nan_checks`, `div_checks`, `index_checks`,
        or unions of them such as `float_checks`, `automatic_checks`, `all_checks`.

    >>> from meshrt.experimental import checkify
    >>> error, value = checkify.checkify(jnp.log, errors=checkify.nan_checks)(-1.0)
    >>> "nan" in error.get()
    True
    """

    def checked(*args: Any, **kwargs: Any) -> tuple[Error, Any]:
        structures = []

        def flat() -> list[Any]:  # arguments are values that the program captures: what is known of them stays known
            outs, structure = flatten(f(*args, **kwargs))
            structures.append(structure)
            return outs

        closed = trace_to_jaxpr(flat, [], fun_name(f))
        walk = _Walk(Sites(frozenset(errors)))
        walk.find(closed.jaxpr, closed.consts)
        state, outs = walk.run(closed.jaxpr, closed.consts, walk.sites.initial(), ())
        return walk.sites.error(state), tree_util.tree_unflatten(structures[-1], outs)

    checked.__name__ = checked.__qualname__ = f"checkify({fun_name(f)})"
    return checked


class _Walk:
    """Runs Jaxprs: (error, arguments) -> (error, results). Errors are the flat lists of `Sites`."""

    def __init__(self, sites: Sites):
        self.sites = sites

    def find(self, jaxpr: Jaxpr, consts: Sequence[Any] = ()) -> None:
        """Finds the sites of a program and of all programs in it."""
        self.sites.is_open = True
        types = [aval_of(c).bare() for c in consts] + [v.aval for v in jaxpr.invars]
        split = len(consts)
        trace_to_jaxpr(lambda *xs: self.run(jaxpr, xs[:split], (), xs[split:])[1], types, "checkify")
        self.sites.is_open = False

    def may_fail(self, eqn: Eqn) -> bool:
        """Whether there are sites in the programs that an equation holds."""
        alone = _Walk(Sites(self.sites.enabled))
        for inner in subjaxprs(eqn.params):
            alone.find(inner)
        return len(alone.sites) > 0

    def run(
        self, jaxpr: Jaxpr, consts: Sequence[Any], state: Sequence[Any], args: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Each equation in the current trace, followed by the checks that it has."""
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts))
        env.update(zip(jaxpr.invars, args))
        read = lambda a: a.val if type(a) is Literal else env[a]
        state = list(state)
        previous = source.set_replay(None)
        try:
            for eqn in jaxpr.eqns:
                source.set_replay(eqn.source)
                state, outs = self._apply(eqn, state, [read(a) for a in eqn.invars])
                env.update(zip(eqn.outvars, outs))
        finally:
            source.set_replay(previous)
        return state, [read(a) for a in jaxpr.outvars]

    def _apply(self, eqn: Eqn, state: list[Any], args: list[Any]) -> tuple[list[Any], Sequence[Any]]:
        primitive = eqn.primitive
        if primitive is check_p:
            return self._check(eqn, state, args), []
        if primitive in _TAKEN_AS:
            return self._apply(_TAKEN_AS[primitive](eqn), state, args)
        inner = list(subjaxprs(eqn.params))
        # Programs of operations (what a reduction combines with, what a solver applies) are not looked into: their
        # results are checked as those of any operation.
        is_call = primitive in _RULES or primitive in _CALLS
        if inner and self.sites.is_open and is_call:
            for jaxpr in inner:
                self._visit(jaxpr)
        elif inner and (_asks(inner) or (is_call and self.may_fail(eqn))):
            rule = _RULES.get(primitive)
            return self._beside(eqn, state, args) if rule is None else rule(self, eqn, state, args)
        outs = context.trace.process_primitive(primitive, args, eqn.params)
        outs = list(outs) if primitive.multiple_results else [outs]
        if not is_call:
            found = failures_of(primitive, args, outs, eqn.params, self.sites.enabled)
            for number, (bad, exception) in enumerate(found):
                state = self.sites.note(state, (id(eqn), number), bad, exception)
        return state, outs

    def _visit(self, jaxpr: Jaxpr) -> None:
        """Finds the sites of a program inside of another."""
        trace_to_jaxpr(lambda *xs: self.run(jaxpr, (), (), xs)[1], jaxpr.in_avals, "checkify")

    def _check(self, eqn: Eqn, state: list[Any], args: list[Any]) -> list[Any]:
        """A user's check, or an error that was made a check again."""
        error: Error = tree_util.tree_unflatten(eqn.params["structure"], args)
        if not self.sites.looks_for(FailedCheckError):
            return state
        for number, site in error.sites.items():
            exception = tree_util.tree_unflatten(site.structure, error.payloads[number])
            state = self.sites.note(state, (id(eqn), number), error.code == number, exception)
        return state

    def _beside(self, eqn: Eqn, state: list[Any], args: list[Any]) -> tuple[list[Any], Sequence[Any]]:
        """Functions with derivatives of their own, or whose values are computed again in the backward pass, stay as
        they are; their checks are computed beside them, of the same values, and have no derivatives."""
        if eqn.primitive not in _CALLS:
            raise errors.UnsupportedError(
                f"checkify cannot look into '{eqn.primitive.name}' at {eqn.source}, in which something may fail; "
                "transform the function inside of it by checkify instead"
            )
        name = body_name(eqn.params)
        jaxpr = eqn.params[name]
        outs = context.trace.process_primitive(eqn.primitive, args, {**eqn.params, name: _unchecked(jaxpr)})
        state, _ = self.run(jaxpr, (), state, [stop_gradient(a) for a in args])
        return state, outs

    def per_device(self, eqn: Eqn, state: list[Any], args: list[Any]) -> tuple[list[Any], Sequence[Any]]:
        """Every device has an error of its own: what leaves has a leading dimension over all of them."""
        p, region = eqn.params, eqn.params["region"]

        def body(state: Any, *xs: Any) -> Any:
            state, outs = self.run(p["jaxpr"], (), state, xs)
            return [expand_dims(x, 0) for x in state], outs

        nowhere, manual = PartitionSpec(), region.manual_axes
        everywhere = PartitionSpec(tuple(n for n in region.mesh.axis_names if n in manual))
        checked = shard_map(
            body, mesh=region.mesh, in_specs=(nowhere, *p["in_specs"]), out_specs=(everywhere, list(p["out_specs"])),
            axis_names=frozenset(manual), check_vma=region.check_vma,
        )  # fmt: skip
        return checked(state, *args)

    def cond(self, eqn: Eqn, state: list[Any], args: list[Any]) -> tuple[list[Any], Sequence[Any]]:
        branches = [lambda s, xs, b=b: self.run(b, (), s, xs) for b in eqn.params["branches"]]
        return switch(args[0], branches, state, args[1:])

    def loop(self, eqn: Eqn, state: list[Any], args: list[Any]) -> tuple[list[Any], Sequence[Any]]:
        """A while loop, whose condition may fail as well: it is computed at the end of each iteration."""
        p = eqn.params
        test_n, body_n = p["cond_nconsts"], p["body_nconsts"]
        test_consts, body_consts, carry = args[:test_n], args[test_n : test_n + body_n], args[test_n + body_n :]
        test = lambda s, xs: self.run(p["cond_jaxpr"], (), s, [*test_consts, *xs])

        def body(loop: Any) -> Any:
            s, _, xs = loop
            s, xs = self.run(p["body_jaxpr"], (), s, [*body_consts, *xs])
            s, (goes_on,) = test(s, xs)
            return s, goes_on, xs

        state, (goes_on,) = test(state, carry)
        state, _, outs = while_loop(lambda loop: loop[1], body, (state, goes_on, list(carry)))
        return state, outs

    def scan(self, eqn: Eqn, state: list[Any], args: list[Any]) -> tuple[list[Any], Sequence[Any]]:
        p = eqn.params
        consts, carried = p["num_consts"], p["num_consts"] + p["num_carry"]

        def body(loop: Any, xs: Any) -> Any:
            s, carry = loop
            s, outs = self.run(p["jaxpr"], (), s, [*args[:consts], *carry, *xs])
            return (s, outs[: p["num_carry"]]), outs[p["num_carry"] :]

        (state, carry), ys = scan_over(
            body, (state, args[consts:carried]), args[carried:], length=p["length"], reverse=p["reverse"],
            unroll=p["unroll"],
        )  # fmt: skip
        return state, [*carry, *ys]

    def call(self, eqn: Eqn, state: list[Any], args: list[Any]) -> tuple[list[Any], Sequence[Any]]:
        run = lambda s, xs: self.run(eqn.params["jaxpr"], (), s, xs)
        run.__name__ = eqn.params["name"]
        return jit(run)(state, args)


def _unchecked(jaxpr: Jaxpr) -> Jaxpr:
    """The same program without the checks of users."""
    if CHECK not in jaxpr.effects:
        return jaxpr
    unseeing = _Walk(Sites(frozenset()))
    return trace_to_jaxpr(lambda *xs: unseeing.run(jaxpr, (), (), xs)[1], jaxpr.in_avals, jaxpr.name).jaxpr


# Operations of other rooms in whose place another equation, of equal meaning, is looked into.
_TAKEN_AS: dict[Primitive, Callable[[Eqn], Eqn]] = {}


def take_as(primitive: Primitive, equation: Callable[[Eqn], Eqn]) -> None:
    """Looks into `equation(eqn)` where a program has an equation `eqn` of this primitive. It has to give the same one
    each time."""
    _TAKEN_AS[primitive] = equation


def _asks(programs: Sequence[Jaxpr]) -> bool:
    return any(CHECK in jaxpr.effects for jaxpr in programs)


_CALLS = frozenset({checkpoint_p, custom_jvp_call_p, custom_vjp_call_p})
_RULES: dict[Any, Callable[..., tuple[list[Any], Sequence[Any]]]] = {
    cond_p: _Walk.cond, while_p: _Walk.loop, scan_p: _Walk.scan, jit_p: _Walk.call,
    shard_map_p: _Walk.per_device,
}  # fmt: skip
