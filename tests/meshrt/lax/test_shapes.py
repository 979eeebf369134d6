"""Functions of shapes, judged by JAX; error classes of functions that arrange arrays or multiply ragged ones."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import meshrt

NHWC = ("NHC", "HIO", "NHC")
SHAPES = {
    "broadcast_shapes": lambda lax: lax.broadcast_shapes((2, 1), (3,), (4, 1, 1)),
    "conv_shape_tuple": lambda lax: lax.conv_shape_tuple((4, 3, 7), (5, 3, 2), (2,), ((1, 0),), 2),
    "conv_shape_tuple same": lambda lax: lax.conv_shape_tuple((4, 3, 7), (5, 3, 2), (2,), "SAME"),
    "conv_general_shape_tuple": lambda lax: lax.conv_general_shape_tuple((1, 6, 2), (3, 2, 4), (2,), "VALID", NHWC),
    "conv_transpose same": lambda lax: lax.conv_transpose_shape_tuple((1, 5, 2), (3, 2, 4), (2,), "SAME", NHWC),
    "conv_transpose pairs": lambda lax: lax.conv_transpose_shape_tuple((1, 5, 2), (3, 2, 4), (2,), [(1, 2)], NHWC),
    "reduce_window": lambda lax: lax.reduce_window_shape_tuple(
        (5, 4), (2, 2), (1, 2), ((0, 0), (1, 1)), (2, 1), (1, 2)
    ),
    "shape_as_value": lambda lax: lax.shape_as_value((2, 3)),
    "shape_as_value of a scalar": lambda lax: lax.shape_as_value(()),
}


@pytest.mark.parametrize("call", SHAPES.values(), ids=SHAPES)
def test_shapes(call) -> None:
    ours, theirs = call(meshrt.lax), call(jax.lax)
    assert tuple(ours) == tuple(theirs)
    assert np.asarray(ours).dtype.kind == np.asarray(theirs).dtype.kind


@pytest.mark.parametrize("x, reps", [(np.ones(3, np.float32), (1,)), (2.0, ())])
def test_what_is_laid_out_once_is_an_array(x, reps) -> None:
    ours, theirs = meshrt.lax.tile(x, reps), jax.lax.tile(x, reps)
    assert type(ours) is type(meshrt.numpy.ones(3)) and ours.weak_type == theirs.weak_type
    np.testing.assert_array_equal(ours, theirs)


def ragged(lax, numbers, sizes=(2, 1), lhs=(3, 2), rhs=(2, 2, 4), **options):
    zeros = lambda shape: np.zeros(shape, np.float32)
    return lax.ragged_dot_general(
        zeros(lhs), zeros(rhs), np.asarray(sizes), lax.RaggedDotDimensionNumbers(*numbers), **options
    )


F = np.ones(2, np.float32)
MATRICES = (((1,), (1,)), ((), ()))
REFUSED = {
    "broadcast_shapes": lambda lax: lax.broadcast_shapes((2,), (3,)),
    "stack shapes": lambda lax: lax.stack([F, F[:1]]),
    "stack dtypes": lambda lax: lax.stack([F, F.astype(np.int32)]),
    "unstack a scalar": lambda lax: lax.unstack(F[0]),
    "tile": lambda lax: lax.tile(F, (1, 2)),
    "pads": lambda lax: lax.conv_shape_tuple((4, 3, 7), (5, 3, 2), (2,), ((1, 0), (1, 0))),
    "negative pads": lambda lax: lax.conv_shape_tuple((4, 3, 7), (5, 3, 2), (2,), ((-8, 0),)),
    "approx_max_k of a scalar": lambda lax: lax.approx_max_k(F[0], 1),
    "approx_max_k of integers": lambda lax: lax.approx_max_k(np.arange(3), 1),
    "approx_min_k of none": lambda lax: lax.approx_min_k(F, 0),
    "approx_max_k of too many": lambda lax: lax.approx_max_k(F, 3),
    "mulhi of floats": lambda lax: lax.mulhi(F, F),
    "mulhi of two dtypes": lambda lax: lax.mulhi(np.arange(2, dtype=np.int32), np.arange(2, dtype=np.int8)),
    "two ragged dimensions": lambda lax: ragged(lax, (MATRICES, (0, 1), (0,))),
    "a ragged dimension out of range": lambda lax: ragged(lax, (MATRICES, (2,), (0,))),
    "sizes of floats": lambda lax: ragged(lax, (MATRICES, (0,), (0,)), np.ones(2, np.float32)),
    "sizes of a wrong shape": lambda lax: ragged(lax, (MATRICES, (0,), (0,)), np.ones((3, 2), int)),
    "no group dimension": lambda lax: ragged(lax, (MATRICES, (0,), ())),
    "a contracted group dimension": lambda lax: ragged(lax, (MATRICES, (0,), (1,))),
    "groups of another number": lambda lax: ragged(lax, (MATRICES, (0,), (0,)), (1, 1, 1)),
    "a group dimension too many": lambda lax: ragged(lax, (MATRICES, (1,), (0,))),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_errors_are_of_jaxs_classes(call) -> None:
    classes = (NotImplementedError, TypeError, ValueError)
    with pytest.raises(classes) as theirs:
        call(jax.lax)
    with pytest.raises(next(c for c in classes if isinstance(theirs.value, c))):
        call(meshrt.lax)


def test_groups_start_with_the_first() -> None:
    with pytest.raises(NotImplementedError, match="slice group_sizes"):
        ragged(meshrt.lax, (MATRICES, (0,), (0,)), group_offset=np.array([1]))


MODES = {
    "free": (((((1,), (1,)), ((), ())), (0,), (0,)), (2, 1), (3, 2), (2, 2, 4)),
    "contracted": (((((0,), (0,)), ((), ())), (0,), ()), (2, 1), (3, 2), (3, 4)),
    "batched": (((((2,), (1,)), ((0,), (0,))), (0,), ()), (2, 1), (3, 2, 2), (3, 2, 4)),
}


@pytest.mark.parametrize("dims", [(0, None), (2, 1), (None, 2)])
@pytest.mark.parametrize("mode", MODES)
def test_ragged_products_of_every_mode_can_be_mapped(mode: str, dims) -> None:
    numbers, sizes, lhs, rhs = MODES[mode]
    rng = np.random.default_rng(0)
    product = lambda x, y: meshrt.lax.ragged_dot_general(
        x, y, np.asarray(sizes), meshrt.lax.RaggedDotDimensionNumbers(*numbers)
    )
    members = [[rng.normal(size=s).astype(np.float32) for s in (lhs, rhs)] for _ in range(2)]
    stacked = [members[0][i] if d is None else np.stack([m[i] for m in members], d) for i, d in enumerate(dims)]
    mapped = meshrt.vmap(product, in_axes=dims)(*stacked)
    for n, member in enumerate(members):
        own = [stacked[i] if d is None else member[i] for i, d in enumerate(dims)]
        np.testing.assert_allclose(mapped[n], product(*own), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_upper_halves_of_products(dtype) -> None:
    info = np.iinfo(dtype)
    some = [info.min, info.min + 1, info.max, info.max - 1, info.max // 2, 0, 1, 3, info.max // 3]
    x, y = (g.ravel().astype(dtype) for g in np.meshgrid(some, some))
    exact = (x.astype(object) * y.astype(object)) // (1 << info.bits)
    for product in (meshrt.lax.mulhi, meshrt.jit(meshrt.lax.mulhi), jax.lax.mulhi):
        out = product(x, y)
        assert out.dtype == dtype
        np.testing.assert_array_equal(np.asarray(out), exact.astype(dtype))
    doubled = meshrt.vmap(meshrt.lax.mulhi, in_axes=(0, None))(np.stack([x, y]), y)
    np.testing.assert_array_equal(np.asarray(doubled[0]), exact.astype(dtype))
