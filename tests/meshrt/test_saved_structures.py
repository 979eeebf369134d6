"""Structures of arguments and results in files: which can be written, and programs over them, by JAX's names too."""

import collections
import json

import pytest

import meshrt
from meshrt import errors, tree_files
from meshrt.experimental import serialize_executable
from meshrt.stages import load

Pair = collections.namedtuple("Pair", "loss count")


@meshrt.tree_util.register_pytree_node_class
class Box:
    def __init__(self, a, b, unit):
        self.a, self.b, self.unit = a, b, unit

    def tree_flatten(self):
        return (self.a, self.b), self.unit

    @classmethod
    def tree_unflatten(cls, unit, children):
        return cls(*children, unit)


def test_registered_containers():
    f = lambda box, pair: (Box(box.a * 2, box.b, box.unit), pair)
    args = Box(1.0, 2.0, "m"), Pair(3.0, 4)
    compiled = meshrt.jit(f).lower(*args).compile()
    for what in ("Box", "Pair"):
        with pytest.raises(errors.TreeError, match=f"unregistered type `.*{what}.*register_") as e:
            compiled.serialize()
        if what == "Box":
            assert "register_pytree_node_serialization" in str(e.value)
            meshrt.stages.register_pytree_node_serialization(
                Box, serialized_name="tests.Box", serialize_auxdata=str.encode, deserialize_auxdata=bytes.decode
            )
    meshrt.stages.register_namedtuple_serialization(Pair, serialized_name="tests.Pair")
    box, pair = load(compiled.serialize())(*args)
    assert (float(box.a), box.unit, type(pair)) == (2.0, "m", Pair)
    for again, text in (
        (lambda: meshrt.stages.register_namedtuple_serialization(Pair, serialized_name="q"), "registered for files"),
        (lambda: meshrt.stages.register_namedtuple_serialization(int, serialized_name="q"), "types other than"),
        (lambda: meshrt.stages.register_pytree_node_serialization(
            int, serialized_name="q", serialize_auxdata=bytes, deserialize_auxdata=bytes), "you must call first"),
    ):  # fmt: skip
        with pytest.raises(errors.TreeError, match=text):
            again()


def test_structures_as_data():
    factory = collections.defaultdict(list, {"k": 1, "j": (2,)})
    for tree in (1, None, (), [], {}, (1, [2, {"b": 3, "a": None}]), {3: 1, 1: (2,)}, {"a": {True: 1}}, factory,
                 collections.OrderedDict(z=1, a=[2]), ((1,), {})):  # fmt: skip
        treedef = meshrt.tree.structure(tree)
        data = json.loads(json.dumps(tree_files.to_data(treedef)))
        assert tree_files.from_data(data) == treedef
    deep = "*"
    for _ in range(300):
        deep = {"list": [deep]}
    for bad in (1, "x", {}, [], {"tuple": 3}, {"dict": ["a"], "of": []}, {"dict": [["a"]], "of": ["*"]}, {"node": "q"},
                {"node": "nobody", "aux": "", "of": []}, {"named": "os.system", "of": []}, {"set": ["*"]}, deep,
                {"default": "open", "keys": [], "of": []}, {"dict": ["a", "a"], "of": ["*", "*"]},
                {"dict": ["b", "a"], "of": ["*", "*"]}, {"dict": ["b", 1], "of": ["*", "*"]},
                {"named": [], "of": []}):  # fmt: skip
        with pytest.raises(errors.TreeError):
            tree_files.from_data(bad)
    with pytest.raises(errors.TreeError, match="key"):
        tree_files.to_data(meshrt.tree.structure({(1, 2): 3}))


def test_jax_names():
    compiled = meshrt.jit(lambda x, y: Pair(x + y, x)).lower(1.0, 2).compile()
    serialized, in_tree, out_tree = serialize_executable.serialize(compiled)
    assert isinstance(serialized, bytes)
    for options in ({}, {"backend": "cpu"}, {"execution_devices": meshrt.devices()[3:4]}):
        got = serialize_executable.deserialize_and_load(serialized, in_tree, out_tree, **options)(1.0, 2)
        assert type(got) is Pair and float(got.loss) == 3.0
    with pytest.raises(errors.SavedProgramError, match="without the structures"):
        load(serialized)
    with pytest.raises(errors.SavedProgramError, match="the structures that it was serialized with"):
        serialize_executable.deserialize_and_load(serialized, in_tree, meshrt.tree.structure((1, 2, 3)))
    with pytest.raises(TypeError, match="compile"):
        serialize_executable.serialize(len)
