# ruff: noqa: E501  (tables of cases read better unwrapped)
"""Elementwise functions against jax.numpy over dtypes, weak types and shapes."""

import jax.numpy as jj
import ml_dtypes
import numpy as np
import pytest

import meshrt.numpy as mj

from .judge import Cases, Weak, check, sample

BF16 = ml_dtypes.bfloat16
UNARY_FLOAT = [
    "exp", "exp2", "expm1", "sqrt", "cbrt", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "sinh", "cosh", "tanh",
    "arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh", "deg2rad", "rad2deg", "reciprocal", "sinc", "fabs",
]  # fmt: skip
UNARY_ANY = [
    "negative", "positive", "absolute", "sign", "square", "floor", "ceil", "trunc", "rint", "isfinite", "isnan", "isinf",
    "isposinf", "isneginf", "signbit", "logical_not", "invert", "conjugate", "real", "imag", "bitwise_count", "modf", "angle",
]  # fmt: skip
BINARY = [
    "add", "subtract", "multiply", "true_divide", "floor_divide", "remainder", "fmod", "divmod", "power", "float_power",
    "maximum", "minimum", "fmax", "fmin", "logaddexp", "logaddexp2", "hypot", "arctan2", "copysign", "nextafter", "heaviside",
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
]  # fmt: skip
FLOATS = ["float32", BF16, "float16"]


def in_groups(names, n=9):
    return [names[i : i + n] for i in range(0, len(names), n)]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("names", in_groups(UNARY_FLOAT), ids=lambda n: n[0])
def test_floating_functions(names):
    cases = Cases()
    for name in names:
        floating_cases(cases, name)
    cases.run()


def floating_cases(cases, name):
    f, g = getattr(mj, name), getattr(jj, name)
    low, high = {"arccosh": (1.1, 3), "log": (0.1, 3), "sqrt": (0.1, 3), "log2": (0.1, 3), "log10": (0.1, 3),
                 "log1p": (-0.9, 3), "arcsin": (-0.9, 0.9), "arccos": (-0.9, 0.9), "arctanh": (-0.9, 0.9)}.get(
                     name, (-1.4, 1.4))  # fmt: skip
    for dtype in ["float32", BF16, "int32"]:
        tol = 1e-5 if dtype == "float32" else None
        cases.add(f, g, sample((2, 3), dtype, *((int(low), 3) if dtype == "int32" else (low, high))), tol=tol)
    cases.add(f, g, Weak(0.7), tol=1e-6)
    cases.add(f, g, 1, tol=1e-6)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("names", in_groups(UNARY_ANY), ids=lambda n: n[0])
def test_any_type_functions(names):
    cases = Cases()
    for name in names:
        any_type_cases(cases, name)
    cases.run()


def any_type_cases(cases, name):
    f, g = getattr(mj, name), getattr(jj, name)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, 2.5, -2.5], np.float32)
    for x in (special, sample((3,), "int32"), sample((3,), "uint8"), sample((3,), bool), Weak(-2), Weak(1.5),
              sample((2,), "complex64")):  # fmt: skip
        cases.add(f, g, x)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("names", in_groups(BINARY, 6), ids=lambda n: n[0])
def test_two_operands(names):
    cases = Cases()
    for name in names:
        binary_cases(cases, name)
    cases.run()


def binary_cases(cases, name):
    f, g = getattr(mj, name), getattr(jj, name)
    a, b = sample((2, 3), "float32"), sample((2, 3), "float32", 0.5, 3)
    i, j = sample((2, 3), "int32", -7, 7), sample((2, 3), "int32", 1, 4)
    for x, y in [(a, b), (i, j), (a, j), (i, 2), (a, 2), (a, 2.5), (2.0, b), (3, j), (a[:1], b[:, :1]), (Weak(2.5), b),
                 (Weak(3), Weak(2)), (sample((2,), bool), sample((2,), bool)), (sample((3,), BF16), 2.0),
                 (sample((3,), "uint8"), sample((3,), "uint8", 1, 3)), (sample((3,), BF16), sample((3,), "float32")),
                 (a, np.float32(2)), (sample((2,), "complex64"), 2.0)]:  # fmt: skip
        if name in ("arctan2", "logaddexp", "logaddexp2") and getattr(x, "dtype", None) == np.complex64:
            continue  # not supported for complex numbers
        cases.add(f, g, x, y, tol=2e-5 if name in ("power", "float_power") else None)


def test_special_values_of_two_operands():
    x = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5.5, -5.5], np.float32)
    a, b = (v.ravel() for v in np.meshgrid(x, x))
    cases = Cases()
    for name in ("maximum", "minimum", "fmax", "fmin", "floor_divide", "remainder", "fmod", "logaddexp", "hypot", "heaviside",
                 "copysign", "logaddexp2"):  # fmt: skip
        cases.add(getattr(mj, name), getattr(jj, name), a, b)
    cases.run()


def test_integer_division_and_powers():
    a = np.array([-7, 7, -8, 8, 0, 5], np.int32)
    b = np.array([2, -2, 3, -3, 5, 0], np.int32)
    check(mj.floor_divide, jj.floor_divide, a, np.where(b == 0, 1, b))
    check(mj.remainder, jj.remainder, a, b)
    check(mj.fmod, jj.fmod, a, b)
    for n in (0, 1, 2, 3, 7, -1, -2):
        check(mj.power, jj.power, sample((3,), "float32", 0.5, 2), n)
        check(mj.power, jj.power, np.array([1, 2, 3], np.int32), n)
    check(mj.power, jj.power, np.array([0, 1, 2, -3], np.int32), np.array([0, 5, 3, 2], np.int32))
    check(mj.power, jj.power, np.array([2, 3], np.int32), 2.0)


def test_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"add got incompatible shapes for broadcasting: \(2,\), \(3,\)"):
        mj.add(mj.zeros(2), mj.zeros(3))
    with pytest.raises(TypeError, match="add requires ndarray or scalar arguments, got <class 'list'> at position 1"):
        mj.add(mj.zeros(2), [1, 2])


@pytest.mark.parametrize("op", ["+", "-", "*", "/", "//", "%", "**", "@", "==", "!=", "<", "<=", ">", ">="])
def test_operators(op):
    f = eval(f"lambda x, y: x {op} y")
    a, b = sample((3, 3), "float32", 0.5, 2), sample((3, 3), "float32", 0.5, 2)
    check(f, f, a, b, tol=2e-5)
    if op != "@":
        check(f, f, a, 2)
        check(f, f, 2.5, a)
        check(f, f, sample((3,), "int32", 1, 5), 3)
    # NumPy on the left defers to us.
    assert type(f(b, mj.asarray(a))) is type(mj.asarray(a))
    np.testing.assert_allclose(np.asarray(f(b, mj.asarray(a)), np.float32), np.asarray(f(b, jj.asarray(a)), np.float32),
                               rtol=2e-5)  # fmt: skip


@pytest.mark.parametrize("op", ["&", "|", "^", "<<", ">>"])
def test_bit_operators(op):
    f = eval(f"lambda x, y: x {op} y")
    check(f, f, sample((3,), "int32", 0, 9), sample((3,), "int32", 0, 3))
    check(f, f, sample((3,), "int32", 0, 9), 2)
    check(f, f, 3, sample((3,), "uint8", 0, 3))


def test_unary_operators():
    for f in (lambda x: -x, lambda x: +x, abs, lambda x: ~x, lambda x: divmod(x, 2), lambda x: round(x, 1)):
        check(f, f, sample((3,), "int32"))
        check(f, f, sample((3,), "float32"))


def test_unknown_operand_gets_its_turn():
    class Other:
        def __radd__(self, x):
            return "other"

    assert mj.zeros(2) + Other() == "other"
    with pytest.raises(TypeError):
        mj.zeros(2) + "text"


def test_what_a_function_is_made_of_stays():
    for f in (mj.add, mj.frompyfunc(lambda x, y: x + y, 2, 1, identity=0)):
        for name in ("nargs", "nin", "nout", "identity", "_func"):
            with pytest.raises(AttributeError):
                setattr(f, name, getattr(f, name))
