"""Pytrees, judged by jax.tree_util on the same trees and functions."""

import collections
import dataclasses
import functools
import re
from typing import NamedTuple

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshrt
from meshrt import _tree_registry, errors, tree, tree_util

Point = collections.namedtuple("Point", "x y")

LEAVES = st.integers(0, 9)
TREES = st.recursive(
    st.one_of(LEAVES, st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.dictionaries(st.sampled_from("cab"), inner, max_size=3).map(collections.OrderedDict),
        st.dictionaries(st.sampled_from("cab"), inner, max_size=3).map(lambda d: collections.defaultdict(int, d)),
        st.tuples(inner, inner).map(lambda p: Point(*p)),
    ),
    max_leaves=12,
)


@given(TREES)
def test_flattening_equals_jax(t):
    leaves, treedef = tree.flatten(t)
    theirs, their_def = jax.tree.flatten(t)
    assert leaves == theirs
    assert treedef.num_leaves == their_def.num_leaves and treedef.num_nodes == their_def.num_nodes
    assert str(treedef) == str(their_def)
    assert tree.unflatten(treedef, leaves) == t
    assert tree.map(lambda x: x + 1, t) == jax.tree.map(lambda x: x + 1, t)
    ours = [(tree_util.keystr(p), x) for p, x in tree.leaves_with_path(t)]
    assert ours == [(jax.tree_util.keystr(p), x) for p, x in jax.tree_util.tree_leaves_with_path(t)]
    simple = [tree_util.keystr(p, simple=True, separator="/") for p, _ in tree.leaves_with_path(t)]
    assert simple == [
        jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in jax.tree_util.tree_leaves_with_path(t)
    ]


@given(TREES, TREES)
def test_prefix_agrees_with_jax(prefix, full):
    try:
        wanted = jax.tree_util.tree_leaves(jax.tree.broadcast(prefix, full))
    except ValueError:
        with pytest.raises(errors.TreeError, match="pytree structure error"):
            tree_util.broadcast_prefix(prefix, full)
    else:
        assert tree_util.broadcast_prefix(prefix, full) == wanted


def test_reductions_and_transpose():
    t = {"a": [1, 2], "b": (3,)}
    assert tree.reduce(lambda a, b: a * b, t) == 6 and tree.reduce(lambda a, b: a + b, t, 10) == 16
    assert tree.reduce_associative(lambda a, b: a + b, list("abcde")) == "abcde"
    assert tree.all([True, 1]) and not tree.all({"x": 0})
    outer, inner = tree.structure([0, 0]), tree.structure({"x": 0, "y": 0})
    nested = [{"x": 1, "y": 2}, {"x": 3, "y": 4}]
    assert tree.transpose(outer, inner, nested) == {"x": [1, 3], "y": [2, 4]}
    assert tree.transpose(outer, None, nested) == jax.tree.transpose(jax.tree.structure([0, 0]), None, nested)
    with pytest.raises(errors.TransposeError, match="Mismatch: cannot transpose"):
        tree.transpose(outer, inner, [{"x": 1, "y": 2}, {"x": 3}])


@pytest.mark.parametrize("given", [{"a": (1, 2), "b": (3, 4)}, [1, 2, 3, 4]])
def test_transpose_asks_for_the_number_of_leaves_alone(given):
    structures = [(m.tree.structure({"a": 0, "b": 0}), m.tree.structure([0, 0])) for m in (meshrt, jax)]
    ours, theirs = (m.tree.transpose(*s, given) for m, s in zip((meshrt, jax), structures))
    assert ours == theirs


def test_map_error_names_the_path():
    with pytest.raises(errors.TreeError, match="Dict key mismatch: pytree structure error"):
        tree.map(lambda a, b: a, {"a": 1, "b": 2}, {"a": 1})
    with pytest.raises(errors.TreeError, match=r"(?s)\['w'\]\['b'\].*list of 2 children, the second one of 1"):
        tree.map(max, {"w": {"b": [1, 2]}}, {"w": {"b": [3]}})
    with pytest.raises(errors.TreeError, match=r"only the first has 'b'; only the second has 'c'"):
        tree.map(max, {"a": 1, "b": 2}, {"a": 1, "c": 2})
    with pytest.raises(errors.TreeError, match="cannot be sorted"):
        tree.flatten({1: 2, "a": 3})


def test_registered_classes_stay_out_of_jax():
    @tree_util.register_pytree_node_class
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

        def tree_flatten(self):
            return (self.a, self.b), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    assert tree.leaves(Pair(1, [2, 3])) == [1, 2, 3]
    assert len(jax.tree.leaves(Pair(1, [2, 3]))) == 1
    jax.tree_util.register_pytree_node_class(Pair)
    assert jax.tree.leaves(Pair(1, 2)) == [1, 2]
    with pytest.raises(errors.TreeError, match="registered"):
        tree_util.register_pytree_node_class(Pair)


def test_dataclass_static_and_partial():
    @functools.partial(tree_util.register_dataclass, data_fields=["w"], meta_fields=["name"])
    @dataclasses.dataclass
    class Layer:
        w: object
        name: str

    @tree_util.register_dataclass
    @dataclasses.dataclass
    class Auto:
        w: object
        n: int = tree.static(default=3)

    assert tree.leaves(Layer(1, "a")) == [1] and tree.structure(Layer(1, "a")) != tree.structure(Layer(1, "b"))
    assert tree.map(lambda x: x + 1, Auto(1)).w == 2 and tree.leaves(Auto(1)) == [1]
    assert tree_util.keystr(tree.leaves_with_path(Layer(1, "a"))[0][0]) == ".w"
    with pytest.raises(errors.TreeError, match=r"Missing fields: \{'name'\}"):
        tree_util.register_dataclass(dataclasses.make_dataclass("D", ["w", "name"]), ["w"], [])

    p = tree_util.Partial(pow, 2)
    assert tree.leaves(p) == [2] and tree.map(lambda x: x + 1, p)(2) == 9
    nested = tree_util.Partial(functools.partial(pow, 2), 3)
    assert nested() == 8 and tree.leaves(nested) == [3]
    assert tree.structure(nested) == tree.structure(tree_util.Partial(nested.func, 5))


def test_equality_errors():
    found = tree_util.equality_errors({"a": (1, 2)}, {"a": [1, 2]})
    assert [tree_util.keystr(path) for path, *_ in found] == ["['a']"]
    assert tree_util.equality_errors({"a": 1}, {"a": 2}) == []


@given(TREES)
def test_values_that_are_leaves_by_their_value_or_their_path(t):
    by_value = lambda x: isinstance(x, list) and len(x) == 2
    by_path = lambda path, x: len(path) == 1 or isinstance(x, tuple)
    show = lambda path, x, *rest: f"{x}{rest} at {len(path)}"
    for is_leaf, takes_path in ((None, False), (by_value, False), (by_path, True)):
        options = {"is_leaf": is_leaf, "is_leaf_takes_path": takes_path}
        ours = tree_util.tree_leaves_with_path(t, **options)
        theirs = jax.tree_util.tree_leaves_with_path(t, **options)
        assert [(tree_util.keystr(p), x) for p, x in ours] == [(jax.tree_util.keystr(p), x) for p, x in theirs]
        mapped = tree_util.tree_map_with_path(show, t, t, **options)
        assert mapped == jax.tree_util.tree_map_with_path(show, t, t, **options)


def test_dictionaries_with_a_default_keep_it():
    t = collections.defaultdict(list, b=1, a=[2])
    again = tree.map(lambda x: x + 1, t)
    assert type(again) is collections.defaultdict and again == {"a": [3], "b": 2} and again["c"] == []
    assert tree.structure(t) != tree.structure(collections.defaultdict(int, t)) != tree.structure(dict(t))
    assert [tree_util.keystr(p) for p, _ in tree.leaves_with_path(t)] == ["['a'][0]", "['b']"]


def test_static_values_are_structure():
    @tree_util.register_static
    @dataclasses.dataclass(frozen=True)
    class Options:
        n: int

    assert tree.leaves([1, Options(2)]) == [1] and tree.map(lambda x: -x, [1, Options(2)]) == [-1, Options(2)]
    assert tree.structure(Options(1)) == tree.structure(Options(1)) != tree.structure(Options(2))
    assert tree.leaves_with_path(Options(1)) == []


@pytest.mark.parametrize(
    "data, meta, drop, says",
    [
        (["w"], [], [], "Missing fields: {'b'}."),
        (["w", "b"], ["b"], [], "must not overlap. Overlapping fields: {'b'}."),
        (["w", "b"], ["c"], [], "Unexpected fields: {'c'}."),
        (["w", "w"], ["c"], [], "Missing fields: {'b'}. Unexpected fields: {'c'}. Repeated fields: {'w'}."),
        (["w"], [], ["b", "w"], "Repeated fields: {'w'}."),
        (["w"], ["hidden"], ["b"], "Unexpected fields: {'hidden'}."),
    ],
)
def test_fields_of_dataclasses_are_named_once(data, meta, drop, says):
    hidden = ("hidden", int, dataclasses.field(init=False, default=0))
    cls = dataclasses.make_dataclass("D", ["w", "b", hidden])
    with pytest.raises(errors.TreeError, match=f"{re.escape(says)}$"):
        tree_util.register_dataclass(cls, data, meta, drop)
    tree_util.register_dataclass(cls, ["w"], [], ["b"])
    assert _tree_registry.dataclass_fields(cls) == (("w",), ()) and _tree_registry.dataclass_fields(int) is None


@pytest.mark.parametrize("takes_path", [False, True])
def test_errors_do_not_look_into_leaves(takes_path):
    """The pairs at 'a' differ in length, but a pair is a leaf here; the lists at 'b' are what does not fit."""
    pair = lambda *given: isinstance(given[-1], tuple)
    with pytest.raises(
        errors.TreeError, match=r"at key path\n    \w+\['b'\]\nwhere the first has a list of 1 child, the second one"
    ):
        tree_util.tree_map_with_path(
            max, {"a": (1, 2), "b": [3]}, {"a": (1,), "b": [3, 4]}, is_leaf=pair, is_leaf_takes_path=takes_path
        )


def test_leaves_of_a_prefix_are_asked_for_in_the_prefix_only():
    is_none = lambda x: x is None
    for prefix, full in [((None, 0), (None, 1.0)), ({"a": None, "b": 3}, {"a": None, "b": (1, 2)}), (None, (None, 1))]:
        theirs = jax.tree.leaves(jax.tree.broadcast(prefix, full, is_leaf=is_none), is_leaf=is_none)
        assert tree.leaves(tree.broadcast(prefix, full, is_leaf=is_none), is_leaf=is_none) == theirs
    ours, theirs = (m.tree.broadcast(0, (None, 1), is_leaf=is_none) for m in (meshrt, jax))
    assert ours == theirs


def test_refusals_are_of_the_class_that_jax_raises():
    for library in (jax, meshrt):
        t, inner = library.tree, library.tree.structure({"a": 0})
        with pytest.raises(TypeError):
            t.transpose(t.structure([0, 0]), inner, [{"a": 1}])

        class Twice:
            pass

        register = library.tree_util.register_pytree_node
        register(Twice, lambda x: ((), None), lambda _, c: Twice())
        with pytest.raises(ValueError, match="Duplicate custom PyTreeDef type registration"):
            register(Twice, lambda x: ((), None), lambda _, c: Twice())
        for lists in ((), (["a"], None)):
            with pytest.raises(TypeError, match="register_dataclass: data_fields and meta_fields"):
                library.tree_util.register_dataclass(Twice, *lists)
        with pytest.raises(ValueError, match="Comparator raised exception while sorting pytree dictionary keys"):
            t.leaves({1: 1, "a": 2})
        with pytest.raises(ValueError, match="pytree structure error: different pytree metadata"):
            library.vmap(max, in_axes=({"a": 0},))({"b": 1})

        @library.tree_util.register_dataclass
        @dataclasses.dataclass
        class Fixed:
            x: object = dataclasses.field(metadata={"static": True})

        f = library.jit(lambda tree: tree)
        f(Fixed(library.numpy.arange(4)))
        with pytest.raises(ValueError, match="Exception raised while checking equality of metadata fields of pytree"):
            f(Fixed(library.numpy.arange(4)))


def test_a_leaf_has_no_level():
    for flatten in (tree_util.flatten_one_level, tree_util.flatten_one_level_with_keys):
        with pytest.raises(errors.TreeError, match="can't tree-flatten type int"):
            flatten(1)


def test_one_level_of_a_namedtuple_has_the_key_of_each_field():
    class State(NamedTuple):
        potentials: tuple
        errors: float = 0.0
        old: float | None = None

    state = State((1.0, 2.0), 3.0)
    children, _ = tree_util.flatten_one_level_with_keys(state)
    assert [tree_util.keystr((key,)) for key, _ in children] == [".potentials", ".errors", ".old"]
    # Cotangents are matched with arguments by keys where None stands for a part.
    f = meshrt.custom_vjp(lambda s: s.potentials[0] * s.errors)
    f.defvjp(lambda s: (f(s), s), lambda s, ct: (State((ct * s.errors, None), ct * s.potentials[0]),))
    assert meshrt.grad(f)(state) == State((3.0, 0.0), 1.0)
