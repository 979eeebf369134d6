"""Every public function and method of the three packages says the types of its arguments and of its result."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("propagation", "collectives", "meshrt")


def public_functions(body: list[ast.stmt], prefix: str = "", in_class: bool = False) -> Iterator[tuple]:
    """`(dotted name, node, is a method)` of each public function at module level or in a public class."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            dunder = node.name.startswith("__") and node.name.endswith("__")
            if not node.name.startswith("_") or (in_class and dunder):
                yield prefix + node.name, node, in_class
        elif isinstance(node, ast.ClassDef):
            if not node.name.startswith("_"):
                yield from public_functions(node.body, f"{prefix}{node.name}.", True)
        elif isinstance(node, (ast.If, ast.Try, ast.With)):  # defined on a condition
            for part in ("body", "orelse", "finalbody"):
                yield from public_functions(getattr(node, part, []), prefix, in_class)


def missing(node: ast.FunctionDef, is_method: bool) -> list[str]:
    """The arguments without a type, and `return`."""
    a = node.args
    positional = [*a.posonlyargs, *a.args]
    decorators = {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
    if is_method and "staticmethod" not in decorators:
        positional = positional[1:]
    every = [*positional, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
    names = [x.arg for x in every if x.annotation is None]
    if node.returns is None and not (is_method and node.name == "__init__" and every):
        names.append("return")
    return names


def unannotated(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    return [
        f"{path.relative_to(ROOT)}:{node.lineno} {name}: {', '.join(names)}"
        for name, node, is_method in public_functions(tree.body)
        if (names := missing(node, is_method))
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_functions_are_annotated(package):
    # (Stubs of gRPC are generated.)
    paths = [path for path in sorted((ROOT / package).rglob("*.py")) if not path.stem.endswith(("_pb2", "_pb2_grpc"))]
    found = [line for path in paths for line in unannotated(path)]
    assert not found, "without complete annotations:\n" + "\n".join(found)


def test_what_is_missing_is_seen():
    source = """
def complete(a: int, *, b: str = "") -> None: ...
def no_result(a: int): ...
def no_argument(a, *args, b: int, **kwargs) -> None: ...
def _private(a): ...
class Public:
    def __init__(self, a: int): ...
    def __init_subclass__(cls): ...
    def method(self, a) -> None: ...
    @staticmethod
    def alone(a) -> None: ...
    def _private(self, a): ...
class _Private:
    def method(self, a): ...
if True:
    def conditional(a) -> None: ...
"""
    found = {name: missing(node, method) for name, node, method in public_functions(ast.parse(source).body)}
    assert {name: names for name, names in found.items() if names} == {
        "no_result": ["return"],
        "no_argument": ["a", "args", "kwargs"],
        "Public.__init_subclass__": ["return"],
        "Public.method": ["a"],
        "Public.alone": ["a"],
        "conditional": ["a"],
    }


OLD = {"Dict", "FrozenSet", "List", "Optional", "Set", "Tuple", "Type", "Union"}


def old_spellings(text: str) -> list[str]:
    """The names of `typing` for which builtin types and `|` stand since PEPs 585 and 604, by line."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "typing":
            found += [f"{node.lineno}: {a.name}" for a in node.names if a.name in OLD]
        elif isinstance(node, ast.Subscript):  # (Bare ones are asked for, by who reads annotations.)
            name = ast.unparse(node.value)
            if name.startswith("typing.") and name.removeprefix("typing.") in OLD:
                found.append(f"{node.lineno}: {name}")
    return found


def test_002_31_types_are_written_as_builtins_and_with_bars():
    written = "import typing\nfrom typing import Any, List\nx: typing.Optional[List]"
    assert old_spellings(written) == ["2: List", "3: typing.Optional"]
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            assert not (found := old_spellings(path.read_text())), (path, found)
