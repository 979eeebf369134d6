"""Values of high types that are laid out otherwise than programs have them: batches, types of arrays on a mesh."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.experimental import hijax
from meshrt.experimental.hijax.quantized import dequantize, quantize
from meshrt.experimental.hijax.tuples import element, tuple_of

SHARED = jnp.linspace(0.5, 2.0, 3)
MEMBERS = jnp.asarray(np.random.RandomState(0).rand(2, 3) - 0.4, jnp.float32)


def close(a, b):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-5)


def turned(pair):
    return tuple_of(jnp.sin(element(pair, 1)), element(pair, 0) * element(pair, 1))


def told(pair):
    return (element(pair, 0) * element(pair, 1)).sum()


def scanned(x):
    return told(lax.scan(lambda c, _: (turned(c), None), tuple_of(SHARED, x), None, length=2)[0])


def chosen(x):
    return told(lax.cond(SHARED.sum() > 1, turned, lambda pair: pair, tuple_of(SHARED, x)))


def counted(x):
    return told(lax.fori_loop(0, 2, lambda _, pair: turned(pair), tuple_of(SHARED, x)))


def referred(x):
    ref = meshrt.new_ref(tuple_of(SHARED, x))
    ref[...] = turned(ref[...])
    return told(ref[...])


def by_own_predicate(x):
    return told(lax.cond(x.sum() > 0, turned, lambda pair: pair, tuple_of(SHARED, x)))


@pytest.mark.parametrize("f", [scanned, chosen, counted, referred, by_own_predicate])
def test_tuples_of_which_members_share_an_element(f):
    close(meshrt.vmap(f)(MEMBERS), [f(x) for x in MEMBERS])
    want = [meshrt.grad(f)(x) for x in MEMBERS]
    close(meshrt.vmap(meshrt.grad(f))(MEMBERS), want)
    close(meshrt.grad(lambda xs: meshrt.vmap(f)(xs).sum())(MEMBERS), want)


def logarithm(x):
    """Its first branch has no derivative at the values of those that take the second."""
    first = lambda pair: jnp.log(element(pair, 0)).sum() + element(pair, 1).sum()
    return lax.cond(x[0] > 0, first, lambda pair: 3 * element(pair, 0).sum(), tuple_of(x, 2 * x))


@pytest.mark.parametrize("wrap", [lambda f: f, meshrt.jit], ids=["plain", "jit"])
def test_branches_that_a_member_does_not_take_give_it_no_nan(wrap):
    xs = jnp.stack([SHARED, -SHARED, jnp.zeros(3)])
    want = [1 / SHARED + 2, jnp.full(3, 3.0), jnp.full(3, 3.0)]
    close(wrap(meshrt.vmap(meshrt.grad(logarithm)))(xs), want)
    close(wrap(meshrt.grad(lambda xs: meshrt.vmap(logarithm)(xs).sum()))(xs), want)


def test_operands_whose_derivatives_are_of_another_kind_are_refused():
    def f(x):
        return lax.cond(x[0, 0] > 0, lambda q: jnp.log(dequantize(q)).sum(), lambda q: 0.0, quantize(x))

    with pytest.raises(errors.UnsupportedError, match=r"high type q8\[2,2,2\], whose derivatives do not consist"):
        meshrt.grad(lambda xs: meshrt.vmap(f)(xs).sum())(jnp.ones((2, 2, 2)))


@dataclass(frozen=True, eq=False)
class Held:
    array: Any


@dataclass(frozen=True)
class Along(hijax.MappingSpec):
    dim: int


@dataclass(frozen=True)
class HeldType(hijax.HiType):
    kind: hijax.ShapedArray

    def lo_ty(self):
        return [self.kind]

    def lower_val(self, value):
        return [value.array]

    def raise_val(self, array):
        return Held(array)

    def to_tangent_aval(self):
        return self

    def dec_rank(self, size, spec):
        shape = self.kind.shape
        return HeldType(self.kind.update(shape=shape[: spec.dim] + shape[spec.dim + 1 :]))

    def inc_rank(self, size, spec):
        shape = self.kind.shape
        return HeldType(self.kind.update(shape=(*shape[: spec.dim], size, *shape[spec.dim :])))

    def leading_axis_spec(self):
        return Along(0)


hijax.register_hitype(Held, lambda value: HeldType(meshrt.typeof(value.array)))


def test_types_whose_batches_lie_elsewhere_are_moved_where_shapes_tell_how():
    kept = lambda value: meshrt.new_ref(value)[...]
    f = lambda size: meshrt.vmap(kept, in_axes=(Along(1),), out_axes=Along(0), axis_size=size)
    array = jnp.arange(6.0).reshape(3, 2)
    close(f(2)(Held(array)).array, array.T)
    said = r"which dimension of .*\[2,2\].*give HeldType a method `batch_dims`"
    with pytest.raises(errors.UnsupportedError, match=said):
        f(2)(Held(array[:2]))


def test_types_made_of_what_arrays_on_a_mesh_say_are_those_of_programs():
    """`typeof` of an array on a mesh names the mesh, of a traced one it does not."""
    mesh = meshrt.make_mesh((1,), ("d",), (meshrt.sharding.AxisType.Auto,))
    x = meshrt.device_put(jnp.arange(3.0), meshrt.NamedSharding(mesh, meshrt.P("d")))
    kept = meshrt.new_ref(Held(x))
    kept[...] = meshrt.jit(lambda value: Held(2 * x))(Held(x))
    close(lax.fori_loop(0, 2, lambda _, value: Held(3 * x), kept[...]).array, 3 * x)
    close(lax.cond(x.sum() > 9, lambda value: value, lambda value: Held(4 * x), kept[...]).array, 4 * x)
    weak, strong = (HeldType(hijax.ShapedArray((3,), np.dtype(np.float32), w)) for w in (True, False))
    assert weak.normalize() == strong == HeldType(meshrt.typeof(x)).normalize()


@dataclass(frozen=True)
class WithMore(HeldType):
    more: InitVar[int]


class OfArray(HeldType):
    def __init__(self, array):
        super().__init__(meshrt.typeof(array))


@pytest.mark.parametrize("kind", [OfArray, lambda x: WithMore(meshrt.typeof(x), 3)], ids=["array", "more"])
def test_types_that_are_made_of_other_things_than_their_fields_are_compared_as_they_are(kind):
    made, weak = kind(jnp.ones(3)), kind(jnp.asarray(1.0))
    assert weak.kind.weak_type
    assert made.normalize() is made and weak.normalize() is weak
