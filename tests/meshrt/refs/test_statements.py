"""What users of references and boxes ask for, statement by statement (5.23 and B21 of the reference)."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.experimental.hijax import Box

plain_or_jitted = pytest.mark.parametrize("wrap", [lambda f: f, meshrt.jit], ids=["plain", "jit"])


@plain_or_jitted
def test_5_23_rules_of_custom_derivatives_close_over_references(wrap):
    calls, scale = meshrt.new_ref(jnp.zeros(())), meshrt.new_ref(jnp.float32(3))
    f = meshrt.custom_jvp(lambda x: x * scale[...])

    @f.defjvp
    def rule(primals, tangents):
        meshrt.ref.addupdate(calls, ..., 1.0)
        return f(*primals), tangents[0] * scale[...]

    assert wrap(lambda x: meshrt.jvp(f, (x,), (1.0,)))(2.0) == (6.0, 3.0) and calls[...] == 1
    assert wrap(meshrt.grad(f))(2.0) == 3.0 and calls[...] == 2


def test_5_23_errors_name_the_reference_and_both_places():
    ref = meshrt.new_ref(jnp.zeros(3))
    made = r"Ref\{float32\[3\]\} \(made at .*test_statements.py:\d+"
    with pytest.raises(ValueError, match=rf"{made}.* appeared at both a and b\['c'\]"):
        meshrt.jit(lambda a, b: a[...] + b["c"][...])(ref, {"c": ref})
    with pytest.raises(ValueError, match=rf"{made}.* both closed over and passed as the argument a"):
        meshrt.jit(lambda a: a[...] + ref[...])(ref)
    with pytest.raises(ValueError, match=r"differentiated value on a non-differentiated array ref.*stop_gradient"):
        meshrt.grad(lambda x: (ref.__setitem__(0, x), x)[1])(1.0)


@plain_or_jitted
def test_5_23_shardings_persist(wrap):
    mesh = meshrt.make_mesh((2,), ("x",), (meshrt.sharding.AxisType.Auto,))
    rows = meshrt.NamedSharding(mesh, meshrt.P("x"))
    ref = meshrt.new_ref(meshrt.device_put(jnp.arange(4.0), rows))
    body = meshrt.shard_map(lambda r: r.__setitem__(..., 2 * r[...]), mesh=mesh, in_specs=meshrt.P("x"), out_specs=None)
    wrap(body)(ref)
    np.testing.assert_array_equal(ref[...], [0, 2, 4, 6])
    assert ref[...].sharding == rows


def _of_box(x):
    box = Box(x)
    return box.get, lambda y: box.set(y)


def _of_ref(x):
    ref = meshrt.new_ref(x)
    return lambda: ref[...], lambda y: ref.__setitem__(..., y)


@pytest.mark.parametrize("made", [_of_box, _of_ref], ids=["box", "ref"])
def test_b21_through_jit_grad_scan_and_shard_map(made):
    def powers(x):
        get, put = made(x)
        meshrt.jit(lambda y: put(get() * y))(x)
        lax.scan(lambda c, _: (put(get() * c), (c, None))[1], x, None, length=2)
        return get().sum()

    x = jnp.array([2.0, 3.0])
    for f in (meshrt.grad(powers), meshrt.jit(meshrt.grad(powers))):
        np.testing.assert_allclose(f(x), 4 * x**3)
    mesh = meshrt.make_mesh((2,), ("x",), (meshrt.sharding.AxisType.Auto,))
    parts = lambda x: meshrt.shard_map(
        lambda x: lax.psum(powers(x), "x"), mesh=mesh, in_specs=meshrt.P("x"), out_specs=meshrt.P()
    )(x)
    np.testing.assert_allclose(meshrt.jit(meshrt.grad(parts))(x), 4 * x**3)
