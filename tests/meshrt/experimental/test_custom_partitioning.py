"""One's own sharding rules and partition functions, judged by JAX on the same programs, by NumPy on einsums drawn at
random over meshes of several shapes, and by the real Shardy on where values lie."""

from __future__ import annotations

import functools
import random

import jax
import jax.experimental.custom_partitioning
import numpy as np
import pytest

import meshrt
import meshrt.experimental.custom_partitioning as ours
import meshrt.numpy as jnp
from meshrt import NamedSharding, P, config, errors
from meshrt.experimental.custom_partitioning import custom_partitioning, sharding_rule
from meshrt.runtime import events

X = np.random.RandomState(0).randn(8, 16).astype(np.float32)
W = np.random.RandomState(1).randn(16, 4).astype(np.float32)
MESHES = {"8": (8,), "4x2": (4, 2), "2x2x2": (2, 2, 2), "6": (6,)}
PARTITIONERS = ["meshrt", "xla"]


def _mesh(l, shape):
    names = ("x", "y", "z")[: len(shape)]
    devices = np.array(l.devices()[: int(np.prod(shape))]).reshape(shape)
    return l.sharding.Mesh(devices, names, axis_types=(l.sharding.AxisType.Auto,) * len(shape))


def _put(mesh, x, *spec):
    return meshrt.device_put(x, NamedSharding(mesh, P(*spec)))


@sharding_rule("b i, i j -> b j", reduction_factors=("i",))
def project(x, w):
    return x @ w


def _with(partition, **keywords):
    f = custom_partitioning(lambda x: x * 2)
    f.def_partition(partition, **{"sharding_rule": "i j -> i j", **keywords})
    return f


# ---------------------------------------------------------------------------------------------------------------------
# Beside JAX


def _fft_like(l, module, rule, **keywords):
    """JAX's own example: along the last dimension the operation needs everything."""

    @module.custom_partitioning
    def f(x):
        return l.numpy.cumsum(x, -1)

    def kept(sharding, shape):
        rank = len(shape.shape)
        names = tuple(sharding.spec[: rank - 1])[: rank - 1]
        return l.sharding.NamedSharding(sharding.mesh, l.sharding.PartitionSpec(*names))

    def partition(mesh, arg_shapes, result_shape):
        sharding = kept(arg_shapes[0].sharding, arg_shapes[0])
        return mesh, lambda x: l.numpy.cumsum(x, -1), sharding, (sharding,)

    f.def_partition(partition, sharding_rule=rule, **keywords)
    return f


def _matmul(l, module):
    """A partition function with two operands, which asks for the contraction whole."""

    @module.custom_partitioning
    def f(x, w):
        return l.numpy.tanh(x @ w)

    def partition(mesh, arg_shapes, result_shape):
        P_, spec = l.sharding.PartitionSpec, result_shape.sharding.spec
        first, second = (*spec, None, None)[:2]
        named = lambda *s: l.sharding.NamedSharding(mesh, P_(*s))
        return mesh, lambda x, w: l.numpy.tanh(x @ w), named(first, second), (named(first, None), named(None, second))

    f.def_partition(partition, sharding_rule="i j, j k -> i k", need_replication_factors=("j",))
    return f


PROGRAMS = {
    "cumsum": (lambda l, m: _fft_like(l, m, "...i -> ...i"), [X]),
    "cumsum, whole": (lambda l, m: _fft_like(l, m, "... i -> ... i", need_replication_factors=("i",)), [X]),
    "tanh of a product": (_matmul, [X, W]),
}
SPECS = [(("x", "y"), (None, None)), (("x",), (None, "y")), (("y", "x"), ()), ((), ("x", "y")), ((("x", "y"),), ())]


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_shardings_are_jaxs(name):
    make, arrays = PROGRAMS[name]
    f, g = make(meshrt, ours), make(jax, jax.experimental.custom_partitioning)
    mesh, theirs = _mesh(meshrt, (4, 2)), _mesh(jax, (4, 2))
    for specs in SPECS:
        args = [_put(mesh, a, *s) for a, s in zip(arrays, specs)]
        with jax.sharding.set_mesh(theirs):
            given = [
                jax.device_put(a, jax.sharding.NamedSharding(theirs, jax.sharding.PartitionSpec(*s)))
                for a, s in zip(arrays, specs)
            ]
            want = jax.jit(lambda *a: g(*a) * 2)(*given)
        for partitioner in PARTITIONERS:
            with config.override(partitioner=partitioner):
                got = meshrt.jit(lambda *a: f(*a) * 2)(*args)
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=2e-5, atol=2e-5)
            assert got.sharding.is_equivalent_to(NamedSharding(mesh, P(*want.sharding.spec)), got.ndim), (
                specs,
                want.sharding,
            )


# ---------------------------------------------------------------------------------------------------------------------
# Einsums drawn at random


def _case(rng, mesh):
    """(rule, keywords, einsum, arrays, specs) of a sum of products of arrays that are split evenly."""
    letters = "abcd"
    sizes = {f: rng.choice([6, 8, 12, 24]) for f in letters}
    ins = [rng.sample(letters, rng.randint(1, 3)) for _ in range(rng.randint(1, 3))]
    seen = sorted({f for i in ins for f in i})
    out = rng.sample(seen, rng.randint(0, len(seen)))
    rule = ", ".join(" ".join(i) for i in ins) + " -> " + " ".join(out)
    arrays = [np.asarray(rng.choices(range(-3, 4), k=int(np.prod([sizes[f] for f in i]))), np.float32) for i in ins]
    arrays = [a.reshape([sizes[f] for f in i]) for a, i in zip(arrays, ins)]
    specs = []
    for i in ins:
        free, spec = list(mesh.axis_names), []
        for f in i:
            own = [n for n in free if rng.random() < 0.5]
            if sizes[f] % int(np.prod([mesh.shape[n] for n in own])):
                own = []
            free = [n for n in free if n not in own]
            spec.append(tuple(own) or None)
        specs.append(spec)
    kinds = {"reduction_factors": tuple(f for f in seen if f not in out)}
    text = ",".join("".join(i) for i in ins) + "->" + "".join(out)
    return rule, kinds, text, arrays, specs


@pytest.mark.parametrize("shape", MESHES)
def test_functions_run_on_their_shards(shape):
    rng = random.Random(shape)
    mesh = _mesh(meshrt, MESHES[shape])
    for number in range(8):
        rule, kinds, text, arrays, specs = _case(rng, mesh)
        f = sharding_rule(rule, **kinds)(functools.partial(jnp.einsum, text))
        args = [_put(mesh, a, *s) for a, s in zip(arrays, specs)]
        want = np.einsum(text, *arrays)
        for partitioner in PARTITIONERS if number % 3 == 0 else ["meshrt"]:
            with config.override(partitioner=partitioner):
                got = meshrt.jit(lambda *a: f(*a) + 1)(*args)
            np.testing.assert_array_equal(np.asarray(got), want + 1, err_msg=f"{rule} {specs}")


@pytest.mark.parametrize("seed", range(2))
def test_the_real_shardy_decides_the_same(seed):
    rng, mesh = random.Random(seed), _mesh(meshrt, (4, 2))
    rule, kinds, text, arrays, specs = _case(rng, mesh)
    f = sharding_rule(rule, **kinds)(functools.partial(jnp.einsum, text))
    structs = [
        meshrt.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(mesh, P(*s))) for a, s in zip(arrays, specs)
    ]
    lowered = meshrt.jit(lambda *a: f(*a) + 1).trace(*structs).lower()
    found = []
    for propagator in ("meshrt", "shardy"):
        with config.override(propagator=propagator):
            found.append([s and s.to_text() for s in lowered.propagate().result.result_shardings])
    assert found[0] == found[1]


# ---------------------------------------------------------------------------------------------------------------------
# What is sent


def _plan(f, *args):
    return [(e.kind, e.bytes) for e in meshrt.jit(f).trace(*args).lower().partition().plan.entries]


def test_a_sum_is_taken_where_it_is_needed(mesh):
    x, w = _put(mesh, X, "data", "model"), _put(mesh, W, "model")
    split = NamedSharding(mesh, P(("data", "model")))
    assert _plan(lambda x, w: meshrt.lax.with_sharding_constraint(project(x, w), split), x, w) == [
        ("reduce_scatter", 16.0)
    ]
    assert _plan(lambda x, w: project(x, w) + project(2 * x, w), x, w) == [("all_reduce", 32.0)]
    assert _plan(lambda x, w: project(x, w), x, _put(mesh, W, None, "model")) != []


def test_002_custom_partitioning_vmap_adds_a_factor_by_itself(mesh):
    batch = np.random.RandomState(2).randn(4, 8, 16).astype(np.float32)
    x, w = _put(mesh, batch, "data", None, "model"), _put(mesh, W, "model")
    f = meshrt.jit(meshrt.vmap(project, (0, None)))
    text = f.trace(x, w).lower().as_text()
    assert "([i, j, k], [k, l])->([i, j, l]) {i=4, j=8, k=16, l=4} reduction={k}, custom" in text
    np.testing.assert_allclose(f(x, w), batch @ W, rtol=1e-5, atol=1e-5)
    assert f(x, w).sharding.spec == P("data")
    assert _plan(meshrt.vmap(project, (0, None)), x, w) == [("all_reduce", 128.0)]


def test_vmap_around_a_partition_function_that_does_not_know_of_it(mesh):
    f = _fft_like(meshrt, ours, "...i -> ...i")
    batch = np.random.RandomState(2).randn(4, 2, 8, 16).astype(np.float32)
    x = _put(mesh, batch, "data", None, "model")
    twice = meshrt.vmap(meshrt.vmap(f), 1, 1)
    np.testing.assert_allclose(meshrt.jit(twice)(x), np.cumsum(batch, -1), rtol=1e-5, atol=1e-5)
    assert _plan(twice, x) == []
    assert meshrt.jit(twice)(x).sharding.spec[:3] == ("data", None, "model")


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_vmap_lays_the_dimension_that_it_adds_along_the_axis_that_it_names(mesh, partitioner):
    batch = np.random.RandomState(2).randn(4, 2, 8, 16).astype(np.float32)
    x, w = _put(mesh, batch), _put(mesh, W, "model")
    with config.override(partitioner=partitioner):
        one = meshrt.jit(meshrt.vmap(project, (0, None), spmd_axis_name="data"))(x[:, 0], w)
        two = meshrt.vmap(meshrt.vmap(project, (0, None), spmd_axis_name="model"), (0, None), spmd_axis_name="data")
        both = meshrt.jit(two)(x, _put(mesh, W))
    np.testing.assert_allclose(one, batch[:, 0] @ W, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(both, batch @ W, rtol=1e-5, atol=1e-5)
    assert one.sharding.spec == P("data") and both.sharding.spec == P("data", "model")
    with pytest.raises(errors.UnknownAxisError, match="spmd_axis_name 'z' is no axis"):
        meshrt.jit(meshrt.vmap(project, (0, None), spmd_axis_name="z"))(x[:, 0], w)


def test_where_the_batch_and_the_function_want_one_axis_the_function_gets_it(mesh):
    @custom_partitioning
    def f(x):
        return x * 2

    def partition(mesh, arg_shapes, result_shape):
        s = NamedSharding(mesh, P("data"))
        return mesh, lambda x: x * 2, s, (s,)

    f.def_partition(partition, sharding_rule="i -> i")
    batch = np.arange(32, dtype=np.float32).reshape(4, 8)
    np.testing.assert_array_equal(meshrt.jit(meshrt.vmap(f))(_put(mesh, batch, "data")), batch * 2)


# ---------------------------------------------------------------------------------------------------------------------
# Where it may stand


def test_eagerly_in_scan_under_remat_and_inside_another_jit(mesh):
    x, w = _put(mesh, X, "data", "model"), _put(mesh, W, "model")
    np.testing.assert_allclose(project(x, w), X @ W, rtol=1e-5, atol=1e-5)
    before = events.totals()
    project(x, w)
    assert events.totals() == before
    f = _fft_like(meshrt, ours, "...i -> ...i")

    def step(carry, x):
        carry = carry + meshrt.jit(f)(x)
        return carry, carry

    stack = np.random.RandomState(3).randn(3, 8, 16).astype(np.float32)
    scanned = meshrt.jit(lambda xs: meshrt.lax.scan(step, jnp.zeros((8, 16)), xs)[1])
    want = np.cumsum(np.cumsum(stack, -1), 0)
    np.testing.assert_allclose(scanned(_put(mesh, stack, None, "data", "model")), want, rtol=1e-4, atol=1e-4)
    picked = meshrt.jit(lambda x: meshrt.lax.cond(x[0, 0] > 0, f, lambda y: -f(y), x))
    sign = 1 if X[0, 0] > 0 else -1
    np.testing.assert_allclose(picked(x), sign * np.cumsum(X, -1), rtol=1e-4, atol=1e-4)


def test_eagerly_what_nobody_split_is_not_partitioned(mesh):
    asked = []
    f = ours.custom_partitioning(lambda x: x * 2)
    f.def_partition(partition=lambda *a: asked.append(a), sharding_rule="i j -> i j")
    with meshrt.set_mesh(mesh):
        assert np.array_equal(f(X), X * 2)
        assert np.array_equal(f(_put(mesh, X)), X * 2)
    assert not asked


def test_on_one_device_it_is_the_function_itself():
    assert np.array_equal(_fft_like(meshrt, ours, "...i -> ...i")(X[0]), np.asarray(jnp.cumsum(X[0])))
    assert "custom_call" not in meshrt.jit(project).trace(X, W).lower().as_text()


@sharding_rule("b j, i j -> b i", reduction_factors=("j",))
def _of_x(ct, w):
    return ct @ w.T


@sharding_rule("b i, b j -> i j", reduction_factors=("b",))
def _of_w(x, ct):
    return x.T @ ct


@meshrt.custom_vjp
def _product(x, w):
    return project(x, w)


_product.defvjp(lambda x, w: (project(x, w), (x, w)), lambda r, ct: (_of_x(ct, r[1]), _of_w(r[0], ct)))


def test_gradients_by_custom_vjp_with_rules_in_both_directions(mesh):
    x, w = _put(mesh, X, "data", "model"), _put(mesh, W, "model")
    loss = lambda x, w: jnp.sum(jnp.sin(_product(x, w)))
    ct = np.cos(X @ W)
    for partitioner in PARTITIONERS:
        with config.override(partitioner=partitioner):
            gx, gw = meshrt.jit(meshrt.grad(loss, (0, 1)))(x, w)
        np.testing.assert_allclose(gx, ct @ W.T, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(gw, X.T @ ct, rtol=1e-4, atol=1e-4)
        assert (gx.sharding.spec, gw.sharding.spec) == (P("data", "model"), P("model"))


def test_programs_move_to_other_devices_with_nothing_done_again(mesh):
    f = meshrt.jit(lambda x, w: jnp.tanh(project(x, w)))
    other = meshrt.sharding.Mesh(np.array(meshrt.devices())[::-1].reshape(4, 2), mesh.axis_names)
    first = f(_put(mesh, X, "data", "model"), _put(mesh, W, "model"))
    args, before = (_put(other, X, "data", "model"), _put(other, W, "model")), events.totals()
    second = f(*args)
    done = {k for k, n in events.totals().items() if n != before.get(k, 0)}
    assert not done & {"trace", "lower", "propagate", "partition", "compile"}
    np.testing.assert_array_equal(first, second)


# ---------------------------------------------------------------------------------------------------------------------
# Collectives in what a device runs


def _row_sums(mesh, arg_shapes, result_shape):
    """Normalises rows that are split, by sums that devices exchange: the rule alone could only gather them."""
    spec = (*arg_shapes[0].sharding.spec, None, None)[:2]
    axes = spec[1] or ()

    def lower_fn(x):
        total = x.sum(-1, keepdims=True)
        return x / (meshrt.lax.psum(total, axes) if axes else total)

    sharding = NamedSharding(mesh, P(*spec))
    return mesh, lower_fn, sharding, (sharding,)


def test_partition_functions_use_collectives(mesh):
    f = custom_partitioning(lambda x: x / x.sum(-1, keepdims=True))
    f.def_partition(_row_sums, sharding_rule="b i -> b i")
    positive = np.abs(X) + 1
    want = positive / positive.sum(-1, keepdims=True)
    x = _put(mesh, positive, "data", "model")
    for partitioner in PARTITIONERS:
        with config.override(partitioner=partitioner):
            got = meshrt.jit(lambda x: f(x) * 2)(x)
        np.testing.assert_allclose(got, want * 2, rtol=1e-5)
        assert got.sharding.spec == P("data", "model")
    assert _plan(f, x) == [("all_reduce", 8.0)]
    batch = np.stack([positive, positive * 2])
    np.testing.assert_allclose(
        meshrt.jit(meshrt.vmap(f))(_put(mesh, batch, None, "data", "model")), np.stack([want, want]), rtol=1e-5
    )


def test_programs_on_disk_are_told_apart_by_what_their_devices_run(mesh, tmp_path):
    tmp_path.chmod(0o700)
    x = _put(mesh, X, "data", "model")
    with config.override(compilation_cache_dir=str(tmp_path), persistent_cache_min_compile_time_secs=0.0):
        for factor in (2, 3):

            def scale(x, factor=factor):
                return x * factor

            f = sharding_rule("i j -> i j", static_argnums=(1,))(scale)
            np.testing.assert_allclose(meshrt.jit(lambda x: f(x))(x), X * factor)


# ---------------------------------------------------------------------------------------------------------------------
# Manual regions and Explicit axes


def _contracted(mesh, arg_shapes, result_shape):
    """Sums over "model" itself; along rows as the operands come."""
    rows = (*arg_shapes[0].sharding.spec, None)[0]
    named = lambda *spec: NamedSharding(mesh, P(*spec))
    lower_fn = lambda x, w: meshrt.lax.psum(x @ w, "model")
    return mesh, lower_fn, named(rows), (named(rows, "model"), named("model"))


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("manual", [{"data"}, {"data", "model"}])
def test_inside_shard_map(mesh, manual, partitioner):
    f = custom_partitioning(lambda x, w: x @ w)
    f.def_partition(_contracted, sharding_rule="b i, i j -> b j", reduction_factors=("i",))
    x, w = _put(mesh, X, "data"), _put(mesh, W, "model")
    for function in (project, f):
        mapped = meshrt.shard_map(
            function, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"), axis_names=manual
        )
        with config.override(partitioner=partitioner):
            np.testing.assert_allclose(meshrt.jit(mapped)(x, w), X @ W, rtol=1e-5, atol=1e-5)


def test_partition_functions_keep_off_the_axes_of_a_region(mesh):
    f = _with(lambda m, a, r: (m, lambda x: x, NamedSharding(m, P("data")), (NamedSharding(m, P("data")),)))
    mapped = meshrt.shard_map(f, mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
    with pytest.raises(errors.ShardingError, match="a region that is manual over 'data'"):
        meshrt.jit(mapped)(_put(mesh, X, "data"))


def test_types_on_explicit_axes_follow_the_rule():
    mesh = meshrt.make_mesh((4, 2), ("data", "model"), axis_types=(meshrt.sharding.AxisType.Explicit,) * 2)
    f = _fft_like(meshrt, ours, "...i -> ...i")
    seen = []

    def both(x, w):
        seen[:] = [str(meshrt.typeof(v)) for v in (project(x, w), f(x), meshrt.vmap(f)(x))]
        return project(x, w)

    x, w = _put(mesh, X, "data"), _put(mesh, W, None, "model")
    np.testing.assert_allclose(meshrt.jit(both)(x, w), X @ W, rtol=1e-5, atol=1e-5)
    assert seen == ["float32[8@data,4@model]", "float32[8@data,16]", "float32[8@data,16]"]
    assert meshrt.jit(both)(x, w).sharding.spec == P("data", "model")
