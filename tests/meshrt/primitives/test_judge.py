"""Every primitive against JAX: types, values, derivatives to second order, batching in every position."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshrt.lax
from meshrt import dtypes
from meshrt.core.jaxpr import check
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from tests.meshrt.primitives import programs
from tests.meshrt.primitives.cases import Case
from tests.meshrt.primitives.evaluate import evaluate
from tests.meshrt.primitives.table import CASES

FAST = {"xla_backend_optimization_level": 0}


def run_theirs(fun: Any, args: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.jit(fun).lower(*args).compile(compiler_options=FAST)(*args)]


def float0_free(results: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(label, x) for label, x in results if getattr(x, "dtype", None) != jax.dtypes.float0]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_against_jax(case: Case) -> None:
    args, batched = case.draw(), case.draw(programs.BATCH, salt=1)
    out_types = programs.as_list(jax.eval_shape(lambda *xs: _their_outputs(case, xs), *args))
    aux = programs.auxiliary(case, args, out_types)
    moved: dict[tuple[int, int], int] = {}
    inputs = [*args, *batched]
    # Batched operands at another position than 0 are further inputs.
    for i, (a, b) in enumerate(zip(case.args, batched)):
        if a.mapped and args[i].ndim:
            moved[i, args[i].ndim] = len(inputs)
            inputs.append(np.ascontiguousarray(np.moveaxis(b, 0, -1)))
    labels: list[str] = []

    def program(lib):
        def run(*xs):
            n = len(args)
            by_identity = {id(xs[n + i]): i for i in range(n)}
            at = lambda b, position: b if position == 0 else xs[moved[by_identity[id(b)], position]]
            judge = programs.Judge(lib, case, xs[:n], xs[n : 2 * n], {**aux, "batched_at": at})
            results = float0_free(judge.run())
            labels[:] = [label for label, _ in results]
            return [x for _, x in results]

        return run

    expected = run_theirs(program(programs.THEIRS), inputs)
    their_labels = list(labels)
    actual = evaluate(program(programs.OURS), *inputs)
    assert labels == their_labels
    failures = [f for f in map(lambda *t: _difference(case, *t), labels, actual, expected) if f]
    assert not failures, "\n".join(failures)


def _their_outputs(case: Case, xs: Any) -> list[Any]:
    return [programs.THEIRS.data(o) for o in programs.as_list(case.fun(jax.lax, *xs))]


def _difference(case: Case, label: str, actual: np.ndarray, expected: np.ndarray) -> str:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"{label}: {actual.dtype}{actual.shape}, expected {expected.dtype}{expected.shape}"
    if not programs.is_inexact(actual):
        return "" if np.array_equal(actual, expected) else f"{label}: {actual} expected {expected}"
    wide = np.complex64 if actual.dtype.kind == "c" else np.float32
    limits = programs.tolerance(actual.dtype, case.scale)
    try:
        np.testing.assert_allclose(actual.astype(wide), expected.astype(wide), **limits, err_msg=label)
    except AssertionError as e:
        return str(e)
    return ""


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_types(case: Case) -> None:
    """Shapes, dtypes and weak types of results, for strong, weak and mixed operands."""
    args = case.draw()
    patterns = [(False,) * len(args)]
    if not case.keys:
        weak = tuple(_may_be_weak(a.dtype) for a in args)
        patterns += [weak, (*weak[:1], *[False] * (len(args) - 1)), (False, *weak[1:])]
    for pattern in dict.fromkeys(patterns):
        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=w) for a, w in zip(args, pattern)]
        theirs = programs.as_list(jax.eval_shape(lambda *xs: _their_outputs(case, xs), *structs))
        avals = [ShapedArray(a.shape, aval_of(a).dtype, w) for a, w in zip(args, pattern)]
        fun = lambda *xs: [programs.OURS.data(o) for o in programs.as_list(case.fun(meshrt.lax, *xs))]
        closed = trace_to_jaxpr(fun, avals, case.name)
        check(closed)
        ours = [(a.shape, a.dtype, a.weak_type) for a in closed.out_avals]
        assert ours == [(t.shape, t.dtype, t.weak_type) for t in theirs], f"weak operands: {pattern}"


def _may_be_weak(dtype: Any) -> bool:
    return np.dtype(dtype).kind in "ifc"


def _real(case: Case) -> bool:
    args = case.draw()
    outs = programs.as_list(jax.eval_shape(lambda *xs: _their_outputs(case, xs), *args))
    inexact = [x.dtype for x in (*args, *outs) if dtypes.issubdtype(x.dtype, np.inexact)]
    return all(d == np.float32 for d in inexact)


FINITE = [c for c in CASES if c.derivatives and c.finite and c.name.endswith("float32") and _real(c)]


@pytest.mark.parametrize("case", FINITE, ids=lambda c: c.name)
def test_finite_differences(case: Case) -> None:
    """The directional derivative against central differences."""
    args = case.draw()
    out_types = programs.as_list(jax.eval_shape(lambda *xs: _their_outputs(case, xs), *args))
    aux = programs.auxiliary(case, args, out_types)
    step = np.float32(2e-3)

    def program(*xs):
        judge = programs.Judge(programs.OURS, case, xs, xs, aux)
        fun, primals = judge.smooth(xs), [xs[i] for i in aux["diff"]]
        exact = programs.OURS.jvp(fun, tuple(primals), tuple(aux["tangents"]))[1]
        lax = meshrt.lax
        moved = lambda sign: fun(*[lax.add(p, t * sign * step) for p, t in zip(primals, aux["tangents"])])
        return [*exact, *[lax.div(lax.sub(a, b), 2 * step) for a, b in zip(moved(1), moved(-1))]]

    results = evaluate(program, *args)
    half = len(results) // 2
    for exact, numeric in zip(results[:half], results[half:]):
        spread = max(1.0, float(np.max(np.abs(exact), initial=0)))
        np.testing.assert_allclose(exact, numeric, rtol=2e-2, atol=5e-3 * spread * case.scale)
