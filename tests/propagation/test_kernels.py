"""Rules of the kernels of linear algebra, by the names of their custom calls."""

import pytest

from propagation import errors, program
from propagation.rules import RuleCache, RuleOptions

from . import oracle, rule_cases

# target -> (operands, results, settings, rule): batches of 8, matrices of 4 rows.
M, V, N = "tensor<8x4x4xf32>", "tensor<8x4xf32>", "tensor<8xi32>"
B = "tensor<8x4x2xf32>"
RULES = {
    "lapack_sgetrf_ffi": ([M], [M, V, N], "", "([i, j, k])->([i, l, m], [i, n], [i])"),
    "cusolver_syevd_ffi": ([M], [M, V, N], "", "([i, j, k])->([i, l, m], [i, n], [i])"),
    "cuhybrid_geqp3": ([M, V], [M, V, V], "", "([i, j, k], [i, l])->([i, m, n], [i, o], [i, p])"),
    "cu_lu_pivots_to_permutation": ([V], [V], "", "([i, j])->([i, k])"),
    "cusolver_syrk_ffi": (
        [M, M, "tensor<f32>", "tensor<f32>"], [M], "", "([i, j, k], [i, l, m], [], [])->([i, n, o])"
    ),
    "lapack_dgtsv_ffi": (
        [V, V, V, B], [V, V, V, B, N], "",
        "([i, k], [i, l], [i, m], [i, n, j])->([i, o], [i, p], [i, q], [i, r, j], [i])",
    ),
    "lapack_strsm_ffi": ([M, B], [B], "side = 76 : ui8", "([i, k, l], [i, m, j])->([i, n, j])"),
    "lapack_ctrsm_ffi": ([M, M], [M], "side = 82 : ui8", "([i, k, l], [i, j, m])->([i, j, n])"),
    "lapack_sormqr_ffi": ([M, V, B], [B], "left = true", "([i, k, l], [i, m], [i, n, j])->([i, o, j])"),
    "cusolver_ormqr_ffi": ([M, V, M], [M], "left = false", "([i, k, l], [i, m], [i, j, n])->([i, j, o])"),
}  # fmt: skip


def call(target, operands, results, settings):
    attrs = f'api_version = 4 : i32, call_target_name = "{target}"'
    attrs += f", backend_config = {{{settings}}}" if settings else ""
    return rule_cases.single("stablehlo.custom_call", operands, results, attrs)


def op_of(text):
    return program.read(text).main.body.ops[0]


@pytest.mark.parametrize("target", RULES)
def test_batches_and_right_hand_sides_pass_and_matrices_are_whole(target):
    *types, expected = RULES[target]
    rule = RuleCache().rule_for(op_of(call(target, *types)))
    text = rule.to_text()
    assert text.split(" {")[0] == expected
    free = {"i"} if "j" in text.split("need_replication=")[1] else {"i", "j"}
    letters = {c for c in expected if c.isalpha()}
    assert set(text.split("need_replication={")[1].rstrip("}").split(", ")) == letters - free


def test_shardy_knows_nothing_of_them():
    cases = [call(target, *types) for target, (*types, _) in RULES.items()]
    for case, out in zip(cases, oracle.run_batch([("rules", c) for c in cases]), strict=True):
        assert "sharding_rule" not in out
        assert RuleCache(RuleOptions(faults=True)).rule_for(op_of(case)) is None


def test_a_call_of_such_a_name_with_other_types_is_refused():
    with pytest.raises(errors.BadRuleError, match="lapack_sgetrf_ffi"):
        RuleCache().rule_for(op_of(call("lapack_sgetrf_ffi", ["tensor<8x8x4x4xf32>"], ["tensor<8xf32>"], "")))
