"""Every primitive has a row, or a written reason why not."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import meshrt.primitives
from meshrt.core.jaxpr import Jaxpr, subjaxprs
from meshrt.core.primitive import Primitive
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import aval_of
from tests.meshrt.primitives import programs
from tests.meshrt.primitives.table import CASES

# Primitives that only derivatives produce, and a case that does.
THROUGH_DERIVATIVES = {
    "select_and_gather_add": "reduce_window max-float32",
    "select_and_scatter_add": "reduce_window max-float32",
}
REASONS = {
    "copy": "the identity; no public function of lax makes one",
    "jit": "a call; tests of jit judge it",
    "linear_zero": "made by linearization of loops only; tests of control flow judge it",
    "device_put": "the identity on one device; test_places judges it",
    "sharding_constraint": "the identity on one device; tests of sharding judge it",
}


def defined() -> dict[str, Primitive]:
    """All primitives that the families hold."""
    found = {}
    for info in pkgutil.iter_modules(meshrt.primitives.__path__):
        module = importlib.import_module(f"{meshrt.primitives.__name__}.{info.name}")
        found.update({v.name: v for v in vars(module).values() if isinstance(v, Primitive)})
    return found


def used_in(jaxpr: Jaxpr) -> set[str]:
    names = set()
    for eqn in jaxpr.eqns:
        names.add(eqn.primitive.name)
        for sub in subjaxprs(eqn.params):
            names |= used_in(sub)
    return names


def staged_names(case) -> set[str]:
    avals = [aval_of(a) for a in case.draw()]
    fun = lambda *xs: [programs.OURS.data(o) for o in programs.as_list(case.fun(programs.OURS.lax, *xs))]
    return used_in(trace_to_jaxpr(fun, avals, case.name).jaxpr)


def derivative_names(case) -> set[str]:
    args = case.draw()

    def program(*xs):
        fun = lambda *ys: programs.as_list(case.fun(programs.OURS.lax, *ys))
        out, pull = programs.OURS.vjp(fun, *xs)
        return [*programs.OURS.jvp(fun, xs, xs)[1], *pull(out)]

    return used_in(trace_to_jaxpr(program, [aval_of(a) for a in args], case.name).jaxpr)


@pytest.mark.smoke
def test_every_primitive_has_a_row() -> None:
    by_name = {c.name: c for c in CASES}
    covered = set().union(*(staged_names(c) for c in CASES))
    for primitive, case in THROUGH_DERIVATIVES.items():
        assert primitive in derivative_names(by_name[case])
        covered.add(primitive)
    primitives = set(defined())
    assert not REASONS.keys() & covered, "reasons for primitives that have rows"
    assert primitives - covered - REASONS.keys() == set()


def test_every_primitive_has_rules() -> None:
    """What has no jvp has none on purpose: integers in, integers out, or linear in a constant."""
    without = {name for name, p in defined().items() if p.jvp is None and p.linearize is None}
    assert without <= {"iota", "linear_zero", "reduce_and", "reduce_or", "reduce_xor", "reduce_window"}
