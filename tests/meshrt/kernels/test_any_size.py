"""Kernels for GPUs whose arrays have sizes that are no powers of two, or fewer rows than tensor cores multiply: run by
the evaluator of their dialect, beside the loop on CPUs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import meshrt
from meshrt import errors, lax
from meshrt.core.jaxpr import Literal, subjaxprs
from meshrt.experimental.pallas import ops
from meshrt.experimental.pallas.ops import heuristics
from meshrt.primitives.control_cond import branch_for
from tests.meshrt.kernels.programs import OURS
from tests.meshrt.kernels.test_evaluated import close, drawn, evaluated, expected_of

pl, jnp = OURS.pl, OURS.np


def kind(*shape, dtype=np.float32):
    return meshrt.ShapeDtypeStruct(shape, dtype)


def whole(f, *kinds):
    """A kernel without a grid that applies `f` to its operands."""
    out = meshrt.eval_shape(f, *kinds)

    def kernel(*refs):
        refs[len(kinds)][...] = f(*[r[...] for r in refs[: len(kinds)]])

    return pl.pallas_call(kernel, kind(*out.shape, dtype=out.dtype))


COLUMNS = [
    lambda x: jnp.sum(x, 0) + jnp.sum(x[:, :1], 0), lambda x: jnp.max(x, 1), lambda x: jnp.min(x, 0), jnp.sum,
    lambda x: jnp.prod(x, 1), lambda x: jnp.argmax(x, 1), lambda x: jnp.argmin(x, 0), lambda x: jnp.argmax(-abs(x), 1),
    lambda x: jnp.any(x > 1.5, 0), lambda x: jnp.all(x < 1, 1), lambda x: jnp.cumsum(x, 1),
    lambda x: lax.cumsum(x, axis=0, reverse=True), lambda x: lax.cumprod(x, axis=1, reverse=True),
    lambda x: jnp.max(x.astype(np.int32) - 9, 0), lambda x: jnp.min(x.astype(np.int32) + 9, 1), lambda x: x.T,
    lambda x: x[:, None, :] * jnp.ones((1, 3, 1), np.float32), lambda x: x * jnp.arange(3.0),
    lambda x: x[1:3], lambda x: x[:, 1], lambda x: lax.dynamic_slice(x, (x[0, 0].astype(np.int32) + 2, 1), (2, 2)),
    lambda x: lax.dynamic_update_slice(x, x[:2, :1], (x[0, 0].astype(np.int32) + 2, 1)),
    lambda x: lax.dynamic_update_slice(x, x[:1], (4, 0)), lambda x: jnp.where(x > 0, x, -1)[..., None],
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(COLUMNS)))
def test_operations_on_five_rows_of_three(at):
    f = COLUMNS[at]
    args = drawn([kind(5, 3)])
    close(evaluated("cuda", whole(f, *args), args), expected_of(f, args))


def test_new_dimensions_stand_where_they_are_asked_for():
    x = drawn([kind(1, 6, 3)])
    for f in (
        lambda x: x - lax.slice_in_dim(x, 0, 1, axis=2), lambda x: x[0, :, 1][None, :, None] + x,
        lambda x: x[:, :, 0].reshape(1, 6, 1) * x, lambda x: x[0][:, None, None, :] + x[0, 0],
    ):  # fmt: skip
        close(evaluated("cuda", whole(f, *x), x), expected_of(f, x))


PRODUCTS = {(5, 7, 3): np.float32, (1, 20, 64): np.float32, (40, 3, 1): ml_dtypes.bfloat16, (16, 16, 16): np.float32}


@pytest.mark.parametrize("sizes", PRODUCTS, ids=str)
def test_products_of_few_rows(sizes):
    rows, inner, columns = sizes
    args = drawn([kind(rows, inner, dtype=PRODUCTS[sizes]), kind(inner, columns, dtype=PRODUCTS[sizes])])
    dot = lambda x, y: lax.dot(x, y, preferred_element_type=np.float32)
    close(evaluated("cuda", whole(dot, *args), args), expected_of(dot, args))
    turned = lambda x, y: lax.dot_general(x, y, (((0,), (1,)), ((), ())), preferred_element_type=np.float32)
    back = [args[0].T.copy(), args[1].T.copy()]
    close(evaluated("cuda", whole(turned, *back), back), expected_of(turned, back))


def test_blocks_that_are_no_powers_of_two_reach_over_the_end():
    block = pl.BlockSpec((3, 5), lambda i, j: (i, j))

    def kernel(x, o):
        o[...] = x[...] * 2

    f = pl.pallas_call(kernel, kind(10, 12), grid=(4, 3), in_specs=[block], out_specs=block)
    args = drawn([kind(10, 12)])
    close(evaluated("cuda", f, args), expected_of(f, args))


def on_gpus(jaxpr, args):
    """What a program gives whose kernels are run by the evaluator."""
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), args))
    read = lambda a: np.asarray(a.val, a.aval.dtype) if isinstance(a, Literal) else env[a]
    for eqn in jaxpr.eqns:
        given = [np.asarray(read(a)) for a in eqn.invars]
        inner = [] if eqn.primitive.name == "pallas_call" else list(subjaxprs(eqn.params))
        if "platforms" in eqn.params:  # the branch for GPUs, of operands behind the index
            inner, given = inner[branch_for("cuda", eqn.params["platforms"]) :], given[1:]
        one = lambda *xs, e=eqn: e.primitive.bind(*xs, **e.params)
        outs = on_gpus(inner[0], given) if inner else None
        if outs is None and eqn.primitive.name == "pallas_call":
            outs = evaluated("cuda", one, given)
        elif outs is None:
            outs = one(*given)
        env.update(zip(eqn.outvars, outs if isinstance(outs, list | tuple) else [outs]))
    return [np.asarray(read(a)) for a in jaxpr.outvars]


def compared(f, args):
    closed = meshrt.make_jaxpr(f)(*args)
    close(on_gpus(closed.jaxpr, [*closed.consts, *args]), expected_of(f, args))


def scan(x, delta, a, b, c, sizes):
    """Of states that fade."""
    return ops.selective_scan(x, abs(delta), -abs(a), b, c, block_sizes=sizes)


STEPS = lambda n, c, s: [kind(1, n, c), kind(1, n, c), kind(c, s), kind(1, n, s), kind(1, n, s)]
KEYS = [kind(1, 6, 2, 12)] * 2
LIBRARY = {
    "matmul": (ops.matmul, [kind(20, 7), kind(7, 18)]),
    "attention": (lambda q, k, v: ops.flash_attention(q, k, v, causal=True), [kind(1, 6, 6, 12), *KEYS]),
    "norm": (ops.rms_norm, [kind(10, 30), kind(30)]),
    "scan": (lambda *a: scan(*a, (2, 4)), STEPS(4, 4, 2)),
    "uneven scan": (lambda *a: scan(*a, (4, 128)), STEPS(5, 3, 5)),
}  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backwards", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", LIBRARY)
def test_kernels_that_ship(name, backwards):
    f, kinds = LIBRARY[name]
    every = tuple(range(len(kinds)))
    compared(meshrt.grad(lambda *a: (f(*a) ** 2).sum(), every) if backwards else f, drawn(kinds))


def test_pages_of_few_heads():
    args = [*drawn([kind(3, 6, 12), kind(2, 9, 5, 12), kind(2, 9, 5, 12)]), np.int32([7, 1, 12]),
            np.random.RandomState(0).randint(0, 9, (3, 3)).astype(np.int32)]  # fmt: skip
    compared(ops.paged_attention, args)


@pytest.mark.parametrize("page", [96, 100, 7])
def test_large_pages_are_held_in_parts(page):
    """Of 64 keys of 64 float32; what has no half of whole keys stays whole."""
    args = [*drawn([kind(2, 2, 64), kind(1, 5, page, 64), kind(1, 5, page, 64)]), np.int32([page + 3, 2]),
            np.int32([[3, 1], [2, 2]])]  # fmt: skip
    compared(ops.paged_attention, args)
    compared(meshrt.grad(lambda *a: (ops.paged_attention(*a) ** 2).sum(), (0, 1, 2)), args)


WIDE = {  # head widths and element types of which GPUs hold smaller blocks
    "float32": (256, (16, 16)), "float64": (128, (16, 16)), "bfloat16": (256, (64, 64)), "float16": (512, (32, 32)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", WIDE)
def test_blocks_of_wide_heads_fit_a_multiprocessor(dtype):
    width, blocks = WIDE[dtype]
    x = kind(1, 100, 2, width, dtype=jnp.dtype(dtype))
    assert heuristics.on_gpus("attention", [x, x, x]) == blocks
    assert 4 * blocks[0] * width * x.dtype.itemsize <= 227 << 10


def test_losses():
    labels = np.arange(10, dtype=np.int32)
    compared(meshrt.value_and_grad(lambda x: ops.softmax_cross_entropy(x, labels).sum()), drawn([kind(10, 50)]))
    loss = lambda h, w: ops.linear_cross_entropy(h, w, labels).sum()
    compared(meshrt.grad(loss, (0, 1)), drawn([kind(10, 6), kind(50, 6)]))


def test_what_cannot_be_written_says_so():
    f = whole(lambda x: lax.polygamma(x, x), kind(5, 3))
    with pytest.raises(errors.UnsupportedError, match=r"'polygamma' of f32\[5,3\], f32\[5,3\] at .*no such operation"):
        meshrt.jit(f).trace(kind(5, 3)).lower(lowering_platforms=("cuda",))


def test_blocks_of_products_follow_how_precise_they_are():
    """In full each multiplication of float32 is written out, so blocks are small."""
    x = kind(256, 256)
    assert heuristics.on_gpus("matmul", [x, x]) == (128, 64, 32)
    with meshrt.default_matmul_precision("highest"):
        assert heuristics.on_gpus("matmul", [x, x]) == (64, 64, 32)
