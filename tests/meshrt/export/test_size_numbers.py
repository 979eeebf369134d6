"""Numbers that stand for symbolic sizes where rules compare dimensions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import export
from meshrt.core.dimensions.expression import max_dim, min_dim
from meshrt.lowering.size_numbers import numbered
from meshrt.sharding import NamedSharding, P


def test_every_expression_has_a_size_of_its_own():
    a, b, *_ = export.symbolic_shape(", ".join("abcdefghijklmnopqrstuvwxyz"))
    sizes = (
        a, b, 2 * a, a // 4, a % 4, a % 7, b % 4, a - 30000, a - b, b - a, a // 10**9, a - a % 4, min_dim(a % 4, a),
        min_dim(a, b), max_dim(a, b), max_dim(a - 10**9, 0), a % 4 + b % 4,
    )  # fmt: skip
    (numbers,) = numbered((sizes,))
    assert all(type(n) is int and n >= 1 for n in numbers)
    for (x, n), (y, m) in itertools.combinations(zip(sizes, numbers), 2):
        assert n != m, f"{x} and {y} are both {n}"
    assert numbered(((a, 4 * a, a // 4 * 4, (a % 4) * b, a % 4),))[0][1] == 4 * numbered(((a,),))[0][0]


def test_products_and_equal_expressions_go_with_their_parts():
    a, b = export.symbolic_shape("a, b")
    (n, part, product, again, plus), ((deep,),) = numbered((
        (b, a % 4, (a % 4) * b, (a + 0) % 4, a % 4 + 2), ((a % 4,),)
    ))  # fmt: skip
    assert product == part * n and part == again == deep and plus == part + 2


def test_all_variables_differ():
    names = [f"v{i}" for i in range(60)]
    sizes = export.symbolic_shape(", ".join(names))
    (numbers,) = numbered(((*sizes, *[2 * s for s in sizes]),))
    assert len(set(numbers)) == 120


@pytest.mark.parametrize("count", ["% 4", "// 2", "- 30000"])
def test_rows_are_gathered_by_indices_of_symbolic_numbers(count):
    """Along an axis of which the types say how it is split, and for a number of indices that may be anything."""
    mesh = meshrt.make_mesh((4,), ("x",))
    take = {"% 4": lambda m: m % 4, "// 2": lambda m: m // 2, "- 30000": lambda m: m - 30000}[count]

    def f(x):
        return jnp.take_along_axis(x, jnp.argsort(x, 1)[:, : take(x.shape[1])], 1)

    sharding = NamedSharding(mesh, P("x", None))
    with meshrt.set_mesh(mesh):
        shape = export.symbolic_shape("4*n, m", constraints=["m >= 30001"] if "-" in count else ())
        exported = export.export(meshrt.jit(f))(meshrt.ShapeDtypeStruct(shape, np.float32, sharding=sharding))
        assert str(exported.out_avals[0]).startswith("float32[4*n@x,")
        columns = 30002 if "-" in count else 6
        x = meshrt.device_put(np.arange(4 * columns, dtype=np.float32).reshape(4, -1) % 5, sharding)
        np.testing.assert_array_equal(exported.call(x), f(x))
