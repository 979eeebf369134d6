"""Random programs in two forms: on whole arrays, and per device, along with the spec of every value."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt import P, lax
from meshrt import numpy as jnp

Entry = tuple[str, ...]


@dataclass
class Value:
    """How a value is computed from the arguments, whole and per device; its shape, and the axes of each dimension."""

    whole: Callable[[list[Any]], Any]
    local: Callable[[list[Any]], Any]
    shape: tuple[int, ...]
    spec: tuple[Entry, ...]

    @property
    def partition(self) -> Any:
        return P(*[e or None for e in self.spec])


@dataclass
class Program:
    arrays: list[np.ndarray]
    arguments: list[Value]
    results: list[Value]

    def whole(self, *xs: Any) -> list[Any]:
        return [v.whole(list(xs)) for v in self.results]

    def local(self, *xs: Any) -> list[Any]:
        return [v.local(list(xs)) for v in self.results]


class Draw:
    """Draws programs over a mesh of named sizes. Sizes of dimensions are multiples of all products of axes."""

    def __init__(self, seed: int, sizes: dict[str, int]):
        self.random = np.random.RandomState(seed)
        self.sizes = sizes
        self.unit = math.prod(sizes.values())

    def pick(self, items: Any) -> Any:
        return items[self.random.randint(len(items))]

    def spec(self, ndim: int) -> tuple[Entry, ...]:
        entries: list[list[str]] = [[] for _ in range(ndim)]
        for axis in self.random.permutation(list(self.sizes)):
            where = self.random.randint(-1, ndim)
            if where >= 0:
                entries[where].append(str(axis))
        return tuple(map(tuple, entries))

    def program(self, steps: int = 7) -> Program:
        n = self.unit
        arrays, values = [], []
        for i in range(3):
            shape = (n, 2 * n) if i % 2 == 0 else (2 * n, n)
            arrays.append((self.random.randn(*shape) * 0.3).astype(np.float32))
            get = lambda xs, i=i: xs[i]
            values.append(Value(get, get, shape, self.spec(2)))
        arguments = list(values)
        for _ in range(steps):
            values.append(self.pick(STEPS)(self, values) or values[-1])
        return Program(arrays, arguments, values[-3:])

    def split(self, value: Value) -> tuple[int, Entry] | None:
        """A dimension that is split, with its axes."""
        found = [(d, e) for d, e in enumerate(value.spec) if e]
        return self.pick(found) if found else None

    def matching(self, value: Value, values: list[Value], shape: tuple[int, ...]) -> Value:
        """A value of `shape`, laid out as `value`: one that there is, its parts taken, or made of `value`."""
        found = [v for v in values if v.shape == shape]
        other = self.pick(found)
        return self.laid(other, value.spec)

    def laid(self, value: Value, spec: tuple[Entry, ...]) -> Value:
        for d, (have, want) in enumerate(zip(value.spec, spec)):
            if have != want:
                value = gathered(value, d) if have else value
        for d, want in enumerate(spec):
            if value.spec[d] != want:
                value = self.part(value, d, want)
        return value

    def part(self, value: Value, d: int, axes: Entry) -> Value:
        """Each device takes its part of a dimension that it has whole."""
        size = value.shape[d] // math.prod(self.sizes[a] for a in axes)
        local = lambda xs: lax.dynamic_slice_in_dim(value.local(xs), lax.axis_index(axes) * size, size, d)
        return Value(value.whole, local, value.shape, replaced(value.spec, d, axes))


def replaced(spec: tuple[Entry, ...], d: int, entry: Entry) -> tuple[Entry, ...]:
    return (*spec[:d], entry, *spec[d + 1 :])


def gathered(value: Value, d: int) -> Value:
    axes = value.spec[d]
    local = lambda xs: lax.all_gather_invariant(value.local(xs), axes, axis=d, tiled=True)
    return Value(value.whole, local, value.shape, replaced(value.spec, d, ()))


def unary(draw: Draw, values: list[Value]) -> Value:
    v, f = draw.pick(values), draw.pick([jnp.sin, jnp.tanh, lambda x: x * 0.5 + 1.0, lambda x: x * x])
    return Value(lambda xs: f(v.whole(xs)), lambda xs: f(v.local(xs)), v.shape, v.spec)


def binary(draw: Draw, values: list[Value]) -> Value:
    v, f = draw.pick(values), draw.pick([jnp.add, jnp.multiply, jnp.maximum])
    w = draw.matching(v, values, v.shape)
    return Value(lambda xs: f(v.whole(xs), w.whole(xs)), lambda xs: f(v.local(xs), w.local(xs)), v.shape, v.spec)


def product(draw: Draw, values: list[Value]) -> Value | None:
    v = draw.pick(values)
    found = [w for w in values if len(w.shape) == 2 and len(v.shape) == 2 and w.shape[0] == v.shape[1]]
    if not found:
        return None
    w, used = draw.pick(found), set(v.spec[0]) | set(v.spec[1])
    columns = tuple(a for a in w.spec[1] if a not in used)
    w = draw.laid(w, (v.spec[1], columns if columns == w.spec[1] else ()))
    scale = np.float32(1 / v.shape[1])

    def local(xs: list[Any]) -> Any:
        out = v.local(xs) @ w.local(xs) * scale
        return lax.psum(out, v.spec[1]) if v.spec[1] else out

    spec = (v.spec[0], w.spec[1])
    return Value(lambda xs: v.whole(xs) @ w.whole(xs) * scale, local, (v.shape[0], w.shape[1]), spec)


def scattered_product(draw: Draw, values: list[Value]) -> Value | None:
    """The sum over the contracted dimension's axis leaves each device a part of the rows."""
    found = [
        (v, w) for v in values for w in values if v.shape[1] == w.shape[0] and len(v.spec[1]) == 1 and not v.spec[0]
    ]
    if not found:
        return None
    v, w = draw.pick(found)
    w = draw.laid(w, (v.spec[1], ()))
    (axis,), scale = v.spec[1], np.float32(1 / v.shape[1])
    local = lambda xs: lax.psum_scatter(v.local(xs) @ w.local(xs) * scale, axis, scatter_dimension=0, tiled=True)
    return Value(lambda xs: v.whole(xs) @ w.whole(xs) * scale, local, (v.shape[0], w.shape[1]), ((axis,), ()))


def normalized(draw: Draw, values: list[Value]) -> Value:
    v, d = draw.pick(values), draw.random.randint(2)

    def local(xs: list[Any]) -> Any:
        x, axes = v.local(xs), v.spec[d]
        mean = x.sum(d, keepdims=True) / v.shape[d]
        return x - (lax.psum(mean, axes) if axes else mean)

    return Value(lambda xs: (lambda x: x - x.mean(d, keepdims=True))(v.whole(xs)), local, v.shape, v.spec)


def transposed(draw: Draw, values: list[Value]) -> Value:
    v = draw.pick(values)
    return Value(lambda xs: v.whole(xs).T, lambda xs: v.local(xs).T, v.shape[::-1], v.spec[::-1])


def gathered_somewhere(draw: Draw, values: list[Value]) -> Value | None:
    v = draw.pick(values)
    found = draw.split(v)
    return gathered(v, found[0]) if found else None


def rolled(draw: Draw, values: list[Value]) -> Value | None:
    """Shards move on by one device."""
    v = draw.pick(values)
    found = draw.split(v)
    if found is None:
        return None
    d, axes = found
    n = math.prod(draw.sizes[a] for a in axes)
    local = lambda xs: lax.ppermute(v.local(xs), axes, [(i, (i + 1) % n) for i in range(n)])
    return Value(lambda xs: jnp.roll(v.whole(xs), v.shape[d] // n, d), local, v.shape, v.spec)


def exchanged(draw: Draw, values: list[Value]) -> Value | None:
    """all_to_all: the axis that splits one dimension splits the other one."""
    v = draw.pick(values)
    found = [d for d in range(2) if len(v.spec[d]) == 1 and not v.spec[1 - d]]
    if not found:
        return None
    d = draw.pick(found)
    (axis,) = v.spec[d]
    local = lambda xs: lax.all_to_all(v.local(xs), axis, split_axis=1 - d, concat_axis=d, tiled=True)
    spec = ((), (axis,)) if d == 0 else ((axis,), ())
    return Value(v.whole, local, v.shape, spec)


def looped(draw: Draw, values: list[Value]) -> Value:
    v = draw.pick(values)

    def run(x: Any) -> Any:
        return lax.scan(lambda c, _: (jnp.sin(c) + x * 0.1, None), x, None, length=2)[0]

    return Value(lambda xs: run(v.whole(xs)), lambda xs: run(v.local(xs)), v.shape, v.spec)


def chosen(draw: Draw, values: list[Value]) -> Value:
    """A branch that depends on a sum over everything."""
    v = draw.pick(values)
    axes = tuple(a for e in v.spec for a in e)

    def run(x: Any, total: Any) -> Any:
        return lax.cond(total > 0, lambda: jnp.tanh(x) * total * 0.01, lambda: x - 1.0)

    def local(xs: list[Any]) -> Any:
        x = v.local(xs)
        return run(x, lax.psum(x.sum(), axes) if axes else x.sum())

    return Value(lambda xs: (lambda x: run(x, x.sum()))(v.whole(xs)), local, v.shape, v.spec)


STEPS = [
    unary, binary, binary, product, product, scattered_product, normalized, transposed, gathered_somewhere, rolled,
    exchanged, looped, chosen,
]  # fmt: skip
