"""What leaves branches: sums that are still to be taken, and layouts that all branches made."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives

from . import harness
from .jax_side import Case, check


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 4


def case(build, which=1, out=None):
    """On 8 devices: products of f32[16,64] and f32[64,24] are sums over x."""
    args = (np.array(which, np.int32), normal(16, 64), normal(64, 24, seed=1), normal(16, 64, seed=2))
    return Case({"x": 8}, build, args, (P(), P(None, "x"), P("x"), P(None, "x")), out)


def halves(constrain):
    return lambda i, a, b, c: jax.lax.cond(i > 0, lambda: a @ b, lambda: jnp.zeros((16, 24))) + c @ b


def ways(constrain):
    return lambda i, a, b, c: jax.lax.switch(i, [lambda: a @ b, lambda: c @ b, lambda: jnp.sin(a) @ b]) + c @ b


def looped(constrain):
    """Only some rounds add to what the loop carries."""

    def run(i, a, b, c):
        step = lambda k, t: t + jax.lax.cond(k > i, lambda: (a * k) @ b, lambda: jnp.zeros((16, 24)))
        return jax.lax.fori_loop(0, 4, step, jnp.zeros((16, 24)))

    return run


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("build", [halves, ways, looped])
def test_a_sum_leaves_the_branches_and_is_taken_once(build, which):
    result, sent = check(case(build, which), rtol=1e-4)
    assert result.plan.counts == {"all_reduce": 1}
    assert sent == 2 * 7 / 8 * 16 * 24 * 4


def test_a_sum_that_leaves_the_branches_is_scattered_to_where_it_is_used():
    build = lambda constrain: lambda i, a, b, c: jax.lax.cond(i > 0, lambda: a @ b, lambda: c @ b)
    result, sent = check(case(build, out=P("x")), rtol=1e-4)
    assert result.plan.counts == {"reduce_scatter": 1} and sent == 7 / 8 * 16 * 24 * 4


def one_is_complete(constrain):
    """Nothing would be saved behind the branches: a branch without a sum has nothing to add up."""
    return lambda i, a, b, c: jax.lax.cond(i > 0, lambda: a @ b, lambda: c[:, :24]) + c @ b


def of_two(constrain):
    """Each use would take it for itself."""

    def run(i, a, b, c):
        t = jax.lax.cond(i > 0, lambda: a @ b, lambda: c @ b)
        return jnp.sin(t), jnp.cos(t)

    return run


def infinite(constrain):
    """Zeros of devices that add nothing must not meet an infinity: the sum is taken before the division."""

    def run(i, a, b, c):
        return jax.lax.cond(i > 0, lambda: a @ b + 1, lambda: jnp.zeros((16, 24))) / jnp.sum(c * 0)

    return run


@pytest.mark.parametrize("build", [one_is_complete, of_two, infinite])
def test_other_sums_are_taken_inside(build):
    result, _ = check(case(build), rtol=1e-4, above_xla=True)
    (branches,) = [item for item in result._builder.functions[0].region.items if item.name == "stablehlo.case"]
    inside = {item.collective.kind for region in branches.regions for item in region.items if item.collective}
    assert inside & {"all_reduce", "reduce_scatter"}


MADE = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %i: tensor<i32>, %a: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}
) -> (tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, USED>}) {
  %0 = "stablehlo.case"(%i) ({
    %1 = stablehlo.sine %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>} : tensor<16x64xf32>
    stablehlo.return %1 : tensor<16x64xf32>
  }, {
    stablehlo.return OTHER : tensor<16x64xf32>
  }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>} : (tensor<i32>) -> tensor<16x64xf32>
  %2 = stablehlo.exponential %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, USED>]>} : tensor<16x64xf32>
  return %2 : tensor<16x64xf32>
}
"""


@pytest.mark.parametrize("used, counts", [('[{"x"}, {}]', {}), ('[{}, {"x"}]', {"all_to_all": 1})])
@pytest.mark.parametrize("other", ["%a", "%c"])
def test_a_layout_that_all_branches_made_is_kept_where_users_like_it(used, counts, other):
    constant = "%c = stablehlo.constant dense<2.0> : tensor<16x64xf32>\n    "
    text = MADE.replace("USED", used).replace(
        "stablehlo.return OTHER", f"{constant * (other == '%c')}stablehlo.return {other}"
    )
    result = collectives.partition(text)
    assert result.plan.counts == counts
    a = normal(16, 64)
    for i, expected in ((0, np.exp(np.sin(a))), (1, np.exp(a if other == "%a" else np.full_like(a, 2)))):
        got, _ = harness.run_partitioned(result, [np.array(i, np.int32), a], [a.shape])
        np.testing.assert_allclose(got[0], expected, rtol=1e-5)
