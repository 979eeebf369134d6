"""Fourier transforms along split dimensions: exchanges in place of gathers, values as one device has them."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation
from collectives.topology import load
from propagation.model import Mesh

from . import harness
from .jax_side import Case, check

PIECE = 64 * 64 * 8 / 8  # bytes of a complex tensor's piece


def samples(*shape, dtype=np.complex64):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


@pytest.mark.parametrize(
    "f, spec, out, exchanges",
    [
        (jnp.fft.fft2, P("x"), P("x"), 2),
        (jnp.fft.ifft2, P("x"), P(None, "x"), 1),
        (jnp.fft.fft2, P(None, "x"), P("x"), 1),
    ],
)
def test_two_dimensions_exchange_between_their_transforms(f, spec, out, exchanges):
    result, sent = check(Case({"x": 8}, lambda constrain: f, (samples(64, 64),), (spec,), out), rtol=1e-5)
    assert sent == exchanges * 7 / 8 * PIECE and not result.findings


@pytest.mark.parametrize(
    "f, x, spec",
    [
        (jnp.fft.fftn, samples(16, 8, 12), P("a", "b")),
        (jnp.fft.fftn, samples(3, 8, 8, 8), P(None, "b", None, "a")),
        (jnp.fft.rfftn, samples(8, 8, 16, dtype=np.float32), P("b", "a")),
        (jnp.fft.rfft2, samples(64, 64, dtype=np.float32), P(None, ("a", "b"))),
        (jnp.fft.irfft2, samples(16, 17), P(("a", "b"))),
        (jnp.fft.irfftn, samples(8, 16, 9), P("a", "b")),
    ],
)
def test_several_dimensions_and_axes(f, x, spec):
    out = P("a") if x.shape[0] % 4 == 0 else P(None, "b")  # what is returned whole may be gathered at once
    result, _ = check(Case({"a": 4, "b": 2}, lambda constrain: f, (x,), (spec,), out), rtol=1e-5)
    assert not result.findings


@pytest.mark.parametrize("f", [jnp.fft.fft, jnp.fft.ifft])
@pytest.mark.parametrize("shape, axes", [((4096,), {"x": 8}), ((2, 400), {"x": 5}), ((3, 36), {"x": 2})])
def test_one_long_dimension_is_transformed_as_two(f, shape, axes):
    spec = P(*[None] * (len(shape) - 1), "x")
    result, _ = check(Case(axes, lambda constrain: f, (samples(*shape),), (spec,), spec), rtol=1e-5)
    if axes["x"] > 3:
        assert result.plan.counts == {"all_to_all": 3} and not result.findings
    else:
        assert [finding.kind for finding in result.findings] == ["full-gather"]


TEXT = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%x: tensor<2x2048xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
                       %h: tensor<2x2048xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
    -> (tensor<2x2048xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %s = stablehlo.fft %x, type = RFFT, length = [2048] : (tensor<2x2048xf32>) -> tensor<2x1025xcomplex<f32>>
  %t = stablehlo.fft %h, type = RFFT, length = [2048] : (tensor<2x2048xf32>) -> tensor<2x1025xcomplex<f32>>
  %u = stablehlo.multiply %s, %t : tensor<2x1025xcomplex<f32>>
  %y = stablehlo.fft %u, type = IRFFT, length = [2048] : (tensor<2x1025xcomplex<f32>>) -> tensor<2x2048xf32>
  return %y : tensor<2x2048xf32>
}
"""


@pytest.mark.parametrize("real", ["f32", "f64"])
def test_a_convolution_by_real_transforms_of_a_long_dimension(real):
    result = collectives.partition(propagation.run(TEXT.replace("f32", real)))
    assert not result.findings and "all_gather" not in result.plan.counts
    x, h = (samples(2, 2048, dtype={"f32": np.float32, "f64": np.float64}[real]) for _ in range(2))
    h = h[:, ::-1] * np.arange(2048, dtype=h.dtype)
    spectrum = [np.fft.rfft(v.astype(np.float64)) for v in (x, h)]
    expected = np.fft.irfft(spectrum[0] * spectrum[1])
    (got,), compiled = harness.run_partitioned(result, [x, h], [expected.shape])
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got / scale, expected / scale, atol=1e-6 if real == "f32" else 1e-14)
    sent, _ = harness.hlo_bytes(compiled.hlo(), 8)
    assert sent < 2 * 7 / 8 * x.nbytes


@pytest.mark.parametrize("f", ["fft", "ifft"])
def test_double_precision(f):
    text = re.sub("= I?RFFT", f"= {f.upper()}", TEXT.replace("1025xcomplex<f32>", "2048xf32"))
    result = collectives.partition(propagation.run(text.replace("xf32", "xcomplex<f64>")))
    assert list(result.plan.counts) == ["all_to_all"]
    x = samples(2, 2048, dtype=np.complex128)
    transform = getattr(np.fft, f)
    expected = transform(transform(x) * transform(x[:, ::-1]))
    (got,), _ = harness.run_partitioned(result, [x, x[:, ::-1]], [expected.shape])
    np.testing.assert_allclose(got, expected, atol=1e-14 * np.abs(expected).max())


def test_a_spectrum_that_is_wanted_whole_is_gathered_before():
    case = Case({"x": 8}, lambda constrain: jnp.fft.fft, (samples(4096),), (P("x"),), P())
    result, sent = check(case, rtol=1e-5)
    assert sent == 7 * 4096 and [finding.kind for finding in result.findings] == ["full-gather"]


@pytest.mark.parametrize(("spec", "asks"), [("v5e:2x4", False), ("h100:8", True)])
def test_the_compiler_of_tpus_is_asked_for_no_layout_of_complex_numbers(spec, asks):
    text = """sdy.mesh @mesh = <["x"=8]>
    func.func @main(%x: tensor<16x64xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
        -> tensor<16x64xcomplex<f32>> {
      %0 = stablehlo.fft %x, type = FFT, length = [64] : (tensor<16x64xcomplex<f32>>) -> tensor<16x64xcomplex<f32>>
      return %0 : tensor<16x64xcomplex<f32>>
    }"""
    made = collectives.partition(propagation.run(text), load(spec).on(Mesh("mesh", (("x", 8),)))).as_text()
    assert "stablehlo.fft" in made and ("LayoutConstraint" in made) == asks


def _spectral(kind):
    """A program that keeps some of a spectrum, and one whose spectrum is zero in places."""
    fft, inverse = (jnp.fft.rfft2, jnp.fft.irfft2) if kind == "real" else (jnp.fft.fft2, jnp.fft.ifft2)

    def build(constrain):
        def f(x, w):
            if kind == "complex":
                x = x + 1j * x[::-1]
            s = fft(x, axes=(1, 2))
            low, high = s[:, :6, :5], s[:, -6:, :5]
            out = jnp.zeros_like(s).at[:, :6, :5].set(low * w).at[:, -6:, :5].set(high + w)
            return inverse(out, axes=(1, 2)), jnp.abs(fft(x, axes=(1, 2))[:, 2::3, 1:4])

        return f

    return build


@pytest.mark.parametrize(
    "kind, spec", [("real", P(None, "x")), ("real", P(None, None, "x")), ("complex", P(None, None, None, "x"))]
)
def test_what_nobody_uses_and_what_is_zero_does_not_travel(kind, spec):
    """Two transforms of one operand are written once, so what either keeps is kept."""
    x, w = samples(2, 32, 32, 8, dtype=np.float32), samples(6, 5, 8, dtype=np.float32)
    case = Case({"x": 8}, _spectral(kind), (x, w), (spec, P()), (spec, P()))
    _, sent = check(case, rtol=1e-4, above_xla=True)  # XLA ends the process on complex ones
    if spec == P(None, "x"):
        assert sent < 9000  # two exchanges of all 17 columns: 15232


def test_a_spectrum_in_three_dimensions_is_cut_along_each():
    def build(constrain):
        def f(x):
            s = jnp.fft.rfftn(x, axes=(0, 1, 2))[:4, 4:12, :3]
            return jnp.fft.irfftn(jnp.pad(s, ((0, 12), (4, 4), (0, 6))), axes=(0, 1, 2))

        return f

    case = Case({"x": 2, "y": 4}, build, (samples(16, 16, 16, dtype=np.float32),), (P("x", "y"),), P("x", "y"))
    check(case, rtol=1e-4, above_xla=True)


@pytest.mark.parametrize("shape", [(4, 256, 16), (256, 16)])
def test_what_is_padded_moves_before_it_grows(shape):
    """A long convolution: the sequence is exchanged for features, padded and transformed where it is whole."""
    axis = len(shape) - 2

    def build(constrain):
        def run(x, k):
            transform = lambda x: jnp.fft.rfft(x, 512, axis=axis)
            spectrum = transform(x) * (transform(k) if axis == 0 else jnp.fft.rfft(k, 512, axis=0)[None])
            return jax.lax.slice_in_dim(jnp.fft.irfft(spectrum, 512, axis=axis), 0, 256, axis=axis)

        return run

    split = P(*[None] * axis, "x")
    args = [samples(*shape, dtype=np.float32), samples(256, 16, dtype=np.float32)]
    case = Case({"x": 8}, build, args, (split, P("x")), split)
    made, sent = check(case, rtol=1e-4)
    exchanged = lambda n: n * 4 / 8 * 7 / 8
    assert sent <= exchanged(2 * np.prod(shape) + 256 * 16), made.plan.as_text()


def test_a_padded_vector_is_gathered_before_it_grows():
    build = lambda constrain: lambda x: jnp.fft.rfft(jnp.pad(x, (0, 1000)))[:1000]
    made, sent = check(Case({"x": 8}, build, [samples(1000, dtype=np.float32)], (P("x"),), P("x")), rtol=1e-4)
    assert sent <= 1000 * 4 * 7 / 8, made.plan.as_text()
