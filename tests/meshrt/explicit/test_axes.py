"""reshard, auto_axes, explicit_axes, out_sharding, partial sums, mixed meshes, calls: beside JAX where it has them."""

from __future__ import annotations

import jax
import jax.ad_checkpoint
import numpy as np
import pytest

import meshrt
import meshrt.ad_checkpoint
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.sharding import AxisType, NamedSharding, P, auto_axes, explicit_axes, reshard
from tests.meshrt.explicit.cases import libraries

OURS, JAX = libraries()
X = np.arange(32 * 16, dtype=np.float32).reshape(32, 16) / 1000
W = np.cos(np.arange(16 * 8, dtype=np.float32).reshape(16, 8))
MATMUL = (((1,), (0,)), ((), ()))
AUTO = meshrt.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
MIXED = meshrt.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Auto))


def put(value, *spec, library=OURS):
    return library.root.device_put(value, library.sharding(spec))


def kind(x) -> str:
    return str(meshrt.typeof(x))


# ----------------------------------------------------------------------------------------------------------
# reshard


def test_reshard_in_and_outside_of_programs() -> None:
    with meshrt.set_mesh(OURS.mesh):
        x = put(X, "x", None)
        for fun in (lambda v: reshard(v, P("y", "x")), meshrt.jit(lambda v: reshard(v, P("y", "x")))):
            out = fun(x)
            assert kind(out) == "float32[32@y,16@x]" and out.sharding.spec == P("y", "x")
            np.testing.assert_array_equal(np.asarray(out), X)
        tree = reshard({"a": x, "b": [x]}, {"a": P(), "b": P(None, "y")})
        assert kind(tree["a"]) == "float32[32,16]" and kind(tree["b"][0]) == "float32[32,16@y]"
    assert kind(reshard(X, OURS.sharding(("x",)))) == "float32[32@x,16]"


def test_reshard_is_differentiable_and_mapped() -> None:
    with meshrt.set_mesh(OURS.mesh):
        x = put(X, "x", None)
        grad = meshrt.jit(meshrt.grad(lambda v: jnp.sum(jnp.sin(reshard(v, P(None, "y"))))))(x)
        assert kind(grad) == "float32[32@x,16]"
        np.testing.assert_allclose(np.asarray(grad), np.cos(X), rtol=1e-5, atol=1e-6)
        mapped = meshrt.jit(meshrt.vmap(lambda v: reshard(v, P("y"))))(x)
        assert kind(mapped) == "float32[32@x,16@y]"


def test_reshard_refuses() -> None:
    with pytest.raises(errors.MeshContextError, match="not under a mesh context"):
        reshard(X, P("x"))
    with meshrt.set_mesh(OURS.mesh):
        with pytest.raises(errors.ShardingError, match="non-None"):
            reshard(X, None)
        with pytest.raises(errors.RankMismatchError):
            reshard(X, P(None, None, "x"))
    with meshrt.set_mesh(MIXED), pytest.raises(errors.ShardingError, match="Auto or Manual"):
        reshard(X, P("y"))


# ----------------------------------------------------------------------------------------------------------
# auto_axes, explicit_axes


def test_b10_keyword_arguments_of_auto_axes_are_resharded() -> None:
    """In JAX they keep the sharding of outside, and the function fails."""
    with meshrt.set_mesh(OURS.mesh):
        fun = auto_axes(lambda a, *, b: jnp.sort(jnp.sin(a) @ b, axis=0), out_sharding=P("x", "y"))
        out = fun(put(X, "x", None), b=put(W, "x", "y"))
        assert kind(out) == "float32[32@x,8@y]"
        np.testing.assert_allclose(np.asarray(out), np.sort(np.sin(X) @ W, 0), rtol=1e-4, atol=1e-5)
        seen = []
        explicit_axes(lambda *, a: seen.append(kind(a)) or a * 2, in_sharding=P("x", "y"))(a=put(X))
        assert seen == ["float32[32@x,16@y]"]


def test_auto_axes_under_transformations() -> None:
    def program(o):
        spec = P if o is OURS else jax.P
        wrap = auto_axes if o is OURS else jax.sharding.auto_axes
        fun = wrap(lambda a, b: o.np.sort(o.np.sin(a) @ b, axis=0), out_sharding=spec("x", "y"))
        step = lambda c, _: (wrap(lambda q: o.np.tanh(q * o.np.sin(q)), out_sharding=spec("x", None))(c), None)

        def loss(a, b):
            c, _ = o.lax.scan(step, a, None, length=3)
            return o.np.sum(fun(c, b) ** 2)

        return o.root.jit(o.root.value_and_grad(loss, argnums=(0, 1)))

    with meshrt.set_mesh(OURS.mesh):
        value, (a, b) = program(OURS)(put(X, "x", None), put(W, None, "y"))
        assert kind(a) == "float32[32@x,16]" and kind(b) == "float32[16,8@y]"
    with jax.set_mesh(JAX.mesh):
        wanted = program(JAX)(put(X, "x", None, library=JAX), put(W, None, "y", library=JAX))
    for ours, theirs in zip((value, a, b), jax.tree.leaves(wanted)):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-3, atol=1e-3)


def test_auto_axes_leaves_the_choice_to_propagation() -> None:
    with meshrt.set_mesh(OURS.mesh):
        fun = auto_axes(lambda a: kinds.append(meshrt.typeof(a)) or a.T.reshape(-1), out_sharding=P(("x", "y")))
        kinds: list = []
        out = meshrt.jit(fun)(put(X, "x", "y"))
        assert kind(out) == "float32[512@(x,y)]" and kinds[0].sharding.spec == P(None, None)
        np.testing.assert_array_equal(np.asarray(out), X.T.reshape(-1))
        with pytest.raises(TypeError, match="Missing required keyword argument: 'out_sharding'"):
            auto_axes(lambda a: a)(X)
        assert kind(auto_axes(lambda a: a * 2)(put(X), out_sharding=P("x"))) == "float32[32@x,16]"
        constrained = auto_axes(lambda a: meshrt.lax.with_sharding_constraint(a, P(None, "x")), out_sharding=P("y"))
        assert kind(meshrt.jit(constrained)(put(X))) == "float32[32@y,16]"


def test_explicit_axes_of_an_auto_mesh() -> None:
    seen = []

    def inside(a):
        seen.append(kind(a.T))
        return a * 2

    with meshrt.set_mesh(AUTO):
        fun = explicit_axes(inside, in_sharding=P("x", "y"))
        out = meshrt.jit(fun)(X)
        assert seen == ["float32[16@y,32@x]"] and out.sharding.spec == P("x", "y")
        grad = meshrt.jit(meshrt.grad(lambda a: jnp.sum(fun(a) ** 2)))(X)
        np.testing.assert_allclose(np.asarray(grad), 8 * X, rtol=1e-5)
    with pytest.raises(errors.MeshContextError, match="Context mesh cannot be empty"):
        explicit_axes(inside, in_sharding=P())(X)


# ----------------------------------------------------------------------------------------------------------
# out_sharding


CREATED = {
    "zeros": lambda o, s: o.np.zeros((8, 4), out_sharding=s),
    "full": lambda o, s: o.np.full((8, 4), np.float32(2), out_sharding=s),
    "ones": lambda o, s: o.np.ones((8, 4), out_sharding=s),
    "arange": lambda o, s: o.np.arange(8, out_sharding=s),
    "broadcast_to": lambda o, s: o.np.broadcast_to(np.float32(1), (8, 4), out_sharding=s),
    "broadcasted_iota": lambda o, s: o.lax.broadcasted_iota(np.int32, (8, 4), 0, out_sharding=s),
    "uniform": lambda o, s: o.root.random.uniform(o.root.random.key(0), (8, 4), out_sharding=s),
    "normal": lambda o, s: o.root.random.normal(o.root.random.key(0), (8, 4), out_sharding=s),
    "bits": lambda o, s: o.root.random.bits(o.root.random.key(0), (8, 4), out_sharding=s),
    "initializer": lambda o, s: o.root.nn.initializers.ones(o.root.random.key(0), (8, 4), np.float32, out_sharding=s),
}


@pytest.mark.parametrize("name", CREATED)
def test_created_values_are_split_as_asked(name: str) -> None:
    for staged in (False, True):
        outs = []
        for o, spec in ((OURS, P), (JAX, jax.P)):
            with o.root.set_mesh(o.mesh):
                make = lambda o=o, spec=spec: CREATED[name](o, spec("x"))
                outs.append((o.root.jit(make) if staged else make)())
        assert kind(outs[0]) == str(jax.typeof(outs[1]))
        np.testing.assert_allclose(np.asarray(outs[0]), np.asarray(outs[1]), rtol=1e-5, atol=1e-6)


def test_numpy_arrays_are_split_as_asked() -> None:
    """JAX leaves them whole, whatever it is asked."""
    with meshrt.set_mesh(OURS.mesh):
        assert kind(jnp.asarray(X, out_sharding=P("x"))) == "float32[32@x,16]"
        assert kind(meshrt.jit(lambda: jnp.asarray(X, out_sharding=P("x")))()) == "float32[32@x,16]"


APPLIED = {
    "dot": lambda o, x, s: o.np.dot(x, x.T, out_sharding=s("x", None)),
    "matmul": lambda o, x, s: o.np.matmul(x, x.T, out_sharding=s("x", "y")),
    "einsum": lambda o, x, s: o.np.einsum("ij,kj->ik", x, x, out_sharding=s("x", "y")),
    "tensordot": lambda o, x, s: o.np.tensordot(x, x, ((1,), (1,)), out_sharding=s(None, "x")),
    "reshape": lambda o, x, s: o.np.reshape(x, (4, 128), out_sharding=s("x", "y")),
    "ravel": lambda o, x, s: o.np.ravel(x, out_sharding=s("x")),
    "method": lambda o, x, s: x.reshape(16, 32, out_sharding=s("y", None)),
    "repeat": lambda o, x, s: o.np.repeat(x, 2, axis=0, out_sharding=s("x", None)),
    "get": lambda o, x, s: x.at[np.array([5, 2, 7, 1])].get(out_sharding=s("x", None)),
    "set": lambda o, x, s: x.at[np.array([5, 2, 7, 1])].set(1.0, out_sharding=s("x", None)),
    "add": lambda o, x, s: x.at[1:3].add(1.0, out_sharding=s("x", None)),
    "reduce_sum": lambda o, x, s: o.lax.reduce_sum(x, [0], out_sharding=s("x")),
}


@pytest.mark.parametrize("name", APPLIED)
def test_results_are_split_as_asked(name: str) -> None:
    outs = []
    for o, spec in ((OURS, P), (JAX, jax.P)):
        with o.root.set_mesh(o.mesh):
            x = put(X, "x", None, library=o)
            fun = lambda x, o=o, spec=spec: APPLIED[name](o, x, spec)
            grad = o.root.jit(o.root.grad(lambda x: o.np.sum(o.np.sin(fun(x)))))(x)
            outs.append((o.root.jit(fun)(x), grad))
    for ours, theirs in zip(*outs):
        assert kind(ours) == str(jax.typeof(theirs))
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("jitted", [False, True])
def test_counts_of_repeat_are_part_of_the_program(jitted: bool) -> None:
    def split(l):
        mesh = l.make_mesh((4, 2), ("x", "y"), axis_types=(l.sharding.AxisType.Explicit,) * 2)
        with l.set_mesh(mesh):
            x = l.reshard(l.numpy.arange(16.0).reshape(8, 2), l.P("x", None))
            fun = lambda x: l.numpy.repeat(x, np.array([1, 3]), axis=1, out_sharding=l.P("x", "y"))
            return (l.jit(fun) if jitted else fun)(x)

    ours, theirs = split(meshrt), split(jax)
    np.testing.assert_array_equal(ours, theirs)
    assert str(meshrt.typeof(ours)) == str(jax.typeof(theirs)) == "float32[8@x,4@y]"


@pytest.mark.parametrize("held", ["x", "y", None])
def test_one_hot_is_split_as_asked(held: str | None) -> None:
    mesh = meshrt.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    with meshrt.set_mesh(mesh):
        x = reshard(jnp.arange(8) % 5, P(held))
        for axis, spec in ((-1, P("x", "y")), (0, P("y", "x")), (1, P(None, "x"))):
            out = meshrt.nn.one_hot(x, 4, axis=axis, out_sharding=spec)
            assert out.sharding.spec == spec
            np.testing.assert_array_equal(out, jax.nn.one_hot(np.arange(8) % 5, 4, axis=axis))


def test_out_sharding_refuses() -> None:
    with meshrt.set_mesh(OURS.mesh), pytest.raises(TypeError, match="only supports instances of `NamedSharding` or"):
        jnp.zeros((8,), out_sharding=3)
    with pytest.raises(errors.MeshContextError, match="not under a mesh context"):
        jnp.zeros((8,), out_sharding=P("x"))
    with meshrt.set_mesh(MIXED), pytest.raises(errors.ShardingError, match=r"of type Auto or Manual.*axis name: y"):
        meshrt.lax.dot_general(X, W, MATMUL, out_sharding=P("y", None))
    with meshrt.set_mesh(MIXED), pytest.raises(errors.MeshMismatchError, match=r"Context mesh .* should match"):
        meshrt.lax.dot_general(X, W, MATMUL, out_sharding=OURS.sharding(("x",)))


# ----------------------------------------------------------------------------------------------------------
# Partial sums


def test_partial_sums_are_added_up_where_they_are_wanted() -> None:
    types, values = [], []
    for o, spec in ((OURS, P), (JAX, jax.P)):

        def program(x, w, o=o, spec=spec):
            a = o.lax.dot_general(x, w, MATMUL, out_sharding=spec("x", None, unreduced={"y"}))
            r = o.root.reshard
            kinds.append(str(o.root.typeof(a)))
            return r(a + a, spec("x", None)), r(a, spec("x", "y")), r(o.np.transpose(a), spec(None, "x"))

        def gradient(w, o=o, spec=spec):
            copied = o.root.reshard(w, spec(None, None, reduced={"x"}))
            kinds.append(str(o.root.typeof(copied)))
            return o.np.sum(o.np.sin(o.np.dot(o.root.reshard(x, spec("x", None)), copied)))

        kinds: list = []
        with o.root.set_mesh(o.mesh):
            x, w = put(X, "x", "y", library=o), put(W, "y", None, library=o)
            outs = [*o.root.jit(program)(x, w), o.root.jit(o.root.grad(gradient))(w)]
        types.append([*kinds, *[str(o.root.typeof(v)) for v in outs]])
        values.append([np.asarray(v) for v in outs])
    assert types[0] == types[1] and types[0][:2] == ["float32[32@x,8]{U:y}", "float32[16,8]{R:x}"]
    for ours, theirs in zip(*values):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "fun, text",
    [
        (lambda a, b: a + b, "is unreduced while"),
        (lambda a, b: a * a, "bilinear"),
        (lambda a, b: jnp.sin(a), "unreduced rule for sin is not implemented"),
        (lambda a, b: a @ b.T, "cannot be unreduced"),
        (lambda a, b: a * b, "should be reduced along the same axes"),
    ],
)
def test_partial_sums_refuse_what_is_not_linear(fun, text: str) -> None:
    def program(x, w):
        a = meshrt.lax.dot_general(x, w, MATMUL, out_sharding=P("x", None, unreduced={"y"}))
        return fun(a, reshard(a, P("x", None)))

    with meshrt.set_mesh(OURS.mesh), pytest.raises((TypeError, NotImplementedError), match=text):
        meshrt.jit(program)(put(X, "x", "y"), put(W, "y", None))


KEPT = {
    "stop_gradient": lambda o, spec, x: o.lax.stop_gradient(x) + x,
    "checkpoint_name": lambda o, spec, x: o.root.ad_checkpoint.checkpoint_name(x, "x"),
    "device_put": lambda o, spec, x: o.root.device_put(x + x, spec("x", unreduced={"y"})),
}


@pytest.mark.parametrize(
    "name, given",
    [
        ("stop_gradient", {"unreduced": {"y"}}), ("stop_gradient", {"reduced": {"y"}}),
        ("checkpoint_name", {"unreduced": {"y"}}), ("checkpoint_name", {"reduced": {"y"}}), ("device_put", {}),
    ],
)  # fmt: skip
def test_identities_of_partial_sums_and_copies(name, given) -> None:
    """They keep both; device_put, here too, makes partial sums of which the first devices hold the whole value."""
    found = []
    for o, spec in ((OURS, P), (JAX, jax.P)):
        whole = lambda v, o=o, spec=spec: o.root.reshard(v, spec("x", None))
        same = lambda v, o=o, spec=spec: KEPT[name](o, spec, v)
        with o.root.set_mesh(o.mesh):
            x = o.root.device_put(X, spec("x", None, **given))
            outs = [o.root.jit(same)(x), o.root.jit(o.root.grad(lambda v: (whole(same(v)) * X).sum()))(x)]
            held = [[np.asarray(s.data) for s in v.addressable_shards] for v in outs[:1]]
            found.append(([str(o.root.typeof(v)) for v in outs], held, [np.asarray(whole(v)) for v in outs]))
    assert found[0][0] == found[1][0]
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-6)
    for ours, theirs in zip(found[0][2], found[1][2]):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


# ----------------------------------------------------------------------------------------------------------
# Constraints, mixed meshes, calls


def test_a_constraint_is_an_assertion() -> None:
    constrain = meshrt.lax.with_sharding_constraint
    with meshrt.set_mesh(OURS.mesh):
        x = put(X, "x", None)
        assert kind(meshrt.jit(lambda v: constrain(v, P("x")))(x)) == "float32[32@x,16]"
        with pytest.raises(AssertionError, match="acts as an assert"):
            meshrt.jit(lambda v: constrain(v, P("x", "y")))(x)
    with meshrt.set_mesh(MIXED):
        x = meshrt.device_put(X, NamedSharding(MIXED, P("x")))
        out = meshrt.jit(lambda v: constrain(v * 2, P(None, "y")))(x)
        assert kind(out) == "float32[32@x,16]" and out.sharding.spec == P("x", "y")
        with pytest.raises(ValueError, match="You probably meant to use `reshard` API"):
            meshrt.jit(lambda v: constrain(v, P("x")))(x)


def test_auto_axes_of_a_mixed_mesh_stay_with_propagation() -> None:
    with meshrt.set_mesh(MIXED):
        x = meshrt.device_put(X, NamedSharding(MIXED, P("x", "y")))
        assert kind(x) == "float32[32@x,16]" and kind(x * 2) == "float32[32@x,16]"
        assert meshrt.jit(lambda v: jnp.sin(v))(x).sharding.spec == P("x", "y")
        grad = meshrt.jit(meshrt.grad(lambda v: jnp.sum(jnp.tanh(v @ W))))(x)
        assert kind(grad) == "float32[32@x,16]"


def test_meshes_do_not_mix() -> None:
    other = meshrt.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    x, y = put(X, "x"), meshrt.device_put(X, NamedSharding(other, P("x")))
    for fun in (lambda a, b: a + b, meshrt.jit(lambda a, b: a + b)):
        with pytest.raises(errors.ShardingTypeError, match=r"Mesh for all inputs should be equal.*'x': 4.*'x': 8"):
            fun(x, y)
    with meshrt.set_mesh(AUTO), pytest.raises(errors.MeshMismatchError, match=r"test_axes\.py"):
        meshrt.jit(lambda a: a + 1)(x)


def test_operations_outside_of_programs_have_the_same_types() -> None:
    x = put(X, "x", None)
    for value, wanted in (
        (x + 1, "float32[32@x,16]"),
        (x.T, "float32[16,32@x]"),
        (x.sum(0), "float32[16]"),
        (x[8:16], "float32[8@x,16]"),
        (jnp.zeros_like(x), "float32[32@x,16]"),
        (x @ put(W, None, "y"), "float32[32@x,8@y]"),
    ):
        assert kind(value) == wanted
    with pytest.raises(errors.ShardingTypeError, match="ambiguous"):
        put(X, None, "y") @ put(W, "y", None)


def test_traces_are_shared_by_devices_and_not_by_types() -> None:
    traced = []

    @meshrt.jit
    def fun(v):
        traced.append(kind(v))
        return v * 2

    devices = np.array(meshrt.devices()).reshape(4, 2)
    other = meshrt.sharding.Mesh(devices[::-1, ::-1], ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    fun(put(X, "x"))
    assert kind(fun(meshrt.device_put(X, NamedSharding(other, P("x"))))) == "float32[32@x,16]"
    assert traced == ["float32[32@x,16]"]
    fun(put(X, "y"))
    assert traced == ["float32[32@x,16]", "float32[32@y,16]"]


def test_axes_of_size_one_leave_types_where_asked() -> None:
    mesh = meshrt.make_mesh((8, 1), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    x = np.ones((8, 4), np.float32)
    assert kind(meshrt.jit(lambda v: v)(meshrt.device_put(x, NamedSharding(mesh, P("x", "y"))))) == "float32[8@x,4@y]"
    with meshrt.config.override(remove_size_one_mesh_axis_from_type=True):
        fresh = meshrt.sharding.Mesh(mesh.devices[::-1], ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
        assert kind(meshrt.device_put(x, NamedSharding(fresh, P("x", "y")))) == "float32[8@x,4]"


def test_what_a_region_captures_has_the_types_of_the_region() -> None:
    with meshrt.set_mesh(OURS.mesh):
        x = put(X, "x", None)
        loop = lambda a, b: meshrt.lax.scan(lambda c, _: (jnp.tanh(c * a), None), b, None, length=2)[0]
        for axes, spec in (("y", P("x")), (None, P("x")), ("x", P())):
            captured = lambda a, axes=axes, spec=spec: auto_axes(lambda b: loop(a, b), axes=axes, out_sharding=spec)(a)
            grad = meshrt.jit(meshrt.grad(lambda a, f=captured: jnp.sum(f(a))))(x)
            assert kind(grad) == "float32[32@x,16]"
            wanted = meshrt.grad(lambda a: jnp.sum(loop(a, a)))(X)
            np.testing.assert_allclose(np.asarray(grad), np.asarray(wanted), rtol=1e-4, atol=1e-5)


def test_005_04_functions_around_shard_map_and_jit_may_capture_split_arrays() -> None:
    with meshrt.set_mesh(OURS.mesh):
        x = put(X, "x", None)
        assert kind(meshrt.jit(lambda a: a + x)(x)) == "float32[32@x,16]"
        part = lambda a: meshrt.shard_map(lambda b: b + jnp.sum(x), in_specs=P("x", None), out_specs=P("x", None))(a)
        np.testing.assert_allclose(np.asarray(meshrt.jit(part)(x)), X + X.sum(), rtol=1e-5)


@pytest.mark.parametrize("wrap", [lambda o, f: f, lambda o, f: o.jit(f)], ids=["eager", "jit"])
def test_vmap_of_where_with_a_scalar_keeps_the_split_of_the_other_dimensions(wrap):
    x = np.arange(24.0, dtype=np.float32).reshape(4, 2, 3)
    mesh = meshrt.make_mesh((2, 2), ("x", "y"), axis_types=(meshrt.sharding.AxisType.Explicit,) * 2)
    with meshrt.set_mesh(mesh):
        a = meshrt.device_put(x, P("x", "y", None))
        out = wrap(meshrt, meshrt.vmap(lambda v: meshrt.numpy.where(v > 5, v, 0)))(a)
        assert out.sharding.spec == P("x", "y", None)
        np.testing.assert_array_equal(out, np.where(x > 5, x, 0))
        other = wrap(meshrt, meshrt.vmap(lambda v: meshrt.numpy.where(v > 5, 1, v), in_axes=1, out_axes=1))(a)
        assert other.sharding.spec == P("x", "y", None)
        grad = meshrt.grad(lambda v: meshrt.vmap(lambda w: meshrt.numpy.where(w > 5, w * w, 0))(v).sum())(a)
        assert grad.sharding.spec == P("x", "y", None)
        np.testing.assert_array_equal(grad, np.where(x > 5, 2 * x, 0))


def test_vmap_takes_spmd_axis_name_or_a_dimension_that_is_split():
    mesh = meshrt.make_mesh((2, 2), ("x", "y"), axis_types=(meshrt.sharding.AxisType.Explicit,) * 2)
    with meshrt.set_mesh(mesh):
        a = meshrt.device_put(np.ones((8, 2), np.float32), P("x", None))
        with pytest.raises(errors.ShardingError, match="Only one of spmd_axis_name or arrays sharded on"):
            meshrt.vmap(lambda v: v * 2, spmd_axis_name="y")(a)


# ----------------------------------------------------------------------------------------------------------------------
# Values that are unreduced or reduced, where axes are Auto meanwhile

ROWS = np.array([0, 1])
ENTERED = {
    "auto_axes": lambda lib, P: lib.sharding.auto_axes(lambda a: 2 * a + 1, out_sharding=P("x")),
    "indexed": lambda lib, P: lambda a: a.at[ROWS].get(out_sharding=P(None, "y")),
    "updated": lambda lib, P: lambda a: a.at[ROWS].add(np.float32(1), out_sharding=P("x")),
    "einsum": lambda lib, P: lambda a: lib.numpy.einsum("ij,ij,ik->jk", a, a, a, out_sharding=P("y")),
}


@pytest.mark.parametrize("spec", [{"unreduced": {"x"}}, {"reduced": {"x"}}, {"unreduced": {"y"}, "reduced": {"x"}}])
@pytest.mark.parametrize("name", ENTERED)
def test_partial_sums_are_added_up_before_a_region_without_explicit_axes(name, spec) -> None:
    """Values and derivatives are those of the whole; types are JAX's."""
    number = np.arange(32, dtype=np.float32).reshape(4, 8) / 7

    def run(lib, apply):
        P, explicit, types = lib.sharding.PartitionSpec, lib.sharding.AxisType.Explicit, []
        with lib.set_mesh(lib.make_mesh((2, 2), ("x", "y"), axis_types=(explicit,) * 2)):

            def program(x):
                out, pull = lib.vjp(ENTERED[name](lib, P), lib.sharding.reshard(x, P(**spec)))
                (back,) = pull(out)
                types.extend([str(lib.typeof(out)), str(lib.typeof(back))])
                return out, lib.sharding.reshard(back, P())

            return apply(program, number), types

    (out, back), types = run(meshrt, lambda f, x: meshrt.jit(f)(x))
    assert types == run(jax, jax.eval_shape)[1]
    alone = {
        "auto_axes": lambda a: 2 * a + 1,
        "indexed": lambda a: a[ROWS],
        "updated": lambda a: a.at[ROWS].add(1),
        "einsum": lambda a: jax.numpy.einsum("ij,ij,ik->jk", a, a, a),
    }[name]
    wanted, pull = jax.vjp(alone, number)
    np.testing.assert_allclose(out, wanted, rtol=1e-5)
    np.testing.assert_allclose(back, pull(wanted)[0], rtol=1e-5)


@pytest.mark.parametrize(
    "spec", [P(), P("x"), P("x", "y"), P("y"), P("y", reduced={"x"}), P(None, "y", unreduced={"x"})]
)
@pytest.mark.parametrize("wanted", [P(unreduced={"x"}), P(None, "y", unreduced={"x"}), P(unreduced={"x", "y"})])
def test_reshard_makes_partial_sums_of_whole_values(spec, wanted) -> None:
    number = np.arange(32, dtype=np.float32).reshape(4, 8)
    explicit = meshrt.sharding.AxisType.Explicit
    with meshrt.set_mesh(meshrt.make_mesh((2, 2), ("x", "y"), axis_types=(explicit,) * 2)):
        value = meshrt.jit(lambda x: reshard(reshard(x, spec), wanted))(number)
        assert meshrt.typeof(value).sharding.spec == P(*wanted.padded(2), unreduced=wanted.unreduced)
        np.testing.assert_array_equal(meshrt.jit(lambda x: reshard(x, P()))(value), number)
