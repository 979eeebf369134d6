"""`core/operators.pyi` declares to the type checker what meshrt.numpy attaches to arrays: all, and only that."""

import ast
import inspect
from pathlib import Path

import meshrt.numpy  # (attaches the methods)
from meshrt.core import operators
from meshrt.core.operators import ArrayOperators
from meshrt.numpy import methods

STUB = Path(operators.__file__).with_suffix(".pyi")
# What subclasses define themselves: the type of the value, and the conversions to Python numbers.
OF_SUBCLASSES = {
    "aval", "shape", "dtype", "ndim", "size", "nbytes", "itemsize", "weak_type", "__bool__", "__int__", "__float__",
    "__complex__", "__index__",
}  # fmt: skip


def declared() -> dict[str, ast.FunctionDef]:
    tree = ast.parse(STUB.read_text())
    (cls,) = [n for n in tree.body if isinstance(n, ast.ClassDef)]
    return {n.name: n for n in cls.body if isinstance(n, ast.FunctionDef)}


def attached() -> dict[str, object]:
    ours = {"__slots__", "__array_priority__", "__hash__", "__doc__", "__module__"}
    return {name: value for name, value in vars(ArrayOperators).items() if name not in ours}


# What tracers that stand for references have besides; arrays have no such attributes.
OF_REFERENCES = {"addupdate", "bitcast", "get", "set", "swap"}


def test_names():
    assert set(declared()) - OF_SUBCLASSES == set(attached()) - OF_REFERENCES
    x = meshrt.numpy.ones(2)
    assert not [name for name in OF_REFERENCES if hasattr(x, name)]


def test_parameters():
    stubs = declared()
    for name, method in attached().items():
        if isinstance(method, property) or name.startswith("__"):
            continue
        function = methods._PLAIN.get(name, method)
        actual = [p.name for p in inspect.signature(function).parameters.values()][1:]
        a = stubs[name].args
        stub = [x.arg for x in [*a.posonlyargs, *a.args][1:]]
        stub += [a.vararg.arg] if a.vararg else []
        stub += [x.arg for x in a.kwonlyargs]
        if name not in ("conj", "conjugate"):
            assert stub == actual, name
