"""Factorisations and solves: what is independent stays split, and takes the split of what is not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation

from .jax_side import Case, check

BATCH = 16


def matrices(*shape):
    """Symmetric and positive definite."""
    a = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return a @ a.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1], dtype=np.float32)


def again(a):
    values, vectors = jnp.linalg.eigh(a)
    return (vectors * values[..., None, :]) @ vectors.swapaxes(-1, -2)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("f", [jnp.linalg.cholesky, again, jnp.linalg.inv, lambda a: jnp.linalg.qr(a)[1]])
@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P(None, None, "x")])
def test_split_matrices_are_dealt_out_along_the_batch(f, spec):
    a = matrices(BATCH, 8, 8)
    result, sent = check(Case({"x": 8}, lambda constrain: f, (a,), (spec,), spec), rtol=1e-4)
    assert not result.findings and (sent == 0 if spec == P("x") else sent < 7 / 8 * a.nbytes)


SOLVES = {
    "left": lambda a, b: jax.scipy.linalg.solve_triangular(a, b),
    "right": lambda a, b: jax.lax.linalg.triangular_solve(a, b.swapaxes(-1, -2), left_side=False).swapaxes(-1, -2),
    "lu": jnp.linalg.solve,
}


@pytest.mark.parametrize("name", SOLVES)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_right_hand_sides_are_independent(name, batch):
    b = np.random.default_rng(1).standard_normal((*batch, 8, 24)).astype(np.float32)
    spec = P(*[None] * (len(batch) + 1), "x")
    case = Case({"x": 8}, lambda constrain: SOLVES[name], (matrices(*batch, 8, 8), b), (P(), spec), spec)
    _, sent = check(case, rtol=1e-4)
    assert not sent


SOLVE = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%a: tensor<8x8xf32>, %b: tensor<BxSHAPE> {sdy.sharding = #sdy.sharding<@mesh, [SPEC]>})
    -> (tensor<BxSHAPE> {sdy.sharding = #sdy.sharding<@mesh, [SPEC]>}) {
  %y = "stablehlo.triangular_solve"(%a, %b) <{left_side = LEFT, lower = true, unit_diagonal = false,
    transpose_a = #stablehlo<transpose TRANSPOSE>}> : (tensor<8x8xf32>, tensor<BxSHAPE>) -> tensor<BxSHAPE>
  return %y : tensor<BxSHAPE>
}
"""


@pytest.mark.parametrize("left", [True, False])
def test_the_operation_for_other_machines_keeps_right_hand_sides_too(left):
    shape, spec = ("8x32", '{}, {"x"}') if left else ("32x8", '{"x"}, {}')
    text = SOLVE.replace("BxSHAPE", f"{shape}xf32").replace("SPEC", spec).replace("LEFT", str(left).lower())
    result = collectives.partition(propagation.run(text.replace("TRANSPOSE", "NO_TRANSPOSE")))
    assert not result.plan.bytes and ("8x4xf32" if left else "4x8xf32") in result.as_text()


CALLS = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%a: tensor<BATCH8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [SPEC{}, {"x"}]>})
    -> (tensor<BATCH8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [OUT{}, {}]>}, tensor<BATCH8xf32>) {
  %y:2 = stablehlo.custom_call @TARGET(%a) : (tensor<BATCH8x8xf32>) -> (tensor<BATCH8x8xf32>, tensor<BATCH8xf32>)
  return %y#0, %y#1 : tensor<BATCH8x8xf32>, tensor<BATCH8xf32>
}
"""


@pytest.mark.parametrize("target", ["Eigh", "Qr", "LuDecomposition"])
@pytest.mark.parametrize("batch", ["", "16x"])
def test_calls_of_other_machines_work_on_whole_matrices(target, batch):
    text = CALLS.replace("TARGET", target).replace("BATCH", batch).replace("SPEC", "{}, " if batch else "")
    text = text.replace("OUT", '{"x"}, ' if batch else "")
    result = collectives.partition(propagation.run(text))
    call = next(line for line in result.as_text().splitlines() if f"@{target}" in line or f'"{target}"' in line)
    assert ("tensor<2x8x8xf32>" if batch else "(tensor<8x8xf32>)") in call
    assert [finding.kind for finding in result.findings] == ([] if batch else ["full-gather"])


FACTORISATIONS = {
    "cholesky": lambda a: jnp.linalg.cholesky(a, symmetrize_input=False),
    "eigh": lambda a: jax.lax.linalg.eigh(a, symmetrize_input=False),
    "inv": jnp.linalg.inv,
    "qr": jnp.linalg.qr,
    "svd": jnp.linalg.svd,
}


@pytest.mark.parametrize("name", FACTORISATIONS)
@pytest.mark.parametrize("spec", [P(None, "x"), P(None, None, "x")])
def test_matrices_that_all_devices_want_factored_are_gathered_once(name, spec):
    a = matrices(BATCH, 8, 8)
    result, sent = check(Case({"x": 8}, lambda constrain: FACTORISATIONS[name], (a,), (spec,), P()), rtol=1e-3)
    assert sent == 7 / 8 * a.nbytes
    assert [f.bytes for f in result.findings] == [sent]


def test_what_sums_up_of_a_factorisation_keeps_it_dealt_out():
    a = matrices(BATCH, 8, 8)
    smallest = lambda a: jnp.linalg.svd(a, compute_uv=False).min()
    result, sent = check(Case({"x": 8}, lambda constrain: smallest, (a,), (P(None, "x"),), P()), rtol=1e-3)
    assert not result.findings and sent < 1 / 4 * a.nbytes


def test_a_factor_that_a_call_returns_for_nobody_does_not_count():
    a = matrices(BATCH, 8, 8)
    spec = P(None, "x")
    function = lambda constrain: lambda a: jnp.linalg.qr(a)[0] + a
    result, sent = check(Case({"x": 8}, function, (a,), (spec,), spec), rtol=1e-3)
    assert not result.findings and sent < 1 / 4 * a.nbytes
