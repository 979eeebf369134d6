# ruff: noqa: E501  (tables of cases read better unwrapped)
"""Keys and samples against jax.random: bits must be equal, samples equal up to the last place."""

import jax
import jax.random as jr
import ml_dtypes
import numpy as np
import pytest

import meshrt
import meshrt.numpy as mj
import meshrt.random as mr

BF16 = ml_dtypes.bfloat16
SHAPES = [(), (1,), (7,), (2, 3), (4, 1, 5), (0, 3)]


def words(keys):
    return np.asarray(mr.key_data(keys))


def same_bits(got, want):
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_array_equal(got.view(np.uint8) if got.ndim else got, want.view(np.uint8) if want.ndim else want)


@pytest.mark.parametrize("seed", [0, 1, 42, 2**31 - 1, -1, np.int32(7), np.uint32(2**32 - 1), 2**40 + 3])
def test_keys_from_seeds(seed):
    same_bits(words(mr.key(seed)), jr.key_data(jr.key(seed)))
    same_bits(mr.PRNGKey(seed), jr.PRNGKey(seed))


@pytest.mark.smoke
def test_split_and_fold_in():
    ours, theirs = mr.key(3), jr.key(3)
    for num in (2, 1, 5, (2, 3), ()):
        same_bits(words(mr.split(ours, num)), jr.key_data(jr.split(theirs, num)))
    for data in (0, 5, 2**32 - 1, np.int32(-3)):
        same_bits(words(mr.fold_in(ours, data)), jr.key_data(jr.fold_in(theirs, data)))
    a, b = mr.split(ours)
    assert a.dtype == b.dtype == mr.key_dtype() and a.shape == ()
    same_bits(mr.split(mr.PRNGKey(3)), jr.split(jr.PRNGKey(3)))
    same_bits(words(mr.wrap_key_data(mr.PRNGKey(3))), jr.PRNGKey(3))
    assert mr.key_impl(ours) == jr.key_impl(theirs) == "threefry2x32"
    assert mr.clone(ours).dtype == ours.dtype


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_bits(dtype):
    for shape in SHAPES:
        same_bits(mr.bits(mr.key(5), shape, dtype), jr.bits(jr.key(5), shape, dtype))


@pytest.mark.parametrize("dtype", ["float32", BF16, "float16"])
def test_uniform_is_bitwise_equal(dtype):
    ours = meshrt.jit(lambda k: [mr.uniform(k, s, dtype) for s in SHAPES])(mr.key(7))
    theirs = jax.jit(lambda k: [jr.uniform(k, s, dtype) for s in SHAPES])(jr.key(7))
    for a, b in zip(ours, theirs):
        same_bits(a, b)
    same_bits(mr.uniform(mr.key(7), (9,), dtype), jr.uniform(jr.key(7), (9,), dtype))
    got, want = mr.uniform(mr.key(1), (9,), dtype, -2, 3), jr.uniform(jr.key(1), (9,), dtype, -2, 3)
    np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(want, np.float32), rtol=2e-2 if dtype == BF16 else 2e-3 if dtype == "float16" else 1e-6)  # fmt: skip


# Bounds of one element around a number without dimensions: it gets the shape of the lower one.
@pytest.mark.parametrize("low, high", [((1,), (1,)), ((1, 1), ()), ((), (1,)), ((), (1, 1, 1))])
def test_one_number_between_bounds_that_are_arrays(low, high):
    draw = lambda r: r.uniform(r.key(3), (), "float32", np.full(low, 2.0, "f4"), np.full(high, 5.0, "f4"))
    same_bits(draw(mr), draw(jr))
    mapped = lambda m, r: m.vmap(r.uniform, (0, None, None, 0, 0))(
        r.split(r.key(0), 4), (), "float32", np.zeros((4, *low), "f4"), np.ones((4, *high), "f4")
    )
    same_bits(mapped(meshrt, mr), mapped(jax, jr))


RANDINTS = [((5,), 0, 10, None), ((2, 3), -5, 5, None), ((7,), 0, 256, "uint8"), ((7,), -128, 128, "int8"), ((6,), 3, 3, None),
            ((6,), 5, 2, None), ((8,), 0, 2**31 - 1, None), ((8,), 0, 1, "uint32"), ((4,), 0, 1000, "int16"), ((), 0, 9, None),
            ((3, 2), 0, np.array([5, 50], np.int32), None), ((9,), -(2**31), 2**31 - 1, None)]  # fmt: skip


def test_randint_is_equal():
    with_program = lambda r: lambda k: [r.randint(k, *c[:3], c[3]) for c in RANDINTS]
    for a, b in zip(meshrt.jit(with_program(mr))(mr.key(11)), jax.jit(with_program(jr))(jr.key(11))):
        same_bits(a, b)


SAMPLERS = [
    ("normal", dict(shape=(6,))), ("normal", dict(shape=(3, 2), dtype="bfloat16")), ("normal", dict(shape=(4,), dtype="complex64")),
    ("truncated_normal", dict(lower=-2.0, upper=2.0, shape=(6,))), ("truncated_normal", dict(lower=-1.0, upper=np.array([0.5, 1.0], np.float32))),
    ("exponential", dict(shape=(6,))), ("laplace", dict(shape=(6,))), ("logistic", dict(shape=(6,))), ("cauchy", dict(shape=(6,))),
    ("gumbel", dict(shape=(6,))), ("gumbel", dict(shape=(6,), mode="high")), ("gumbel", dict(shape=(2, 3), dtype="bfloat16")),
    ("bernoulli", dict(p=0.3, shape=(20,))), ("bernoulli", dict(p=np.array([0.1, 0.9], np.float32))), ("bernoulli", dict(shape=(9,), mode="high")),
    ("rademacher", dict(shape=(9,))), ("geometric", dict(p=0.3, shape=(9,))), ("pareto", dict(b=2.0, shape=(5,))), ("rayleigh", dict(scale=np.float32(2), shape=(5,))),
    ("weibull_min", dict(scale=2.0, concentration=1.5, shape=(5,))), ("triangular", dict(left=0.0, mode=0.3, right=1.0, shape=(5,))),
    ("lognormal", dict(shape=(5,))), ("maxwell", dict(shape=(5,))), ("double_sided_maxwell", dict(loc=1.0, scale=2.0, shape=(4,))),
    ("categorical", dict(logits=np.arange(12, dtype=np.float32).reshape(3, 4) / 4)), ("categorical", dict(logits=np.zeros((5, 2), np.float32), axis=0)),
    ("categorical", dict(logits=np.zeros((2, 5), np.float32), shape=(7, 2))), ("categorical", dict(logits=np.zeros((2, 5), np.float32), shape=(3, 2), replace=False)),
    ("permutation", dict(x=13)), ("permutation", dict(x=np.arange(12.0, dtype=np.float32).reshape(4, 3))),
    ("permutation", dict(x=np.arange(12.0, dtype=np.float32).reshape(4, 3), axis=1, independent=True)),
    ("choice", dict(a=10, shape=(6,))), ("choice", dict(a=10, shape=(2, 3), replace=False)), ("choice", dict(a=np.arange(8.0, dtype=np.float32).reshape(4, 2), shape=(3,))),
    ("choice", dict(a=4, shape=(9,), p=np.array([0.1, 0.2, 0.3, 0.4], np.float32))), ("choice", dict(a=4, shape=(3,), replace=False, p=np.array([0.1, 0.2, 0.3, 0.4], np.float32))),
]  # fmt: skip


def test_samples():
    def program(r):
        return lambda k: [getattr(r, name)(k, **kwargs) for name, kwargs in SAMPLERS]

    ours, theirs = meshrt.jit(program(mr))(mr.key(2)), jax.jit(program(jr))(jr.key(2))
    for (name, kwargs), a, b in zip(SAMPLERS, ours, theirs):
        assert a.shape == b.shape and a.dtype == b.dtype and a.aval.weak_type == b.aval.weak_type, (
            name,
            kwargs,
            a.aval,
            b.aval,
        )
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype.kind in "iub":
            np.testing.assert_array_equal(a, b, err_msg=name)
        else:
            wide = np.complex64 if a.dtype.kind == "c" else np.float32
            tol = 2e-2 if a.dtype == BF16 else 3e-5
            np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=tol, atol=tol, err_msg=f"{name} {kwargs}")


def test_keys_in_programs():
    """Keys go through jit and vmap like other arrays."""
    ours = meshrt.vmap(lambda k: mr.uniform(k, (3,)))(mr.split(mr.key(0), 4))
    theirs = jax.vmap(lambda k: jr.uniform(k, (3,)))(jr.split(jr.key(0), 4))
    same_bits(ours, theirs)
    step = meshrt.jit(lambda k: (mr.split(k)[0], mr.normal(mr.fold_in(k, 1), (2,))))
    carry, _ = step(mr.key(0))
    same_bits(words(carry), jr.key_data(jr.split(jr.key(0))[0]))
    grads = meshrt.grad(lambda x: (mr.normal(mr.key(0), (3,)) * x).sum())(2.0)
    np.testing.assert_allclose(float(grads), float(jr.normal(jr.key(0), (3,)).sum()), rtol=1e-5)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: mr.normal(3), TypeError, "normal needs a random key as its first argument, got int"),
        (lambda: mr.normal(mj.zeros(2)), TypeError, r"expected key_data.dtype = uint32; got dtype=float32"),
        (lambda: mr.normal(mr.split(mr.key(0), 3)), ValueError, r"accepts a single key, but was given a key array of shape \(3,\)"),
        (lambda: mr.key(mr.key(0)), TypeError, "accepts a scalar seed, but was given a PRNG key"),
        (lambda: mr.key(0, impl="nope"), ValueError, "unrecognized PRNG implementation 'nope'; known: 'threefry2x32'"),
        (lambda: mr.uniform(mr.key(0), (2,), "int32"), ValueError, "dtype argument to `uniform` must be a float dtype, got int32"),
        (lambda: mr.uniform(mr.key(0), (2,), minval=np.zeros(3)), ValueError, "do not broadcast|[Ii]ncompatible shapes"),
        (lambda: mr.choice(mr.key(0), 3, (4,), replace=False), ValueError, r"larger sample \(size 4\) than population \(size 3\)"),
        (lambda: mr.gammas_, AttributeError, "has no attribute 'gammas_'"),
        (lambda: mr.key(0) + 1, TypeError, "key<fry>"),
    ],
)  # fmt: skip
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


SEQUENCES = {
    **{f"{kind}[{n}]": lambda l, kind=kind, n=n: l.random.bits(l.random.key(3), (n, 3), kind)
       for kind in ("uint8", "uint16", "uint32") for n in (0, 1, 4, 5)},
    "scalar": lambda l: l.random.bits(l.random.key(1)),
    "split": lambda l: l.random.key_data(l.random.split(l.random.key(1), 3)),
    "split to a shape": lambda l: l.random.key_data(l.random.split(l.random.key(1), (2, 3))),
    "fold_in": lambda l: l.random.key_data(l.random.fold_in(l.random.key(1), 7)),
    "mapped": lambda l: l.vmap(lambda k: l.random.uniform(k, (3,)))(l.random.split(l.random.key(1), 2)),
    "jitted": lambda l: l.jit(lambda k: l.random.normal(k, (5,)))(l.random.key(1)),
    "permutation": lambda l: l.random.permutation(l.random.key(1), 7),
}  # fmt: skip


@pytest.mark.parametrize("name", SEQUENCES)
def test_bits_of_one_sequence(name):
    program = SEQUENCES[name]
    by_position = np.asarray(program(meshrt))
    with meshrt.threefry_partitionable(False), jax.threefry_partitionable(False):
        np.testing.assert_array_equal(program(meshrt), program(jax))
    np.testing.assert_array_equal(program(meshrt), by_position)


def test_64_bits_of_one_sequence():
    def drawn(l):
        with l.enable_x64(True), l.threefry_partitionable(False):
            return np.asarray(l.random.bits(l.random.key(1), (5,), "uint64"))

    np.testing.assert_array_equal(drawn(meshrt), drawn(jax))


def test_comparisons_of_keys():
    a, b = mr.split(mr.key(0), 3), mr.split(mr.key(0), 3)[::-1]
    same = [False, True, False]
    for equal in (meshrt.lax.eq, mj.isclose, mj.equal):
        assert equal(a, b).tolist() == same
    assert meshrt.lax.ne(a, b).tolist() == [not x for x in same]
    assert mj.allclose(a, a) and not mj.allclose(a, b)
    assert meshrt.vmap(meshrt.lax.eq)(a, b).tolist() == same
    with pytest.raises(TypeError):
        meshrt.lax.eq(a, mj.arange(3))
