"""Signals, cosine transforms, images: programs that meshrt and JAX run, or refuse, alike."""

import jax.scipy.fft
import jax.scipy.interpolate
import jax.scipy.ndimage
import jax.scipy.signal  # noqa: F401
import numpy as np
import pytest
import scipy.fft
import scipy.signal

import meshrt
import meshrt.numpy as jnp
import meshrt.scipy as ours
from tests.meshrt.beside import assert_alike

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 5, 4)).astype(np.float32)
WAVE = RNG.normal(size=(2, 60)).astype(np.float32)
PLACES = [RNG.uniform(-8, 8, (4, 3)).astype(np.float32) for _ in range(3)]


@pytest.mark.parametrize("name", ["dct", "idct"])
@pytest.mark.parametrize("norm", [None, "ortho"])
def test_cosine_transforms_of_an_axis(name, norm):
    def program(lib):
        f = getattr(lib.scipy.fft, name)
        return [f(X, axis=0, norm=norm), f(X, n=7, norm=norm), f(X, n=2, axis=1, norm=norm), f(X + 2j * X, norm=norm)]

    assert_alike(program, 1e-4)
    with meshrt.enable_x64(True):
        wide = X.astype(np.float64)
        got = getattr(ours.fft, name)(wide, axis=1, norm=norm)
        np.testing.assert_allclose(np.asarray(got), getattr(scipy.fft, name)(wide, axis=1, norm=norm), 1e-12, 1e-13)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["dctn", "idctn"])
def test_cosine_transforms_of_several_axes(name):
    def program(lib):
        f = getattr(lib.scipy.fft, name)
        slope = lib.grad(lambda x: (f(x) ** 2).sum())(X)
        return [f(X), f(X, axes=(2, 0), norm="ortho"), f(X, s=(3, 6)), f(X, s=(2, 3, 4), axes=(1, 2, 0)), slope]

    assert_alike(program, 2e-4)


@pytest.mark.parametrize(
    "call",
    [
        lambda f: f.dct(X, type=3), lambda f: f.dct(X, norm="forward"), lambda f: f.idct(X, axis=3),
        lambda f: f.dctn(X, s=(1, 2, 3, 4)), lambda f: f.dct("x"),
    ],
)  # fmt: skip
def test_refused_cosine_transforms(call):
    assert_alike(lambda lib: call(lib.scipy.fft))


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64"])
def test_cosine_transforms_of_integers_where_64_bits_are_enabled(dtype):
    def program(lib):
        with lib.enable_x64(True):
            transforms = (lib.scipy.fft.dct, lib.scipy.fft.idct, lib.scipy.fft.dctn)
            return [lib.eval_shape(f, lib.ShapeDtypeStruct((3,), dtype)).dtype for f in transforms]

    assert_alike(lambda lib: list(map(str, program(lib))))


SHAPES = [((7,), (3,)), ((6,), (4,)), ((3,), (6,)), ((4, 5), (2, 3)), ((4, 5), (6, 5)), ((4, 5), (5, 3))]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("shapes", SHAPES)
def test_convolutions(shapes):
    x, y = (RNG.integers(-4, 4, s).astype(np.float32) for s in shapes)
    for mode in ("full", "same", "valid"):
        for name in ("convolve", "correlate", "convolve2d", "correlate2d", "fftconvolve"):
            assert_alike(lambda lib, n=name, m=mode: getattr(lib.scipy.signal, n)(x, y, mode=m), 2e-5)
        assert_alike(lambda lib, m=mode: lib.scipy.signal.correlate(x + 1j, y - 2j * y, m), 2e-5)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("name", ["convolve", "correlate", "convolve2d", "correlate2d"])
def test_infinities_beside_the_border(name, mode):
    x, y = np.array([[np.inf, 2], [3, 4]], np.float32), np.array([[1, -1], [-np.inf, 5]], np.float32)
    for a, b in ((x, y), (y, x), (x, y[:1]), (x[:, :1], y)):  # a border of zeros times infinity is NaN
        assert_alike(lambda lib, a=a, b=b: getattr(lib.scipy.signal, name)(a, b, mode=mode))


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.convolve(X[0, 0], X[0, 1], mode="some"), lambda s: s.convolve(X[0, 0], X[0]),
        lambda s: s.convolve(X[0, 0], X[0, 0, :0]), lambda s: s.convolve(X, X, method="slow"),
        lambda s: s.convolve2d(X, X), lambda s: s.convolve2d(X[0], X[0], boundary="wrap"),
        lambda s: s.correlate2d(X[0], X[0], fillvalue=1), lambda s: s.fftconvolve(X, X[0]),
        lambda s: s.fftconvolve(X, X[:2], axes=1), lambda s: s.fftconvolve(X, X, axes=5),
        lambda s: s.convolve(X, X[:2, :2], method="fft"), lambda s: s.convolve(np.arange(4), np.arange(2)),
        lambda s: s.fftconvolve(X, X[:, :2], axes=(1,)), lambda s: s.detrend(X, type="cubic"),
        lambda s: s.detrend(X, bp=9), lambda s: s.detrend(X, overwrite_data=True),
        lambda s: s.stft(WAVE, boundary="soft"), lambda s: s.stft(WAVE, nperseg=0),
        lambda s: s.stft(WAVE, noverlap=256),
        lambda s: s.stft(WAVE, nperseg=16, nfft=8), lambda s: s.csd(WAVE, WAVE[0]), lambda s: s.csd(WAVE, WAVE, axis=4),
        lambda s: s.welch(WAVE, nperseg=16, average="mode"), lambda s: s.welch(WAVE, scaling="loud"),
        lambda s: s.istft(WAVE[0]), lambda s: s.istft(WAVE, time_axis=0, freq_axis=0),
        lambda s: s.istft(WAVE, nperseg=3, noverlap=3), lambda s: s.istft(WAVE, nperseg=8, nfft=4),
        lambda s: s.stft(WAVE, window=np.ones((2, 2))), lambda s: s.stft(WAVE, window=np.ones(80)),
        lambda s: s.welch(np.zeros((3, 0), np.float32)),
    ],
)  # fmt: skip
def test_arguments_of_signals(call):
    assert_alike(lambda lib: call(lib.scipy.signal), 1e-4)


@pytest.mark.parametrize("kind", ["constant", "linear"])
def test_trends(kind):
    for axis, bp in ((0, 0), (1, [1, 3]), (-1, 2)):
        assert_alike(lambda lib, a=axis, b=bp: lib.scipy.signal.detrend(X, axis=a, type=kind, bp=b), 1e-4)
    with meshrt.enable_x64(True):
        wide = X.astype(np.float64) + 1e3
        got = ours.signal.detrend(wide, axis=1, type=kind, bp=[2])
        np.testing.assert_allclose(np.asarray(got), scipy.signal.detrend(wide, axis=1, type=kind, bp=[2]), 1e-9, 1e-10)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "options",
    [
        {"nperseg": 16}, {"nperseg": 17, "noverlap": 5, "boundary": "even"},
        {"nperseg": 16, "boundary": "odd", "fs": 3.0},
        {"nperseg": 16, "nfft": 32, "return_onesided": False, "boundary": "constant"},
        {"nperseg": 20, "detrend": "linear", "padded": False, "boundary": None}, {"window": "hamming", "nperseg": 12},
        {"window": np.hanning(10).astype(np.float32), "nperseg": 10}, {"nperseg": 1},
    ],
)  # fmt: skip
def test_spectra_of_segments(options):
    assert_alike(lambda lib: lib.scipy.signal.stft(WAVE, **options), 2e-4)
    assert_alike(lambda lib: lib.scipy.signal.stft(WAVE.T, axis=0, **options), 2e-4)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "options",
    [
        {}, {"nperseg": 16}, {"nperseg": 17, "noverlap": 5, "average": "median"},
        {"nperseg": 16, "nfft": 32, "return_onesided": False, "scaling": "spectrum"}, {"axis": 0},
    ],
)  # fmt: skip
def test_densities(options):
    assert_alike(lambda lib: lib.scipy.signal.welch(WAVE, **options), 2e-4)
    assert_alike(lambda lib: lib.scipy.signal.csd(WAVE, 1j * WAVE[:1, :40] + 1, **options), 2e-4)


def test_trends_by_a_function_of_the_users():
    options = {"nperseg": 16, "fs": 2.0, "detrend": lambda s: s - s.mean(axis=-1, keepdims=True)}
    got = ours.signal.welch(WAVE, **options)[1]
    np.testing.assert_allclose(np.asarray(got), scipy.signal.welch(WAVE, **options)[1], 1e-4, 1e-6)


@pytest.mark.parametrize("options", [{"nperseg": 16}, {"nperseg": 16, "noverlap": 11}, {"nperseg": 15}])
def test_signals_from_spectra(options):
    spectra = scipy.signal.stft(WAVE, **options)[2].astype(np.complex64)
    for Z, places in ((spectra, {}), (spectra.transpose(2, 0, 1), {"time_axis": 0, "freq_axis": 2})):
        got = ours.signal.istft(Z, **options, **places)
        for mine, wanted in zip(got, scipy.signal.istft(Z, **options, **places), strict=True):
            np.testing.assert_allclose(np.asarray(mine), wanted, 1e-4, 1e-5)

    def back(wave):
        return ours.signal.istft(ours.signal.stft(wave, **options)[2], **options)[1][:60]

    slope = meshrt.grad(lambda wave: jnp.sum(back(wave)))(WAVE[0])
    np.testing.assert_allclose(np.asarray(slope), np.ones(60), 1e-3)


@pytest.mark.parametrize("mode", ["constant", "nearest", "wrap", "mirror", "reflect", "grid-wrap"])
def test_images_at_places(mode):
    def program(lib):
        def at(image, places=PLACES, order=1):
            return lib.scipy.ndimage.map_coordinates(image, places, order=order, mode=mode, cval=1.5)

        slope = lib.grad(lambda a: at(X, [a, *PLACES[1:]]).sum())(PLACES[0])
        whole = at(X, [p.astype(np.int32) for p in PLACES], 0)
        return [at(X), at(X, order=0), at((10 * X).astype(np.int32)), at(X + 1j), slope, whole]

    assert_alike(program, 1e-4)


@pytest.mark.parametrize("arguments", [(X, PLACES[:2], 1), (X, PLACES, 2)])
def test_refused_images(arguments):
    assert_alike(lambda lib: lib.scipy.ndimage.map_coordinates(*arguments))


GRID = (np.array([0, 1, 2.5], np.float32), np.arange(5, dtype=np.float32))


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "options", [{}, {"method": "nearest"}, {"fill_value": None}, {"fill_value": 2.0}, {"fill_value": 1j},
                {"bounds_error": True}, {"method": "cubic"}]
)  # fmt: skip
def test_values_on_a_grid(options):
    points = RNG.uniform(-1, 5, (2, 3, 2)).astype(np.float32)

    def program(lib):
        f = lib.scipy.interpolate.RegularGridInterpolator(GRID, X, **options)
        return [f(points), f(points[0, 0]), f((GRID[0], GRID[0][:, None])), lib.jit(lambda f, x: f(x))(f, points)]

    assert_alike(program, 1e-4)


def test_refused_grids():
    assert_alike(lambda lib: lib.scipy.interpolate.RegularGridInterpolator(GRID, X[0, 0]))
    assert_alike(lambda lib: lib.scipy.interpolate.RegularGridInterpolator(GRID, X)(np.zeros((2, 3), np.float32)))
