"""What `lax` has beside its operations: algorithms and accuracies, composites, sinks, filled arrays; as in JAX."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshrt
from meshrt.sharding import NamedSharding, PartitionSpec
from tests.meshrt.beside import assert_alike

X = np.arange(6, dtype=np.float32).reshape(2, 3) + np.float32(0.1)
PRECISIONS = [
    "F32_F32_F32", "BF16_BF16_F32", "BF16_BF16_F32_X3", "F16_F16_F16", "F64_F64_F64", "F16_F16_F32", "TF32_TF32_F32",
    "ANY_F8_ANY_F8_F32", "DEFAULT", "highest", "nonsense", ("high", "default"), ("high", None), 3,
]  # fmt: skip


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_products_by_an_algorithm(precision, dtype) -> None:
    x = X.astype(dtype)
    assert_alike(lambda jax: jax.lax.dot(x, x.T, precision=precision), rtol=2e-3)
    if precision in ("F32_F32_F32", "BF16_BF16_F32"):
        loss = lambda jax: lambda x, y: jax.lax.dot(x, y, precision=precision, preferred_element_type=np.float32).sum()
        assert_alike(lambda jax: jax.grad(loss(jax), (0, 1))(x, x.T), rtol=2e-2)
        assert_alike(lambda jax: jax.vmap(lambda v: jax.lax.dot(v, x.T, precision=precision))(x), rtol=2e-3)


@pytest.mark.parametrize("name", ["DEFAULT", "ANY_F8_ANY_F8_F32", "F16_F16_F32", "BF16_BF16_F32", "TF32_TF32_F32_X3"])
def test_what_presets_say(name) -> None:
    def said(jax):
        preset = jax.lax.DotAlgorithmPreset[name]
        outs = [preset.supported_output_types(d, d) for d in (np.float16, np.float32)]
        return str(preset), repr(preset), preset.accumulation_type, preset.supported_lhs_types, outs

    assert repr(said(meshrt)) == repr(said(__import__("jax")))


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_algorithms_are_written_for_the_compiler(platform) -> None:
    dot = lambda x, y: meshrt.lax.dot(x, y, precision="TF32_TF32_F32_X3")
    text = meshrt.jit(dot).trace(X, X.T).lower(lowering_platforms=(platform,)).as_text()
    assert "<lhs_precision_type = tf32" in text and "num_primitive_operations = 3" in text
    own = meshrt.lax.DotAlgorithm(np.float16, np.float16, np.float32)
    text = meshrt.jit(lambda x, y: meshrt.lax.dot(x, y, precision=own)).trace(X, X.T)
    assert "accumulation_type = f32" in text.lower(lowering_platforms=(platform,)).as_text()


def test_accuracies() -> None:
    assert_alike(lambda jax: jax.lax.Tolerance())
    assert_alike(lambda jax: jax.lax.Tolerance(atol=-1.0))
    assert_alike(lambda jax: jax.lax.exp(1.0, accuracy="best"))
    text = meshrt.jit(lambda x: meshrt.lax.log(x, accuracy=meshrt.lax.Tolerance(ulps=3))).lower(1.0).as_text()
    assert "ulps = 3" in text and "TOLERANCE" in text
    assert meshrt.lax.Tolerance(ulps=3) == meshrt.lax.Tolerance(ulps=3)


SCALED = {"a": 1, "b": 2.5, "c": "s", "d": (1, 2), "e": None, "g": np.arange(3, dtype=np.float32), "h": True,
          "k": np.float32(3), "m": {"p": 1, "q": [1.5]}}  # fmt: skip


def test_composites() -> None:
    def program(jax):
        @functools.partial(jax.lax.composite, name="own.scaled", version=3)
        def scaled(x, /, **kwargs):
            return {"out": jax.numpy.sin(x) * kwargs["b"]}

        return scaled

    assert_alike(lambda jax: jax.jit(lambda x: program(jax)(x, **SCALED))(X))
    assert_alike(lambda jax: program(jax)(X, **SCALED))
    assert_alike(lambda jax: jax.grad(lambda x: program(jax)(x, **SCALED)["out"])(1.0))
    assert_alike(lambda jax: jax.jit(lambda b: program(jax)(1.0, b=b))(2.0))
    for lax in (meshrt, __import__("jax")):
        text = lax.jit(lambda x, lax=lax: program(lax)(x, **SCALED)).lower(np.float32(1)).as_text()
        assert 'stablehlo.composite "own.scaled"' in text and "version = 3" in text
        assert "a = 1 : i64" in text and "m = {p = 1 : i64, q = [1.5" in text and "e =" not in text
    mapped = meshrt.vmap(lambda x: program(meshrt)(x, **SCALED)["out"])(X)
    np.testing.assert_allclose(mapped, np.sin(X) * 2.5, rtol=1e-6)
    with pytest.raises(meshrt.errors.ArgumentTypeError, match="cannot write"):
        program(meshrt)(1.0, b=1.0, c=object())


def test_composites_on_a_mesh_are_their_decompositions(mesh) -> None:
    double = meshrt.lax.composite(lambda x: x * 2, "own.double")
    x = meshrt.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, PartitionSpec("data")))
    out = meshrt.jit(double)(x)
    np.testing.assert_array_equal(out, np.arange(8.0) * 2)
    assert out.sharding.spec == PartitionSpec("data")


def test_sinks_keep_what_computes_a_value() -> None:
    assert_alike(lambda jax: str(jax.make_jaxpr(lambda x: (jax.lax.dce_sink(x * 2), x)[1])(1.0)).count("dce_sink"))
    sunk = lambda jax: lambda x: (jax.lax.dce_sink({"a": x * 2}), x)[1]
    assert_alike(lambda jax: jax.jit(jax.grad(sunk(jax)))(1.0))
    assert_alike(lambda jax: jax.jit(jax.vmap(sunk(jax)))(X))


def test_small_functions() -> None:
    assert_alike(lambda jax: jax.lax.stage(2.0))
    assert_alike(lambda jax: jax.lax.stage(X))
    assert_alike(lambda jax: jax.lax.empty(3, np.int32).shape)
    assert_alike(lambda jax: jax.lax.broadcast_like(X[:1], np.ones((4, 2, 3))))
    assert_alike(lambda jax: jax.lax.broadcast_like(X, np.ones((4, 2))))
    assert_alike(lambda jax: jax.lax.dtype(jax.numpy.ones(2, "int8")))
    for what in (2, True, int, float, "int8", "bfloat16", np.dtype("uint32"), np.float32, np.float32(1)):
        assert_alike(lambda jax, what=what: jax.lax.dtype(what))
    assert_alike(lambda jax: jax.lax.dtype(None))


def test_scalars_of_computations() -> None:
    one, table = np.float32(1), meshrt.numpy.ones(3)
    assert_alike(lambda jax: jax.lax.reduce(X, one, lambda a, b: a * b + 0 * jax.numpy.sin(one) * a, [0]))
    assert_alike(lambda jax: jax.lax.reduce(X, 0, lambda a, b: a * b * 1, [0]))
    assert_alike(lambda jax: jax.lax.reduce((X, X), (one,), lambda a, b: a, [0]))
    assert_alike(lambda jax: jax.lax.reduce(1.5, 0.0, lambda a, b: a + b, []))
    assert_alike(lambda jax: jax.jit(lambda c: jax.lax.reduce(X, one, lambda a, b: a * b * c, [0]))(2.0))
    assert_alike(lambda jax: jax.jvp(lambda i: jax.lax.reduce(X, i, lambda a, b: a * b * 1, [0]), (one,), (one,)))
    captured = meshrt.numpy.float32(3)
    out = meshrt.lax.reduce(X, one, lambda a, b: meshrt.lax.max(a * b, captured), [0, 1])
    assert out.shape == ()
    with pytest.raises(meshrt.errors.UnsupportedError, match="arrays from outside"):
        meshrt.lax.reduce(X, one, lambda a, b: a * b * table[0], [0])


def test_general_windows_in_forward_mode() -> None:
    windows = lambda jax: lambda x: jax.lax.reduce_window(x, np.float32(1), lambda a, b: a * b, (2, 2), (1, 1), "SAME")
    assert_alike(lambda jax: jax.jvp(windows(jax), (X,), (X,)))
    jacobian = meshrt.jacfwd(windows(meshrt))(X)
    np.testing.assert_allclose((jacobian * X).sum((2, 3)), meshrt.jvp(windows(meshrt), (X,), (X,))[1], rtol=1e-6)
    assert_alike(lambda jax: jax.vmap(windows(jax))(np.stack([X, X])))
    assert_alike(lambda jax: jax.lax.reduce_window(X.astype(np.int32), 1, jax.lax.mul, (2, 2), (1, 1), "VALID"))
    moving = lambda jax: lambda i: jax.lax.reduce_window(X, i, jax.lax.mul, (2, 2), (1, 1), "SAME")
    assert_alike(lambda jax: jax.jvp(moving(jax), (np.float32(1),), (np.float32(1),)))


def test_parameters_that_are_none_ask_for_nothing() -> None:
    assert_alike(lambda jax: jax.lax.reduce_sum_p.bind(X, axes=(0,), out_sharding=None))
    assert_alike(lambda jax: jax.lax.iota_p.bind(dtype=np.dtype("int32"), shape=(2,), dimension=0, sharding=None))
    assert_alike(lambda jax: jax.lax.reshape_p.bind(X, new_sizes=(6,), dimensions=None, sharding=None))
    assert_alike(
        lambda jax: jax.lax.convert_element_type_p.bind(X, new_dtype=np.dtype("int32"), weak_type=False, sharding=None)
    )


@pytest.mark.parametrize("axes", [(-1,), (0, 0), (0, -2), (2,), (1, 0)], ids=str)
def test_axes_count_from_zero(axes) -> None:
    for name in ("reduce_sum", "reduce_max", "reduce_prod"):
        assert_alike(lambda jax, name=name: getattr(jax.lax, name)(X, axes))
    assert_alike(lambda jax: jax.lax.argmax(X, axes[0], "int32"))
    assert_alike(lambda jax: jax.lax.cumsum(X, axes[0]))
    assert_alike(lambda jax: jax.lax.rev(X, axes[:1]))


@pytest.mark.parametrize("value", [0, 0.0, np.int32(0), np.float32(0), np.float64(0), np.float16(0)], ids=repr)
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_pads_are_of_the_operands_dtype(value, dtype) -> None:
    assert_alike(lambda jax: jax.lax.pad(X.astype(dtype), value, [(1, 1, 0), (0, 0, 0)]))


def test_scaled_products() -> None:
    wide = X.repeat(2, 1)
    assert_alike(lambda jax: jax.lax.scaled_dot(wide, wide.T, lhs_scale=X[:, :1], rhs_scale=X[:, :3].T), rtol=2e-2)
    assert_alike(lambda jax: jax.lax.scaled_dot(X, X.T, preferred_element_type=np.float32), rtol=2e-2)
    assert_alike(lambda jax: jax.vmap(lambda x: jax.lax.scaled_dot(x, X.T))(np.stack([X, X])), rtol=2e-2)
    assert_alike(lambda jax: jax.lax.scaled_dot(X, X.T, lhs_scale=X))
    assert_alike(lambda jax: jax.lax.scaled_dot(X[0], X.T))
    a, scales = X[None], np.float32([[[0.5], [2]]])
    np.testing.assert_allclose(
        meshrt.nn.scaled_matmul(a, a, scales, scales)[0], (X * scales[0]) @ (X * scales[0]).T, rtol=1e-6
    )
    assert_alike(lambda jax: jax.nn.scaled_matmul(a, a[:, :, :2], scales, scales))
    assert_alike(lambda jax: jax.nn.scaled_matmul(X, X, X, X))


def test_running_extremes_of_complex_numbers() -> None:
    z = (X + 1j * X[::-1]).astype(np.complex64)
    for name in ("cummin", "cummax"):
        run = lambda jax, name=name: lambda x: getattr(jax.lax, name)(x, axis=1)
        assert_alike(lambda jax, run=run: jax.jvp(run(jax), (z,), (z * 2,)))
