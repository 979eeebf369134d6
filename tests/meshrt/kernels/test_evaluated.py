"""What modules of kernels compute, run by an evaluator of their dialects, is what the loop on CPUs computes."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from jaxlib.mlir import ir
from jaxlib.mosaic.python import tpu
from jaxlib.triton import dialect as triton

import meshrt
from meshrt import lax
from propagation.contexts import new_context
from tests.meshrt.kernels.evaluator import run_mosaic, run_triton
from tests.meshrt.kernels.hardware import (
    ANYWHERE,
    ON_TPUS,
    dynamic_grid,
    gather_rows,
    instructions,
    kind,
    matmul,
    noisy,
    reductions,
)
from tests.meshrt.kernels.programs import OURS
from tests.meshrt.kernels.test_mosaic import configs, read_back

pl, jnp = OURS.pl, OURS.np


def drawn(kinds, seed=0):
    rng = np.random.RandomState(seed)
    make = {
        "b": lambda k: rng.rand(*k.shape) > 0.5, "i": lambda k: rng.randint(0, 4, k.shape),
        "u": lambda k: rng.randint(0, 200, k.shape),
    }  # fmt: skip
    return [np.asarray(make.get(np.dtype(k.dtype).kind, lambda k: rng.randn(*k.shape))(k), k.dtype) for k in kinds]


def call_of(f, args):
    """The parameters of the only kernel of a program, and what lowering for a platform writes."""
    (eqn,) = [e for e in meshrt.make_jaxpr(f)(*args).jaxpr.eqns if e.primitive.name == "pallas_call"]
    return eqn.params, lambda platform: meshrt.jit(f).trace(*args).lower(lowering_platforms=(platform,)).as_text()


def evaluated(platform, f, args):
    params, text = call_of(f, args)
    mapping, outs = params["grid_mapping"], [np.full(a.shape, 55, a.dtype) for a in params["out_avals"]]
    dynamic = mapping.num_dynamic
    grid = [int(n) for n in mapping.sizes(args[:dynamic])]
    context = new_context()
    if platform == "tpu":
        tpu.register_dialect(context)
        (config,) = configs(text("tpu"))
        with context:
            module = ir.Module.parse(read_back(config["custom_call_config"]["body"]))
            stored = [a.astype(np.int32) if a.dtype == bool else a for a in args[dynamic:]]
            words = [a.astype(np.int32) if a.dtype == bool else a for a in outs]
            found = run_mosaic(
                module, list(map(_signed, stored)), list(map(_signed, words)), grid, params["input_output_aliases"]
            )
    else:
        triton.register_dialect(context)
        program = text("cuda")
        body = re.search(r'ir = "((?:[^"\\]|\\.)*)"', program)[1]
        launch = [int(re.search(rf"grid_{d} = (\d+)", program)[1]) for d in "xyz"]
        with context:
            module = ir.Module.parse(re.sub(r"\\(22|5C|0A)", lambda m: chr(int(m[1], 16)), body))
            stored = [a.astype(np.int8) if a.dtype == bool else a for a in args]
            words = [a.astype(np.int8) if a.dtype == bool else a for a in outs]
            found = run_triton(module, list(map(_signed, stored)), list(map(_signed, words)), launch)
    return [a.view(o.dtype) if a.dtype.itemsize == o.dtype.itemsize else a.astype(o.dtype) for a, o in zip(found, outs)]


def _signed(a):
    """Elements as the dialects have them: numbers have no sign."""
    return a.view(f"int{8 * a.dtype.itemsize}") if a.dtype.kind == "u" else a


def close(found, expected):
    for a, b in zip(found, expected):
        a, b = (np.asarray(x).astype(np.float64) for x in (a, b))
        narrow = np.asarray(expected[0]).dtype == ml_dtypes.bfloat16
        np.testing.assert_allclose(a, b, rtol=2e-2 if narrow else 1e-4, atol=2e-2 if narrow else 1e-4)


def expected_of(f, args):
    out = meshrt.jit(f)(*args)
    return [np.asarray(x) for x in (out if isinstance(out, list | tuple) else [out])]


# (`instructions` are inexact, and leave elements as they were; each generator has numbers of its own.)
EXACT = [p for p in [*ANYWHERE, *ON_TPUS] if p not in (instructions, noisy)]


@pytest.mark.parametrize("program", EXACT, ids=lambda p: p.__name__)
def test_tpu_kernels_compute_what_the_loop_does(program):
    f, kinds = program(OURS)
    args = [np.int32(4), *drawn(kinds[1:])] if program is dynamic_grid else drawn(kinds)
    close(evaluated("tpu", f, args), expected_of(f, args))


@pytest.mark.parametrize("program", [p for p in EXACT if p is not reductions], ids=lambda p: p.__name__)
def test_numbers_of_python_are_words_where_wider_types_are_enabled(program):
    """(The places of greatest elements are asked to be of 64 bits then.)"""
    with meshrt.enable_x64(True):
        f, kinds = program(OURS)
        args = [np.int32(4), *drawn(kinds[1:])] if program is dynamic_grid else drawn(kinds)
        close(evaluated("tpu", f, args), expected_of(f, args))


@pytest.mark.parametrize("program", [*ANYWHERE, gather_rows, matmul], ids=lambda p: p.__name__)
def test_gpu_kernels_compute_what_the_loop_does(program):
    f, kinds = program(OURS)
    args = drawn(kinds)
    close(evaluated("cuda", f, args), expected_of(f, args))


# ----------------------------------------------------------------------------------------------------------------------
# Operations

UNARY = [
    lax.exp, lax.exp2, lambda x: lax.log(lax.abs(x) + 1), lax.expm1, lambda x: lax.log1p(lax.abs(x)), lax.tanh, lax.sin,
    lax.cos, lax.logistic, lax.floor, lax.ceil, lax.round, lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    lax.neg, lax.abs, lax.sign, lax.is_finite, lax.erf, lax.square, lambda x: x**3, lambda x: (x * x + 1) ** -2,
    lambda x: lax.rsqrt(x * x + 1), lambda x: lax.sqrt(lax.abs(x)), lambda x: jnp.clip(x, -0.5, 0.5), jnp.isnan,
    lambda x: x.astype(np.int32), lambda x: x.astype(np.int8), lambda x: x.astype(jnp.bfloat16),
    lambda x: x.astype(bool),
    lambda x: lax.pow(lax.abs(x) + 1, 2), lambda x: jnp.where(jnp.isnan(x / 0), 1.0, 2.0),
]  # fmt: skip
WHOLE = [
    lax.add, lax.sub, lax.mul, lambda x, y: lax.div(x, y + 1), lambda x, y: lax.rem(x, y + 1), lax.max, lax.min,
    lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor, lambda x, y: ~x, lax.shift_left, lax.shift_right_logical,
    lax.shift_right_arithmetic, lax.lt, lax.ge, lax.ne, lambda x, y: x.astype(np.float32),
    lambda x, y: x.astype(np.int32),
    lambda x, y: jnp.sign(x), lambda x, y: x.astype(bool),
]  # fmt: skip
BOOLS = [lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge]
ARRAYS = [
    lambda x: x.sum(0), lambda x: x.max(1), lambda x: x.min(1, keepdims=True), lambda x: x.sum()[None], lambda x: x.T,
    lambda x: jnp.argmax(x, 1).astype(np.int32), lambda x: jnp.argmin(x, 0).astype(np.int32),
    lambda x: x + jnp.arange(16, dtype=np.float32), lambda x: lax.broadcasted_iota(np.int32, (32, 16), 0),
    lambda x: (x > 0).any(1), lambda x: (x > -5).all(0), lambda x: x[:, None, :] * jnp.ones((1, 2, 1), np.float32),
    lambda x: jnp.dot(x.T, x), lambda x: jnp.dot(x, x.T), lambda x: x.reshape(2, 16, 16),
    meshrt.nn.softmax,
    lambda x: jnp.var(x, 1),
]  # fmt: skip
SHAPES = [  # what GPUs have not
    lambda x: jnp.concatenate([x, 2 * x], 0), lambda x: x[4:12, 8:], lambda x: jnp.pad(x, ((1, 2), (0, 3))),
    lambda x: jnp.stack([x, -x]), lambda x: jnp.split(x, 2)[1], lambda x: jnp.tile(x, (2, 1)), lambda x: x @ x[3],
    lambda x: lax.dot_general(x.reshape(4, 8, 16), x.reshape(4, 8, 16), (((2,), (2,)), ((0,), (0,)))),
    lambda x: jnp.take_along_axis(x, (x * 20).astype(np.int32), 0),
    lambda x: jnp.take_along_axis(x.astype(jnp.bfloat16), (x * 9).astype(np.int32), 1, mode="clip"),
]  # fmt: skip


def compare(platform, operations, args):
    """Operations, in one kernel with a result for each, against the operations themselves."""
    expected = [np.asarray(x) for x in meshrt.jit(lambda *xs: [f(*xs) for f in operations])(*args)]

    def kernel(*refs):
        given = [r[...] for r in refs[: len(args)]]
        for f, out in zip(operations, refs[len(args) :]):
            out[...] = f(*given)

    call = pl.pallas_call(kernel, [meshrt.ShapeDtypeStruct(x.shape, x.dtype) for x in expected])
    for i, (found, wanted) in enumerate(zip(evaluated(platform, call, args), expected)):
        try:
            close([found], [wanted])
        except AssertionError as e:
            raise AssertionError(f"operation {i}") from e


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["f32", "bf16"])
def test_operations_on_floats(platform, dtype):
    (x,) = drawn([kind(OURS, (8, 16), np.dtype(dtype))])
    x[0, :4] = [0.5, -0.5, 1.5, 2.5]
    compare(platform, UNARY, [x])


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int8, np.uint8], ids=lambda d: d.__name__)
def test_operations_on_whole_numbers(platform, dtype):
    x, y = drawn([kind(OURS, (8, 16), np.dtype(dtype))] * 2)
    top = np.iinfo(dtype)
    x[0, :2], y = [top.max, top.min], y % 7
    compare(platform, WHOLE, [x, y])


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_comparisons_of_bools(platform):
    compare(platform, BOOLS, drawn([kind(OURS, (8, 16), np.dtype(bool)), kind(OURS, (8, 16), np.dtype(bool))]))


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_operations_on_arrays(platform):
    compare(platform, [*ARRAYS, *(SHAPES if platform == "tpu" else ())], drawn([kind(OURS, (32, 16))]))


def test_other_gathers_are_refused_on_tpus():
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.take(x_ref[...], jnp.zeros(4, np.int32), axis=0)

    f = pl.pallas_call(kernel, kind(OURS, (4, 16)))
    with pytest.raises(meshrt.errors.UnsupportedError, match=r"'gather' of .* one-hot"):
        evaluated("tpu", f, drawn([kind(OURS, (8, 16))]))


def test_edges_of_arrays_on_gpus():
    def double(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    block = pl.BlockSpec((16, 128), lambda i, j: (i, j))
    f = pl.pallas_call(double, kind(OURS, (20, 130)), grid=(2, 2), in_specs=[block], out_specs=block)
    args = drawn([kind(OURS, (20, 130))])
    for platform in ("tpu", "cuda"):
        close(evaluated(platform, f, args), expected_of(f, args))


def test_masks_and_atomic_updates_on_gpus():
    def kernel(x_ref, o_ref):
        at = pl.program_id(0) * 16 + jnp.arange(16)
        x = OURS.pltpu.load(x_ref.at[pl.ds(pl.program_id(0) * 16, 16)], mask=at < 20, other=-1.0)
        OURS.pltpu.store(o_ref.at[pl.ds(pl.program_id(0) * 16, 16)], x + 1, mask=at < 20)

    f = pl.pallas_call(kernel, kind(OURS, (20,)), grid=(2,))
    args = drawn([kind(OURS, (20,))])
    np.testing.assert_allclose(evaluated("cuda", f, args)[0], args[0] + 1, rtol=1e-6)


# Views of views, by what both a reference's and NumPy's have; `i` is a number that the kernel reads.
VIEWS = {
    "parts of parts": lambda x, i, lib: x[1:7:2][i][lib.ds(3, 6)],
    "a column of a part": lambda x, i, lib: x[lib.ds(i, 4)][:, 3],
    "another shape": lambda x, i, lib: x[2:6][:, 4:10].reshape(3, 8)[i, 1:7:3],
    "another order": lambda x, i, lib: x.transpose(1, 0)[lib.ds(i, 3)][:, 1:6].reshape(15)[4:9],
    "indices at last": lambda x, i, lib: x[1:6].transpose(1, 0)[lib.places, i],
}


class Views:
    """What `VIEWS` index: a reference by `at`, and where it ends `ref[...]`."""

    def __init__(self, ref):
        self.ref = ref

    def __getitem__(self, index):
        return Views(self.ref.at[index])

    def reshape(self, *shape):
        return Views(self.ref.reshape(*shape))

    def transpose(self, *order):
        return Views(self.ref.transpose(*order))


class ByNumpy:
    places = np.array([3, -1, 0, -12], np.int32)
    ds = staticmethod(lambda start, size: slice(start, start + size))


# Those by a number alone count it from the end if it is negative, as arrays of numbers.
NUMBERS = [*[(n, 2) for n in VIEWS], *[(n, -1) for n in ("parts of parts", "another shape", "indices at last")]]


@pytest.mark.parametrize(("name", "number"), NUMBERS)
def test_views_of_views_on_gpus(name, number):
    x, i = np.arange(96, dtype=np.float32).reshape(8, 12), np.int32([number])
    numbers = VIEWS[name](np.arange(96).reshape(8, 12), number, ByNumpy)
    kinds = [meshrt.ShapeDtypeStruct(s, np.float32) for s in (x.shape, numbers.shape)]

    class OfKernels:
        ds = staticmethod(OURS.pl.ds)

    def kernel(x_ref, i_ref, at_ref, whole_ref, part_ref):
        OfKernels.places, number = at_ref[...], i_ref[0]
        view = VIEWS[name](Views(x_ref), number, OfKernels).ref
        part_ref[...] = view[...]
        whole_ref[...] = x_ref[...]
        changed = VIEWS[name](Views(whole_ref), number, OfKernels).ref
        changed[...] = -part_ref[...]
        meshrt.ref.addupdate(changed, ..., jnp.full(numbers.shape, 0.5))

    f = OURS.pl.pallas_call(kernel, kinds)
    whole, part = evaluated("cuda", f, [x, i, ByNumpy.places])
    np.testing.assert_array_equal(part, x.reshape(-1)[numbers])
    expected = x.copy().reshape(-1)
    expected[numbers] = 0.5 - expected[numbers]
    np.testing.assert_array_equal(whole, expected.reshape(x.shape))


def test_additions_to_references_on_tpus():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...]
        meshrt.ref.addupdate(o_ref, slice(8, 16), x_ref[0:8])

    for dtype in (np.float32, np.int8):
        x = np.arange(16 * 128, dtype=np.float32).reshape(16, 128).astype(dtype)
        f = OURS.pl.pallas_call(kernel, meshrt.ShapeDtypeStruct(x.shape, dtype))
        (found,) = evaluated("tpu", f, [x])
        np.testing.assert_array_equal(found, np.concatenate([x[:8], x[8:] + x[:8]]))
