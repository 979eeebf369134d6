"""Operations kept for convenience (einsum, implicit broadcasts, ...): equal to one device, and split as what they
abbreviate. Random numbers are equal wherever a piece is held."""

from __future__ import annotations

import numpy as np
import pytest

import collectives
import propagation

from . import harness
from .text_side import MESH, check_text, over


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def typed(shape, dtype="f32") -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}{dtype}>"


def program(line: str, args, out: str, axes=None) -> str:
    """`args` are (name, shape, axes of its dimensions, element type); `out` is the result's type."""
    text = ", ".join(f"%{n}: {typed(s, t)} {over(*axes)}" for n, s, axes, t in args)
    result = out if axes is None else f"({out} {over(*axes)})"
    return MESH + f"func.func @main({text}) -> {result} {{\n  %0 = {line}\n  return %0 : {out}\n}}"


EINSUMS = {
    "ab,bc->ac": ((8, 4), (4, 16), ("x", ""), ("", ""), 0),
    "ba,bc->ca": ((16, 4), (16, 3), ("x", ""), ("x", ""), 2 * 7 / 8 * 48),
    "abc,acd->dab": ((8, 3, 4), (8, 4, 5), ("x", "", ""), ("x", "", ""), 0),
    "...ab,...bc->...ac": ((8, 3, 4), (8, 4, 5), ("x", "", ""), ("x", "", ""), 0),
    "abc,b->c": ((2, 8, 3), (8,), ("", "x", ""), ("",), 2 * 7 / 8 * 12),
    "a,b->ba": ((8,), (6,), ("x",), ("",), 0),
}


@pytest.mark.parametrize("config", EINSUMS)
def test_einsum(config):
    left, right, on_left, on_right, bound = EINSUMS[config]
    a, b = numbers(*left), numbers(*right, seed=1)
    out = typed(np.einsum(config, a, b).shape)
    line = f'"stablehlo.einsum"(%a, %b) {{einsum_config = "{config}"}} : ({typed(left)}, {typed(right)}) -> {out}'
    text = program(line, [("a", left, on_left, "f32"), ("b", right, on_right, "f32")], out)
    partitioned = check_text(text, [a, b])
    assert partitioned.plan.bytes <= bound or "x" in on_right or bound == 0


@pytest.mark.parametrize("config", ["ab->b", "aab->ba", "abb->a", "abc->cb"])
def test_einsum_of_one_operand(config):
    """XLA takes none of these: NumPy is asked."""
    shape = (8, 8, 3) if config.startswith("aab") else (8, 3, 3) if "bb" in config else (8, 3, 5)[: config.index("-")]
    a = numbers(*shape)
    a[0, -1] = np.inf if "aab" in config else a[0, -1]
    expected = np.einsum(config, a)
    out = typed(expected.shape)
    line = f'"stablehlo.unary_einsum"(%a) {{einsum_config = "{config}"}} : ({typed(shape)}) -> {out}'
    text = program(line, [("a", shape, ("x", *[""] * (len(shape) - 1)), "f32")], out)
    partitioned = collectives.partition(propagation.run(text))
    (got,), _ = harness.run_partitioned(partitioned, [a], [expected.shape])
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("axes", [("x", "", ""), ("", "x", ""), ("", "", "x")])
def test_index_select(batch, axes):
    table, indices = numbers(8, 8, 16), np.random.default_rng(1).integers(0, 10, (8, 3) if batch else (3, 2))
    at = (8, 3) if batch else (3, 2)
    out = typed((8, *at[batch:], 16))
    line = (
        f'"stablehlo.torch_index_select"(%t, %i) {{dim = 1 : i64, batch_dims = {batch} : i64}} '
        f": ({typed((8, 8, 16))}, {typed(at, 'i32')}) -> {out}"
    )
    text = program(line, [("t", (8, 8, 16), axes, "f32"), ("i", at, ("", ""), "i32")], out)
    check_text(text, [table, indices.astype(np.int32)])


BROADCASTS = {
    "add": ((8, 4), (4,), (8, 4), "", "f32"),
    "subtract": ((4,), (8, 4), (8, 4), "", "f32"),
    "maximum": ((8, 1), (8, 6), (8, 6), "", "f32"),
    "multiply": ((5,), (8, 5), (8, 5), "broadcast_dimensions = array<i64: 1>", "f32"),
    "divide": ((8, 4), (), (8, 4), "", "f32"),
    "next_after": ((8, 3), (3,), (8, 3), "", "f32"),
    "compare": ((8, 4), (4,), (8, 4), "comparison_direction = #chlo<comparison_direction LT>", "i1"),
    "complex": ((8, 4), (4,), (8, 4), "", "complex<f32>"),
}


@pytest.mark.parametrize("name", BROADCASTS)
def test_implicit_broadcasts_move_nothing(name):
    left, right, shape, attrs, dtype = BROADCASTS[name]
    on = lambda s: tuple("x" if n == 8 else "" for n in s)
    line = f'"chlo.broadcast_{name}"(%a, %b) {{{attrs}}} : ({typed(left)}, {typed(right)}) -> {typed(shape, dtype)}'
    text = program(
        line, [("a", left, on(left), "f32"), ("b", right, on(right), "f32")], typed(shape, dtype), on(shape)
    )  # fmt: skip
    a, b = numbers(*left), numbers(*right, seed=1) + np.float32(10)
    assert check_text(text, [a, np.asarray(b)]).plan.bytes == 0


@pytest.mark.parametrize("axes", [("", ""), ("x", ""), ("", "x")])
@pytest.mark.parametrize("kind", ["UNIFORM", "NORMAL"])
@pytest.mark.parametrize("shape", [(8, 24), (9, 8), (3, 5)])
def test_random_numbers_are_equal_wherever_they_are_held(axes, kind, shape):
    if any(a and n % 8 for a, n in zip(axes, shape)):
        pytest.skip("arguments and results are divided evenly")
    body = f"""
  %a = stablehlo.constant dense<1.0> : tensor<f32>
  %b = stablehlo.constant dense<3.0> : tensor<f32>
  %s = stablehlo.constant dense<{list(shape)}> : tensor<2xi64>
  %0 = "stablehlo.rng"(%a, %b, %s) {{rng_distribution = #stablehlo<rng_distribution {kind}>}}
    : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> {typed(shape)}
  return %0 : {typed(shape)}
}}"""
    text = MESH + f"func.func @main() -> ({typed(shape)} {over(*axes)}) {{{body}"
    partitioned = collectives.partition(propagation.run(text))
    (got,), _ = harness.run_partitioned(partitioned, [], [shape])  # replicas are compared there
    assert len(np.unique(got)) > got.size / 2
    if kind == "UNIFORM":
        assert got.min() >= 1 and got.max() < 3


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("ij,jk->iz", "z of the result"),
        ("ij,jk->ii", "i is 8 and 4 positions"),
        ("ij,ik->jk", "i is 8 and 6 positions"),
        ("ij->ij", "1 operands are named, of 2"),
        ("ij,jk,kl->il", "3 operands are named, of 2"),
        ("ij,jk", "does not say its result"),
    ],
)
def test_an_einsum_whose_letters_do_not_fit_is_a_typed_error(config, said):
    """Also where the operand that has no letters would only have been left out."""
    line = f'"stablehlo.einsum"(%a, %b) {{einsum_config = "{config}"}} : ({typed((8, 6))}, {typed((6, 4))})'
    args = [("a", (8, 6), ("x", ""), "f32"), ("b", (6, 4), ("", ""), "f32")]
    with pytest.raises(collectives.errors.UnsupportedOpError, match=said):
        collectives.partition(program(f"{line} -> {typed((8, 4))}", args, typed((8, 4))))


def test_groups_of_devices_that_do_not_exist_are_a_typed_error():
    groups = "replica_groups = dense<[[0, 9]]> : tensor<1x2xi64>"
    line = f'"stablehlo.cross-replica-sum"(%x) {{{groups}}} : (tensor<8xf32>) -> tensor<8xf32>'
    text = program(line, [("x", (8,), ("x",), "f32")], typed((8,)))
    with pytest.raises(collectives.errors.UnsupportedOpError, match="cross-replica-sum cannot be written out"):
        collectives.partition(propagation.run(text))
