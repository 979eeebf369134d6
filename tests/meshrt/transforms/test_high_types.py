"""High types: values that consist of several arrays are taken apart at the boundary of every staged function.

The made-up type here is a vector with a scale of its own, `Scaled(values, scale)`, which stands for values * scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.core import high
from meshrt.core.lojax import lower_to_lojax
from meshrt.core.primitive import Primitive
from meshrt.core.trace import EVAL, JaxprTrace, eval_jaxpr, record_high, trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.transforms.batching import BatchTrace, MappedAxis
from meshrt.transforms.jvp import JVPTrace
from meshrt.transforms.linear import LinearTrace


@dataclass(eq=False)
class Scaled:
    values: Any
    scale: Any


@dataclass(frozen=True)
class ScaledType(high.HiType):
    values: ShapedArray
    scale: ShapedArray

    def lo_ty(self) -> list[ShapedArray]:
        return [self.values, self.scale]

    def lower_val(self, value: Scaled) -> list[Any]:
        return [value.values, value.scale]

    def raise_val(self, *arrays: Any) -> Scaled:
        return Scaled(*arrays)

    def __str__(self) -> str:
        return f"scaled({self.values.str_short()})"


VECTOR, SCALAR = ShapedArray((3,), np.dtype("float32")), ShapedArray((), np.dtype("float32"))

scale_p = Primitive(
    "scale", lambda values, scale: ScaledType(values, scale), to_lojax=lambda values, scale: Scaled(values, scale)
)
dot_p = Primitive(
    "scaled_dot",
    lambda x, y: ShapedArray((), x.values.dtype),
    to_lojax=lambda x, y: jnp.dot(x.values, y) * x.scale,
)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(high, "_classes", set())
    high.register_hitype(Scaled, lambda x: ScaledType(aval_of(x.values), aval_of(x.scale)))


VALUES = np.array([1.0, 2.0, 3.0], np.float32)
WEIGHTS = np.array([0.5, -1.0, 2.0], np.float32)


def total(x: Scaled, w: Any) -> Any:
    return dot_p.bind(x, w)


def through(scale: Any, values: Any, w: Any) -> Any:
    """High inside only: array in, array out."""
    return total(scale_p.bind(values, scale), w)


EXPECTED = float(VALUES @ WEIGHTS) * 4.0


def test_eager() -> None:
    assert float(total(Scaled(VALUES, np.float32(4)), WEIGHTS)) == EXPECTED


@pytest.mark.parametrize("wrap", [lambda f: f, meshrt.jit, lambda f: meshrt.jit(meshrt.jit(f)), meshrt.checkpoint])
def test_arguments_and_results(wrap) -> None:
    def double(x: Scaled, w: Any) -> tuple[Scaled, Any]:
        return Scaled(x.values * 2, x.scale), total(x, w)

    f = wrap(double)
    for _ in range(2):  # the second call finds the first one's entry
        doubled, value = f(Scaled(jnp.asarray(VALUES), jnp.float32(4)), jnp.asarray(WEIGHTS))
        assert isinstance(doubled, Scaled)
        np.testing.assert_array_equal(doubled.values, 2 * VALUES)
        assert float(doubled.scale) == 4.0 and float(value) == EXPECTED


@pytest.mark.parametrize("inside", [lambda f: f, meshrt.jit, meshrt.checkpoint])
@pytest.mark.parametrize("outside", [lambda f: f, meshrt.jit])
def test_gradients(inside, outside) -> None:
    """With respect to arrays that a high value is made of, and to a high argument, whose gradient is a high value."""
    by_scale = outside(meshrt.grad(inside(through)))(4.0, VALUES, WEIGHTS)
    assert float(by_scale) == float(VALUES @ WEIGHTS)
    gradient = outside(meshrt.grad(inside(total)))(Scaled(VALUES, np.float32(4)), WEIGHTS)
    assert isinstance(gradient, Scaled)
    np.testing.assert_array_equal(gradient.values, 4 * WEIGHTS)
    assert float(gradient.scale) == float(VALUES @ WEIGHTS)


def test_jvp_and_vmap() -> None:
    x, t = Scaled(VALUES, np.float32(4)), Scaled(np.ones(3, np.float32), np.float32(0))
    out, tangent = meshrt.jvp(lambda x: total(x, WEIGHTS), (x,), (t,))
    assert float(out) == EXPECTED and float(tangent) == 4 * float(WEIGHTS.sum())
    stack = Scaled(np.stack([VALUES, 2 * VALUES]), np.array([4, 4], np.float32))
    np.testing.assert_array_equal(meshrt.vmap(lambda x: total(x, WEIGHTS))(stack), [EXPECTED, 2 * EXPECTED])


def test_loops_and_branches() -> None:
    def body(x: Scaled, w: Any) -> tuple[Scaled, Any]:
        return Scaled(x.values + 1, x.scale), total(x, w)

    carry, ys = lax.scan(body, Scaled(VALUES, np.float32(4)), jnp.stack([WEIGHTS, WEIGHTS]))
    np.testing.assert_array_equal(carry.values, VALUES + 2)
    np.testing.assert_allclose(ys, [EXPECTED, EXPECTED + 4 * float(WEIGHTS.sum())])
    chosen = lax.cond(True, lambda x: x, lambda x: Scaled(-x.values, x.scale), Scaled(VALUES, np.float32(4)))
    np.testing.assert_array_equal(chosen.values, VALUES)


def test_every_trace_says_what_it_requires() -> None:
    """What transforms does not: primitives may have rules for high types. Below it, evaluation does."""
    assert EVAL.requires_low and JaxprTrace().requires_low
    recording = JaxprTrace(requires_low=False)
    for make in (JVPTrace, LinearTrace, lambda parent: BatchTrace(parent, MappedAxis(2))):
        assert not make(EVAL).requires_low and not make(recording).requires_low


def test_a_program_over_high_types_lowers_to_one_over_arrays() -> None:
    def program(x, values, w):
        return [scale_p.bind(values, total_of(x, w)), total_of(x, w)]

    total_of = dot_p.bind
    avals = [ScaledType(VECTOR, SCALAR), VECTOR, VECTOR]
    closed = trace_to_jaxpr(program, avals, "program", requires_low=False)
    assert closed.is_high and [e.primitive.name for e in closed.eqns] == ["scaled_dot", "scale", "scaled_dot"]
    assert str(closed.jaxpr.invars[0].aval) == "scaled(float32[3])" and "scaled(float32[3])" in str(closed)
    low = lower_to_lojax(closed)
    assert not low.is_high and low.in_avals == [VECTOR, SCALAR, VECTOR, VECTOR]
    assert low.out_avals == [VECTOR, SCALAR, SCALAR]
    assert lower_to_lojax(low) is low
    again = trace_to_jaxpr(lambda *xs: eval_jaxpr(closed.jaxpr, (), xs), avals, requires_low=False)
    assert [e.primitive.name for e in again.eqns] == [e.primitive.name for e in closed.eqns]


def test_high_values_inside_make_a_program_high() -> None:
    """Also where they come and go within a transformation of what is recorded."""
    made = lambda *xs: [dot_p.bind(scale_p.bind(xs[0], xs[1]), xs[2])]
    closed = trace_to_jaxpr(made, [VECTOR, SCALAR, VECTOR], requires_low=False)
    assert closed.is_high and closed.jaxpr.is_high and lower_to_lojax(closed).out_avals == [SCALAR]
    assert not trace_to_jaxpr(made, [VECTOR, SCALAR, VECTOR]).is_high  # lowered as it is recorded
    below, above = JaxprTrace(requires_low=False), JaxprTrace(requires_low=False)
    record_high(JVPTrace(BatchTrace(below, MappedAxis(2))))
    assert below.is_high and not above.is_high
    assert not trace_to_jaxpr(lambda x: [x * 2], [VECTOR], requires_low=False).is_high


def test_missing_methods_are_named() -> None:
    class Bare(high.HiType):
        pass

    for call in (lambda: Bare().lo_ty(), lambda: Bare().lower_val(None), lambda: Bare().raise_val()):
        with pytest.raises(NotImplementedError, match="Bare requires a method"):
            call()


def test_nothing_is_looked_at_where_no_high_type_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    from meshrt.transforms.high import opened

    monkeypatch.setattr(high, "_classes", set())
    tree = (object(), {"a": object()})
    assert opened(tree) is tree


def test_shardings_donation_and_compiled_programs():
    """A sharding given for a high value is that of its arrays, and its arrays are donated."""
    x = Scaled(jnp.asarray(VALUES), jnp.asarray(np.float32(2)))
    whole = meshrt.NamedSharding(meshrt.make_mesh((2,), ("x",), meshrt.sharding.AxisType.Auto), meshrt.P())
    want = float(VALUES @ WEIGHTS) * 2
    assert meshrt.jit(total).lower(x, WEIGHTS).compile()(x, WEIGHTS) == want
    given = meshrt.jit(total, in_shardings=(whole, None))
    assert given(x, WEIGHTS) == meshrt.jit(lambda x, w: given(x, w))(x, WEIGHTS) == want
    shift = meshrt.jit(lambda x: Scaled(x.values + 1, x.scale), out_shardings=whole)
    nested = meshrt.jit(lambda x: shift(x).values)(x)
    assert shift(x).values.sharding is shift(x).scale.sharding is whole and nested.sharding is whole
    moved = meshrt.device_put(x, whole)
    assert type(moved) is Scaled and moved.values.sharding is whole
    assert type(lax.with_sharding_constraint(x, whole)) is Scaled
    double = meshrt.jit(lambda n, x: Scaled(x.values * n, x.scale), static_argnums=0, donate_argnums=1)
    given_away = Scaled(jnp.asarray(VALUES), jnp.asarray(np.float32(2)))
    np.testing.assert_array_equal(double(2, given_away).values, VALUES * 2)
    assert given_away.values.is_deleted() and given_away.scale.is_deleted()


def test_b21_high_values_through_shard_map(registered):
    """Reference B21: they are taken apart at the region's boundary; specs are prefixes of their arrays."""
    mesh = meshrt.make_mesh((8,), ("x",), axis_types=(meshrt.sharding.AxisType.Auto,))
    P = meshrt.P
    f = meshrt.shard_map(lambda s: Scaled(s.values * 2, s.scale + 1), mesh=mesh, in_specs=P(), out_specs=P())
    value = Scaled(np.arange(3, dtype=np.float32), np.float32(3))
    for run in (f, meshrt.jit(f)):
        out = run(value)
        assert type(out) is Scaled and float(out.scale) == 4.0
        np.testing.assert_array_equal(out.values, [0, 2, 4])
    grad = meshrt.grad(lambda s: (lambda r: (r.values * r.scale).sum())(f(s)))(value)
    np.testing.assert_allclose(grad.values, [8, 8, 8])
    last, _ = lax.scan(lambda c, _: (f(c), None), value, None, length=2)
    np.testing.assert_array_equal(last.values, [0, 4, 8])


def test_types_that_only_their_whole_text_tells_apart():
    @dataclass(frozen=True, repr=False)
    class Named(ScaledType):
        name: str = ""

        def __repr__(self) -> str:
            return f"Named {self.name}"

        def short(self) -> str:
            return "Named"

    kinds = [Named(aval_of(1.0), aval_of(1.0), name) for name in "ab"]
    assert high.told_apart(*kinds) == ["Named (Named a)", "Named (Named b)"]
