"""The kernels that ship, with the compilers for TPUs and GPUs, without hardware (`make test-tpu`)."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import meshrt
from meshrt import NamedSharding, P
from meshrt.experimental.pallas import ops
from meshrt.sharding import AbstractMesh, AxisType
from tests.meshrt.kernels.test_hardware import needs_cuda, needs_tpu

pytestmark = pytest.mark.tpu


def _kind(*shape, dtype=ml_dtypes.bfloat16):
    return meshrt.ShapeDtypeStruct(shape, dtype)


Q, KV, LABELS = _kind(2, 1024, 8, 128), _kind(2, 1024, 4, 128), _kind(1024, dtype=np.int32)
STEPS, STATES = _kind(2, 512, 1024), _kind(2, 512, 16)
BIAS = _kind(1, 8, 1024, 1024, dtype=np.float32)
PAGES, LENGTHS, TABLE = _kind(8, 64, 16, 128), _kind(8, dtype=np.int32), _kind(8, 16, dtype=np.int32)
PROGRAMS = {
    "matmul": (
        lambda x, w, b: ops.matmul(x, w, b, activation="gelu"), [_kind(1024, 1024), _kind(1024, 2048), _kind(2048)],
    ),
    "edges": (ops.matmul, [_kind(1000, 700), _kind(700, 1300)]),
    "attention": (lambda q, k, v: ops.flash_attention(q, k, v, causal=True), [Q, KV, KV]),
    "attention with everything": (
        lambda q, k, v, b, s: ops.flash_attention(q, k, v, b, query_segments=s, window=(256, 0)),
        [Q, KV, KV, BIAS, _kind(2, 1024, dtype=np.int32)],
    ),
    "norm": (ops.rms_norm, [_kind(1024, 2048), _kind(2048)]),
    "loss": (ops.softmax_cross_entropy, [_kind(1024, 32000), LABELS]),
    "loss of a product": (ops.linear_cross_entropy, [_kind(1024, 1024), _kind(32000, 1024), LABELS]),
    "scan": (ops.selective_scan, [STEPS, STEPS, _kind(1024, 16, dtype=np.float32), STATES, STATES]),
    "pages": (ops.paged_attention, [_kind(8, 32, 128), PAGES, PAGES, LENGTHS, TABLE]),
}  # fmt: skip


def _gradient(f, args):
    inexact = tuple(i for i, a in enumerate(args) if a.dtype != np.int32)
    return meshrt.grad(lambda *a: f(*a).astype(np.float32).sum(), inexact)


@needs_tpu
@pytest.mark.parametrize("backwards", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_tpus_compile_them(name, backwards):
    f, args = PROGRAMS[name]
    program = meshrt.jit(_gradient(f, args) if backwards else f)
    compiled = program.trace(*args).lower(lowering_platforms=("tpu",)).compile(topology="v5e:1x1")
    assert "tpu_custom_call" in compiled.as_text() and compiled.cost_analysis()["flops"] > 0


RINGS = {
    "gathered rows": (ops.all_gather_matmul, (4096, 1024), P("x"), (1024, 8192), P(None, "x"), P(None, "x")),
    "scattered sums": (ops.matmul_reduce_scatter, (4096, 8192), P(None, "x"), (8192, 1024), P("x"), P("x")),
}


@needs_tpu
@pytest.mark.parametrize("backwards", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", RINGS)
def test_tpus_compile_rings_without_other_collectives(name, backwards):
    kernel, rows, row_spec, columns, column_spec, spec = RINGS[name]
    mesh = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
    args = [
        meshrt.ShapeDtypeStruct(shape, ml_dtypes.bfloat16, sharding=NamedSharding(mesh, s))
        for shape, s in ((rows, row_spec), (columns, column_spec))
    ]
    specs = (row_spec, column_spec)
    f = meshrt.shard_map(lambda x, w: kernel(x, w, "x"), mesh=mesh, in_specs=specs, out_specs=spec)
    program = meshrt.jit(_gradient(f, args) if backwards else f)
    compiled = program.trace(*args).lower(lowering_platforms=("tpu",)).compile(topology="v5e:2x4")
    assert "tpu_custom_call" in compiled.as_text() and not compiled.collectives()


def _flash(width, dtype, queries=100, keys=200, heads=4):
    args = [_kind(1, n, h, width, dtype=dtype) for n, h in ((queries, heads), (keys, 2), (keys, 2))]
    return lambda q, k, v: meshrt.nn.dot_product_attention(q, k, v, implementation="flash"), args


PAGED = _kind(2, 16, 128, dtype=np.float32), *[_kind(4, 8, 128, 128, dtype=np.float32)] * 2
ON_GPUS = {
    "heads of 256 in float32": _flash(256, np.float32),
    "heads of 192 in bfloat16": _flash(192, ml_dtypes.bfloat16),
    "heads of 32": _flash(32, ml_dtypes.bfloat16),
    "one query": _flash(128, ml_dtypes.bfloat16, queries=1, heads=8),
    "float32 products": (ops.matmul, [_kind(300, 700, dtype=np.float32), _kind(700, 200, dtype=np.float32)]),
    "float64 products": (ops.matmul, [_kind(256, 512, dtype=np.float64), _kind(512, 256, dtype=np.float64)]),
    "wide rows": (ops.rms_norm, [_kind(16, 65536), _kind(65536)]),
    "many classes": (ops.softmax_cross_entropy, [_kind(16, 256 * 1024), _kind(16, dtype=np.int32)]),
    "64 states": (ops.selective_scan, [*[_kind(2, 64, 128)] * 2, _kind(128, 64), *[_kind(2, 64, 64)] * 2]),
    "large pages": (ops.paged_attention, [*PAGED, _kind(2, dtype=np.int32), _kind(2, 4, dtype=np.int32)]),
}


@needs_cuda
@pytest.mark.parametrize("backwards", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", ON_GPUS)
def test_gpus_compile_them_by_the_sizes_of_their_operands(name, backwards):
    f, args = ON_GPUS[name]
    with meshrt.enable_x64("float64" in name):
        program = meshrt.jit(_gradient(f, args) if backwards else f).trace(*args).lower(lowering_platforms=("cuda",))
        compiled = program.compile(topology="h100:1")
    assert compiled.memory_analysis().output_size_in_bytes > 0
