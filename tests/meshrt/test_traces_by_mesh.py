"""A trace is keyed by the mesh in context only where the function, or what it calls, asks for that mesh."""

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.experimental import hijax
from meshrt.experimental import pallas as pl
from meshrt.extend import linear_util
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
    assert n.trace == 1 and out["w"].sharding.spec == P("a", "b")


def test_what_is_set_along_with_the_mesh_is_seen():
    current = []
    f = meshrt.jit(lambda x: x / current[-1].size)  # does not ask for the mesh in context, yet depends on it
    for mesh in (mesh_of(4, 2), mesh_of(2), mesh_of(4, 2)):
        current.append(mesh)
        with meshrt.set_mesh(mesh):
            assert float(f(np.ones(8, np.float32))[0]) == 1 / mesh.size


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


def with_forward_rule():
    @meshrt.custom_vjp
    def tripled(x):
        return 3 * x

    tripled.defvjp(lambda x: (3 * x, None), lambda _, ct: (ct * get_abstract_mesh().size,))
    return meshrt.grad, tripled


def with_jvp_rule():
    @meshrt.custom_jvp
    def tripled(x):
        return 3 * x

    tripled.defjvp(lambda primals, tangents: (3 * primals[0], tangents[0] * get_abstract_mesh().size))
    return meshrt.grad, tripled


def with_vmap_rule():
    @meshrt.custom_batching.custom_vmap
    def tripled(x):
        return 3 * x

    tripled.def_vmap(lambda size, batched, x: (x * 0 + get_abstract_mesh().size, batched[0]))
    return lambda f: lambda x: meshrt.vmap(f)(x[None])[0], tripled


@pytest.mark.parametrize("rule", [with_forward_rule, with_jvp_rule, with_vmap_rule])
@pytest.mark.parametrize(
    "within",
    [
        lambda f: meshrt.jit(f), lambda f: meshrt.checkpoint(f),
        lambda f: lambda x: meshrt.lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
        lambda f: lambda x: meshrt.lax.cond(x > -1, f, lambda x: x, x),
        lambda f: lambda x: meshrt.lax.fori_loop(0, 1, lambda _, c: f(c), x),
    ],
    ids=["jit", "checkpoint", "scan", "cond", "loop"],
)  # fmt: skip
def test_a_rule_that_asks_is_traced_for_each_mesh_though_its_function_serves_under_all(rule, within):
    transform, function = rule()
    called = within(function)
    f, again = (meshrt.jit(transform(called)) for _ in range(2))  # the second one finds what the first one made
    for shape in ((4, 2), (2,), (4, 2), (8,)):
        with meshrt.set_mesh(mesh_of(*shape)):
            assert f(np.float32(3)) == again(np.float32(3)) == np.prod(shape)


def test_a_kernel_that_asks_is_traced_for_each_mesh():
    def kernel(x, out):
        out[...] = x[...] + get_abstract_mesh().size

    added = pl.pallas_call(kernel, meshrt.ShapeDtypeStruct((8,), np.float32), interpret=True)
    inside = meshrt.jit(lambda x: added(x))
    for shape in ((4, 2), (2,), (4, 2), (8,)):
        with meshrt.set_mesh(mesh_of(*shape)):
            for f in (added, inside):
                assert float(f(np.ones(8, np.float32))[0]) == 1 + np.prod(shape)


class Sized(hijax.VJPHiPrimitive):
    """Its value plus the size of the mesh that it is lowered under."""

    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        super().__init__()

    def expand(self, x):
        return x + get_abstract_mesh().size


@pytest.mark.parametrize("within", [lambda f: f, meshrt.jit, meshrt.checkpoint])
def test_an_operation_of_a_library_that_asks_is_lowered_for_each_mesh(within):
    sized = Sized(meshrt.typeof(np.ones(8, np.float32)))
    f = meshrt.jit(within(lambda x: sized(x)))
    for shape in ((4, 2), (2,), (4, 2), (8,)):
        with meshrt.set_mesh(mesh_of(*shape)):
            assert float(f(np.ones(8, np.float32))[0]) == 1 + np.prod(shape)


def test_what_is_remembered_of_wrapped_functions_is_remembered_for_each_mesh():
    size = linear_util.cache(lambda fun: fun.call_wrapped())
    wrapped = linear_util.wrap_init(lambda: get_abstract_mesh().size)
    f = meshrt.jit(lambda x: x + size(wrapped))
    for shape in ((4, 2), (2,), (4, 2)):
        with meshrt.set_mesh(mesh_of(*shape)):
            assert float(f(np.float32(1))) == 1 + np.prod(shape)
