"""Dtype rules, judged by JAX's own over every pair of types."""

import itertools
import pickle
import warnings
from types import SimpleNamespace

import jax
import jax._src.dtypes
import jax.dtypes
import jax.numpy as jnp
import numpy as np
import pytest

import meshrt
from meshrt import dtypes
from meshrt._lattice import STRONG

ALL = list(STRONG)


@pytest.fixture(params=["x32", "x64"])
def x64(request, monkeypatch):
    on = request.param == "x64"
    monkeypatch.setattr(dtypes, "_x64_source", lambda: on)
    with jax.enable_x64(on), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield on


@pytest.fixture(params=["standard", "strict"])
def mode(request, monkeypatch):
    monkeypatch.setattr(dtypes, "_strict_source", lambda: request.param == "strict")
    with jax.numpy_dtype_promotion(request.param):
        yield request.param


class Operand:
    """A value of a given type for both sides: JAX reads ``.aval.weak_type`` and ``.dtype``."""

    def __init__(self, dtype, weak):
        self.dtype = dtype
        self.aval = SimpleNamespace(dtype=dtype, weak_type=weak)

    def __repr__(self):
        return f"{'weak ' * self.aval.weak_type}{self.dtype}"


def outcome(f, *args, **kw):
    try:
        return f(*args, **kw)
    except (dtypes.TypePromotionError, jax._src.dtypes.TypePromotionError):
        return "no common type"


def operands(x64):
    wide = {np.dtype(t) for t in ("int64", "uint64", "float64", "complex128")}
    kept = [d for d in ALL if x64 or d not in wide]
    no_weak = {
        np.dtype(bool),
        *(d for d in ALL if d.name in ("int1", "int2", "int4", "uint1", "uint2", "uint4")),
    }
    return [Operand(d, w) for d in kept for w in (False, True) if not (w and d in no_weak)] + [
        True,
        1,
        1.0,
        1j,
    ]


def test_result_type_over_all_pairs(x64, mode):
    wrong = []
    for a, b in itertools.product(operands(x64), repeat=2):
        want = outcome(jax.dtypes.result_type, a, b, return_weak_type_flag=True)
        got = outcome(dtypes.result_type, a, b, return_weak_type_flag=True)
        if got != want:
            wrong.append((a, b, got, want))
    assert not wrong


def test_result_type_over_triples(x64):
    few = [d for d in operands(x64) if not hasattr(d, "dtype") or d.dtype.itemsize in (1, 4)
           or d.dtype == dtypes.bfloat16]  # fmt: skip
    few = [d for d in few if "float8" not in repr(d) or "e5m2" in repr(d)]
    rng = np.random.default_rng(0)
    for _ in range(1500):
        args = [few[i] for i in rng.integers(len(few), size=3)]
        assert outcome(dtypes.result_type, *args) == outcome(jax.dtypes.result_type, *args), args


def test_promote_types_over_all_pairs(x64, mode):
    for a, b in itertools.product([*ALL, int, float, complex, "float32", np.int8], repeat=2):
        assert outcome(dtypes.promote_types, a, b) == outcome(jnp.promote_types, a, b), (a, b)


def test_dtype_of_values(x64):
    values = [True, 1, 1.0, 1j, int, float, complex, bool, "float32", "int64", np.float64, np.float32(1), np.int64(1),
              np.zeros(3), np.arange(3), np.zeros(2, "complex64"), np.dtype("uint64"), jnp.bfloat16]  # fmt: skip
    for v in values:
        assert dtypes.dtype(v) == jax.numpy.result_type(v), v
        weak = type(v) in (int, float, complex) or v in (int, float, complex) if not hasattr(v, "shape") else False
        assert dtypes.dtype_and_weak_type(v)[1] == bool(weak), v


def test_canonical_dtypes(x64):
    for d in ALL:
        assert dtypes.canonicalize_dtype(d) == jax.dtypes.canonicalize_dtype(d)
        assert dtypes.check_user_dtype(d) == jax.eval_shape(lambda: jnp.zeros((), d)).dtype
    for t in (bool, int, float, complex):
        assert dtypes.check_user_dtype(t) == jnp.zeros((), t).dtype


def test_issubdtype_over_all_pairs():
    abstract = [np.generic, np.number, np.inexact, np.integer, np.floating, np.complexfloating, np.signedinteger,
                np.unsignedinteger, np.bool_, float, int]  # fmt: skip
    for a, b in itertools.product([*ALL, "int8", np.float32], [*ALL, *abstract]):
        assert dtypes.issubdtype(a, b) == jnp.issubdtype(a, b), (a, b)
    for a, k in itertools.product(ALL, ["bool", "integral", "real floating", "numeric", "complex floating",
                                        "signed integer", "unsigned integer", ("bool", "float32")]):  # fmt: skip
        assert dtypes.isdtype(a, k) == jnp.isdtype(a, k), (a, k)


def test_names_and_sizes():
    for d in ALL:
        assert dtypes.short_dtype_name(d) == jax._src.dtypes.short_dtype_name(d)
        assert dtypes.itemsize_bits(d) == jax._src.dtypes.itemsize_bits(d)
        for conv in ("to_inexact_dtype", "to_complex_dtype", "to_floating_dtype"):
            if d.name in ("int1", "int2", "uint1", "uint2"):
                continue  # JAX leaves these as they are
            assert getattr(dtypes, conv)(d) == getattr(jax._src.dtypes, conv)(d), (conv, d)


@pytest.mark.smoke
def test_key_types():
    fry = dtypes.KeyType("threefry2x32")
    assert fry is dtypes.KeyType(dtypes.KEY_IMPLS["threefry2x32"]) is pickle.loads(pickle.dumps(fry))
    assert str(fry) == str(jax.random.key(0).dtype) == dtypes.short_dtype_name(fry)
    assert dtypes.KeyType("rbg") != fry and len({fry, dtypes.KeyType("rbg")}) == 2
    assert fry.physical_shape((3,)) == (3, 2) and fry.itemsize == 8
    assert dtypes.issubdtype(fry, dtypes.prng_key) and dtypes.issubdtype(fry, dtypes.extended)
    assert not dtypes.issubdtype(fry, np.integer) and not dtypes.issubdtype(np.uint32, dtypes.prng_key)
    assert not dtypes.issubdtype(np.float32, fry) and dtypes.issubdtype(fry, fry)
    assert dtypes.canonicalize_dtype(fry) is fry and dtypes.check_user_dtype(fry) is fry
    key = Operand(fry, False)
    assert dtypes.result_type(key, key) is fry
    with pytest.raises(dtypes.TypePromotionError, match="key<fry>"):
        dtypes.result_type(key, 1.0)


@pytest.mark.parametrize("bad", ["float31", "datetime64[s]", np.dtype("S3"), object, np.dtype(">f4"), None])
def test_unknown_dtypes(bad):
    with pytest.raises(dtypes.DTypeError, match=r"dtype") as e:
        dtypes.check_user_dtype(bad, "zeros")
    assert isinstance(e.value, TypeError) and str(e.value).startswith("zeros: ")


def test_values_without_dtype():
    for bad in (object(), None, "no such type", np.array(["a"])):
        with pytest.raises(dtypes.DTypeError, match="dtype"):
            dtypes.dtype(bad)


def test_truncation_is_told():
    with pytest.warns(UserWarning, match=r"float64 requested in zeros .* truncated to dtype float32"):
        assert dtypes.check_user_dtype("float64", "zeros") == np.float32


def test_errors_name_types_and_a_fix():
    with pytest.raises(dtypes.TypePromotionError, match=r"'float32', 'float8_e5m2'.* x.astype\('float32'\)"):
        dtypes.result_type(np.float32, dtypes.float8_e5m2)


@pytest.mark.parametrize(
    "a, b, says",
    [
        ("int4", "int8", ".* 4-bit integers do not support implicit promotion"),
        ("float8_e4m3fn", "float32", ".*8-bit floats do not support implicit promotion"),
        ("float4_e2m1fn", "bfloat16", ".*4-bit floats do not support implicit promotion"),
    ],
)
def test_promotions_that_there_are_not_are_said_as_by_jax(a, b, says):
    for library in (jax, meshrt):
        with pytest.raises(library.dtypes.TypePromotionError if library is meshrt else Exception, match=says):
            library.numpy.promote_types(a, b)
        with library.numpy_dtype_promotion("strict"), pytest.raises(
            Exception, match=r"Input dtypes \(.*\) have no available implicit dtype promotion path when jax_numpy"
        ):  # fmt: skip
            library.numpy.ones(2) + library.numpy.ones(2, "int32")


def test_the_type_of_booleans_has_numpys_name():
    for library in (jax, meshrt):
        assert (library.numpy.bool_.__name__, repr(library.numpy.bool)[-12:]) == ("bool", "numpy.bool'>")
