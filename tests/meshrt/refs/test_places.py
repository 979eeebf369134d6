"""How Auto axes split references that traced functions are given or make: `core_map` has each device's part of them."""

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import P, lax
from meshrt.experimental.kernels import core_map
from meshrt.sharding import AxisType, NamedSharding

NUMBERS = np.repeat(np.arange(4.0), 2)


@pytest.fixture(scope="module")
def mesh():
    return meshrt.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,), devices=meshrt.devices()[:4])


def _vjp(f):
    function = meshrt.custom_vjp(f)
    function.defvjp(lambda r: (f(r), None), lambda _, ct: (None,))
    return function


def _jvp(f):
    function = meshrt.custom_jvp(f)
    function.defjvp(lambda primals, tangents: (f(*primals), 0.0))
    return function


GIVEN = {
    "a branch": lambda f: lambda r: lax.cond(True, f, lambda r: 0.0, r),
    "a branch of many": lambda f: lambda r: lax.switch(1, [lambda r: 0.0, f, f], r),
    "jit in jit": lambda f: lambda r: meshrt.jit(meshrt.jit(f))(r),
    "jit in a branch": lambda f: lambda r: lax.cond(True, meshrt.jit(f), lambda r: 0.0, r),
    "checkpoint": meshrt.checkpoint,
    "a branch in checkpoint": lambda f: meshrt.checkpoint(lambda r: lax.cond(True, f, lambda r: 0.0, r)),
    "custom_vjp": _vjp,
    "custom_jvp": _jvp,
}


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("name", GIVEN)
def test_functions_that_are_given_a_reference_hear_how_it_is_split(name, jitted, mesh):
    def step(r):
        core_map(mesh)(lambda: r.__setitem__(..., r[...] + lax.axis_index("x")))
        return 0.0

    program = GIVEN[name](step)
    for _ in range(2):
        r = meshrt.new_ref(meshrt.device_put(jnp.zeros(8), NamedSharding(mesh, P("x"))))
        (meshrt.jit(program) if jitted else program)(r)
        np.testing.assert_array_equal(r[...], NUMBERS)
        assert r.sharding.spec == P("x")


MAPPED = {
    "jit": lambda f: meshrt.vmap(meshrt.jit(f)),
    "jit of jit": lambda f: meshrt.vmap(meshrt.jit(meshrt.jit(f))),
    "jit around": lambda f: meshrt.jit(meshrt.vmap(meshrt.jit(f))),
    "elements of a scan": lambda f: lambda r: lax.scan(lambda c, e: (c, f(e)), 0.0, r)[0],
    "elements of a scan in jit": lambda f: meshrt.jit(lambda r: lax.scan(lambda c, e: (c, f(e)), 0.0, r)[0]),
    "a branch": lambda f: meshrt.vmap(lambda r: lax.cond(True, f, lambda r: None, r)),
}


@pytest.mark.parametrize("name", MAPPED)
def test_members_of_a_batch_that_functions_are_given(name, mesh):
    def step(r):
        core_map(mesh)(lambda: r.__setitem__(..., r[...] + lax.axis_index("x")))

    r = meshrt.new_ref(meshrt.device_put(jnp.zeros((3, 8)), NamedSharding(mesh, P(None, "x"))))
    MAPPED[name](step)(r)
    np.testing.assert_array_equal(r[...], [NUMBERS] * 3)


def test_references_made_of_placed_values_lie_where_these_do(mesh):
    """A constraint, device_put, the results of a jitted function and arrays from outside say it; others do not."""
    split = NamedSharding(mesh, P("x"))
    outside = meshrt.device_put(jnp.zeros(8), split)
    values = {
        "constraint": lambda x: meshrt.lax.with_sharding_constraint(x + 0, split),
        "device_put": lambda x: meshrt.device_put(x + 0, split),
        "results": lambda x: meshrt.jit(lambda x: x + 0, out_shardings=split)(x),
        "outside": lambda x: outside,
    }
    for name, value in values.items():

        def program(x, value=value):
            r = meshrt.new_ref(value(x))
            lax.cond(True, lambda r: core_map(mesh)(lambda: _add(r)), lambda r: None, r)
            core_map(mesh)(lambda: _add(r))
            return r[...]

        np.testing.assert_array_equal(meshrt.jit(program)(jnp.zeros(8)), 2 * NUMBERS, err_msg=name)
    whole = NamedSharding(mesh, P())
    found = meshrt.jit(lambda x: _sizes(meshrt.new_ref(meshrt.lax.with_sharding_constraint(x, whole)), mesh))
    assert found(jnp.zeros(8)) == 8
    open_ = NamedSharding(mesh, P(P.UNCONSTRAINED))
    with pytest.raises(meshrt.errors.UnplacedReferenceError, match="with_sharding_constraint or device_put"):
        meshrt.jit(lambda x: _sizes(meshrt.new_ref(meshrt.lax.with_sharding_constraint(x, open_)), mesh))(jnp.zeros(8))


ARRAYS = {
    "nothing else": lambda f: f,
    "a branch": lambda f: lambda x: lax.cond(True, f, lambda x: x, x),
    "jit in jit": lambda f: lambda x: meshrt.jit(meshrt.jit(f))(x),
    "jit in a branch": lambda f: lambda x: lax.cond(True, meshrt.jit(f), lambda x: x, x),
    "a branch in checkpoint": lambda f: meshrt.checkpoint(lambda x: lax.cond(True, f, lambda x: x, x)),
    "custom_vjp": _vjp,
    "custom_jvp": _jvp,
    "a batch": lambda f: lambda x: meshrt.vmap(meshrt.jit(f), in_axes=None, axis_size=2)(x)[0],
    "a closure": lambda f: lambda x: lax.cond(True, lambda: f(x), lambda: x),
}


@pytest.mark.parametrize("how", ["jitted", "staged", "in_shardings"])
@pytest.mark.parametrize("name", ARRAYS)
def test_references_made_of_arguments_lie_where_the_call_has_these(name, how, mesh):
    """As where nothing is traced; a function that asks is traced for each way in which an argument lies."""
    seen = []

    def step(x):
        r = meshrt.new_ref(x)
        core_map(mesh)(lambda: seen.append(r[...].shape) or _add(r))
        return r[...]

    program, split = ARRAYS[name](step), NamedSharding(mesh, P("x"))
    x = meshrt.device_put(jnp.zeros(8), split)
    if how == "staged":
        closed = meshrt.make_jaxpr(program)(x)
        (out,) = meshrt.extend.core.jaxpr_as_fun(closed)(x)
    elif how == "in_shardings":
        out = meshrt.jit(program, in_shardings=split)(np.zeros(8, np.float32))
    else:
        jitted = meshrt.jit(program)
        jitted(x)
        count = len(seen)
        out = jitted(x + 0)
        assert len(seen) == count  # traced once for all that lie so
    np.testing.assert_array_equal(out, NUMBERS)
    assert set(seen) == {(2,)}


def test_one_function_of_arguments_that_lie_in_several_ways(mesh):
    """The parts that devices have follow each call's arguments: split, whole, on no mesh yet; alike for equal ones."""
    parts = []

    @meshrt.jit
    def sizes(x, y):
        r = meshrt.new_ref(x)
        core_map(mesh)(lambda: parts.append(r[...].shape))
        return x + y

    whole, split = (meshrt.device_put(jnp.zeros((8, 4)), NamedSharding(mesh, P(*spec))) for spec in ((), (None, "x")))
    for x in (split, whole, jnp.zeros((8, 4)), np.zeros((8, 4), np.float32), split):
        np.testing.assert_array_equal(sizes(x, 1.0), np.ones((8, 4)))
    assert parts == [(8, 1), (8, 4), (8, 4)]  # (that of arguments on no mesh is another trace)
    assert (
        sizes.lower(meshrt.ShapeDtypeStruct((8, 4), jnp.float32, sharding=split.sharding), 1.0)
        .compile()(split, 1.0)
        .sum()
        == 32
    )
    assert len(parts) == 3


WITHIN = {
    "branches": lambda f: lambda x, y: lax.cond(True, f, lambda x, y: x, x, y),
    "jit": meshrt.jit,
    "checkpoint": meshrt.checkpoint,
}


@pytest.mark.parametrize("name", WITHIN)
def test_a_function_in_many_others_is_traced_about_as_often_as_these_are_many(name, mesh):
    """Each of them knows how its first argument lies, of which nobody asks; how the second does the call alone."""
    begun = []

    def step(x, y):
        begun.append(0)
        r = meshrt.new_ref(y)
        core_map(mesh)(lambda: _add(r))
        return r[...] + x

    def within(f):
        inner = WITHIN[name](lambda x, y: f(x, y))
        return lambda x, y: inner(lax.with_sharding_constraint(x, split), y)

    depth, split, program = 5, NamedSharding(mesh, P("x")), step
    for _ in range(depth):
        program = within(program)
    x = meshrt.device_put(jnp.zeros(8), split)
    np.testing.assert_array_equal(meshrt.jit(program)(x, x), NUMBERS)
    assert len(begun) <= 2 * depth + 2  # (2 ** (depth + 1), if each function were traced without places first)


def _add(r):
    r[...] += lax.axis_index("x")


def _sizes(r, mesh):
    out = []
    core_map(mesh)(lambda: out.append(r[...].size))
    return out[0]


@pytest.mark.parametrize("operation", ["get", "swap", "jit"])
def test_references_of_one_type_in_several_places_beside_numbers(mesh, operation):
    on_mesh = NamedSharding(mesh, P("x"))
    double = meshrt.jit(lambda r, by: r.__setitem__(..., r[...] * by))
    for place in (None, on_mesh, None, meshrt.devices()[1], on_mesh):
        ref = meshrt.new_ref(jnp.asarray(NUMBERS) if place is None else meshrt.device_put(NUMBERS, place))
        lay = ref[...].sharding
        if operation == "get":
            assert float(ref[2]) == 1
        elif operation == "swap":
            ref[2] = ref[2]
        else:
            double(ref, 1)
        np.testing.assert_array_equal(np.asarray(ref[...]), NUMBERS)
        assert ref[...].sharding == lay
