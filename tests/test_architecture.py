"""The walls of the house: who imports whom, and the one door to jaxlib."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = [p for room in ("meshrt", "propagation", "collectives") for p in sorted((ROOT / room).rglob("*.py"))]
PRIVATE = ("jaxlib._jax", "jaxlib.xla_client", "jaxlib.xla_extension", "jaxlib.lapack")
DOOR = ROOT / "meshrt" / "runtime" / "jaxlib_api.py"


def imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.append(node.module)
            names += [f"{node.module}.{a.name}" for a in node.names]
    return names


@pytest.mark.parametrize("path", PRODUCT, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_product_file_imports_jax_or_jaxlibs_private_modules(path):
    for name in imports(path):
        assert name != "jax" and not name.startswith("jax."), f"{path} imports {name}"
        if path != DOOR:
            assert not name.startswith(PRIVATE), f"{path} imports {name}; go through meshrt.runtime.jaxlib_api"


def function_level_imports(path: Path) -> list[tuple[int, str]]:
    """(line, reason) of the imports inside functions: the comment behind a group of them, or above it."""
    lines = path.read_text().splitlines()
    inside = {
        node.lineno
        for function in ast.walk(ast.parse("\n".join(lines)))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    found = []
    for number in sorted(inside):
        first = number
        while first - 1 in inside:
            first -= 1
        above = []
        while lines[first - 2 - len(above)].lstrip().startswith("#"):
            above.append(lines[first - 2 - len(above)].strip("# "))
        behind = [line.partition("#")[2] for line in lines[first - 1 : number]]
        found.append((number, " ".join([*reversed(above), *behind])))
    return found


@pytest.mark.parametrize("path", PRODUCT, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_inside_functions_say_why(path):
    for line, reason in function_level_imports(path):
        assert re.search(r"start-up time|optional wheel|child process", reason, re.IGNORECASE), (
            f"{path}:{line}: an import inside a function; move it to the top, or say in a comment what start-up time "
            "it saves or which optional wheel it needs"
        )


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
    tree = ast.parse(path.read_text())
    checking = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for node in ast.walk(branch)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in checking:
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
