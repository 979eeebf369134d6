"""Generators: each key implementation, those that programs define, and the compiler's own, beside JAX's."""

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
import pytest

import meshrt
import meshrt.extend.random
import meshrt.numpy as mnp
from tests.meshrt.beside import assert_alike


def _data(library, tree):
    """Arrays of keys as their data and the name of their dtype."""
    is_key = lambda x: library.numpy.issubdtype(getattr(x, "dtype", None), library.dtypes.prng_key)
    return [
        (np.asarray(library.random.key_data(x)), str(x.dtype)) if hasattr(x, "dtype") and is_key(x) else x
        for x in jax.tree.leaves(tree)
    ]


def _same(program):
    """`program(library, library.numpy)` gives the same with both."""
    theirs, ours = _data(jax, program(jax, jnp)), _data(meshrt, program(meshrt, mnp))
    assert len(theirs) == len(ours)
    for a, b in zip(jax.tree.leaves(theirs), jax.tree.leaves(ours)):
        assert str(getattr(a, "dtype", None)) == str(getattr(b, "dtype", None))
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.fixture(params=["threefry2x32", "rbg", "unsafe_rbg"])
def impl(request):
    return request.param


@pytest.mark.parametrize("counted", ["philox2x32", "philox4x32", "threefry4x32"])
def test_hashes_of_counters(counted):
    def program(j, n):
        key = j.random.key(-7, impl=counted)
        keys = j.random.split(key, (2, 3))
        drawn = [j.random.bits(key, (3, 5), d) for d in ("uint8", "uint16", "uint32")]
        mapped = j.vmap(lambda k: j.random.bits(k, (2,)))(keys[0])
        folded = j.vmap(j.random.fold_in, (None, 0))(key, n.arange(2))
        return [key, keys, mapped, folded, *drawn]

    _same(program)


ON_KEYS = {
    "made": lambda j, n, k: (k, j.random.key_impl(k), j.random.PRNGKey(3, impl=j.random.key_impl(k))),
    "split": lambda j, n, k: (j.random.split(k, 3), j.random.split(k, (2, 3)), j.random.split(k, 0)),
    "fold_in": lambda j, n, k: j.random.fold_in(k, 7),
    "bits": lambda j, n, k: [j.random.bits(k, (3, 5), d) for d in ("uint8", "uint16", "uint32")],
    "normal": lambda j, n, k: j.random.normal(k, (3, 5)),
    "permutation": lambda j, n, k: j.random.permutation(k, 9),
    "gamma of keys": lambda j, n, k: j.vmap(lambda q: j.random.loggamma(q, n.array([2.0])))(j.random.split(k, 2)),
}
OF_KEYS = {
    "split": lambda j, n, ks: j.vmap(lambda k: j.random.split(k, 3))(ks),
    "fold_in one": lambda j, n, ks: j.vmap(lambda k: j.random.fold_in(k, 3))(ks),
    "fold_in many": lambda j, n, ks: j.vmap(lambda i: j.random.fold_in(ks[0], i))(n.arange(3)),
    "fold_in each": lambda j, n, ks: j.vmap(j.random.fold_in)(ks, n.arange(4)),
    "bits": lambda j, n, ks: j.vmap(lambda k: j.random.bits(k, (3,)))(ks),
    "bits twice": lambda j, n, ks: j.vmap(j.vmap(lambda k: j.random.bits(k, (3,))))(ks.reshape(2, 2)),
    "seeds": lambda j, n, ks: j.vmap(lambda s: j.random.key(s, impl=j.random.key_impl(ks)))(n.arange(4)),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ON_KEYS)
def test_a_key_of_each_implementation(name, impl):
    _same(lambda j, n: ON_KEYS[name](j, n, j.random.key(42, impl=impl)))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", OF_KEYS)
def test_keys_of_each_implementation_are_mapped(name, impl):
    _same(lambda j, n: OF_KEYS[name](j, n, j.random.split(j.random.key(42, impl=impl), 4)))


def test_raw_keys_of_the_default_implementation(impl):
    def program(j, n):
        with j.default_prng_impl(impl):
            k = j.random.PRNGKey(1)
            return [j.random.uniform(k, (2,)), j.random.split(k), j.random.fold_in(k, 1), j.random.wrap_key_data(k)]

    _same(program)


WITH_NUMBERS = {
    "a seed that is a bool": lambda j, n: j.random.key(True),
    "zeros": lambda j, n: (n.zeros(3, j.random.key(0).dtype), n.empty((2,), j.random.key_dtype("rbg"))),
    "ones like keys": lambda j, n: n.ones_like(j.random.split(j.random.key(0))),
    "a float folded in": lambda j, n: j.random.fold_in(j.random.key(0), 1.5),
    "equal keys": lambda j, n: j.random.key(0) == n.stack([j.random.key(0), j.random.key(1)]),
}


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_keys_and_numbers(name):
    _same(WITH_NUMBERS[name])


@pytest.mark.parametrize(
    "program",
    [
        lambda j: j.random.fold_in(j.random.key(0), -1),
        lambda j: j.random.fold_in(j.random.key(0), 2**40),
        lambda j: j.random.fold_in(j.random.key(0), j.numpy.arange(2)),
        lambda j: j.random.key(0, impl=3),
        lambda j: j.random.key(0, impl="nope"),
        lambda j: j.random.key("a"),
        lambda j: j.random.key(1.0),
        lambda j: j.random.wrap_key_data(j.numpy.zeros(3, "uint32")),
        lambda j: j.random.split(j.random.split(j.random.key(0))),
    ],
)
def test_refusals_of_keys(program):
    assert_alike(program)


def test_poisson_needs_threefry():
    assert_alike(lambda j: j.random.poisson(j.random.key(0, impl="rbg"), 3.0))


@pytest.mark.parametrize(
    "setting, value",
    [("jax_random_seed_offset", 5), ("jax_enable_custom_prng", True), ("jax_threefry_partitionable", False)],
)
def test_settings_of_keys(setting, value):
    def program(j, n):
        before = getattr(j.config, setting)
        j.config.update(setting, value)
        try:
            k, rbg = j.random.key(3), j.random.key(0, impl="rbg")
            made = k, j.random.PRNGKey(n.uint8(3)), j.jit(j.random.key)(2), j.random.PRNGKey(2)
            return *made, j.random.bits(k, (5, 3)), j.random.split(k, 3), j.random.split(rbg, 3)
        finally:
            j.config.update(setting, before)

    _same(program)


def _defined(j, n):
    return j.extend.random.define_prng_impl(
        key_shape=(2, 3),
        seed=lambda s: n.broadcast_to(s.astype(n.uint32), (2, 3)),
        split=lambda k, shape: n.broadcast_to(k, (*shape, 2, 3)) + n.arange(3, dtype=n.uint32),
        random_bits=lambda k, width, shape: n.broadcast_to(k.sum().astype(f"uint{width}"), shape),
        fold_in=lambda k, d: k + d.astype(n.uint32),
        name="sums", tag="sum",
    )  # fmt: skip


def test_a_generator_that_a_program_defines():
    def program(j, n):
        impl = _defined(j, n)
        k = j.random.key(5, impl=impl)
        ks = j.random.split(k, 3)
        drawn = [j.random.bits(k, (3,)), j.random.uniform(k, (2,)), j.vmap(lambda k: j.random.bits(k, (2,)))(ks)]
        made = [k, ks, j.random.fold_in(k, 3), j.vmap(j.random.fold_in)(ks, n.arange(3)), j.jit(j.random.split)(k)]
        drawn += [ks == ks, ks[:2] == ks[1:], j.lax.dynamic_index_in_dim(ks, 1), ks[n.array([2, 0])], ks.at[0].set(k)]
        drawn += [ks.reshape(3, 1).T, n.stack([ks, ks]).T, n.broadcast_to(ks, (2, 3)), n.where(n.arange(3) > 1, ks, k)]
        drawn += [ks[::-1], n.concatenate([ks, ks]), j.lax.scan(lambda c, k: (c, k), 0, ks)[1]]
        return *drawn, *made, j.random.wrap_key_data(n.zeros((4, 2, 3), n.uint32), impl=impl)

    _same(program)
    impl = _defined(meshrt, mnp)
    assert meshrt.random.key_impl(meshrt.random.key(0, impl=impl)) == impl


def test_a_generator_whose_functions_give_other_shapes_is_refused():
    impl = meshrt.extend.random.define_prng_impl(
        key_shape=(2,), seed=lambda s: s, split=lambda k, s: k, random_bits=lambda k, w, s: k, fold_in=lambda k, d: k
    )
    with pytest.raises(TypeError, match="'seed' of the random number generator '<unnamed>' must give uint32"):
        meshrt.random.key(0, impl=impl)


def test_names_of_extend_random():
    for make in (lambda r: r.threefry_prng_impl, lambda r: r.rbg_prng_impl, lambda r: r.unsafe_rbg_prng_impl):
        _same(lambda j, n, make=make: j.extend.random.seed_with_impl(make(j.extend.random), 3))
    pair = lambda j, n: j.extend.random.threefry_2x32((n.uint32(1), n.uint32(2)), n.arange(5, dtype=n.uint32))
    _same(pair)


@pytest.mark.parametrize("algorithm", ["RNG_DEFAULT", "RNG_THREE_FRY", "RNG_PHILOX"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_rng_bit_generator(algorithm, dtype):
    state = np.arange(4, dtype=np.uint32)
    draw = lambda j: lambda k: j.lax.rng_bit_generator(k, (5, 2), dtype, getattr(j.lax.RandomAlgorithm, algorithm))
    _same(lambda j, n: draw(j)(n.asarray(state)))
    _same(lambda j, n: j.vmap(draw(j))(n.asarray(np.stack([state, state + 1]))))


def test_rng_bit_generator_of_64_bits():
    def program(j, n):
        with j.enable_x64(True):
            return j.lax.rng_bit_generator(n.arange(2, dtype=n.uint64), (3,), "uint64")

    _same(program)


def test_rng_uniform():
    drawn = np.asarray(meshrt.lax.rng_uniform(mnp.float32(2), mnp.float32(3), (100,)))
    assert drawn.dtype == np.float32 and drawn.shape == (100,) and (drawn >= 2).all() and (drawn < 3).all()
    drawn = np.asarray(meshrt.lax.rng_uniform(np.int32(0), np.int32(9), (2, 50)))
    assert drawn.dtype == np.int32 and set(drawn.ravel()) <= set(range(9))


@pytest.mark.parametrize(
    "program",
    [
        lambda j: j.lax.rng_bit_generator(j.numpy.arange(4, dtype=j.numpy.uint32), (5, 2), "int32"),
        lambda j: j.lax.rng_uniform(np.float32(2.0), np.int32(3), (100,)),
        lambda j: j.lax.rng_uniform(j.numpy.ones(2), j.numpy.ones(2), (100,)),
    ],
)
def test_refusals_of_generators(program):
    assert_alike(program)
