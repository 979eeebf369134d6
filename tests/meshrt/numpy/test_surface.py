"""Every public function of `jax.numpy`, `jax.numpy.linalg` and `jax.numpy.fft` is here, and does what JAX's does."""

from __future__ import annotations

import functools
import inspect
import pathlib
import re

import jax.numpy as jj
import numpy as np
import pytest

import meshrt
import meshrt.numpy as mj

from . import rows_algebra, rows_arrays
from .surface import LIBRARIES, Row, arrays, at_once, difference, differences, rows

FAMILIES = {**rows_arrays.FAMILIES, **rows_algebra.FAMILIES}
# Functions judged elsewhere, or that there is nothing to judge of.
ELSEWHERE = {
    "array_repr",
    "array_str",
    "load",
    "save",
    "savez",
    "from_dlpack",
    "printoptions",
    "set_printoptions",
    "get_printoptions",
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_as_in_jax(family):
    wrong = differences(FAMILIES[family])
    assert not wrong, "\n".join(wrong)


def public(module):
    return [n for n in dir(module) if not n.startswith("_") and not inspect.ismodule(getattr(module, n))]


@pytest.mark.parametrize("path", ["", "linalg", "fft"])
def test_every_name_is_here_and_in_a_row(path):
    ours, theirs = (functools.reduce(getattr, filter(None, [path]), m) for m in (mj, jj))
    missing = [n for n in public(theirs) if n not in dir(ours)]
    assert not missing, missing
    here = pathlib.Path(__file__).parent
    words = set(re.findall(r"\w+", "".join(p.read_text() for p in here.glob("*.py"))))
    named = [getattr(ours, n) for n in words & set(public(ours))]
    same = {n for n in public(ours) if any(getattr(ours, n) is f for f in named)}  # another name of one in a row
    functions = [n for n in public(theirs) if callable(getattr(theirs, n)) and not isinstance(getattr(theirs, n), type)]
    assert not [n for n in functions if n not in words | same | ELSEWHERE]


def test_the_directory_lists_no_rooms():
    extra = set(public(mj)) - set(public(jj)) - {"ComplexWarning", "top_k"}
    assert not extra, extra


@pytest.mark.parametrize("name", ["real", "imag", "issubdtype", "where", "take", "std", "cov", "linspace", "full_like"])
def test_arguments_are_named_as_in_numpy(name):
    ours = list(inspect.signature(getattr(mj, name)).parameters)
    for other in (np, jj):
        shared = [p for p in inspect.signature(getattr(other, name)).parameters if p not in ("subok", "order")]
        assert ours[: len(shared)] == shared or ours == shared[: len(ours)]


# ----------------------------------------------------------------------------------------------------------
# Derivatives and mapping: of rows whose first operand is smooth.

SMOOTH = """
    np.fft.fft(F)
    np.fft.irfft(C, 5, norm='ortho')
    np.fft.rfft2(X3)
    np.fft.hfft(C)
    np.i0(V)
    np.frexp(F)[0]
    np.ldexp(F, 3)
    np.quantile(F, 0.3, axis=0)
    np.nanquantile(F, onp.float32([.1, .6]), axis=1)
    np.insert(V, 1, 7)
    np.delete(V, 1)
    np.place(V, V > 0, onp.array([1, 2]), inplace=False)
    np.put_along_axis(F, onp.array([[0, 1, 1]]), 9., 0, inplace=False)
    np.interp(V, np.arange(4.), onp.float32([1, 3, 2, 5]))
    np.gradient(F)
    np.trapezoid(F, axis=0)
    np.convolve(V, V[:2])
    np.cov(F)
    np.piecewise(V, [V < 0, V > 1], [lambda x: x ** 2, lambda x: x ** 3])
    np.vectorize(np.dot, signature='(n,m),(m)->(n)')(X3, X3[0, 0])
    ~1e-3 np.linalg.qr(F)
    ~1e-3 np.linalg.qr(F.T)
    ~1e-3 np.linalg.qr(F, mode='complete')
    ~1e-3 np.linalg.qr(C.T, mode='complete')
    ~1e-3 np.linalg.eigvals(S)
    ~1e-3 np.linalg.eigvalsh(B)
    ~1e-3 np.linalg.svdvals(X3)
    ~1e-3 np.linalg.solve(S, S[0])
    ~1e-3 np.linalg.solve(B, X3[0, 0])
    ~1e-3 np.linalg.solve(S, X3[:, :, :2])
    ~1e-3 np.linalg.inv(D)
    ~1e-3 np.linalg.det(S)
    ~1e-3 np.linalg.det(B)
    ~1e-3 np.linalg.det(D)
    ~1e-3 np.linalg.slogdet(B)
    ~1e-3 np.linalg.slogdet(D[:, :2, :2])
    ~1e-3 np.linalg.pinv(F)
    ~1e-3 np.linalg.pinv(F.T)
    ~1e-3 np.linalg.lstsq(F, F[:, 0])[0]
    ~1e-3 np.linalg.norm(F, 'nuc')
    ~1e-3 np.linalg.matrix_power(S, -2)
    np.polyval(V, 2.)
    np.polymul(V, V[:2])
    np.logaddexp.reduce(F)
    np.multiply.accumulate(V)
    np.subtract.reduce(F)
"""


def first(row: Row):
    name = next(n for n, x in row.operands.items() if x.dtype.kind in "fc")
    return name, row.operands[name]


def direction(x, turn=0.0):
    return np.cos(np.arange(x.size) + turn).reshape(x.shape).astype(x.dtype)


def along(library, np_library, row: Row, values):
    """The function of the first operand, its floating results only."""
    name, _ = first(row)
    return lambda x: [o for o in arrays(row.call(np_library, {**values, name: x})) if o.dtype.kind in "fc"]


def forward(library, row, np_library, values):
    x = values[first(row)[0]]
    return library.jvp(along(library, np_library, row, values), (x,), (direction(x),))[1]


def backward(library, row, np_library, values):
    outs, pull = library.vjp(along(library, np_library, row, values), values[first(row)[0]])
    return list(pull([direction(o, 1.0) for o in outs]))


def mapped(library, row, np_library, values):
    x = values[first(row)[0]]
    return library.vmap(along(library, np_library, row, values))(np_library.stack([x, x * 0.5]))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("how", [forward, backward, mapped], ids=lambda f: f.__name__)
@pytest.mark.parametrize("part", range(3))
def test_derivatives_and_mapping(how, part):
    chosen = list(rows(SMOOTH))[part::3]
    outs = [at_once(lib, n, chosen, functools.partial(how, lib)) for lib, n in LIBRARIES]
    wrong = [difference(r, *pair, weak=False) for r, *pair in zip(chosen, *outs)]
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_second_derivatives_go_through_factors():
    a = np.float32([[3, 1, 0, 1], [0, 4, 1, 0], [1, 0, 3, 1], [1, 1, 0, 5]])

    def curvature(library, n):
        f = lambda a: n.linalg.solve(a, a[0]).sum() + n.linalg.slogdet(a)[1]
        slope = lambda a: library.jvp(f, (a,), (direction(a),))[1]
        return library.jit(lambda a: library.grad(slope)(a))(a)

    np.testing.assert_allclose(*(curvature(*lib) for lib in LIBRARIES), rtol=2e-3, atol=2e-4)


def test_determinant_of_a_singular_matrix_has_a_derivative():
    a = np.diag(np.float32([2, 3, 1, 0]))
    np.testing.assert_allclose(meshrt.grad(mj.linalg.det)(a), np.diag(np.float32([0, 0, 0, 6])), atol=1e-5)
    np.testing.assert_allclose(meshrt.grad(mj.linalg.det)(np.diag(np.float32([2, 1, 0, 0]))), np.zeros((4, 4)))


def test_ufuncs_compare_by_what_they_do():
    f = lambda x, y: x + y
    assert mj.frompyfunc(f, 2, 1) == mj.frompyfunc(f, 2, 1) != mj.add
    assert hash(mj.add) == hash(mj.add) and repr(mj.add) == "<jnp.ufunc 'add'>"
    assert isinstance(mj.add, mj.ufunc) and mj.add.__doc__.startswith("Sum")
