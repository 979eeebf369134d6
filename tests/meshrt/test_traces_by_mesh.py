"""A trace is keyed by the mesh in context only where the function, or what it calls, asks for that mesh."""

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.runtime import events
from meshrt.sharding import AxisType, Mesh, NamedSharding, get_abstract_mesh
from meshrt.sharding import PartitionSpec as P

pytestmark = pytest.mark.collects


def mesh_of(*shape, kind=AxisType.Auto):
    devices = np.array(meshrt.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, tuple("abc"[: len(shape)]), axis_types=(kind,) * len(shape))


def test_shapes_first_then_shardings():
    def init(x):
        return {"w": jnp.sin(x @ x), "b": meshrt.nn.softmax(x)}

    x = np.ones((8, 8), np.float32)
    with events.count("trace") as n:
        shapes = meshrt.eval_shape(init, x)
        shardings = meshrt.tree.map(lambda _: NamedSharding(mesh_of(4, 2), P("a", "b")), shapes)
        out = meshrt.jit(init, out_shardings=shardings)(x)
        with meshrt.set_mesh(mesh_of(8)):
            meshrt.jit(init)(x)
    assert n.trace == 1 and out["w"].sharding.spec == P("a", "b")


def asks(x):
    return x + get_abstract_mesh().size


def constrains(x):
    return meshrt.lax.with_sharding_constraint(x, P("a")) + get_abstract_mesh().size


@pytest.mark.parametrize(
    "within",
    [
        lambda f: f, meshrt.jit, meshrt.checkpoint, meshrt.vmap, meshrt.grad,
        lambda f: lambda x: meshrt.lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
        lambda f: lambda x: meshrt.lax.cond(x.sum() > -1, f, lambda x: x, x),
        lambda f: meshrt.jit(lambda x: meshrt.jit(f)(x)),
    ],
    ids=["itself", "jit", "checkpoint", "vmap", "grad", "scan", "cond", "jit in jit"],
)  # fmt: skip
def test_whoever_asks_is_traced_for_each_mesh(within):
    def body(x):
        return asks(x) * x if x.ndim == 0 else asks(x)

    f = meshrt.jit(within(body))
    x = np.float32(3) if within is meshrt.grad else np.ones(8, np.float32)
    found = []
    for mesh in (mesh_of(4, 2), mesh_of(2), None, mesh_of(4, 2)):
        with meshrt.set_mesh(mesh):
            found.append(np.ravel(f(x))[0])
    base = 2 * x if within is meshrt.grad else 1
    assert found == [base + 8, base + 2, base + get_abstract_mesh().size, base + 8]


def test_a_function_known_under_a_mesh_makes_its_caller_depend_on_it():
    inner = meshrt.jit(constrains)
    outer = meshrt.jit(lambda x: inner(x) * 2)
    x = np.ones(8, np.float32)
    for shape in ((4, 2), (2,), (4, 2), (8,)):
        with meshrt.set_mesh(mesh_of(*shape)):
            inner(x)  # known by itself before it is called in `outer`
            y = outer(x)
            assert float(y[0]) == 2 * (1 + np.prod(shape)) and y.sharding.mesh.axis_sizes == shape


def test_what_is_evaluated_while_tracing_lies_on_the_mesh_of_its_trace():
    @meshrt.jit
    def f(x):
        with meshrt.ensure_compile_time_eval():
            table = jnp.arange(8.0) * 2
        return x + table

    x = np.ones(8, np.float32)
    for mesh in (mesh_of(4, 2), mesh_of(2), None):
        with meshrt.set_mesh(mesh):
            assert float(f(x)[1]) == 3.0


def test_explicit_types_are_traced_by_themselves():
    f = meshrt.jit(lambda x: jnp.zeros(x.shape) + x)
    x = np.ones((8, 8), np.float32)
    assert f(x).sharding.is_fully_replicated
    mesh = mesh_of(4, 2, kind=AxisType.Explicit)
    y = f(meshrt.device_put(x, NamedSharding(mesh, P("a"))))
    assert meshrt.typeof(y).sharding.spec == P("a", None)
