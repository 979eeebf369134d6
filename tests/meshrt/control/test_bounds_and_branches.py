"""Bounds of loops, how far they are unrolled, and types of branches: taken and refused as by JAX."""

from __future__ import annotations

import numpy as np
import pytest

from tests.meshrt.beside import assert_alike

X = np.float32([1, 2, 3])
LOOPS = {
    "floats": lambda l: l.lax.fori_loop(0.0, 3.0, lambda i, c: c + i, 0.0),
    "floats rounded": lambda l: l.lax.fori_loop(np.float32(0.5), np.float32(3.5), lambda i, c: c + i, 0.0),
    "floats differentiated": lambda l: l.grad(lambda x: l.lax.fori_loop(0.0, 2.0, lambda i, c: c * x, 1.0))(3.0),
    "floats traced": lambda l: l.jit(lambda n: l.lax.fori_loop(0.0, n, lambda i, c: c + i, 0.0))(3.5),
    "int and float": lambda l: l.lax.fori_loop(0, np.float32(3), lambda i, c: c + 1, 0),
    "int and traced float": lambda l: l.jit(lambda n: l.lax.fori_loop(0, n, lambda i, c: c + i, 0.0))(3.5),
    "booleans": lambda l: l.lax.fori_loop(False, True, lambda i, c: c + i, 0),
    "complex": lambda l: l.lax.fori_loop(0j, 3j, lambda i, c: c + i, 0),
    "int8": lambda l: l.lax.fori_loop(np.int8(1), np.int8(4), lambda i, c: c + i, 0),
    "int and traced int8": lambda l: l.jit(lambda n: l.lax.fori_loop(0, n, lambda i, c: c + i, 0))(np.int8(3)),
    "int8 and int32": lambda l: l.lax.fori_loop(np.int8(0), np.int32(3), lambda i, c: c + i, 0),
    "uint8 and int": lambda l: l.lax.fori_loop(np.uint8(1), 4, lambda i, c: c + i, 0),
    "array": lambda l: l.lax.fori_loop(l.numpy.int32(1), 4, lambda i, c: c + i, 0),
    "vector": lambda l: l.lax.fori_loop(0, X, lambda i, c: c + i, 0),
    "an int that becomes a weak float": lambda l: (
        l.lax.fori_loop(0, 3, lambda i, c: c + 1.0, 0),
        l.lax.scan(lambda c, x: (c + 1.0, c), 0, X),
        l.lax.while_loop(lambda c: c < 3, lambda c: c + 1.0, 0),
        l.lax.scan(lambda c, x: (c + 1j, None), 0.0, X)[0],
        l.lax.scan(lambda c, x: (c * 2, None), 0.0, X)[0],
    ),
    "backwards": lambda l: l.lax.fori_loop(3, 0, lambda i, c: c + 1, 0),
    **{
        f"fori_loop unrolled by {n!r}": lambda l, n=n: l.lax.fori_loop(0, 3, lambda i, c: c + i, 0, unroll=n)
        for n in (0, 2, True, False, -1, None)
    },
    **{
        f"fori_loop of traced bounds unrolled by {n!r}": lambda l, n=n: l.jit(
            lambda stop: l.lax.fori_loop(0, stop, lambda i, c: c + i, 0, unroll=n)
        )(3)
        for n in (2, 1, False, True)
    },
    **{
        f"scan unrolled by {n!r}": lambda l, n=n: l.lax.scan(lambda c, x: (c + x, c), np.float32(0), X, unroll=n)
        for n in (0, 2, 7, True, False, -1, "a")
    },
    **{f"map in batches of {n}": lambda l, n=n: l.lax.map(lambda x: x * 2, X, batch_size=n) for n in (0, 2, 3, 5)},
    "scan of sizes": lambda l: l.lax.associative_scan(lambda a, b: a, (X, X[:2])),
    "scan along no axis": lambda l: l.lax.associative_scan(lambda a, b: a + b, X, axis=1),
    "operand of each branch": lambda l: l.lax.cond(True, 2, lambda x: x + 1, 3, lambda x: x - 1),
    "operands of functions": lambda l: l.lax.cond(True, 2, 3),
    "complex predicate": lambda l: l.lax.cond(1j, lambda: 1, lambda: 2),
    "float predicate": lambda l: l.lax.cond(1.5, lambda: 1, lambda: 2),
    "vector predicate": lambda l: l.lax.cond(X, lambda: 1, lambda: 2),
    "no predicate": lambda l: l.lax.cond(None, lambda: 1, lambda: 2),
    "float index": lambda l: l.lax.switch(1.5, [lambda: 1, lambda: 2]),
    "no branches": lambda l: l.lax.switch(0, []),
}


def test_branches_are_traced_as_they_are_written():
    def order(l):
        seen = []
        note = lambda name: lambda x: (seen.append(name), x)[1]
        l.lax.cond(True, note("true"), note("false"), 1.0)
        l.jit(lambda i: l.lax.switch(i, [note("first"), note("second")], 1.0))(0)
        return seen

    assert_alike(order)


@pytest.mark.parametrize("name", LOOPS)
def test_as_in_jax(name):
    assert_alike(LOOPS[name])


VALUES = {
    "int": 1, "float": 2.0, "bool": True, "complex": 1j, "int32": np.int32(1), "float32": np.float32(2),
    "int8": np.int8(1), "numpy bool": np.bool_(1),
}  # fmt: skip


@pytest.mark.parametrize("first", VALUES)
def test_types_of_two(first):
    """Branches have one dtype, and the first one's weakness; a loop's initial value may take a stronger dtype."""
    a = VALUES[first]
    for b in VALUES.values():
        types = lambda l, f: (lambda t: (str(t.dtype), t.weak_type))(l.eval_shape(f))
        assert_alike(lambda l, b=b: types(l, lambda: l.lax.cond(True, lambda: a, lambda: b)))
        assert_alike(
            lambda l, b=b: types(l, lambda: l.lax.switch(l.numpy.argmax(X), [lambda: a, lambda: b, lambda: b]))
        )
        assert_alike(lambda l, b=b: types(l, lambda: l.lax.scan(lambda c, x: (b, None), a, None, 2)[0]))


WITHOUT_JIT = {
    "while_loop": lambda l: l.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2.0), (0, np.ones(2, "f4"))
    ),
    "fori_loop": lambda l: l.lax.fori_loop(0, 3, lambda i, c: c * i + sum(range(i)), l.numpy.ones(2)),
    "fori_loop over numpy": lambda l: l.numpy.asarray(l.lax.fori_loop(0, 3, lambda i, c: c * i, np.ones(2, "f4"))),
}


@pytest.mark.parametrize("name", WITHOUT_JIT)
def test_loops_without_jit_have_the_types_of_loops(name):
    def program(l):
        with l.disable_jit():
            return WITHOUT_JIT[name](l)

    assert_alike(program)
