"""High types that are told over which axes their values vary: as types, and as what users' code makes of them."""

import abc
import collections
import copy
import dataclasses
import enum
import pickle
import threading

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import P, lax
from meshrt.core.placed import placed
from meshrt.experimental import hijax

A, B = frozenset({"a"}), frozenset({"b"})


class Pair(hijax.HiType):
    """float16 twice, whose derivatives are float32."""

    shape = (2,)

    def lo_ty(self):
        return [hijax.ShapedArray(tuple(self.shape), np.dtype(np.float16))] * 2

    def lower_val(self, value):
        return [value.first, value.second]

    def raise_val(self, first, second):
        return Two(first, second, self)

    def to_tangent_aval(self):
        return hijax.ShapedArray(tuple(self.shape), np.dtype(np.float32))


@dataclasses.dataclass(frozen=True, eq=False)
class Two:
    first: object
    second: object
    kind: object


@dataclasses.dataclass(frozen=True)
class ByFields(Pair):
    shape: tuple
    tag: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class BySlots(Pair):
    shape: tuple
    tag: int = 0


class Private(Pair):
    __slots__ = ("__size", "empty")

    def __init__(self, size):
        self.__size = size

    shape = property(lambda self: (self.__size,))
    __eq__ = lambda self, other: isinstance(other, Private) and self.shape == other.shape
    __hash__ = lambda self: hash(self.shape)


class Alone(Pair):
    """Equal to itself alone."""

    def __reduce__(self):
        return "ALONE"


ALONE = Alone()


class OfTuple(collections.namedtuple("OfTuple", "shape tag"), Pair):
    pass


class OfEnum(Pair, enum.Enum):
    ONE = 1


seen = []


class Registered(Pair):
    def __init_subclass__(cls, *, code, **settings):
        super().__init_subclass__(**settings)
        seen.append(cls)


class Strict(abc.ABCMeta):
    def __new__(cls, name, bases, body, *, must, **settings):
        seen.append(name)
        return super().__new__(cls, name, bases, body, **settings)

    def __init__(cls, name, bases, body, *, must, **settings):
        super().__init__(name, bases, body)


class InRegistry(Registered, metaclass=Strict, code=1, must=2):
    __eq__ = lambda self, other: type(self) is type(other)
    __hash__ = lambda self: 1


KINDS = [ByFields((2,)), BySlots((2,)), Private(2), ALONE, OfTuple((2,), 0), OfEnum.ONE, InRegistry()]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_a_type_that_varies_is_one_value(kind):
    count = len(seen)
    one, same, other, apart = (placed(kind, v) for v in ([A, A], [A, A], [A, B], [A, A | B]))
    assert one == same and hash(one) == hash(same) and (one != same) is False and isinstance(one, type(kind))
    assert len({one, other, apart, kind}) == 4 and one != kind != one
    assert one.shape == (2,) and [t.vma for t in one.lo_ty()] == [A, A] and one.to_tangent_aval().vma == A
    assert placed(other, [A, A]) == placed(kind, [A, A | B]) and placed(one, [A, A]) is one
    for made in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
        assert made == one
    assert len(seen) == count  # users' class statements are not asked again
    assert repr(one) == repr(kind) + "{V:a}" and str(other) == str(kind) + "{V:a;b}" and one.short().endswith("{V:a}")


def test_what_users_make_by_the_class_is_plain():
    one = placed(ByFields((2,)), [A, A])
    for made in (dataclasses.replace(one, tag=3), type(one)((2,), 3), type(one)(shape=(2,), tag=3)):
        assert type(made) is ByFields and made == ByFields((2,), 3)
    assert placed(dataclasses.replace(one, tag=0), [A, A]) == one


def test_the_classes_are_made_once():
    kinds = [type(f"Kind{i}", (ByFields,), {})((2,)) for i in range(300)]
    first = [placed(k, [A, A]) for k in kinds]
    assert all(type(placed(k, [A, A])) is type(f) for k, f in zip(kinds, first))
    fresh, begin, found = type("Fresh", (ByFields,), {})((2,)), threading.Barrier(4), []
    threads = [threading.Thread(target=lambda: (begin.wait(), found.append(placed(fresh, [A, A])))) for _ in range(4)]
    for step in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            step(thread)
    assert len(set(map(type, found))) == 1


class Op(hijax.VJPHiPrimitive):
    def __init__(self, kind, out, expand):
        self.in_avals, self.out_aval, self.params = (kind,), out, {"expand": expand}
        super().__init__()

    def vjp_fwd(self, nonzeros, value):
        return self(value), None

    def vjp_bwd_retval(self, residuals, ct):
        return (ct,)


hijax.register_hitype(Two, lambda value: value.kind)


def half(x, kind):
    return Op(meshrt.typeof(x), kind, lambda x: Two(x.astype(jnp.float16), x.astype(jnp.float16), kind))(x)


def single(value):
    kind = meshrt.typeof(value)
    return Op(kind, kind.to_tangent_aval(), lambda v: v.first.astype(jnp.float32))(value)


def summed(value):
    """Of all devices: the result varies no longer, and its type is made of the operand's."""
    kind = meshrt.typeof(value)
    total = lambda v: lax.psum(v.astype(jnp.float32), "a").astype(jnp.float16)
    out = dataclasses.replace(kind, tag=kind.tag)
    return Op(kind, out, lambda v: Two(total(v.first), total(v.second), out))(value)


def mapped(body):
    mesh = meshrt.make_mesh((2, 2), ("a", "b"), axis_types=(meshrt.sharding.AxisType.Auto,) * 2)
    return meshrt.shard_map(body, mesh=mesh, in_specs=(P("a"), P()), out_specs=P())


X, KIND = np.arange(4, dtype=np.float32), ByFields((2,))
REPLACED = {
    "branches": (lambda x, w: lax.cond(w[0] >= 0, lambda: summed(half(x, KIND)), lambda: half(w, KIND)), 6),
    "a carry": (
        lambda x, w: lax.scan(lambda c, _: (summed(half(single(c) * x, KIND)), None), half(w, KIND), None, length=2)[0],
        16,
    ),
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_result_whose_type_is_made_of_an_operands_may_vary_less(name):
    body, wanted = REPLACED[name]
    assert mapped(lambda x, w: single(body(x, w)).sum())(X, np.arange(2, dtype=np.float32)) == wanted


def test_types_that_are_equal_by_identity_are_carried():
    def body(x, _):
        carried = lax.scan(lambda c, _: (half(single(c) * 2, ALONE), None), half(x, ALONE), None, length=2)[0]
        return lax.psum(single(carried).sum(), "a")

    assert mapped(body)(X, X) == 24
    np.testing.assert_array_equal(meshrt.grad(mapped(body))(X, X), np.full(4, 4))
