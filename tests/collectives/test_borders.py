"""Pieces whose borders lie elsewhere after an operation: reversals, windows over dilated inputs, reshapes, groups; none
sends more than XLA's partitioner. Also operations in their older forms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import collectives

from .jax_side import Case, check
from .text_side import MESH, check_text, over


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def padded(y, multiple: int, d: int):
    """`y` with zeros behind its dimension d, so that it divides and may leave the program split."""
    widths = [(0, 0)] * y.ndim
    widths[d] = (0, -y.shape[d] % multiple)
    return jnp.pad(y, widths)


@pytest.mark.parametrize(("n", "sent"), [(8, 2 * 4 * 4), (7, 2 * 4 * 4), (5, 2 * 4 * 4), (3, 4 * 4)])
def test_reversals_of_dimensions_that_do_not_divide(n, sent):
    def build(constrain):
        def f(x):
            y = constrain(x[:n], "x")
            return padded(constrain(jnp.flip(y, 0), "x"), 4, 0)

        return f

    rows = -(-n // 4) * 4
    _, found = check(Case({"x": 4}, build, (normal(rows, 4),), (P("x"),), P("x")), exact=True)
    assert found <= sent


def test_a_reversal_of_two_split_dimensions_is_one_exchange():
    build = lambda constrain: lambda x: x[::-1, ::-1]
    case = Case({"a": 2, "b": 4}, build, (normal(8, 8),), (P("a", "b"),), P("a", "b"))
    result, sent = check(case, exact=True)
    assert [e.kind for e in result.plan] == ["collective_permute"] and sent == 4 * 2 * 4


WINDOWS = [
    # size of the input, base dilation, step, taps, padding, dilation of the window
    (7, 2, 1, 3, (1, 2), 1),
    (7, 2, 3, 3, (1, 3), 1),
    (14, 3, 2, 4, (2, 3), 1),
    (11, 3, 1, 2, (1, 1), 2),
    (10, 6, 4, 3, (2, 2), 2),
    (10, 5, 3, 4, (-1, 2), 1),
]


@pytest.mark.parametrize("devices", [4, 5])
@pytest.mark.parametrize("window", WINDOWS)
def test_windows_over_dilated_inputs(window, devices):
    """Devices' windows start between two inputs, differently on each."""
    n, base, step, taps, padding, spread = window

    def build(constrain):
        def f(x, w):
            y = constrain(x[:, :n], None, "x")
            dims = ("NHC", "HIO", "NHC")
            z = lax.conv_general_dilated(y, w, (step,), [padding], (base,), (spread,), dims)
            s = lax.reduce_window(
                y, 0.0, lax.add, (1, taps, 1), (1, step, 1), [(0, 0), padding, (0, 0)], (1, base, 1), (1, spread, 1)
            )
            return tuple(padded(constrain(v, None, "x"), devices, 1) for v in (z, s))

        return f

    args = normal(2, -(-n // devices) * devices, 3), normal(taps, 3, 3)
    check(Case({"x": devices}, build, args, (P(None, "x"), P()), (P(None, "x"), P(None, "x"))))


@pytest.mark.parametrize("features", [12, 10])
def test_single_groups_are_divided_unevenly(features):
    """A depthwise convolution and its gradients send nothing but sums for the kernel."""

    def build(constrain):
        def f(x, w):
            cut = lambda v: constrain(v[..., :features], *(None,) * (v.ndim - 1), "x")
            x, w = cut(x), cut(w)

            def apply(x, w):
                dims = ("NHC", "HIO", "NHC")
                return lax.conv_general_dilated(
                    x, w, (1,), "SAME", dimension_numbers=dims, feature_group_count=features
                )

            y, pull = jax.vjp(apply, x, w)
            return tuple(padded(constrain(v, None, None, "x"), 8, 2) for v in (y, *pull(jnp.sin(y))))

        return f

    wide = -(-features // 8) * 8
    spec = P(None, None, "x")
    case = Case({"x": 8}, build, (normal(4, 6, wide), normal(3, 1, wide)), (spec, spec), (spec,) * 3)
    _, sent = check(case)
    assert sent == 0


RESHAPES = [
    ((7, 10), (14, 5), 5),
    ((30,), (10, 3), 4),
    ((10, 3), (30,), 4),
    ((24, 8), (3, 8, 8), 4),
    ((6, 4, 8), (24, 8), 4),
    ((2, 3, 7, 10), (3, 2, 1, 14, 5), 2),
]


@pytest.mark.parametrize(("old", "new", "devices"), RESHAPES)
def test_reshapes_move_what_lies_between_old_and_new_borders(old, new, devices):
    d, e = (2, 3) if len(old) == 4 else (0, 0)
    at = lambda rank, i: tuple("x" if j == i else None for j in range(rank))

    def build(constrain):
        def f(x):
            y = constrain(lax.slice_in_dim(x, 0, old[d], axis=d), *at(len(old), d))
            return padded(constrain(y.reshape(new), *at(len(new), e)), devices, e)

        return f

    wide = tuple(-(-n // devices) * devices if i == d else n for i, n in enumerate(old))
    specs = P(*at(len(old), d)), P(*at(len(new), e))
    case = Case({"x": devices}, build, (normal(*wide),), specs[:1], specs[1])
    result, _ = check(case, exact=True)
    assert {e.kind for e in result.plan} <= {"collective_permute"}


def test_a_reshape_of_what_everybody_holds_sends_nothing():
    build = lambda constrain: lambda x: padded(constrain(jnp.sin(x).reshape(15, 10), "x"), 2, 0)
    _, sent = check(Case({"x": 2}, build, (normal(6, 25),), (P(),), P("x")), rtol=1e-6)
    assert sent == 0


def test_products_and_pointwise_work_in_their_older_forms():
    program = f"""
{MESH}func.func @main(%a: tensor<8x16xf32> {over("", "x")}, %b: tensor<16x8xf32> {over("x", "")},
                       %v: tensor<16xf32> {over("x")})
    -> (tensor<8x8xf32> {over("x", "")}, tensor<8xf32>, tensor<16x8xf32> {over("x", "")}) {{
  %0 = stablehlo.dot %a, %b : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.dot %a, %v : (tensor<8x16xf32>, tensor<16xf32>) -> tensor<8xf32>
  %2 = "stablehlo.map"(%b, %b) <{{dimensions = array<i64: 0, 1>}}> ({{
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %3 = stablehlo.multiply %p, %q : tensor<f32>
    stablehlo.return %3 : tensor<f32>
  }}) : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x8xf32>
  return %0, %1, %2 : tensor<8x8xf32>, tensor<8xf32>, tensor<16x8xf32>
}}
"""
    result = check_text(program, [normal(8, 16), normal(16, 8), normal(16)], rtol=1e-4)
    assert sorted(e.kind for e in result.plan) == ["all_reduce", "reduce_scatter"]


def test_boxes_are_cut_where_others_end():
    """16 or 14 rows from each of three others, and 2 from the other group's last piece; 56 rows if none were cut."""
    plan = collectives.plan_reshard((123, 8), "f32", '["x"=2, "y"=4]', '[{"x","y"}, {}]', '[{"x"}, {}]')
    row = 8 * 4
    assert (3 * 14 + 4 * 2) * row <= plan.bytes < (3 * 16 + 4 * 2) * row
