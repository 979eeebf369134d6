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
