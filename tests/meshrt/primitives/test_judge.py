"""Every primitive against JAX: types, values, derivatives to second order, batching in every position."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshrt.lax
from meshrt import dtypes
from meshrt.core.checking import check
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from tests.meshrt.primitives import programs
from tests.meshrt.primitives.cases import Case
from tests.meshrt.primitives.evaluate import evaluate, quick_compile
from tests.meshrt.primitives.table import CASES


def run_theirs(fun: Any, args: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in jax.jit(fun).lower(*args).compile(compiler_options=quick_compile())(*args)]


def float0_free(results: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(label, x) for label, x in results if getattr(x, "dtype", None) != jax.dtypes.float0]


@pytest.mark.sweep(4)
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
    numeric = _judged_by_differences(case, args, out_types)

    def program(lib):
        def run(*xs):
            n = len(args)
            by_identity = {id(xs[n + i]): i for i in range(n)}
            at = lambda b, position: b if position == 0 else xs[moved[by_identity[id(b)], position]]
            judge = programs.Judge(lib, case, xs[:n], xs[n : 2 * n], {**aux, "batched_at": at})
            results = float0_free(judge.run())
            labels[:] = [label for label, _ in results]
            extra = _central_differences(case, xs[:n], aux) if numeric and lib is programs.OURS else []
            return [*(x for _, x in results), *extra]

        return run

    expected = run_theirs(program(programs.THEIRS), inputs)
    their_labels = list(labels)
    actual = evaluate(program(programs.OURS), *inputs)
    assert labels == their_labels
    failures = [f for f in map(lambda *t: _difference(case, *t), labels, actual, expected) if f]
    failures += [f for f in [_numeric_difference(case, actual[len(labels) :])] if f]
    assert not failures, "\n".join(failures)


def _their_outputs(case: Case, xs: Any) -> list[Any]:
    return [programs.THEIRS.data(o) for o in programs.as_list(case.fun(programs.THEIRS.lax, *xs))]


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


@pytest.mark.sweep(3)
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
        fun = lambda *xs: [programs.OURS.data(o) for o in programs.as_list(case.fun(programs.OURS.lax, *xs))]
        closed = trace_to_jaxpr(fun, avals, case.name)
        check(closed)
        ours = [(a.shape, a.dtype, a.weak_type) for a in closed.out_avals]
        assert ours == [(t.shape, t.dtype, t.weak_type) for t in theirs], f"weak operands: {pattern}"


def _may_be_weak(dtype: Any) -> bool:
    return np.dtype(dtype).kind in "ifc"


def _judged_by_differences(case: Case, args: Any, out_types: Any) -> bool:
    inexact = [x.dtype for x in (*args, *out_types) if dtypes.issubdtype(x.dtype, np.inexact)]
    return bool(
        case.derivatives and case.finite and case.name.endswith("float32") and all(d == np.float32 for d in inexact)
    )


STEP = np.float32(2e-3)


def _central_differences(case: Case, args: Any, aux: dict[str, Any]) -> list[Any]:
    """The directional derivatives of the smooth results, then central differences for them."""
    lax = meshrt.lax
    judge = programs.Judge(programs.OURS, case, args, args, aux)
    fun, primals = judge.smooth(args), [args[i] for i in aux["diff"]]
    exact = programs.OURS.jvp(fun, tuple(primals), tuple(aux["tangents"]))[1]
    ahead, behind = (fun(*[lax.add(p, t * s * STEP) for p, t in zip(primals, aux["tangents"])]) for s in (1, -1))
    return [*exact, *[lax.div(lax.sub(a, b), 2 * STEP) for a, b in zip(ahead, behind)]]


def _numeric_difference(case: Case, results: list[np.ndarray]) -> str:
    half = len(results) // 2
    for exact, numeric in zip(results[:half], results[half:]):
        spread = max(1.0, float(np.max(np.abs(exact), initial=0)))
        if not np.allclose(exact, numeric, rtol=2e-2, atol=5e-3 * spread * case.scale):
            return f"finite differences: jvp {exact}, numeric {numeric}"
    return ""
