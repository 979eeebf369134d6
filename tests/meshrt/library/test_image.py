"""meshrt.image beside jax.image: values, dtypes, derivatives and what is refused."""

import jax
import jax.image
import numpy as np
import pytest

import meshrt
import meshrt.image
from meshrt import errors
from tests.meshrt.beside import assert_alike

METHODS = ["nearest", "linear", "lanczos3", "lanczos5", "cubic", "cubic-pytorch", "area"]
IMAGE = np.random.default_rng(0).normal(size=(2, 5, 7)).astype(np.float32)
# With antialiasing and without it, where that is another kernel.
CASES = [*((m, True) for m in METHODS), ("linear", False), ("cubic-pytorch", False)]


@pytest.mark.parametrize(("method", "antialias"), CASES)
def test_resize(method, antialias):
    assert_alike(lambda lib: lib.image.resize(IMAGE, (1, 8, 3), method, antialias))


@pytest.mark.parametrize("method", ["nearest", "linear"])
@pytest.mark.parametrize("dtype", ["int32", "bfloat16"])
def test_dtypes(method, dtype):
    def program(lib):
        image = lib.numpy.asarray(IMAGE * 20).astype(dtype)
        return [lib.image.resize(image, s, method) for s in ([2, 8, 3], image.shape, (2, 0, 7))]

    assert_alike(program)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("method", "antialias"), CASES[1:])
def test_scale_and_translate(method, antialias):
    def program(lib, scale, translation):
        return lib.image.scale_and_translate(IMAGE, (2, 6, 9), (1, -1), scale, translation, method, antialias)

    scale, translation = np.array([0.7, 1.6], np.float32), np.array([1.3, -2.2], np.float32)
    assert_alike(lambda lib: lib.jit(lambda *a: program(lib, *a))(scale, translation), 1e-4)
    if method == "linear":
        assert_alike(lambda lib: program(lib, np.array([3, 1]), np.array([0, 9])), 1e-4)
    if method in ("cubic", "cubic-pytorch"):
        loss = lambda lib: lambda s, t: (program(lib, s, t) ** 2).sum()
        assert_alike(lambda lib: lib.jit(lib.grad(loss(lib), (0, 1)))(scale, translation), 2e-3)


@pytest.mark.parametrize("method", ["nearest", "linear"])
def test_derivatives_and_batches(method):
    def program(lib):
        resized = lambda x: lib.image.resize(x, (4, 9), method)
        return lib.vmap(lib.grad(lambda x: (resized(x) ** 2).sum()))(IMAGE), lib.vmap(resized, 1, 2)(IMAGE)

    assert_alike(program)


def test_double_precision_and_other_arguments():
    with meshrt.enable_x64(True), jax.enable_x64(True):
        assert_alike(lambda lib: lib.image.resize(IMAGE.astype(np.float64), (2, 9, 4), "cubic"), 1e-12)
        assert_alike(lambda lib: lib.image.resize(np.arange(12).reshape(3, 4), (9, 5), "nearest"))
    assert_alike(
        lambda lib: lib.image.resize(
            IMAGE, (2, 9, 4), lib.image.ResizeMethod.LINEAR, precision=lib.lax.Precision.DEFAULT
        )
    )
    assert_alike(lambda lib: [(m.name, m.value) for m in lib.image.ResizeMethod])
    assert_alike(lambda lib: [lib.image.ResizeMethod.from_string(s).value for s in ("triangle", "tricubic", "area")])


@pytest.mark.parametrize(
    "program",
    [
        lambda image: image.resize(IMAGE, (3, 4), "linear"), lambda image: image.resize(IMAGE, (2, 5, 9), "best"),
        lambda image: image.scale_and_translate(IMAGE, (3, 4), (0,), [1.0], [0.0], "linear"),
        lambda image: image.scale_and_translate(IMAGE, (2, 5, 7), (0,), np.ones(1), np.ones(1), "nearest"),
        lambda image: image.scale_and_translate(IMAGE, (2, 5, 7), (3,), np.ones(1), np.ones(1), "linear"),
    ],
)  # fmt: skip
def test_what_jax_refuses(program):
    with pytest.raises(ValueError):
        program(jax.image)
    with pytest.raises(ValueError) as e:
        program(meshrt.image)
    assert isinstance(e.value, errors.MeshrtError)


def test_what_is_refused_beside():
    with pytest.raises(errors.ArgumentValueError, match="one entry for each of the 2 spatial_dims"):
        meshrt.image.scale_and_translate(IMAGE, (2, 5, 7), (0, 1), np.ones(1), np.ones(1), "linear")
    with pytest.raises(errors.ArgumentValueError, match="size 0"):
        meshrt.image.resize(np.zeros((0, 3)), (2, 3), "linear")
    with pytest.raises(errors.ArgumentTypeError, match="ResizeMethod"):
        meshrt.image.resize(IMAGE, (2, 5, 8), 3)
