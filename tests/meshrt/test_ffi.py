"""Calls of foreign functions beside JAX's, with LAPACK's Cholesky factorisation in jaxlib as the function."""

from __future__ import annotations

import ctypes
import importlib
import os

import jax
import numpy as np
import pytest

import meshrt
from meshrt import NamedSharding, P, config, errors
from meshrt.core.types import ShapedArray
from meshrt.sharding.layout import Layout
from meshrt.xla import jaxlib_calls

jax.ffi
rng = np.random.RandomState(0)
A = np.stack([m @ m.T + 4 * np.eye(4) for m in rng.randn(8, 4, 4)]).astype(np.float32)
L = np.linalg.cholesky(A)


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    jaxlib_calls.lapack_kernel("potrf", np.float32)  # loads LAPACK itself


def potrf(l, batch=(), **more):
    types = (l.ShapeDtypeStruct((*batch, 4, 4), np.float32), l.ShapeDtypeStruct(batch, np.int32))
    rank = len(batch)
    order = (*range(rank), rank + 1, rank)
    call = l.ffi.ffi_call(
        "lapack_spotrf_ffi", types, input_layouts=[order], output_layouts=[order, tuple(range(rank))],
        input_output_aliases={0: 0}, **more,
    )  # fmt: skip
    return lambda a: l.numpy.tril(call(a, uplo=np.uint8(ord("L")))[0])


def test_values_are_jaxs():
    for l in (meshrt, jax):
        np.testing.assert_allclose(l.jit(potrf(l))(A[0]), L[0], rtol=1e-5)
        np.testing.assert_allclose(potrf(l)(A[0]), L[0], rtol=1e-5)
        np.testing.assert_allclose(l.jit(potrf(l, (8,)))(A), L, rtol=1e-5)


@pytest.mark.parametrize(
    "method", ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized"]
)
def test_vmap(method, mesh):
    x = meshrt.device_put(A, NamedSharding(mesh, P("data")))
    for l, a in ((meshrt, A), (jax, A), (meshrt, x)):
        np.testing.assert_allclose(l.jit(l.vmap(potrf(l, vmap_method=method)))(a), L, rtol=1e-5)
    if not method.startswith("sequential"):
        plan = meshrt.jit(meshrt.vmap(potrf(meshrt, vmap_method=method))).trace(x).lower().partition().plan
        assert plan.bytes == 0


def test_vmap_of_some_operands():
    def solve(l, method):
        call = l.ffi.ffi_call(
            "lapack_strsm_ffi", l.ShapeDtypeStruct((4, 2), np.float32), vmap_method=method,
            input_layouts=[(1, 0), (1, 0)], output_layouts=(1, 0), input_output_aliases={1: 0},
        )  # fmt: skip
        letters = dict(diag="N", side="L", trans_x="N", uplo="L")
        return lambda a, b: call(a, b, **{k: np.uint8(ord(v)) for k, v in letters.items()})

    b = rng.randn(4, 2).astype(np.float32)
    for l in (meshrt, jax):
        got = l.jit(l.vmap(solve(l, "broadcast_all"), (0, None)))(L, b)
        np.testing.assert_allclose(got, np.linalg.solve(L, b[None]), rtol=1e-4, atol=1e-5)
        got = l.jit(l.vmap(solve(l, "sequential"), (None, 0)))(L[0], np.stack([b, 2 * b]))
        np.testing.assert_allclose(got[1], 2 * got[0], rtol=1e-5)


def test_without_a_rule_operands_are_gathered_and_with_one_they_stay(mesh):
    x = meshrt.device_put(A, NamedSharding(mesh, P("data")))
    plain = meshrt.jit(potrf(meshrt, (8,)))
    split = meshrt.jit(potrf(meshrt, (8,), sharding_rule="b i j -> b i j, b"))
    for f, sends in ((plain, True), (split, False)):
        partitioned = f.trace(x).lower().partition()
        assert (partitioned.plan.bytes > 0) is sends
        assert bool([f for f in partitioned.findings if f.kind == "full-gather"]) is sends
        for partitioner in ("meshrt", "xla"):
            with config.override(partitioner=partitioner):
                np.testing.assert_allclose(f(x), L, rtol=1e-5)
    assert split(x).sharding.spec[0] == "data"


def test_attributes_are_jaxs():
    attributes = dict(
        a=1, b=2.5, c=True, d='s"', e=np.arange(3, dtype=np.int32), f={"k": (1, "x")}, h=np.float32(-3), i=np.int8(-2),
        j=np.dtype("float32"), k=np.ones((2, 2), np.float32), m=float("inf"),
    )  # fmt: skip

    def config_of(l):
        text = l.jit(lambda x: l.ffi.ffi_call("foo", l.ShapeDtypeStruct((4,), np.float32))(x, **attributes)).lower(
            A[0, 0]
        )
        module = text.compiler_ir("stablehlo")
        (call,) = [op for op in _ops(module) if op.name == "stablehlo.custom_call"]
        found = call.attributes["mhlo.backend_config" if "mhlo.backend_config" in call.attributes else "backend_config"]
        return sorted(str(found).strip("{}").split(", "))

    assert config_of(meshrt) == config_of(jax)


def _ops(module):
    main = module.operation.regions[0].blocks[0].operations[0]
    return [op.operation for op in main.operation.regions[0].blocks[0].operations]


BAD = [
    (dict(vmap_method="x"), {}, "must be on of the allowed methods"),
    (dict(legacy_backend_config="x"), {}, "requires custom_call_api_version < 4"),
    (dict(input_layouts=[None, None]), {}, "number of input arguments .1. must equal"),
    (dict(input_layouts=[(0, 0)]), {}, "names each dimension once"),
    (dict(input_output_aliases={1: 0}), {}, "input index 1 outside the range"),
    (dict(input_output_aliases={0: 1}), {}, "output index 1 outside the range"),
    (dict(input_output_aliases={0: 0}, input_layouts=[(1, 0)]), {}, "with a different layout"),
    (dict(custom_call_api_version=2), {"a": 1}, "requires a custom call API version of at least 4"),
]


@pytest.mark.parametrize("options, attributes, message", BAD)
def test_what_does_not_fit_is_refused(options, attributes, message):
    with pytest.raises(ValueError, match=message) as caught:
        call = meshrt.ffi.ffi_call("foo", meshrt.ShapeDtypeStruct((4, 4), np.float32), **options)
        call(A[0], **attributes)
    assert isinstance(caught.value, errors.MeshrtError)


@pytest.mark.parametrize("l", [meshrt, jax])
def test_wide_results_and_keys(l):
    wide = l.jit(lambda: l.ffi.ffi_call("foo", l.ShapeDtypeStruct((), np.int64))()).lower().as_text()
    assert "-> tensor<i64>" in wide
    keyed = l.jit(lambda k: l.ffi.ffi_call("foo", (), has_side_effect=True)(k)).lower(l.random.key(0)).as_text()
    assert "operand_layouts = [dense<0> : tensor<1xindex>]" in keyed


def test_other_errors(mesh):
    call = meshrt.ffi.ffi_call("foo", meshrt.ShapeDtypeStruct((4, 4), np.float32))
    with pytest.raises(NotImplementedError, match="vmap is only supported for the ffi_call primitive when vmap_method"):
        meshrt.jit(meshrt.vmap(call)).trace(A)
    with pytest.raises(ValueError, match=r"The FFI call to `foo` cannot be differentiated.*custom_jvp"):
        meshrt.jit(meshrt.grad(lambda a: call(a).sum())).trace(A[0])
    with pytest.raises(ValueError, match=r"must have 'shape' and 'dtype' attributes\. Got 3 at position 1"):
        meshrt.ffi.ffi_call("foo", [meshrt.ShapeDtypeStruct((), np.float32), 3])
    with pytest.raises(TypeError, match="is of type object"):
        call(A[0], a=object())
    x = meshrt.device_put(A[0], NamedSharding(mesh, P("data")))
    ruled = meshrt.ffi.ffi_call("foo", meshrt.ShapeDtypeStruct((4, 4), np.float32), sharding_rule="i -> i")
    with pytest.raises(errors.ShardingRuleError, match=r"ffi_call of 'foo' at .*test_ffi.py"):
        meshrt.jit(ruled).trace(x).lower()
    effect = meshrt.ffi.ffi_call("foo", meshrt.ShapeDtypeStruct((4, 4), np.float32), has_side_effect=True)
    text = meshrt.jit(lambda a: (effect(a), a)[1]).trace(A[0]).lower().as_text()
    assert "has_side_effect = true" in text
    with pytest.raises(Exception, match="has a side effect and no sharding rule"):
        meshrt.jit(effect).trace(x).lower().partition()


def test_functions_are_registered_by_their_address():
    library = ctypes.CDLL(None)
    capsule = meshrt.ffi.pycapsule(library.abs)
    assert type(capsule).__name__ == "PyCapsule"
    meshrt.ffi.register_ffi_target("meshrt_test_abs", capsule, api_version=0)
    assert os.path.isdir(meshrt.ffi.include_dir()) and meshrt.ffi.include_dir() == jax.ffi.include_dir()


def getrf(l, **options):
    """A primitive that is one call of LAPACK: (matrix) -> (factors, pivots, info)."""
    core, mlir = (importlib.import_module(f"{l.__name__}.{name}") for name in ("extend.core", "interpreters.mlir"))
    called_p = core.Primitive("called")
    called_p.multiple_results = True
    integers = lambda *shape: {"jax": jax.core.ShapedArray, "meshrt": ShapedArray}[l.__name__](
        shape, np.dtype(np.int32)
    )
    kinds = lambda x: (x, integers(4), integers())
    called_p.def_abstract_eval(lambda x, **_: kinds(x))
    layouts = {"operand_layouts": [(0, 1)], "result_layouts": [(0, 1), (0,), ()], "operand_output_aliases": {0: 0}}
    mlir.register_lowering(called_p, l.ffi.ffi_lowering("lapack_sgetrf_ffi", **(layouts | options)), platform="cpu")
    return called_p


def test_calls_as_lowering_rules():
    ours, theirs = (l.jit(getrf(l).bind)(A[0]) for l in (meshrt, jax))
    for a, b in zip(ours, theirs):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize(
    ("options", "attributes", "message"),
    [
        ({"api_version": 1}, {"a": 1}, "version of at least 4; got api_version=1"),
        ({"backend_config": "text"}, {}, "backend_config must be a dictionary"),
        ({"operand_layouts": [Layout((1, 0), ((2, 2),))]}, {}, "layouts with tiling"),
    ],
)
def test_refusals_of_lowering_rules(options, attributes, message):
    call = getrf(meshrt, **options).bind
    with pytest.raises(ValueError, match=message):
        meshrt.jit(lambda x: call(x, **attributes)).lower(A[0])


def test_attributes_and_layouts_are_written():
    bind = getrf(meshrt, operand_layouts=None, backend_config={"b": 2.0}, has_side_effect=True).bind
    text = meshrt.jit(lambda x: bind(x, a=np.int32(3))).lower(A[0]).as_text()
    assert "a = 3 : i32" in text and "b = 2.0" in text and "has_side_effect = true" in text
    assert "operand_layouts = [dense<[1, 0]> : tensor<2xindex>]" in text


def test_registrations():
    number = ctypes.c_int64(0)
    capsule = meshrt.ffi.pycapsule(ctypes.addressof(number))
    meshrt.ffi.register_ffi_type("meshrt_test_type", {"type_id": capsule})
    assert number.value != 0
    meshrt.ffi.register_ffi_target_as_batch_partitionable("meshrt_test_abs")
    with pytest.raises(ValueError, match="use register_ffi_type"):
        meshrt.ffi.register_ffi_type_id("meshrt_test_type", capsule)
