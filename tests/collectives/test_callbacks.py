"""Modules that JAX lowers with callbacks on a mesh: one device calls, and everybody gets the result.

JAX places its callbacks on a mesh of their own, `sdy.mesh @maximal_mesh_0 = <[], device_ids=[0]>`. The modules are
partitioned here and run on JAX's devices with JAX's callbacks: the values and the calls are to be those of JAX.
"""

import functools
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import collectives
import propagation
from collectives.errors import UnsupportedOpError
from meshrt.xla import jaxlib_api
from propagation.fuzz import Oracle, compare
from tests.meshrt.callbacks.programs import library, program

from .jax_side import jax_mesh

LIKE = jax.ShapeDtypeStruct((8,), "float32")
X = np.arange(8, dtype=np.float32)


def ours(lowered, args):
    """The flat results on each device, of the module as it is partitioned here."""
    text = lowered.as_text()
    partitioned = collectives.partition(propagation.run(text))
    devices = jax.devices()[: partitioned.mesh.size]
    options = jaxlib_api.compile_options(devices)
    callbacks = lowered._lowering.compile_args["host_callbacks"]
    executable = jaxlib_api.compile_and_load(partitioned.as_text(), devices, options, callbacks)
    tokens = len(re.findall("jax.token = true", text.split("@main(")[1].split("->")[0]))
    whole = NamedSharding(jax.sharding.Mesh(np.array(devices), ("d",)), P())
    ins = [*[jax.device_put(np.zeros((0,), bool), whole)] * tokens, *args]
    outs = executable.execute_sharded(ins).disassemble_into_single_device_arrays()
    return [[np.asarray(piece) for piece in out] for out in outs[tokens:]], partitioned


def placed(mesh, *spec):
    return jax.device_put(X, NamedSharding(mesh, P(*spec)))


def agrees(f, x, seen):
    """Runs `f`, which notes its calls in `seen`, both ways."""
    lowered = jax.jit(f, out_shardings=NamedSharding(x.sharding.mesh, P())).lower(x)
    got, partitioned = ours(lowered, [x])
    mine = list(seen)
    seen.clear()
    want = jax.tree.leaves(lowered.compile()(x))
    jax.effects_barrier()
    for pieces, value in zip(got, want, strict=True):
        for piece in pieces:
            np.testing.assert_allclose(piece, np.asarray(value), rtol=1e-6)
    assert sorted(map(repr, mine)) == sorted(map(repr, seen)) and mine
    return partitioned, mine


def note(seen, what, back=None):
    def call(*values):
        seen.append((what, [np.asarray(v).tolist() for v in values]))
        return None if back is None else back(*map(np.asarray, values))

    return call


def cases(seen):
    double = lambda what: note(seen, what, lambda v: v * 2)
    io = lambda what, x, ordered=False: io_callback(
        double(what), jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=ordered
    )
    pure = lambda what, x: jax.pure_callback(double(what), jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def debug(x):
        jax.debug.callback(note(seen, "whole"), x, x[0])
        return x + 1

    def error_if(x):
        """As libraries check values: a callback in a branch that is not taken, whose result is used."""
        bad = jnp.any(x > 100)
        return jax.lax.cond(bad, lambda x: pure("raises", x), lambda x: x, x) + pure("fine", x)

    def looped(x):
        def body(carry, v):
            jax.debug.callback(note(seen, "debug"), v)
            return carry + io("io", v, True), v

        total, _ = jax.lax.scan(body, jnp.float32(0), x)
        return jax.lax.while_loop(lambda c: c.sum() < 1000, lambda c: pure("pure", c), x) + total

    def branched(x):
        y = jax.lax.cond(x.sum() > 3, lambda x: io("then", x, True), lambda x: x, x)
        return jax.lax.switch(
            jnp.int32(y[1]), [lambda y: y, lambda y: io("one", y, True), lambda y: io("two", y, True)], y
        )

    return {
        "debug": debug,
        "pure": lambda x: pure("a", x) @ x,
        "io": lambda x: io("a", x) + io("b", x),
        "ordered": lambda x: io("b", io("a", x, True), True),
        "without operands": lambda x: x + io_callback(note(seen, "none", lambda: X), LIKE),
        "error_if": error_if,
        "loops": looped,
        "branches": branched,
        "calls": lambda x: jax.jit(lambda x: io("a", x, True))(x) + jax.jit(lambda x: io("a", x, True))(x + 1),
    }


MESHES = {"4": ({"x": 4}, ("x",)), "2x2": ({"x": 2, "y": 2}, (("y", "x"),)), "2 of 4": ({"x": 2, "y": 2}, ("y",))}


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", cases([]))
def test_modules_of_jax_with_callbacks(name, mesh):
    sizes, spec = MESHES[mesh]
    seen = []
    _, mine = agrees(cases(seen)[name], placed(jax_mesh(sizes), *spec), seen)
    if name == "ordered":
        assert [what for what, _ in mine] == ["a", "b"]
    if name == "loops":
        ordered = [v for what, v in mine if what == "io"]
        assert ordered == [[v] for v in X.tolist()]


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_of_jax(seed):
    lib = library(jax, jnp, functools.partial(io_callback))
    f = program(random.Random(seed).randrange(10**6), lib)
    x = jax.device_put(X[:4] / 10, NamedSharding(jax_mesh({"x": 4}), P("x")))
    lowered = None
    try:
        lowered = jax.jit(f, out_shardings=NamedSharding(x.sharding.mesh, P())).lower(x)
    except ValueError as e:
        pytest.skip(str(e).split(":")[0])  # JAX has no ordered debug effects on several devices
    got, _ = ours(lowered, [x])
    mine = sorted(t for t, _ in lib.log), [t for t, _ in lib.done]
    lib.log.clear(), lib.done.clear()
    want = np.asarray(lowered.compile()(x))
    jax.effects_barrier()
    assert mine == (sorted(t for t, _ in lib.log), [t for t, _ in lib.done])
    np.testing.assert_allclose(got[0][3], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("free", [False, True])
def test_in_shard_map_each_device_calls(free):
    seen = []
    mesh = jax_mesh({"x": 2, "y": 2})

    def f(x):
        jax.debug.callback(note(seen, "shard"), x)
        if not free:  # JAX has no other callbacks where some axes are free
            io_callback(note(seen, "io"), None, x, ordered=True)
            x = jax.pure_callback(lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return x

    names = {"x"} if free else {"x", "y"}
    g = jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names=names, check_vma=False)
    lowered = jax.jit(g).lower(placed(mesh, "x"))
    got, _ = ours(lowered, [placed(mesh, "x")])
    np.testing.assert_array_equal(np.concatenate([got[0][0], got[0][2]]), X * (1 if free else 2))
    shards = [v for what, (v,) in seen if what == "shard"]
    assert sorted(shards) == sorted(X.reshape(2, 4).tolist() * (1 if free else 2))


def test_partitioned_callbacks_see_pieces():
    seen = []
    f = lambda x: (jax.debug.callback(note(seen, "piece"), x, partitioned=True), x)[1]
    x = placed(jax_mesh({"x": 4}), "x")
    ours(jax.jit(f).lower(x), [x])
    assert sorted(v for _, (v,) in seen) == X.reshape(4, 2).tolist()


@pytest.mark.parametrize("kind", ["bool", "int8", "uint16", "float16", "bfloat16", "complex64", "float8_e4m3fn"])
def test_results_arrive_bit_by_bit(kind):
    x = jax.device_put(jnp.arange(8).astype(kind), NamedSharding(jax_mesh({"x": 4}), P("x")))
    values = np.asarray(x)
    f = lambda x: jax.pure_callback(lambda v: values, jax.ShapeDtypeStruct((8,), kind), x)
    got, _ = ours(jax.jit(f).lower(x), [x])
    np.testing.assert_array_equal(np.concatenate(got[0])[:8].view("uint8"), values.view("uint8"))


def test_a_device_that_the_mesh_does_not_have():
    text = """sdy.mesh @mesh = <["x"=4]>
    sdy.mesh @far = <[], device_ids=[7]>
    func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
      stablehlo.custom_call @f(%x) {has_side_effect = true, sdy.sharding = #sdy.sharding_per_value<[<@far, []>]>}
        : (tensor<8xf32>) -> ()
      return %x : tensor<8xf32> }"""
    with pytest.raises(
        UnsupportedOpError, match=r"on device 7 by mesh @far, .* does not have; place it on one of its 4"
    ):
        collectives.partition(propagation.run(text))
    near = collectives.partition(propagation.run(text.replace("[7]", "[2]"))).as_text()
    assert "dense<2> : tensor<i32>" in near and near.count("stablehlo.custom_call") == 1


def test_propagation_keeps_maximal_meshes_as_shardy_does():
    mesh, seen = jax_mesh({"x": 2, "y": 2}), []
    x = placed(mesh, "x")
    # In the oldest version functions of their own write a sharding for a token that they take, too.
    texts = [jax.jit(f).lower(x).as_text() for name, f in cases(seen).items() if name != "calls"]
    with Oracle() as oracle:
        for text in texts:
            for stage in ("closed", "pipeline"):
                found = compare(text, oracle(stage, text), stage)
                assert found.verdict == "agree", found.detail
    assert "maximal_mesh_0" in propagation.run(texts[0]).as_text()
