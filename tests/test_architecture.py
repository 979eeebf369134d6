"""The walls of the house: who imports whom, and the one door to jaxlib."""

from __future__ import annotations

import ast
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


@pytest.mark.parametrize(
    "room, forbidden",
    [("propagation", ("meshrt", "collectives")), ("collectives", ("meshrt",)), ("meshrt/sharding", ("meshrt.core",))],
)
def test_layers(room, forbidden):
    for path in sorted((ROOT / room).rglob("*.py")):
        for name in imports(path):
            assert not any(name == f or name.startswith(f + ".") for f in forbidden), f"{path} imports {name}"


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
