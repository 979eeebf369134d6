"""The stations of the pipeline one by one: the ahead-of-time interface, texts, donation, argument names."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.sharding import AbstractMesh, NamedSharding
from meshrt.sharding import PartitionSpec as P


def test_the_stages_of_a_scalar_function():
    f = meshrt.jit(lambda x, y: 2 * x + y)
    traced = f.trace(3, 4)
    lowered = traced.lower()
    text = lowered.as_text()
    assert "module @jit__lambda " in text and "func.func public @main" in text and "tensor<i32>" in text
    compiled = lowered.compile()
    assert int(compiled(3, 4)) == 10
    assert compiled.cost_analysis()["flops"] == 2.0
    assert compiled.memory_analysis().argument_size_in_bytes == 8
    for stage in (traced, lowered, compiled):
        assert stage.fingerprint in repr(stage) or stage.fingerprint[:12] in repr(stage)
    assert f.lower(3, 4).fingerprint == lowered.fingerprint


def test_static_arguments_are_folded():
    f = meshrt.jit(lambda x, y: 2 * x + y, static_argnums=0)
    lowered = f.lower(7, 8)
    assert "dense<14>" in lowered.as_text()
    assert int(lowered.compile()(5)) == 19
    with pytest.raises(TypeError):
        f.lower(meshrt.ShapeDtypeStruct((), np.int32), 8)


def test_lower_accepts_anything_with_shape_and_dtype():
    class Duck:
        shape, dtype = (3,), np.float32

    lowered = meshrt.jit(lambda x: x + 1).lower(Duck())
    np.testing.assert_array_equal(lowered.compile()(np.zeros(3, np.float32)), np.ones(3))
    assert lowered.out_info.shape == (3,)
    assert lowered.args_info[0][0].aval.str_short() == "float32[3]"


@pytest.mark.smoke
def test_the_annotated_text_of_a_sharded_program():
    mesh = AbstractMesh((4, 2), ("x", "y"))
    s = lambda shape, *spec: meshrt.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, P(*spec)))
    f = meshrt.jit(lambda a, b: a @ b, out_shardings=NamedSharding(mesh, P("x", "y")))
    text = f.lower(s((8, 16), "x", None), s((16, 8), None, "y")).as_text()
    assert "mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32" in text
    assert 'sdy.mesh @mesh = <["x"=4, "y"=2]>' in text
    arguments = re.findall(r"%arg\d: tensor<\w+> \{sdy.sharding = (#sdy.sharding<[^>]*>)", text)
    assert arguments == ['#sdy.sharding<@mesh, [{"x"}, {}]>', '#sdy.sharding<@mesh, [{}, {"y"}]>']
    assert 'jax.result_info = "result", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>' in text


def test_source_lines_reach_the_collectives(mesh):
    def f(x):
        y = x * 2
        return jnp.sum(y)  # the line that communicates

    x = meshrt.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P("data")))
    lowered = meshrt.jit(f).lower(x)
    assert "test_stages.py" in lowered.as_text(debug_info=True)
    (entry,) = lowered.partition().plan
    assert entry.kind == "all_reduce" and entry.axes == "data"
    lines = Path(__file__).read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if "the line that communicates" in text)
    assert entry.where == f"{__file__}:{line}"


def test_propagated_and_partitioned_print(mesh):
    x = meshrt.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P("data", "model")))
    lowered = meshrt.jit(lambda x: jnp.sum(x @ x)).lower(x)
    propagated, partitioned = lowered.propagate(), lowered.partition()
    assert "sdy.sharding" in propagated.as_text()
    text = partitioned.as_text()
    assert "num_replicas = 8" in text and "all_" in text
    assert "func.func" in text and '"func.func"' not in text and "loc(" not in text  # as Lowered prints it
    assert "loc(" in partitioned.as_text(debug_info=True)
    assert partitioned.fingerprint == partitioned.result.fingerprint[:32]
    assert lowered.propagate().result is propagated.result and propagated.partition().result is partitioned.result
    assert partitioned.arg_shardings == (NamedSharding(mesh.abstract_mesh, P("data", "model")),)


def test_a_partition_of_other_options_is_what_is_compiled():
    mesh = meshrt.make_mesh((4,), ("x",))
    x = meshrt.device_put(np.arange(32, dtype=np.float32).reshape(8, 4), NamedSharding(mesh, P("x")))
    lowered = meshrt.jit(lambda x: (x.sum(0), (x * x).sum(0))).lower(x)
    apart = lowered.partition(optimize=False)
    compiled = apart.compile()
    assert compiled.program.executable.module == apart.result.as_text()
    module = lowered.compile().program.executable.module
    assert module == lowered.partition().result.as_text() != apart.result.as_text()
    total, squares = compiled(x)
    np.testing.assert_array_equal(np.asarray(total), np.asarray(x).sum(0))
    np.testing.assert_array_equal(np.asarray(squares), (np.asarray(x) ** 2).sum(0))


def test_donation_deletes_and_aliases(mesh):
    w = meshrt.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P("data", "model")))
    f = meshrt.jit(lambda w, g: w - g, donate_argnames="w")
    lowered = f.lower(w, w)
    assert "tf.aliasing_output = 0" in lowered.as_text()
    g = meshrt.device_put(w, w.sharding, may_alias=False)
    out = f(w, g)
    assert w.is_deleted() and not g.is_deleted() and out.sharding.is_equivalent_to(g.sharding, 2)


def test_unused_arguments_are_dropped_unless_kept():
    f = lambda x, y: x + 1
    assert "%arg1" not in meshrt.jit(f).lower(1.0, 2.0).as_text()
    assert "%arg1" in meshrt.jit(f, keep_unused=True).lower(1.0, 2.0).as_text()
    assert float(meshrt.jit(f)(1.0, 2.0)) == 2.0


def test_captured_arrays_become_arguments_and_numpy_constants_are_embedded():
    big, small = jnp.arange(8.0), np.arange(3, dtype=np.float32)
    lowered = meshrt.jit(lambda x: jnp.sum(big) * x + small.sum()).lower(1.0)
    assert len(lowered.module.consts) == 1
    assert float(meshrt.jit(lambda x: jnp.sum(big) * x + jnp.sum(small))(2.0)) == 59.0


def test_nested_jit_becomes_one_function():
    inner = meshrt.jit(lambda x: jnp.sin(x) * 2)
    lowered = meshrt.jit(lambda x: inner(inner(x))).lower(np.ones(3, np.float32))
    assert lowered.as_text().count("call @") == 2
    assert lowered.as_text().count("func.func private") == 1
    np.testing.assert_allclose(lowered.compile()(np.ones(3, np.float32)), 2 * np.sin(2 * np.sin(np.ones(3))), rtol=1e-6)


def test_lowering_for_a_platform_that_is_not_here():
    lowered = meshrt.jit(lambda x: x + 1).trace(1.0).lower(lowering_platforms=("tpu",))
    assert "stablehlo.add" in lowered.as_text()
    with pytest.raises(meshrt.errors.MeshrtError):
        lowered.compile()(1.0)


def test_decorator_forms_and_methods():
    @meshrt.jit
    def f(x):
        """Doubles."""
        return x * 2

    @functools.partial(meshrt.jit, static_argnames=("n",))
    def g(x, *, n):
        return x * n

    class Model:
        @meshrt.jit
        def apply(self_like, x):
            return self_like["w"] * x

    assert f.__name__ == "f" and f.__doc__ == "Doubles." and float(f(2.0)) == 4.0
    assert float(g(2.0, n=3)) == 6.0
    assert float(Model.apply({"w": 2.0}, 3.0)) == 6.0


PROGRAMS = {
    "mlp": lambda m, np_, w, x: np_.sum(np_.tanh(x @ w) ** 2),
    "softmax": lambda m, np_, w, x: m.nn.log_softmax(x @ w, axis=-1),
    "attention": lambda m, np_, w, x: m.nn.softmax((x @ w) @ (x @ w).T, axis=-1) @ x,
    "grad": lambda m, np_, w, x: m.grad(lambda w: np_.mean(m.nn.gelu(x @ w)))(w),
    "cumulative": lambda m, np_, w, x: np_.cumsum(x, axis=1) @ w,
    "gather": lambda m, np_, w, x: w[np_.arange(8) % 3] + x[:, :1],
    "scan": lambda m, np_, w, x: m.lax.scan(lambda c, a: (np_.tanh(c @ w + a), np_.sum(c)), x[0], x)[0],
    "uneven": lambda m, np_, w, x: np_.concatenate([x @ w, x[:3]], axis=0).reshape(11, 2, 4).sum(axis=0),
    "roll": lambda m, np_, w, x: np_.roll(x, 1, axis=0) - np_.pad(x[1:], ((0, 1), (0, 0))),
}
SPECS = [("data",), ("model",), (None, "data"), ("data", "model"), (("model", "data"),)]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_sharded_programs_equal_jax_on_one_device(name, mesh):
    program = PROGRAMS[name]
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(8, 8)).astype(np.float32), rng.normal(size=(8, 8)).astype(np.float32)
    expected = program(jax, jax.numpy, jax.numpy.asarray(w), jax.numpy.asarray(x))
    for ws in SPECS[::2]:
        for xs in SPECS[1::2]:
            args = [meshrt.device_put(a, NamedSharding(mesh, P(*s))) for a, s in ((w, ws), (x, xs))]
            got = meshrt.jit(lambda w, x: program(meshrt, jnp, w, x))(*args)
            np.testing.assert_allclose(
                np.asarray(got), np.asarray(expected), rtol=2e-5, atol=2e-5, err_msg=f"{ws} {xs}"
            )


@pytest.mark.parametrize("name", ["mlp", "attention", "scan"])
def test_xla_partitions_the_same_program(name, mesh):
    program = PROGRAMS[name]
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(8, 8)).astype(np.float32), rng.normal(size=(8, 8)).astype(np.float32)
    args = [meshrt.device_put(a, NamedSharding(mesh, P(*s))) for a, s in ((w, (None, "model")), (x, ("data",)))]
    f = lambda w, x: program(meshrt, jnp, w, x)
    ours = meshrt.jit(f)(*args)
    with meshrt.config.override(partitioner="xla"):
        theirs = meshrt.jit(f)(*args)
    assert ours.sharding.is_equivalent_to(theirs.sharding, ours.ndim)
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=2e-5, atol=2e-5)


def test_an_abstract_mesh_in_context_leaves_eager_work_alone():
    mesh = AbstractMesh((8,), ("x",))
    with meshrt.sharding.use_abstract_mesh(mesh):
        assert float(jnp.sum(jnp.ones(3))) == 3.0
        f = meshrt.jit(lambda a: a * 2, in_shardings=P("x"))
        lowered = f.lower(meshrt.ShapeDtypeStruct((8,), np.float32))
    assert 'sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>' in lowered.as_text()


@pytest.mark.parametrize("name", ["mlp", "scan"])
def test_the_real_shardy_propagates_the_same(name, mesh):
    program = PROGRAMS[name]
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(8, 8)).astype(np.float32), rng.normal(size=(8, 8)).astype(np.float32)
    args = [meshrt.device_put(a, NamedSharding(mesh, P(*s))) for a, s in ((w, (None, "model")), (x, ("data",)))]
    f = meshrt.jit(lambda w, x: program(meshrt, jnp, w, x))
    ours, ours_plan = f(*args), f.lower(*args).partition()
    with meshrt.config.override(propagator="shardy"):
        theirs, theirs_plan = f(*args), f.lower(*args).partition()
    assert theirs_plan is not ours_plan
    assert theirs_plan.out_shardings == ours_plan.out_shardings
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=2e-5, atol=2e-5)


def test_002_23_the_road_from_a_jaxpr_to_devices_and_its_stations(mesh):
    """Jaxpr, StableHLO with names, names on every value, one device's program with collectives, XLA's executable."""
    put = lambda *spec: meshrt.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P(*spec)))
    f = meshrt.jit(lambda x, w: jnp.tanh(x @ w) @ w.T)
    traced = f.trace(put("data", "model"), put("model"))
    lowered = traced.lower()
    propagated = lowered.propagate()
    partitioned = propagated.partition()
    assert "dot_general" in str(traced.jaxpr)
    assert "sdy.mesh" in lowered.as_text() and "stablehlo.dot_general" in lowered.as_text()
    assert propagated.as_text().count("sdy.sharding") > lowered.as_text().count("sdy.sharding")
    local = partitioned.as_text()
    assert "stablehlo.all_reduce" in local and "sdy." not in local and "tensor<2x4xf32>" in local
    np.testing.assert_allclose(
        np.asarray(partitioned.compile()(put("data", "model"), put("model"))), 8 * np.tanh(8.0), rtol=1e-6
    )


@pytest.mark.parametrize("settings", [{"partitioner": "xla"}, {"propagator": "shardy"}], ids=str)
def test_002_24_who_propagates_and_who_partitions_is_a_setting(settings, mesh):
    put = lambda *spec: meshrt.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P(*spec)))
    args = put("data", "model"), put("model")
    f = meshrt.jit(lambda x, w: jnp.tanh(x @ w) @ w.T)
    ours = f(*args)
    with meshrt.config.override(**settings):
        theirs = f(*args)
    assert ours.sharding.is_equivalent_to(theirs.sharding, 2)
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-6)


def test_a_captured_array_may_be_donated(mesh):
    x = meshrt.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P("data", "model")))
    f = meshrt.jit(lambda a: a + x, donate_argnums=0)
    np.testing.assert_array_equal(np.asarray(f(meshrt.device_put(x, x.sharding, may_alias=False))), 2)
    np.testing.assert_array_equal(np.asarray(f(x)), 2)
    assert x.is_deleted()
    y = meshrt.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P("data", "model")))
    np.testing.assert_array_equal(np.asarray(f(y)), 2)


def test_arrays_without_elements_are_resharded(mesh):
    put = lambda *spec: meshrt.device_put(np.zeros((0, 8), np.float32), NamedSharding(mesh, P(*spec)))
    full = meshrt.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P("data", "model")))
    wanted = NamedSharding(mesh, P("model", "data"))
    f = lambda z, x: (
        z.T @ z, z @ x, jnp.concatenate([z, x]), jnp.sum(z), meshrt.lax.with_sharding_constraint(z + 1, wanted), z[::-1]
    )  # fmt: skip
    for z in (put("data", "model"), put(None, ("data", "model"))):
        for got, want in zip(meshrt.jit(f)(z, full), f(np.zeros((0, 8), np.float32), np.ones((8, 8), np.float32))):
            np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_constraints_of_values_hold_outside_jit(mesh):
    wanted = NamedSharding(mesh, P("data"))
    f = lambda x: meshrt.lax.with_sharding_constraint(x * 2, wanted)
    x = np.ones((8, 8), np.float32)
    gradient = meshrt.grad(lambda x: jnp.sum(f(x)))(x)
    assert gradient.sharding.mesh is mesh
    rows = meshrt.vmap(f)(x)
    assert rows.sharding.mesh is mesh and rows.sharding.spec == P(None, "data")
    np.testing.assert_array_equal(np.asarray(gradient), 2)
    np.testing.assert_array_equal(np.asarray(rows), 2)


@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
def test_an_uneven_constraint_on_an_argument(mesh, partitioner):
    constrain = lambda x: meshrt.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data")))
    with meshrt.config.override(partitioner=partitioner):
        x = np.arange(24, dtype=np.float32).reshape(6, 4)
        np.testing.assert_array_equal(np.asarray(meshrt.jit(constrain)(x)), x)
        np.testing.assert_array_equal(np.asarray(meshrt.jit(lambda x: constrain(x) * 2)(x)), x * 2)
        np.testing.assert_array_equal(np.asarray(meshrt.jit(lambda x: constrain(x).sum(0))(x)), x.sum(0))


def test_propagated_explains_a_dimension(mesh):
    x = meshrt.device_put(np.ones((8, 4), np.float32), NamedSharding(mesh, P("data")))
    propagated = meshrt.jit(lambda x: {"y": x.T * 2}).lower(x).propagate()
    text = propagated.explain("result['y']:1")
    assert text.startswith("dimension 1 of result['y'] (f32[4,8]) got axis 'data' through multiply (")
    assert "from dimension 1 of f32[4,8] of transpose (" in text and "of x (f32[8,4]) is annotated" in text
    assert "<%" not in text and "tensor<" not in text
    assert "got axis 'data' through" in text.splitlines()[0] and "annotated with axis 'data' by the user" in text
    assert "is not sharded" in propagated.explain("x:1")
    assert propagated.explain("result/y:1") == propagated.explain('result["y"]:1') == text
    for nothing in ("z:0", "result/z:0", "result/y/0"):
        with pytest.raises(errors.MeshrtError, match="nothing is called"):
            propagated.explain(nothing)


def _step(lib, looked_at, params, ids):
    """A step of a small model whose weights lie over the devices that share the batch."""

    def loss(params):
        table, *layers = params
        x = table[ids]
        for down, up in layers:
            h = x * lib.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
            x = x + lib.nn.silu(h @ up) @ down
        if looked_at:
            meshrt.debug.inspect_array_sharding(x, callback=lambda _: None)
        return lib.nn.logsumexp(x @ table.T, -1).mean()

    value, grads = lib.value_and_grad(loss)(params)
    return lib.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


@pytest.mark.parametrize("looked_at", [False, True])
def test_whole_layouts_are_compared_for_a_jitted_step(looked_at):
    """Each weight is gathered once, instead of activations in every layer. Where values that somebody looks at are
    taken out of a program, it cannot be made once more, and nothing is compared."""
    mesh = meshrt.make_mesh((8,), ("x",))
    columns, rows = NamedSharding(mesh, P(None, "x")), NamedSharding(mesh, P("x"))
    rng = np.random.default_rng(0)
    normal = lambda *shape: (rng.standard_normal(shape) * 0.2).astype(np.float32)
    params = [normal(128, 16), *[[normal(64, 16), normal(16, 64)] for _ in range(2)]]
    specs = [columns, *[[columns, rows]] * 2]
    ids = np.arange(2048, dtype=np.int32).reshape(32, 64) * 7 % 128
    jitted = meshrt.jit(
        functools.partial(_step, meshrt, looked_at), in_shardings=(specs, rows), out_shardings=(specs, None)
    )
    plan = jitted.lower(params, ids).partition().result.plan
    if looked_at:
        assert plan.alternatives == ()
    else:
        before, *others = plan.alternatives
        assert not before.taken and any(other.taken for other in others) and plan.bytes < 0.5 * before.bytes
    expected = jax.jit(functools.partial(_step, jax, False))(params, ids)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda a, b: close(np.asarray(a), np.asarray(b)), jitted(params, ids), expected)


def _gated(lib, x, w, wo):
    a, b = lib.numpy.split(x @ w, 2, axis=-1)
    return (lib.nn.silu(a) * b) @ wo


def test_a_jitted_layer_is_rewritten_where_that_sends_less():
    """Two parts of a split dimension become a dimension of their own, so that the weight is laid out anew and not the
    activations."""
    mesh = meshrt.make_mesh((8,), ("x",))
    columns, rows = NamedSharding(mesh, P(None, "x")), NamedSharding(mesh, P("x", None))
    rng = np.random.default_rng(0)
    args = [(rng.standard_normal(s) * 0.3).astype(np.float32) for s in ((2, 64, 16), (16, 128), (64, 16))]
    jitted = meshrt.jit(functools.partial(_gated, meshrt), in_shardings=(None, columns, rows))
    plan = jitted.lower(*args).partition().result.plan
    before, *others = plan.alternatives
    assert not before.taken and any(other.taken for other in others) and plan.bytes < before.bytes
    expected = jax.jit(functools.partial(_gated, jax))(*args)
    np.testing.assert_allclose(np.asarray(jitted(*args)), np.asarray(expected), rtol=1e-4, atol=1e-5)


def test_devices_do_not_repeat_arithmetic_where_they_share_cores():
    """A small batch over replicated weights: gathering it would send less than adding up the gradients, but all virtual
    devices of a CPU would then compute everything."""
    mesh = meshrt.make_mesh((8,), ("x",))
    w = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    x = np.cos(np.arange(8 * 64, dtype=np.float32)).reshape(8, 64)
    step = lambda w, x: meshrt.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
    jitted = meshrt.jit(step, in_shardings=(NamedSharding(mesh, P()), NamedSharding(mesh, P("x"))))
    lowered = jitted.lower(w, x)
    assert lowered.partition().plan.counts == {"all_reduce": 1}
    assert lowered.partition(repeat=True).plan.counts == {"all_gather": 1}


def test_programs_are_partitioned_for_their_platform():
    """The compiler of CPUs has no bfloat16, which travels there as integers; others take it as it is."""
    mesh = AbstractMesh((8,), ("x",))
    x = meshrt.ShapeDtypeStruct((64, 16), jnp.bfloat16, sharding=NamedSharding(mesh, P("x")))
    traced = meshrt.jit(lambda x: jnp.negative(x + x), out_shardings=NamedSharding(mesh, P())).trace(x)
    as_integers = {
        platform: "ui16" in traced.lower(lowering_platforms=(platform,)).propagate().partition().result.as_text()
        for platform in ("cpu", "cuda", "tpu")
    }
    assert as_integers == {"cpu": True, "cuda": False, "tpu": False}
