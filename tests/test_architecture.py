"""The walls of the house: who imports whom, and the doors to jaxlib."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from meshrt.compat.internal_names import TABLES
from meshrt.compat.internal_names import homes as internal_homes

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = [p for room in ("meshrt", "propagation", "collectives") for p in sorted((ROOT / room).rglob("*.py"))]
# Of jaxlib anybody may use MLIR's bindings, the dialects of kernels and the number of the version.
PUBLIC = ("jaxlib.mlir", "jaxlib.mosaic", "jaxlib.triton", "jaxlib.version")
DOORS = ROOT / "meshrt" / "xla"


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """The imports, functions and branches of a file, wherever they stand in it."""
    kinds = ast.Import | ast.ImportFrom | ast.If | ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


def are_inside(found: list[ast.AST], others: list[ast.AST]) -> list[ast.AST]:
    """Those of `found` that stand between the first and the last line of one of the `others`."""
    return [n for n in found if any(o.lineno <= n.lineno <= o.end_lineno for o in others)]


def imports(path: Path) -> list[str]:
    names = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.append(node.module)
            names += [f"{node.module}.{a.name}" for a in node.names]
    return names


def is_private(name: str) -> bool:
    return name.startswith("jaxlib.") and not name.startswith(PUBLIC)


def is_forbidden(path: Path, name: str) -> bool:
    """Whether a file may not import a module: jax never, what is private in jaxlib only from the room of its doors."""
    return name == "jax" or name.startswith("jax.") or (path.parent != DOORS and is_private(name))


def test_no_product_file_imports_jax_or_jaxlibs_private_modules():
    found = [f"{path} imports {name}" for path in PRODUCT for name in imports(path) if is_forbidden(path, name)]
    assert found == [], "go through meshrt.xla"


def test_names_that_are_looked_up_by_tables_go_through_the_doors_too():
    homes = [home.partition(":")[0] for name in TABLES for home in internal_homes(name).values()]
    assert [home for home in homes if is_private(home)] == [] and "meshrt.xla.jaxlib_modules" in homes


def test_only_the_doors_have_a_key():
    for door in ("api", "calls", "distributed", "executables", "plugins"):
        assert any(is_private(name) for name in imports(DOORS / f"jaxlib_{door}.py"))
    door = DOORS / "jaxlib_api.py"
    assert is_forbidden(ROOT / "meshrt" / "jit.py", "jaxlib._jax") and not is_forbidden(door, "jaxlib._jax")
    assert is_forbidden(door, "jax.numpy")


def function_level_imports(path: Path) -> list[tuple[int, str]]:
    """(line, reason) of the imports inside functions: the comment behind a group of them, or above it."""
    lines = path.read_text().splitlines()
    functions = [n for n in nodes(path) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    imported = [n for n in nodes(path) if isinstance(n, ast.Import | ast.ImportFrom)]
    inside = {n.lineno for n in are_inside(imported, functions)}
    found = []
    for number in sorted(inside):
        first = number
        while first - 1 in inside:
            first -= 1
        above = []
        while lines[first - 2 - len(above)].lstrip().startswith("#"):
            above.append(lines[first - 2 - len(above)].strip("# "))
        behind = [line.partition("#")[2] for line in lines[first - 1 : number]]
        found.append((number, " ".join([*reversed(above), *behind]).strip()))
    return found


def test_imports_inside_functions_say_why():
    found = [
        f"{path}:{line}"
        for path in PRODUCT
        for line, reason in function_level_imports(path)
        if not re.search(r"start-up time|optional wheel|child process", reason, re.IGNORECASE)
    ]
    assert found == [], (
        "imports inside functions: move them to the top, or say in a comment what start-up time they save or which "
        "optional wheel they need"
    )


def test_an_import_inside_a_function_is_found(tmp_path):
    path = tmp_path / "some.py"
    path.write_text("import a\ndef f():\n    import b\n    # start-up time\n    import c\n")
    assert function_level_imports(path) == [(3, ""), (5, "start-up time")]


FILE_LINES, FUNCTION_LINES = 500, 60


def test_files_are_short_enough_to_be_read():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in PRODUCT}
    assert {name: n for name, n in lengths.items() if n > FILE_LINES} == {}


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its decorators, parameters and docstring."""
    start = function.body[ast.get_docstring(function, clean=False) is not None :]
    return function.end_lineno - start[0].lineno + 1 if start else 0


def test_functions_fit_a_screen():
    long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": body_lines(node)
        for path in PRODUCT
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: n for name, n in long.items() if n > FUNCTION_LINES} == {}


def test_a_long_function_is_found():
    text = 'def f(\n    a,\n):\n    """One\n    two."""\n' + "    a += 1\n" * 61
    (function,) = ast.parse(text).body
    assert body_lines(function) == 61


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that import one another in a circle (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in edges[module]:
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            component = {stack.pop()}
            while module not in component:
                component.add(stack.pop())
            if len(component) > 1:
                found.append(component)

    sys.setrecursionlimit(5000)
    for module in edges:
        if module not in index:
            visit(module)
    return found


def test_no_modules_import_one_another_in_a_circle():
    names = {}
    for path in PRODUCT:
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    edges = {
        name: {n for n in absolute_imports(name, path) if n in names and n != name} for name, path in names.items()
    }
    assert circles(edges) == []


def test_a_circle_is_found():
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}
    assert circles(edges) == [{"a", "b", "c"}]


def absolute_imports(module: str, path: Path) -> set[str]:
    """The modules that one imports, those inside functions too, those for a type checker only not."""
    branches = [n for n in nodes(path) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    checking = are_inside(nodes(path), branches)
    found = set()
    for node in nodes(path):
        if node in checking:
            continue
        if isinstance(node, ast.Import):
            found.update(a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, *([base] if base else [])])
            for alias in node.names:  # `from package import module` needs the module and nothing else of the package
                inner = ROOT.joinpath(*base.split("."), alias.name)
                is_module = inner.with_suffix(".py").exists() or (inner / "__init__.py").exists()
                found.add(f"{base}.{alias.name}" if is_module else base)
    return found


@pytest.mark.smoke
def test_importing_and_running_leaves_jax_alone():
    program = (
        "import sys, meshrt, meshrt.numpy as jnp\n"
        "print(float(meshrt.jit(lambda x: jnp.sum(x * 2))(jnp.arange(4.0))))\n"
        "assert 'jax' not in sys.modules, 'jax was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "12.0"
