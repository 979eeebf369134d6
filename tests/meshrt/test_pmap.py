"""pmap, judged by JAX's: values, types, shardings of results, kinds of errors."""

import functools

import jax
import numpy as np
import pytest

import meshrt
from meshrt import errors
from tests.meshrt.shard_map.libraries import ours, same, theirs

A = np.arange(8, dtype=np.float32).reshape(4, 2)
V = np.arange(4, dtype=np.float32)
RING = [(i, (i + 1) % 4) for i in range(4)]

# What is called on a library, and the same on both.
PROGRAMS = {
    "elementwise": lambda m: m.pmap(lambda x: x * 2)(A),
    "psum": lambda m: m.pmap(lambda x: x / m.lax.psum(x + 1, "i"), "i")(A),
    "groups": lambda m: m.pmap(lambda x: m.lax.psum(x, "i", axis_index_groups=[[0, 1], [2, 3]]), "i")(A),
    "ppermute": lambda m: m.pmap(lambda x: m.lax.ppermute(x, "i", RING), "i")(A),
    "axis_index": lambda m: m.pmap(lambda x: m.lax.axis_index("i") + x[0], "i")(A),
    "a whole result": lambda m: m.pmap(lambda x: m.lax.psum(x, "i"), "i", out_axes=None)(A),
    "other dimensions": lambda m: m.pmap(lambda x: x + 1, in_axes=1, out_axes=1)(A),
    "whole arguments": lambda m: m.pmap(lambda x, y: (x + y, y * 2), in_axes=(0, None))(V, 4.0),
    "trees": lambda m: m.pmap(lambda t: {"a": t[0], "b": (t[1], t[1])}, out_axes={"a": 0, "b": None})([V, V]),
    "keyword arguments": lambda m: m.pmap(lambda x, y: x + y, in_axes=1)(A, y=V[:2]),
    "static": lambda m: m.pmap(lambda x, n: x * n, static_broadcasted_argnums=1)(V, 3),
    "static, in_axes": lambda m: m.pmap(
        lambda n, x, y: x * n + y, static_broadcasted_argnums=0, in_axes=(None, 0, None)
    )(3, V, 1.0),
    "devices": lambda m: m.pmap(lambda x: x, devices=m.devices()[::-1][:4])(V),
    "more devices": lambda m: m.pmap(lambda x: x, devices=m.devices()[2:], axis_size=4)(V),
    "backend": lambda m: m.pmap(lambda x: x, backend="cpu")(V),
    "constants": lambda m: m.pmap(lambda x: 3.0)(V),
    "None": lambda m: m.pmap(lambda x, y: (x, y))(V, None),
    "keys": lambda m: m.pmap(lambda k: m.random.normal(k, (2,)))(m.random.split(m.random.key(0), 4)),
    "under jit": lambda m: m.jit(m.pmap(lambda x: x * 2))(A),
    "grad": lambda m: m.grad(lambda x: m.pmap(m.np.sin)(x).sum())(A),
    "grad of psum": lambda m: m.grad(lambda x: m.pmap(lambda x: m.lax.psum(m.np.sin(x), "i"), "i")(x).sum())(A),
    "grad inside": lambda m: m.pmap(m.grad(lambda x: (x**3).sum()))(A),
    "jvp": lambda m: m.jvp(m.pmap(lambda x: m.np.sin(x)), (A,), (A,)),
    "vmap": lambda m: m.vmap(m.pmap(lambda x: m.lax.psum(x, "i"), "i"), in_axes=1)(A),
    "vmap inside": lambda m: m.pmap(m.vmap(lambda x: m.lax.psum(x, ("i", "j")), axis_name="j"), "i")(A),
    "a chain": lambda m: m.pmap(lambda x: x + 1, "i")(m.pmap(lambda x: x * 2, "i")(A)),
    "a partial": lambda m: m.pmap(functools.partial(lambda k, x: x * k, 2.0))(A),
}


def described(m, out):
    """Specs, mesh axes and devices of results."""
    leaves = m.tree.leaves(out)
    return [
        (str(x.sharding.spec), x.sharding.mesh.axis_sizes, [d.id for d in x.sharding.mesh.devices.flat]) for x in leaves
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_jax_does(name):
    got, want = PROGRAMS[name](ours()), PROGRAMS[name](theirs())
    same(got, want)
    unnamed = [(s.replace("_internal_pmap_axis_name", "_pmap_axis"), *rest) for s, *rest in described(jax, want)]
    assert described(meshrt, got) == unnamed
    assert [x.weak_type for x in meshrt.tree.leaves(got)] == [x.weak_type for x in jax.tree.leaves(want)]


def in_context(m):
    with m.set_mesh(m.mesh((8,), ("x",))):
        return m.pmap(lambda x: x)(V)


REFUSED = {
    "no function": (lambda m: m.pmap(3), "Expected a callable value"),
    "nothing mapped": (lambda m: m.pmap(lambda x: x, in_axes=None)(V), "at least one"),
    "in_axes of no ints": (lambda m: m.pmap(lambda x: x, in_axes="a"), "pmap in_axes must be an int"),
    "out_axes of no ints": (lambda m: m.pmap(lambda x: x, out_axes="a"), "pmap out_axes must be an int"),
    "in_axes too short": (lambda m: m.pmap(lambda x, y: x, in_axes=(0,))(V, V), "in_axes"),
    "in_axes of a list": (lambda m: m.pmap(lambda x, y: x, in_axes=[0, 0])(V, V), "in_axes"),
    "out_axes of another tree": (lambda m: m.pmap(lambda x: x, out_axes=(0, 0))(V), "prefix"),
    "out_axes out of bounds": (lambda m: m.pmap(lambda x: x, out_axes=3)(V), "axis 3 is out of bounds"),
    "sizes that differ": (lambda m: m.pmap(lambda x, y: x)(V, V[:3]), "size"),
    "axis_size": (lambda m: m.pmap(lambda x: x, axis_size=3)(V), "axis_size"),
    "too many elements": (lambda m: m.pmap(lambda x: x)(np.ones(9, np.float32)), "9"),
    "too few devices": (lambda m: m.pmap(lambda x: x, devices=m.devices()[:3])(V), "3"),
    "no devices": (lambda m: m.pmap(lambda x: x, devices=[]), "must be non-empty"),
    "static missing": (
        lambda m: m.pmap(lambda x, n: x, static_broadcasted_argnums=1)(V),
        "must be passed positionally",
    ),
    "static not hashable": (lambda m: m.pmap(lambda x, n: x, static_broadcasted_argnums=1)(V, [1]), "Non-hashable"),
    "other devices": (lambda m: m.pmap(lambda x: x)(m.device_put(A, m.devices()[3])), "does not match the sharding on"),
    "nested": (lambda m: m.pmap(m.pmap(lambda x: x, "j"), "i")(A), "The context mesh"),
    "another mesh in context": (in_context, "The context mesh"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_jax_refuses(name):
    call, text = REFUSED[name]
    with pytest.raises((TypeError, ValueError)) as wanted:
        call(theirs())
    builtin = TypeError if isinstance(wanted.value, TypeError) else ValueError
    with pytest.raises(builtin, match=text) as e:
        call(ours())
    assert isinstance(e.value, errors.MeshrtError)
    assert text in str(wanted.value) or name in ("out_axes of another tree",)


def test_dimensions_from_the_end():
    same(meshrt.pmap(lambda x: x, in_axes=-1, out_axes=-1)(A), A)
    same(meshrt.pmap(lambda x: x, out_axes=-1)(A), A.T)
    same(meshrt.pmap(lambda x, n: x * n, static_broadcasted_argnums=-1)(V, 2), V * 2)
    assert meshrt.pmap(lambda x: x, "i", out_axes=-1)(A).sharding.spec == meshrt.P(None, "i")


def test_size_of_no_mapped_argument():
    same(meshrt.pmap(lambda x: x, in_axes=None, axis_size=3)(V), np.stack([V] * 3))


def test_a_mesh_that_fits_may_be_in_context():
    mesh = ours().mesh((4,), ("i",))
    with meshrt.set_mesh(mesh):
        same(meshrt.pmap(lambda x: meshrt.lax.psum(x, "i"), "i")(V), np.full(4, V.sum()))


def test_donation_and_staging():
    x = meshrt.pmap(lambda x: x)(A)
    same(meshrt.pmap(lambda n, x: x * n, donate_argnums=1, static_broadcasted_argnums=0)(2, x), A * 2)
    assert x.is_deleted()
    lowered = meshrt.pmap(lambda x: x * 2, "i").lower(meshrt.ShapeDtypeStruct((4, 2), np.float32))
    assert lowered.out_info.sharding.spec == meshrt.P("i")
    same(lowered.compile()(A), A * 2)
    assert meshrt.eval_shape(meshrt.pmap(lambda x: x), A).shape == (4, 2)


def test_one_program_for_equal_calls():
    traced = []

    def f(x, n):
        traced.append(n)
        return x * n

    g = meshrt.pmap(f, static_broadcasted_argnums=1)
    for n in (2, 3, 2, 3):
        g(V, n), g(meshrt.device_put(V), n)
    assert traced == [2, 3]
    g(V, 2.0), g(V[:2], 2)
    assert traced == [2, 3, 2.0, 2]


def test_a_call_is_seen_again_where_a_program_is_traced_without_jit():
    def counts(m):
        calls, seen = [], []
        f = m.pmap(lambda x: calls.append(1) or x * 2)
        x = m.numpy.ones((1, 3))
        f(x)
        with m.disable_jit():
            for _ in range(2):
                m.eval_shape(lambda x: f(x), x)  # of a function that was not seen yet
                seen.append(len(calls))
        return seen

    assert counts(meshrt) == counts(jax) == [2, 3]


@pytest.mark.parametrize(("kind", "spec"), [("Auto", ("x", "y")), ("Auto", ("y",)), ("Explicit", ())], ids=str)
@pytest.mark.parametrize("lib", [meshrt, jax], ids=["meshrt", "jax"])
def test_in_a_program_whose_arguments_lie_on_another_mesh_of_the_devices(lib, kind, spec):
    kinds = (getattr(lib.sharding.AxisType, kind),) * 2
    mesh = lib.make_mesh((2, 2), ("x", "y"), axis_types=kinds, devices=lib.devices()[:4])
    x = lib.device_put(A, lib.NamedSharding(mesh, lib.P(*spec)))
    out = lib.jit(lib.pmap(lambda x: x * 2))(x)
    np.testing.assert_array_equal(np.asarray(out), A * 2)
    assert [shard.data.shape for shard in out.addressable_shards] == [(1, 2)] * 4
