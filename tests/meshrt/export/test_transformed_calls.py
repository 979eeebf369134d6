"""Calls of loaded functions within transformations and over Explicit axes, judged by the functions themselves."""

from __future__ import annotations

import jax
import jax.export
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, export
from meshrt.sharding import AxisType, NamedSharding, P
from tests.meshrt.export.exporting import X, through_bytes

A = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
KINDS = {"explicit": (AxisType.Explicit,) * 2, "auto": (AxisType.Auto,) * 2,
         "mixed": (AxisType.Explicit, AxisType.Auto)}  # fmt: skip


def mesh_of(kinds, names=("data", "model"), sizes=(4, 2), devices=None):
    return meshrt.make_mesh(sizes, names, KINDS[kinds], devices=devices)


def put(a, mesh, *entries):
    return meshrt.device_put(a, NamedSharding(mesh, P(*entries)))


def alike(found, expected):
    for a, b in zip(meshrt.tree.leaves(found), meshrt.tree.leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# vmap


def layer(x, w):
    return {"y": jnp.tanh(x @ w), "count": (x > 0).sum()}


@pytest.mark.parametrize("axes", [(0, None), (0, 1), (None, 1)])
def test_b11_a_loaded_function_is_mapped_member_by_member(axes):
    x, w = A[:3], A.T[:, :5]
    loaded = through_bytes(meshrt.jit(layer), vjp_order=1)(x, w)
    args = [a if d is None else np.stack([a, a * 2, a - 1], d) for a, d in zip((x, w), axes)]
    mapped = lambda f: meshrt.vmap(f, axes)
    alike(mapped(loaded.call)(*args), mapped(layer)(*args))
    for form in (lambda f: mapped(meshrt.grad(lambda *a: f(*a)["y"].sum(), (0, 1))),
                 lambda f: meshrt.grad(lambda *a: mapped(f)(*a)["y"].sum(), (0, 1))):  # fmt: skip
        alike(meshrt.jit(form(loaded.call))(*args), form(layer)(*args))


def test_mapped_twice_with_keys_symbolic_sizes_and_no_members():
    (n,) = export.symbolic_shape("n")
    sums = through_bytes(meshrt.jit(lambda x: jnp.cumsum(x) + x.shape[0]))(meshrt.ShapeDtypeStruct((n,), X.dtype))
    batch = np.stack([A, A + 1])
    alike(meshrt.vmap(meshrt.vmap(sums.call))(batch), np.cumsum(batch, 2) + 4)
    again = through_bytes(meshrt.jit(meshrt.vmap(sums.call)))(meshrt.ShapeDtypeStruct((n, 4), X.dtype))
    alike(again.call(A), np.cumsum(A, 1) + 4)
    assert meshrt.vmap(sums.call)(A[:0]).shape == (0, 4)
    draw = lambda key: meshrt.random.normal(key, (2,))
    keys = meshrt.random.split(meshrt.random.key(0), 3)
    alike(meshrt.vmap(through_bytes(meshrt.jit(draw))(keys[0]).call)(keys), meshrt.vmap(draw)(keys))


@pytest.mark.parametrize(("kinds", "spmd"), [("explicit", None), ("auto", "data")])
def test_members_stay_on_the_devices_that_have_them(kinds, spmd):
    mesh = mesh_of(kinds)
    x, w = put(np.stack([A[:2]] * 8), mesh, "data"), put(A.T[:, :5], mesh)
    alone = through_bytes(meshrt.jit(layer), vjp_order=1)(A[:2], A.T[:, :5])
    mapped = meshrt.jit(meshrt.vmap(alone.call, (0, None), spmd_axis_name=spmd))
    with meshrt.set_mesh(mesh):
        found = mapped(x, w)
        assert not mapped.lower(x, w).partition().plan.entries
    alike(found, meshrt.vmap(layer, (0, None))(np.asarray(x), np.asarray(w)))
    assert found["y"].sharding.spec[0] == "data"


@pytest.mark.parametrize("kinds", ["explicit", "auto"])
@pytest.mark.parametrize("spec", [P(), P("model", "data"), P(None, "data", "model")])
def test_a_function_that_is_split_itself_is_mapped_as_a_whole(kinds, spec):
    mesh = mesh_of(kinds)
    f = lambda x: jnp.sin(x).sum(1)
    loaded = through_bytes(meshrt.jit(f), vjp_order=1)(put(A, mesh, "data", "model"))
    batch = np.stack([A + i for i in range(4)])
    x = meshrt.device_put(batch, NamedSharding(mesh, spec))
    for form in (lambda f: meshrt.vmap(f), lambda f: meshrt.grad(lambda x: meshrt.vmap(f)(x).sum())):
        alike(form(loaded.call)(x), form(f)(batch))
        alike(meshrt.jit(form(loaded.call))(x), form(f)(batch))


# ---------------------------------------------------------------------------------------------------------------------
# Forward mode


@pytest.mark.parametrize("order", [0, 1])
def test_forward_mode_says_which_derivative_it_takes(order):
    call = through_bytes(meshrt.jit(jnp.sin), vjp_order=order)(X).call
    for form in (lambda f: meshrt.jvp(f, (X,), (X,)), lambda f: meshrt.jit(meshrt.jacfwd(f))(X),
                 lambda f: meshrt.linearize(f, X)[1](X)):  # fmt: skip
        with pytest.raises(errors.ForwardModeError, match=r"can't apply forward-mode.*vjp_order=2"):
            form(call)


def mixed(tree, k):
    """Integers and booleans among arguments and results, a result that nothing moves, one that is linear."""
    x, w = tree["x"], tree["w"]
    return {"y": jnp.tanh(x @ w) * k, "sign": x > 0, "k": k + 1, "one": jnp.ones(2), "linear": 3 * x}


FORMS = {
    "jvp": lambda f: lambda x, w: meshrt.jvp(lambda x, w: floats(f({"x": x, "w": w}, 2)), (x, w), (w.T, x.T * 2)),
    "jvp in jit": lambda f: meshrt.jit(FORMS["jvp"](f)),
    "of one argument": lambda f: lambda x, w: meshrt.jvp(lambda x: floats(f({"x": x, "w": w}, 2)), (x,), (x * 2,)),
    "of a jitted call": lambda f: FORMS["jvp"](meshrt.jit(f)),
    "jacfwd": lambda f: lambda x, w: meshrt.jacfwd(lambda x: floats(f({"x": x, "w": w}, 2)))(x),
    "jacfwd in jit": lambda f: meshrt.jit(FORMS["jacfwd"](f)),
    "linearize": lambda f: lambda x, w: meshrt.linearize(lambda w: floats(f({"x": x, "w": w}, 2)), w)[1](w + 1),
    "jvp of vmap": lambda f: lambda x, w: meshrt.jvp(
        meshrt.vmap(lambda s: floats(f({"x": x * s, "w": w}, 2))), (x[0],), (x[1],)),
    "vmap of jvp": lambda f: lambda x, w: meshrt.vmap(
        lambda s: meshrt.jvp(lambda s: floats(f({"x": x * s, "w": w}, 2)), (s,), (s + 1,)))(x[0]),
    "in a scan": lambda f: lambda x, w: meshrt.jvp(
        lambda x: meshrt.lax.scan(lambda c, _: (f({"x": c, "w": w}, 2)["y"] @ w.T, c), x, None, length=2), (x,), (x,)),
    "checkpoint": lambda f: FORMS["jvp"](meshrt.checkpoint(f)),
    "grad of a scan": lambda f: lambda x, w: meshrt.grad(
        lambda x: meshrt.lax.scan(lambda c, _: (f({"x": c, "w": w}, 2)["y"] @ w.T, c.sum()), x, None, length=2)[0].sum()
    )(x),
}  # fmt: skip


def floats(tree):
    return {k: tree[k] for k in ("y", "one", "linear")}


@pytest.mark.parametrize("form", FORMS)
def test_two_derivatives_are_forward_mode(form):
    x, w = A[:2], A[2:6, :2]
    loaded = through_bytes(meshrt.jit(mixed), vjp_order=2)({"x": x, "w": w}, 2)
    alike(FORMS[form](loaded.call)(x, w), FORMS[form](mixed)(x, w))


@pytest.mark.parametrize("form", [
    lambda f: meshrt.hessian(f), lambda f: meshrt.jacfwd(meshrt.jacfwd(f)), lambda f: meshrt.jacrev(meshrt.jacfwd(f)),
    lambda f: meshrt.jit(meshrt.hessian(f)),
])  # fmt: skip
def test_each_further_derivative_takes_one_more(form):
    f = lambda x: (jnp.sin(x) * x[::-1]).sum()
    loaded = through_bytes(meshrt.jit(f), vjp_order=4)(X)
    alike(form(loaded.call)(X), form(f)(X))


def test_forward_mode_of_jaxs_files_symbolic_sizes_and_split_functions():
    blob = jax.export.export(jax.jit(lambda x: jax.numpy.sin(x) * x))(X).serialize(vjp_order=2)
    f = lambda x: jnp.sin(x) * x
    push = lambda f, x=X: meshrt.jvp(f, (x,), (x + 1,))
    alike(push(export.from_jax(blob).call), push(f))
    (n,) = export.symbolic_shape("n")
    sized = through_bytes(meshrt.jit(f), vjp_order=2)(meshrt.ShapeDtypeStruct((n,), np.float32))
    alike(push(sized.call), push(f))
    again = through_bytes(meshrt.jit(lambda x: push(sized.call, x)))(meshrt.ShapeDtypeStruct((2 * n,), np.float32))
    alike(again.call(X), push(f))
    for kinds in KINDS:
        mesh = mesh_of(kinds)
        x = put(A, mesh, "data", "model")
        split = through_bytes(meshrt.jit(lambda x: (jnp.sin(x), x.sum(0))), vjp_order=2)(x)
        for form in (lambda f: f, meshrt.jit):
            found = form(lambda x: meshrt.jvp(split.call, (x,), (x,)))(x)
            alike(found, meshrt.jvp(lambda x: (jnp.sin(x), x.sum(0)), (A,), (A,)))
            assert types(found[0]) == types(found[1])


def test_derivatives_of_a_function_of_this_process_are_exported_once():
    exported = export.export(meshrt.jit(jnp.sin))(X)
    assert exported.vjp() is exported.vjp() and exported.vjp().vjp() is exported.vjp().vjp()


# ---------------------------------------------------------------------------------------------------------------------
# Explicit axes


def several(x, unused):
    return x * 2, x.sum(0), x.T, x.sum()


def types(values):
    return [str(meshrt.typeof(v)) for v in values]


def test_files_say_how_explicit_axes_split_as_jaxs():
    mesh = mesh_of("explicit")
    theirs = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    x = jax.device_put(A, jax.NamedSharding(theirs, jax.P("data", "model")))
    want = jax.export.deserialize(jax.export.export(jax.jit(several))(x, x).serialize())
    found = through_bytes(meshrt.jit(several))(*[put(A, mesh, "data", "model")] * 2)
    for ours, peers in ((found.in_avals, want.in_avals), (found.out_avals, want.out_avals)):
        assert [str(a) for a in ours] == [str(a) for a in peers]
    for ours, peers in ((found.in_shardings_jax(mesh), want.in_shardings_jax(theirs)),
                        (found.out_shardings_jax(mesh), want.out_shardings_jax(theirs))):  # fmt: skip
        assert [s and tuple(s.spec) for s in ours] == [s and tuple(s.spec) for s in peers]


@pytest.mark.parametrize("names", [("data", "model"), ("a", "b")])
@pytest.mark.parametrize("exported_for", ["explicit", "auto", "one device"])
def test_results_are_split_as_the_function_says_or_as_propagation_does(exported_for, names):
    mesh, first, second = mesh_of("explicit", names), *names
    made = [A, A] if exported_for == "one device" else [put(A, mesh_of(exported_for), "data", "model")] * 2
    loaded = through_bytes(meshrt.jit(several), vjp_order=1)(*made)
    x = put(A, mesh, *names)
    want = [f"float32[8@{first},4@{second}]", f"float32[4@{second}]", f"float32[4@{second},8@{first}]", "float32[]"]
    seen = []
    found = meshrt.jit(loaded.call)(x, x)
    alike(found, several(A, A))
    meshrt.make_jaxpr(lambda x: seen.extend(types(loaded.call(x, x))))(x)
    assert types(found) == types(loaded.call(x, x)) == seen == want
    for form in (meshrt.grad, lambda f: meshrt.jit(meshrt.grad(f))):
        gradient = form(lambda x: (loaded.call(x, x)[1] ** 2).sum())(x)
        alike(gradient, meshrt.grad(lambda x: (several(x, x)[1] ** 2).sum())(A))
        assert types([gradient]) == want[:1]


def test_arguments_that_lie_otherwise_are_moved_and_have_gradients_of_their_types():
    mesh = mesh_of("explicit")
    loaded = through_bytes(meshrt.jit(lambda x: jnp.sin(x)), vjp_order=1)(put(A, mesh, "data", "model"))
    for entries in ((), ("model",), (None, "model")):
        x = put(A, mesh, *entries)
        for form in (meshrt.grad, lambda f: meshrt.jit(meshrt.grad(f))):
            gradient = form(lambda x: loaded.call(x).sum())(x)
            alike(gradient, np.cos(A))
            assert types([gradient]) == types([x])


def test_partly_explicit_meshes():
    mesh = mesh_of("mixed")
    x = put(A, mesh, "data", "model")
    loaded = through_bytes(meshrt.jit(several), vjp_order=1)(x, x)
    assert [str(a) for a in loaded.out_avals] == ["float32[8@data,4]", "float32[4]", "float32[4,8@data]", "float32[]"]
    found = loaded.call(x, x)
    alike(found, several(A, A))
    assert [v.sharding.spec for v in found[:2]] == [P("data", "model"), P("model")]
    with meshrt.set_mesh(mesh):
        alike(meshrt.jit(meshrt.grad(lambda x: (loaded.call(x, x)[0] ** 2).sum()))(x), 8 * A)


def test_partial_sums_stay_partial_sums():
    mesh = mesh_of("explicit")
    x, w = put(A, mesh, "data", "model"), put(A[:4], mesh, "model")
    product = lambda x, w: jnp.einsum("ij,jk->ik", x, w, out_sharding=P("data", None, unreduced={"model"}))
    with meshrt.set_mesh(mesh):
        loaded = through_bytes(meshrt.jit(product), vjp_order=1)(x, w)
        assert str(loaded.out_avals[0]) == str(meshrt.typeof(loaded.call(x, w))) == "float32[8@data,4]{U:model}"
        whole = lambda x, w: meshrt.reshard(loaded.call(x, w), P("data"))
        alike(meshrt.jit(whole)(x, w), A @ A[:4])
        gradient = meshrt.jit(meshrt.grad(lambda x, w: whole(x, w).sum(), (0, 1)))(x, w)
        alike(gradient, (np.ones((8, 4), np.float32) @ A[:4].T, A.T @ np.ones((8, 4), np.float32)))
        other = through_bytes(meshrt.jit(lambda y: y * 2))(A)  # that knows nothing of partial sums
        alike(other.call(product(x, w)), 2 * A @ A[:4])


@pytest.mark.parametrize("kinds", ["explicit", "auto"])
@pytest.mark.parametrize("order", [("data", "model"), ("model", "data")])
def test_a_function_of_some_axes_within_a_region_manual_along_the_others(kinds, order):
    """Axes go by their places among those that are not Manual, whichever is the minor one."""
    two = meshrt.make_mesh((2,), ("a",), KINDS[kinds][:1], devices=meshrt.devices()[:2])
    f = lambda x: x - x.sum(0)
    loaded = through_bytes(meshrt.jit(f))(put(A, two, "a"))
    mesh = mesh_of(kinds, order, tuple({"data": 4, "model": 2}[n] for n in order))
    region = meshrt.shard_map(loaded.call, mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
    x = np.concatenate([A + i for i in range(4)])
    alike(meshrt.jit(region)(put(x, mesh, "data")), np.concatenate([f(part) for part in np.split(x, 4)]))


def test_5_14_files_say_in_which_memory_values_lie():
    host, device = meshrt.memory.Space.Host, meshrt.memory.Space.Device
    f = lambda x, y: (meshrt.device_put(x, device) * y, meshrt.device_put(y, host))
    args = meshrt.device_put(X, host), X
    loaded = through_bytes(meshrt.jit(f))(*args)
    assert [a.memory_space for a in (*loaded.in_avals, *loaded.out_avals)] == [host, device, device, host]
    found = loaded.call(*args)
    assert [meshrt.typeof(v).memory_space for v in found] == [device, host]
    alike(found, (X * X, X))
    moved = meshrt.jit(lambda x, y: meshrt.device_put(loaded.call(x, y)[1], device) + 1)(*args)
    alike(moved, X + 1)


def test_splits_of_results_are_kept_for_the_latest_shapes_and_each_setting():
    mesh = mesh_of("explicit")
    (n,) = export.symbolic_shape("n")
    loaded = through_bytes(meshrt.jit(lambda x: x * 2))(meshrt.ShapeDtypeStruct((n, 4), np.float32))
    call = lambda k: alike(loaded.call(put(np.ones((k, 4), np.float32), mesh, "data")), np.full((k, 4), 2, np.float32))
    with meshrt.config.override(cached_traces=4):
        for k in range(1, 9):
            call(4 * k)
            assert 0 < len(loaded.result_splits) <= 4
        latest = list(loaded.result_splits)
        call(32)
        assert list(loaded.result_splits) == latest
        with meshrt.config.override(propagator="shardy"):
            call(32)
        assert list(loaded.result_splits) != latest


# ---------------------------------------------------------------------------------------------------------------------
# What is refused


def test_references_are_in_no_exported_function():
    ref = meshrt.new_ref(jnp.ones(3))

    def add(ref):
        ref[...] += 1
        return ref[...]

    for function, args, said in (
        (add, (ref,), r"args\[0\] of add is a reference"),
        (lambda x: x + ref[...], (np.ones(3, np.float32),), "a captured array of .* is a reference"),
    ):
        with pytest.raises(errors.UnsupportedError, match=said):
            export.export(meshrt.jit(function))(*args)


def test_a_call_with_64_bits_says_how_they_are_had():
    with meshrt.enable_x64(True):
        exported = export.export(meshrt.jit(lambda x: 2 * x))(np.ones(3))
    with pytest.raises(
        errors.ArgumentValueError, match=r"expected float64 and called with float32; .*enable_x64\(True"
    ):
        exported.call(np.ones(3))
    with meshrt.enable_x64(True):
        assert exported.call(np.ones(3)).dtype == np.float64
