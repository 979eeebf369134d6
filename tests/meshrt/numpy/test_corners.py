"""Arguments at the edge of what array functions take: results, or classes of errors, are those of JAX."""

from __future__ import annotations

import numpy as np
import pytest

from tests.meshrt.beside import assert_alike

ROW, SQUARES = np.ones((3, 4), np.float32), np.ones((3, 4, 4), np.float32)

DELETED = {
    "a bool": lambda l: True,
    "an array of a bool": lambda l: l.numpy.array(True),
    "a NumPy bool": lambda l: np.array(True),
    "a mask": lambda l: l.numpy.array([True, False, False, True]),
    "a short mask": lambda l: l.numpy.array([True, False]),
    "a float": lambda l: 1.0,
    "an array of a float": lambda l: l.numpy.float32(1),
    "an array of floats": lambda l: l.numpy.array([1.0]),
}
PRODUCTS = {
    "a column of one": lambda l: l.numpy.linalg.multi_dot([ROW[0], ROW[0][:, None], ROW[0]]),
    "vectors": lambda l: l.vmap(lambda a, b: l.numpy.linalg.multi_dot([a, b]))(ROW, ROW),
    "vectors of unequal lengths": lambda l: l.vmap(lambda a, b: l.numpy.linalg.multi_dot([a, b]))(ROW, ROW[:, :1]),
    "a vector before a matrix": lambda l: l.vmap(lambda a, b: l.numpy.linalg.multi_dot([a, b]))(ROW[:, :1], SQUARES),
}
SLOPES = {
    f"{name}({x}, {a})": lambda l, name=name, x=x, a=a: [
        getattr(l.scipy.stats.gamma, name)(x, a),
        l.grad(getattr(l.scipy.stats.gamma, name))(x, a),
        l.grad(l.scipy.stats.gamma.cdf, 1)(x, a),
    ]
    for name in ("cdf", "logcdf")
    for x in (-1.0, 0.0)
    for a in (-0.5, 0.0, 0.5)
}
FORMS = {
    "schur": lambda l: l.scipy.linalg.schur(np.eye(2, dtype=np.float32)),
    "a fill of another dtype": lambda l: [
        l.eval_shape(lambda x, f=f, fill=fill: getattr(l.numpy, f)(x, x[1:], size=2, fill_value=fill), np.arange(3))
        for f in ("intersect1d", "setxor1d", "union1d", "setdiff1d")
        for fill in (2.5, np.int8(7))
    ],
    "a fill with a fraction": lambda l: l.jit(lambda x: l.numpy.setxor1d(x, x[1:], size=2, fill_value=2.5))(
        np.arange(3)
    ),
    "a fill for nothing": lambda l: l.numpy.setxor1d(np.zeros(0, int), np.zeros(0, int), size=2, fill_value=2.5),
    "widths as a column": lambda l: l.numpy.pad(ROW, ((2,), (1,))),
    "more than the condition has": lambda l: l.numpy.compress(np.array([True, False]), ROW[0], size=3),
    "as many as the condition has": lambda l: l.numpy.compress(np.array([True, False]), ROW[0], size=2, fill_value=7),
    "quantiles of floats of 8 bits": lambda l: [
        getattr(l.numpy, f)(l.numpy.array([1, 2, 3.5, -1], "float8_e4m3fn"), q)
        for f in ("quantile", "nanquantile")
        for q in (0.4, np.float32([0.4, 0.6]))
    ],
    "modes of nothing": lambda l: [
        l.scipy.stats.mode(np.zeros((0, 4), dtype), axis=axis)
        for dtype in ("int32", "float32")
        for axis in (0, 1, None)
    ],
    "taken by bools": lambda l: [
        l.numpy.take(np.arange(6.0).reshape(2, 3), i, axis=0, mode=mode)
        for i in (np.array([True, False]), True)
        for mode in (None, "fill")
    ],
    "taken by bools that are clipped": lambda l: l.numpy.take(ROW, np.array([True, False]), axis=0, mode="clip"),
    "ihfft of nothing": lambda l: l.numpy.fft.ihfft(l.numpy.zeros(0)),
    "positions with a fraction for none": lambda l: l.numpy.flatnonzero(l.numpy.ones(3), fill_value=-0.5),
    "pascal by rows": lambda l: l.scipy.linalg.pascal(3.0, "lower"),
    "dft of a negative size": lambda l: l.scipy.linalg.dft(-1),
}


@pytest.mark.parametrize("given", DELETED)
@pytest.mark.parametrize("distinct", [False, True])
def test_positions_to_delete(given, distinct):
    assert_alike(lambda l: l.numpy.delete(np.arange(4.0), DELETED[given](l), assume_unique_indices=distinct))


@pytest.mark.parametrize("given", ["an array of a bool", "an array of a float", "a mask"])
def test_traced_positions_to_delete(given):
    delete = lambda l: lambda obj: l.numpy.delete(np.arange(4.0), obj, assume_unique_indices=True)
    assert_alike(lambda l: l.jit(delete(l))(DELETED[given](l)))


@pytest.mark.parametrize("called", PRODUCTS)
def test_shapes_of_products(called):
    assert_alike(PRODUCTS[called])


@pytest.mark.parametrize("called", SLOPES)
def test_slopes_outside_of_the_support(called):
    assert_alike(SLOPES[called])


@pytest.mark.parametrize("called", FORMS)
def test_forms(called):
    assert_alike(FORMS[called])


@pytest.mark.parametrize("name", ["hadamard", "pascal", "invpascal", "invhilbert", "dft"])
@pytest.mark.parametrize("n", [2.0, np.float32(4), 3.5, 0.0, -1.0, -1, np.nan, True])
def test_sizes(name, n):
    if name == "invhilbert" and n == 3.5:
        pytest.skip("ours is refused: the formula is one of whole numbers")
    assert_alike(lambda l: np.shape(getattr(l.scipy.linalg, name)(n)))


@pytest.mark.parametrize("kind", ["called", "jitted", "of a NumPy array"])
def test_numbers_that_small_integers_do_not_hold_are_divided_as_they_are(kind):
    def divided(l):
        x = np.array([1, 2, 100], np.int8)
        if kind != "of a NumPy array":
            x = l.numpy.asarray(x)
        form = l.jit if kind == "jitted" else lambda f: f
        functions = (l.numpy.divide, l.numpy.arctan2, l.numpy.hypot, l.numpy.add, l.numpy.maximum)
        return [form(lambda x, f=f: (f(x, 300), f(-129, x)))(x) for f in functions]

    assert_alike(divided, rtol=1e-6)


def test_numbers_beyond_the_range_of_floats_beside_arrays():
    assert_alike(lambda l: l.numpy.asarray([1, 2], "float16") + 70000)
