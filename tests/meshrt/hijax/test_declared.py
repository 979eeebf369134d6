"""What a high type declares for its values: attributes, operators, conversion to an array; the same with JAX."""

from dataclasses import dataclass

import jax
import jax.experimental.hijax
import numpy as np
import pytest

import meshrt
import meshrt.experimental.hijax
from meshrt.experimental.hijax.tuples import element, tuple_of


@dataclass(frozen=True)
class Held:
    kind: object


class Cell:
    """A mutable value around one array."""

    def __init__(self, held):
        self.held = held


@pytest.fixture(params=[jax, meshrt], ids=["jax", "meshrt"], scope="module")
def cells(request):
    """A module and a function that makes cells in it: values whose type has operators and attributes."""
    library = request.param
    hijax, jnp = library.experimental.hijax, library.numpy

    class Kind(hijax.MutableHiType):
        unit = "metres"

        def __eq__(self, other):
            return type(other) is Kind

        def __hash__(self):
            return hash(Kind)

        def __repr__(self):
            return "Cell"

        has_qdd = True
        lo_ty_qdd = lambda self, state: [state.kind]
        new_from_loval = lambda self, state, x: made(x)
        read_loval = lambda self, state, cell: [get(cell)]
        update_from_loval = lambda self, state, cell, x: put(cell, x)
        _add = lambda self, cell, other: get(cell) + other
        _getitem = lambda self, cell, index: get(cell)[index]
        _setitem = lambda self, cell, index, value: put(cell, get(cell).at[index].set(value))
        _len = lambda self, cell: 3
        sum = hijax.aval_method(lambda cell: get(cell).sum() + 100)
        T = hijax.aval_property(lambda cell: get(cell) * 2)
        first = hijax.aval_property(lambda cell: get(cell)[0])
        __jax_array__ = hijax.aval_method(lambda cell: get(cell))

    class Get(hijax.HiPrimitive):
        is_high = lambda self, *kinds, **params: True
        impl = to_lojax = lambda self, cell: cell.held
        abstract_eval = lambda self, cell: (cell.mutable_qdd.cur_val.kind, set())

    class Put(hijax.HiPrimitive):
        multiple_results = True
        is_high = lambda self, *kinds, **params: True

        def to_lojax(self, cell, value):
            cell.held = value
            return []

        impl = to_lojax

        def abstract_eval(self, cell, value):
            cell.mutable_qdd.update(Held(value))
            return [], set()

    class Own(Cell):
        cur_qdd = type_state = lambda self: Held(library.typeof(self.held))

    made = Own
    get, put_p = Get("get_cell").bind, Put("put_cell")
    put = lambda cell, value: put_p.bind(cell, value) and None
    hijax.register_hitype(Own, lambda cell: Kind())
    return library, lambda *values: made(jnp.array(values)), Kind


def test_values_have_what_their_type_declares(cells):
    library, cell, kind = cells

    @library.jit
    def f(c, x):
        assert c.unit == "metres" and len(c) == 3 and library.typeof(c) == kind()
        return c + x, c[1], c.sum(), c.T, c.first, x @ c, x + c, library.numpy.sin(c), library.numpy.sum(c)

    x = np.array([4.0, 5.0, 6.0], np.float32)
    held = np.array([1.0, 2.0, 3.0], np.float32)
    wanted = [held + x, 2.0, 106.0, 2 * held, 1.0, 32.0, held + x, np.sin(held), 6.0]
    for got, want in zip(f(cell(1.0, 2.0, 3.0), x), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_type_rule_states_what_an_operation_leaves(cells):
    library, cell, _ = cells
    c = cell(1.0, 2.0, 3.0)

    @library.jit
    def f(c):
        c[0] = 7.0
        return c.first

    assert float(f(c)) == 7.0 and c.held.tolist() == [7.0, 2.0, 3.0]


def test_what_a_type_does_not_declare_is_no_attribute(cells):
    library, cell, _ = cells

    @library.jit
    def f(c):
        return c.nothing_of_the_kind

    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        f(cell(1.0, 2.0, 3.0))


class _OnlyArrays:
    """A pytree whose class is made of nothing but arrays."""

    def __init__(self, x, kind):
        if not hasattr(x, "dtype"):
            raise ValueError(f"{x} is no array")
        self.x, self.kind = x, kind


@pytest.fixture(scope="module")
def only_arrays():
    for library in (meshrt, jax):
        library.tree_util.register_pytree_node(
            _OnlyArrays, lambda o: ((o.x,), o.kind), lambda kind, children: _OnlyArrays(*children, kind)
        )
    return _OnlyArrays


def test_classes_that_take_arrays_only_go_in_and_out_beside_high_values(only_arrays):
    """Of no type of the values in it is a structure made to ask for these."""
    given = tuple_of(meshrt.numpy.ones(2), meshrt.numpy.zeros(3))

    @meshrt.jit
    def f(o, t, more):
        assert more["b"] == [None]
        return only_arrays(o.x * more["a"] + element(t, 0), "out"), {"b": t, "a": None}

    for kind in "aba":
        o, rest = f(only_arrays(meshrt.numpy.ones(2), kind), given, {"b": [None], "a": 3.0})
        assert o.kind == "out" and o.x.tolist() == [4.0, 4.0]
        assert rest["a"] is None and element(rest["b"], 1).tolist() == [0.0] * 3


@pytest.mark.parametrize("library", [meshrt, jax])
def test_classes_that_take_arrays_only_are_arguments_and_results_where_high_types_are_known(library, only_arrays):
    doubled = library.jit(lambda o: only_arrays(o.x * 2, o.kind), donate_argnums=0)
    for kind in "aba":
        assert doubled(only_arrays(library.numpy.ones(2), kind)).x.tolist() == [2.0, 2.0]
    either = library.lax.cond(True, lambda o: o, lambda o: o, only_arrays(library.numpy.ones(2), "a"))
    assert either.x.tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match=r"boolean conversion of traced array[\s\S]*argument o"):
        library.jit(lambda o: 1 if o.x else 0)(only_arrays(library.numpy.ones(()), "a"))


def test_shapes_and_sizes_may_be_declared_of_values_and_operators_of_the_side_behind():
    """Under names that tracers have of arrays; two tracers are of one class, so that Python asks the first alone."""
    array = meshrt.experimental.hijax.ShapedArray

    class Sides:
        def __init__(self, x):
            self.x = x

    @dataclass(frozen=True)
    class SidesType(meshrt.experimental.hijax.HiType):
        part: array
        shape = meshrt.experimental.hijax.aval_property(lambda s: (2, *meshrt.typeof(s).part.shape))
        size = meshrt.experimental.hijax.aval_property(lambda s: 2 * meshrt.typeof(s).part.size)
        lo_ty = lambda self: [self.part]
        lower_val = lambda self, value: [value.x]
        raise_val = lambda self, x: Sides(x)
        to_tangent_aval = lambda self: self.part
        _rmatmul = lambda self, value, other: ("@", other.shape)
        _rsub = lambda self, value, other: ("-", other.shape)
        _rpow = lambda self, value, other: ("**", other.shape)
        _gt = lambda self, value, other: ("<", other.shape)

    class Narrow(SidesType):
        shape = property(lambda self: self.part.shape)

    meshrt.experimental.hijax.register_hitype(Sides, lambda s: SidesType(meshrt.typeof(s.x)))
    seen = []

    @meshrt.jit
    def f(s, x):
        seen.extend([s.shape, s.size, x @ s, x - s, x**s, x < s, np.ones(2) @ s])
        with pytest.raises(TypeError, match=r"SidesType.*no arrays"):
            s * x
        with pytest.raises(AttributeError, match=r"SidesType.*'dtype'"):
            s.dtype
        return x

    f(Sides(meshrt.numpy.ones(3)), meshrt.numpy.ones(5))
    assert seen == [(2, 3), 6, *[(o, (5,)) for o in ("@", "-", "**", "<")], ("@", (2,))]
    kind = SidesType(meshrt.typeof(np.ones(3)))
    assert Narrow(kind.part).shape == (3,) == Narrow(kind.part).declared("shape") and not hasattr(kind, "shape")
