"""`use_abstract_mesh` inside of programs: axes of other types for a block, beside JAX."""

from __future__ import annotations

import jax
import jax.numpy as xnp
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.sharding import AxisType

X = np.arange(64, dtype=np.float32).reshape(8, 8)


class Tools:
    """What a program is written with; the types that it saw."""

    def __init__(self, lib, numpy):
        self.lib, self.np, self.P, self.seen = lib, numpy, lib.P, []
        self.reshard, self.constrain = lib.reshard, lib.lax.with_sharding_constraint

    def mesh(self, kind):
        return self.lib.make_mesh((4, 2), ("x", "y"), axis_types=(self.lib.sharding.AxisType[kind],) * 2)

    def block(self, kind):
        return self.lib.sharding.use_abstract_mesh(self.mesh(kind).abstract_mesh)

    def saw(self, x):
        self.seen.append(str(self.lib.typeof(x)))
        return x


def _auto_within(o, x):
    y = x * 2
    with o.block("Auto"):
        y = o.saw(o.reshard(y, o.P()))
        z = o.saw(o.constrain(y @ y, o.P("x", "y")))
    return o.saw(o.reshard(z, o.P("x"))) * 2


def _explicit_within(o, x):
    with o.block("Explicit"):
        return o.saw(o.saw(o.reshard(x, o.P("y"))) * 2)


def _explicit_and_back(o, x):
    y = _explicit_within(o, x)
    return o.constrain(o.reshard(y, o.lib.NamedSharding(o.mesh("Auto").abstract_mesh, o.P())), o.P("x")) * 2


PROGRAMS = {
    "Explicit, Auto, Explicit": ("Explicit", _auto_within),
    "its gradient": ("Explicit", lambda o, x: o.lib.grad(lambda x: _auto_within(o, x).sum())(x)),
    "Auto, Explicit": ("Auto", _explicit_within),
    "Auto, Explicit, Auto": ("Auto", _explicit_and_back),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_axes_of_other_types_for_a_block(name):
    around, program = PROGRAMS[name]

    def outcome(o):
        mesh = o.mesh(around)
        with o.lib.set_mesh(mesh):
            y = o.lib.jit(lambda x: program(o, x))(o.lib.device_put(X, o.lib.NamedSharding(mesh, o.P("x"))))
        return np.asarray(y), str(o.lib.typeof(y)), str(y.sharding.mesh), o.seen

    (ours, *said), (theirs, *its) = outcome(Tools(meshrt, jnp)), outcome(Tools(jax, xnp))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert said == its


@pytest.mark.parametrize(
    ("fun", "words"),
    [
        (lambda x: meshrt.lax.slice(x, (0, 0), (3, 8)), "slicing on sharded dims where out dim"),
        (lambda x: meshrt.lax.pad(x, 0.0, ((0, 3, 0), (0, 0, 0))), "padding on sharded dims where out dim"),
    ],
)
def test_sizes_that_parts_do_not_divide(fun, words):
    mesh = meshrt.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    with meshrt.set_mesh(mesh), pytest.raises(meshrt.errors.ShardingTypeError, match=words):
        fun(meshrt.device_put(X, meshrt.P("x")))


# ----------------------------------------------------------------------------------------------------------------------
# What a region closes over. JAX refuses closures over values of Explicit axes; arguments are the judge.

_BODIES = {
    "used twice": lambda lib, a: a * lib.numpy.sin(a),
    "jit": lambda lib, a: lib.jit(lambda: lib.numpy.sin(a))(),
    "checkpoint": lambda lib, a: lib.checkpoint(lambda: lib.numpy.sin(a))(),
    "scan": lambda lib, a: lib.lax.scan(lambda c, _: (c + lib.numpy.sin(a), None), 2 * a, None, length=2)[0],
    "cond": lambda lib, a: lib.lax.cond(True, lambda: lib.numpy.sin(a), lambda: a),
}
_SUMS = [{"unreduced": {"x"}}, {"reduced": {"x"}}, {"unreduced": {"y"}, "reduced": {"x"}}, {"unreduced": {"x", "y"}}]


@pytest.mark.parametrize("spec", [*_SUMS, {}], ids=lambda spec: str({k: sorted(v) for k, v in spec.items()}))
@pytest.mark.parametrize("name", _BODIES)
def test_a_region_closes_over_partial_sums_and_copies(name, spec):
    """Values and derivatives are one device's; types are those that JAX gives where the value is an argument."""

    def run(lib, apply, closes):
        types = []
        with lib.set_mesh(lib.make_mesh((2, 2), ("x", "y"), axis_types=(lib.sharding.AxisType.Explicit,) * 2)):
            auto = lambda f: lib.sharding.auto_axes(f, out_sharding=lib.P("x"))
            if closes:
                region = lambda a: auto(lambda: _BODIES[name](lib, a))()
            else:
                region = auto(lambda a: _BODIES[name](lib, a))

            def program(x):
                out, pull = lib.vjp(region, lib.reshard(x, lib.P(**spec)))
                (back,) = pull(out)
                types.extend([str(lib.typeof(out)), str(lib.typeof(back))])
                return out, lib.reshard(back, lib.P())

            return apply(program, X), types

    (out, back), types = run(meshrt, lambda f, x: meshrt.jit(f)(x), True)
    assert types == run(jax, jax.eval_shape, False)[1]
    wanted, pull = jax.vjp(lambda a: _BODIES[name](jax, a), X)
    np.testing.assert_allclose(out, wanted, rtol=1e-5)
    np.testing.assert_allclose(back, pull(wanted)[0], rtol=1e-4)
