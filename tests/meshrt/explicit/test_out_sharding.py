"""What functions make of `out_sharding` on meshes of every kind of axes: types and refusals are JAX's."""

from __future__ import annotations

import jax
import jax.numpy as xnp
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp

X = np.arange(16, dtype=np.float32).reshape(4, 4)
FUNCTIONS = {
    "einsum": lambda lib, np_, a, o: np_.einsum("ij,jk->ik", a, a, out_sharding=o),
    "einsum, transposed": lambda lib, np_, a, o: np_.einsum("ij,jk->ki", a, a, out_sharding=o),
    "matmul": lambda lib, np_, a, o: np_.matmul(a, a, out_sharding=o),
    "get": lambda lib, np_, a, o: a.at[np_.array([0, 1])].get(out_sharding=o),
    "set": lambda lib, np_, a, o: a.at[np_.array([0, 1])].set(1.0, out_sharding=o),
    "zeros": lambda lib, np_, a, o: np_.zeros((4, 4), out_sharding=o),
    "broadcast_to": lambda lib, np_, a, o: np_.broadcast_to(a, (4, 4, 4), out_sharding=o),
    "repeat": lambda lib, np_, a, o: np_.repeat(a, 2, 0, out_sharding=o),
    "normal": lambda lib, np_, a, o: lib.random.normal(lib.random.key(0), (4, 4), out_sharding=o),
}
CONTRACTIONS = ("einsum", "einsum, transposed", "matmul")
KINDS = {"auto": "Auto Auto", "explicit": "Explicit Explicit", "mixed": "Explicit Auto"}


def outcome(lib, np_, name, kinds, split, spec, unreduced):
    types = tuple(lib.sharding.AxisType[k] for k in KINDS[kinds].split())
    mesh = lib.make_mesh((2, 2), ("x", "y"), axis_types=types, devices=lib.devices()[:4])
    asked = lib.P(*spec, unreduced=set(unreduced))
    a = lib.device_put(X, lib.NamedSharding(mesh, lib.P(*split)))
    with lib.set_mesh(mesh):
        try:
            return str(lib.typeof(lib.jit(lambda a: FUNCTIONS[name](lib, np_, a, asked))(a)))
        except (ValueError, TypeError) as e:
            return "refused: " + str(e)[:60].replace("meshrt", "jax")
        except Exception as e:
            assert type(e).__name__ == "ShardingTypeError"
            return "refused"


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_types_and_refusals(name, kinds):
    cases = [((), ("x",), ()), (("x",), (), ()), (("x",), ("x",), ())]
    if kinds != "auto":
        cases += [((), ("y",), ())]
    if name in CONTRACTIONS and kinds == "explicit":
        cases += [(("x",), ("x",), "y"), (("x", "y"), ("x",), "y"), ((), (), "y")]
    for split, spec, unreduced in cases:
        ours, theirs = (outcome(l, n, name, kinds, split, spec, unreduced) for l, n in ((meshrt, jnp), (jax, xnp)))
        if "safe_zip" in theirs:  # JAX trips over specs with fewer entries than dimensions
            continue
        assert ours.startswith("refused") == theirs.startswith("refused"), (ours, theirs, split, spec, unreduced)
        if not ours.startswith("refused"):
            assert ours == theirs, (split, spec, unreduced)
        elif "Auto" in theirs:
            assert "of type Auto or Manual" in ours or ours[:40] == theirs[:40]


def test_einsum_leaves_addends_of_one_product() -> None:
    mesh = meshrt.make_mesh((2, 2), ("x", "y"), devices=meshrt.devices()[:4])
    with meshrt.set_mesh(mesh):
        a, b = meshrt.device_put(X, meshrt.P("x", "y")), meshrt.device_put(X, meshrt.P("y", None))
        addends = jnp.einsum("ij,jk->ki", a, b, out_sharding=meshrt.P(None, "x", unreduced={"y"}))
        assert str(meshrt.typeof(addends)) == "float32[4,4@x]{U:y}"
        np.testing.assert_allclose(np.asarray(meshrt.reshard(addends, meshrt.P())), (X @ X).T)
        for subscripts, operands in (("ij->j", (a,)), ("ij,jk,kl->il", (a, b, b))):
            with pytest.raises(NotImplementedError, match="of one product of two operands only"):
                jnp.einsum(subscripts, *operands, out_sharding=meshrt.P(unreduced={"y"}))


ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)
LONGER = {
    "einsum": lambda lib, np_, a: np_.einsum("ij,jk->ik", a, np_.ones((3, 2)), out_sharding=lib.P("x", None, None)),
    "reshape": lambda lib, np_, a: np_.reshape(a, (12,), out_sharding=lib.P("x", None)),
    "zeros": lambda lib, np_, a: np_.zeros((4,), out_sharding=lib.P("x", None)),
    "arange": lambda lib, np_, a: np_.arange(4, out_sharding=lib.P("x", None)),
    "normal": lambda lib, np_, a: lib.random.normal(lib.random.key(0), (4,), out_sharding=lib.P("x", None)),
    "reshard": lambda lib, np_, a: lib.reshard(a, lib.P("x", None, None)),
    "auto_axes": lambda lib, np_, a: lib.sharding.auto_axes(lambda a: 2 * a, out_sharding=lib.P("x", None, None))(a),
    # The type of an operand, given where the function is mapped over the dimension that makes up for its rank.
    "get": lambda lib, np_, a: lib.vmap(lambda r: r.at[1].get(out_sharding=lib.typeof(r).sharding))(a),
}  # fmt: skip


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", LONGER)
def test_entries_of_none_beyond_the_rank(name, jitted):
    def outcome(lib, np_):
        mesh = lib.make_mesh((2,), ("x",), devices=lib.devices()[:2])
        with lib.set_mesh(mesh):
            a = lib.device_put(ROWS, lib.P("x"))
            f = lambda a: LONGER[name](lib, np_, a)
            return str(lib.typeof((lib.jit(f) if jitted else f)(a)))

    assert outcome(meshrt, jnp) == outcome(jax, xnp)


def test_axes_beyond_the_rank_are_refused():
    mesh = meshrt.make_mesh((2,), ("x",), devices=meshrt.devices()[:2])
    with meshrt.set_mesh(mesh), pytest.raises(ValueError, match="only valid for values of rank at least 2"):
        jnp.zeros((4,), out_sharding=meshrt.P(None, "x"))


@pytest.mark.parametrize("jitted", [False, True])
def test_bits_of_the_compilers_generator(jitted):
    def outcome(lib):
        mesh = lib.make_mesh((2,), ("x",), devices=lib.devices()[:2])
        f = lambda key: lib.lax.rng_bit_generator(key, (4, 8), out_sharding=lib.P("x"))
        with lib.set_mesh(mesh):
            state, bits = (lib.jit(f) if jitted else f)(np.array([1, 2, 3, 4], np.uint32))
        return [str(lib.typeof(v)) for v in (state, bits)], np.asarray(bits)

    (types, bits), (their_types, their_bits) = outcome(meshrt), outcome(jax)
    assert types == their_types
    np.testing.assert_array_equal(bits, their_bits)


INDIVISIBLE = {
    "reshard": lambda lib, np_, x: lib.sharding.reshard(x, lib.P("x")),
    "auto_axes": lambda lib, np_, x: lib.sharding.auto_axes(lambda v: v * 2, out_sharding=lib.P("x"))(x),
    "two axes": lambda lib, np_, x: lib.sharding.auto_axes(lambda v: [v], out_sharding=[lib.P(("x", "y"))])(x),
    "explicit_axes": lambda lib, np_, x: lib.sharding.explicit_axes(lambda v: v * 2, in_sharding=lib.P("x"))(x),
    "normal": lambda lib, np_, x: lib.random.normal(lib.random.key(0), (7,), out_sharding=lib.P("x")),
    "permutation": lambda lib, np_, x: lib.random.permutation(lib.random.key(0), 7, out_sharding=lib.P("x")),
    "get": lambda lib, np_, x: np_.ones(8).at[np.arange(7)].get(out_sharding=lib.P("x")),
    "repeat": lambda lib, np_, x: np_.repeat(x, 2, total_repeat_length=7, out_sharding=lib.P("x")),
    "segment_sum": lambda lib, np_, x: lib.ops.segment_sum(x, np.arange(7), num_segments=7, out_sharding=lib.P("x")),
    "einsum": lambda lib, np_, x: np_.einsum("i,j->ij", x, x, out_sharding=lib.P("x", None)),
    "zeros": lambda lib, np_, x: np_.zeros(7, out_sharding=lib.P("x")),
}


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", INDIVISIBLE)
def test_parts_that_do_not_divide_a_result_are_refused(name, jitted):
    """A result is never left whole because it does not divide: that would be another type than was asked for."""
    for lib, np_ in ((jax, xnp), (meshrt, jnp)):
        mesh = lib.make_mesh((4, 2), ("x", "y"), axis_types=(lib.sharding.AxisType.Explicit,) * 2)
        call = lambda x, lib=lib, np_=np_: INDIVISIBLE[name](lib, np_, x)
        kind, pattern = (
            (ValueError, "evenly divide") if lib is jax else (meshrt.errors.ShardingError, r"\b7\b.*\b[48]\b")
        )
        with lib.set_mesh(mesh), pytest.raises(kind, match=pattern) as found:
            (lib.jit(call) if jitted else call)(np.ones(7, np.float32))
    assert isinstance(found.value, ValueError) and "test_out_sharding.py" in str(found.value)


@pytest.mark.parametrize("spec", [("x",), (None, None, "y"), ("x", None, "y"), (("x", "y"),)])
def test_the_trace_of_matrices_whose_dimensions_are_split(spec):
    x = np.arange(8 * 8 * 4, dtype=np.float32).reshape(8, 8, 4)
    found = []
    for lib, np_ in ((meshrt, jnp), (jax, xnp)):
        mesh = lib.make_mesh((4, 2), ("x", "y"), axis_types=(lib.sharding.AxisType.Explicit,) * 2)
        with lib.set_mesh(mesh):
            a = lib.device_put(x, lib.P(*spec))
            out, back = lib.jit(lambda a, lib=lib, np_=np_: lib.vjp(lambda v: np_.trace(v, offset=1), a))(a)
            found.append((str(lib.typeof(out)), np.asarray(out), np.asarray(back(out)[0])))
    assert found[0][0] == found[1][0]
    for ours, theirs in zip(*(f[1:] for f in found)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
def test_boundaries_of_jit_name_unreduced_axes(partitioner):
    """What is declared to be a sum is one, of the value: JAX's `ones` is as many times that as devices add."""
    mesh = meshrt.make_mesh((4, 2), ("x", "y"))
    addends, x = meshrt.P("x", unreduced={"y"}), np.arange(32, dtype=np.float32).reshape(8, 4)
    value = lambda a: np.asarray(meshrt.reshard(a, meshrt.P()))
    with meshrt.set_mesh(mesh), meshrt.config.override(partitioner=partitioner):
        placed = meshrt.device_put(x, meshrt.NamedSharding(mesh, meshrt.P("x")))
        a = meshrt.jit(lambda x: 3 * x, out_shardings=addends)(placed)
        assert str(meshrt.typeof(a)) == "float32[8@x,4]{U:y}"
        np.testing.assert_array_equal(value(a), 3 * x)
        np.testing.assert_array_equal(value(meshrt.jit(lambda a: a + a, in_shardings=addends)(a)), 6 * x)
        for fill in (jnp.zeros, jnp.ones):
            for made in (fill((8, 4), out_sharding=addends), meshrt.jit(lambda: fill((8, 4), out_sharding=addends))()):
                assert made.sharding.spec.unreduced == {"y"}
                np.testing.assert_array_equal(value(made + a), fill((8, 4)) + 3 * x)
        np.testing.assert_array_equal(value(meshrt.jit(lambda a: jnp.zeros_like(a) + a)(a)), 3 * x)
        with pytest.raises(NotImplementedError, match=r"in_shardings with unreduced axes.*argument x"):
            meshrt.jit(lambda x: x, in_shardings=addends)(x)


@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
@pytest.mark.parametrize("first", [None, "x"])
def test_what_becomes_unreduced_is_no_multiple_of_the_value(first, partitioner):
    """XLA's partitioner gives each of the devices that add the whole of what it doesn't know as addends."""
    mesh = meshrt.make_mesh((2, 2), ("x", "y"), axis_types=(meshrt.sharding.AxisType.Explicit,) * 2)
    addends, whole = meshrt.P(first, unreduced={"y"}), meshrt.P(first)
    total = lambda w, v: jnp.einsum("ij,j->i", w, v, out_sharding=addends)
    full = lambda x: jnp.full((4,), x[2], out_sharding=addends)

    twice = meshrt.shard_map(lambda u: u * 2, in_specs=addends, out_specs=addends)

    def at_once(w, v):
        m = total(w, v)
        return m, -m, 2 * total(w, v) + jnp.full((4,), 3.0, out_sharding=addends)

    w, v = np.arange(16, dtype=np.float32).reshape(4, 4), np.arange(4, dtype=np.float32)
    with meshrt.set_mesh(mesh), meshrt.config.override(partitioner=partitioner):
        x, a, b = (
            meshrt.device_put(v, whole),
            meshrt.device_put(w, meshrt.P(first, "y")),
            meshrt.device_put(v, meshrt.P("y")),
        )
        cases = [
            (meshrt.jit(lambda x: 3 * x, out_shardings=meshrt.NamedSharding(mesh, addends))(x), 3 * v),
            (meshrt.jit(full)(meshrt.device_put(v, meshrt.P(None))), np.full(4, 2)),
            (jnp.full((4,), 3.0, out_sharding=addends), np.full(4, 3)),
            (meshrt.jit(lambda: jnp.arange(4.0, out_sharding=addends))(), v),
            *zip(meshrt.jit(at_once)(a, b), (w @ v, -w @ v, 2 * w @ v + 3), strict=True),
            (meshrt.jit(lambda u: u + u)(meshrt.jit(total)(a, b)), 2 * w @ v),
            # Manual computations take the addends of a sum that is used as a whole too, and of what is not split.
            (meshrt.jit(lambda u: twice(u + u))(meshrt.jit(total)(a, b)), 4 * w @ v),
            (meshrt.jit(lambda u: twice(u) + twice(-u))(meshrt.jit(total)(a, b)), 0 * v),
            (meshrt.jit(lambda x: twice(full(x)))(meshrt.device_put(v, meshrt.P(None))), np.full(4, 4)),
        ]
        for dtype in ("complex64", "bool", "bfloat16"):
            cases += [(fill((4,), dtype, out_sharding=addends), fill((4,), dtype)) for fill in (jnp.zeros, jnp.ones)]
        for i, (found, wanted) in enumerate(cases):
            assert found.sharding.spec.unreduced == {"y"}, i
            np.testing.assert_array_equal(np.asarray(meshrt.reshard(found, whole)), np.asarray(wanted), str(i))
        m = meshrt.jit(total)(a, b)
        taken = {4: lambda u: twice(u + u), 8: lambda u: twice(2 * twice(u)), 5: lambda u: twice(u + u) + u}
        for factor, f in taken.items():
            found = meshrt.reshard(meshrt.jit(f)(m), whole)
            np.testing.assert_array_equal(np.asarray(found), factor * w @ v, str(factor))


@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
@pytest.mark.parametrize("first", [None, "x"])
def test_contractions_of_complex_numbers_are_left_unreduced(first, partitioner):
    """XLA's compiler ended the process over them."""
    mesh = meshrt.make_mesh((2, 2), ("x", "y"), axis_types=(meshrt.sharding.AxisType.Explicit,) * 2)
    addends, whole = meshrt.P(first, None, unreduced={"y"}), meshrt.P(first, None)
    product = lambda a, b: jnp.einsum("ij,jk->ik", a, b, out_sharding=addends)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-4, 5, (4, 4)) * np.complex64(1 - 2j) for _ in range(2))
    with meshrt.set_mesh(mesh), meshrt.config.override(partitioner=partitioner):
        a, b = meshrt.device_put(x, meshrt.P(first, "y")), meshrt.device_put(y, meshrt.P("y", None))
        found = meshrt.jit(lambda a, b: (product(a, b), -product(a, b), product(a, b) + product(2 * a, b)))(a, b)
        for each, factor in zip(found, (1, -1, 3), strict=True):
            assert each.sharding.spec.unreduced == {"y"}
            np.testing.assert_array_equal(np.asarray(meshrt.reshard(each, whole)), factor * (x @ y))
