"""The type check can fail: mistakes seeded into copies of real modules are all reported, with the project's settings.

mypy reads the copies in place of the modules (`--shadow-file`): a seed is judged as any line of that module.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

ROOT = Path(__file__).resolve().parent.parent

# What is appended to each module. `# error: code` marks the lines that have to be reported, with mypy's code.
SEEDS = {
    # A wrong return type.
    "meshrt/numpy/operands.py": """
def seeded_result(axis: int) -> str:
    return canonical_axis(axis, 2)  # error: return-value
def seeded_result_of_a_method(x: ArrayOperators) -> list[int]:
    return x.shape  # error: return-value
""",
    # A method or an attribute that does not exist.
    "meshrt/core/jaxpr.py": """
def seeded_attribute(jaxpr: Jaxpr) -> object:
    return jaxpr.in_types  # error: attr-defined
def seeded_attribute_in_a_body_without_types():  # error: no-untyped-def
    return Jaxpr([], [], [], []).evaluate()  # error: attr-defined
""",
    "meshrt/numpy/joining.py": """
def seeded_method_of_arrays(x: ArrayOperators) -> object:
    return x.summ(0)  # error: attr-defined
""",
    # A value that may be None.
    "meshrt/_tree_registry.py": """
def seeded_none(cls: type) -> object:
    return dataclass_fields(cls)[0]  # error: index
def seeded_none_in_a_body_without_types():
    found = dataclass_fields(int)
    return found.count(())  # error: union-attr
""",
    # Wrong types and numbers of arguments.
    "propagation/model.py": """
def seeded_argument() -> None:
    AxisRef(0, 1, 2)  # error: arg-type
def seeded_arity() -> None:
    AxisRef("data")  # error: call-arg
""",
    "meshrt/lowering/types.py": """
def seeded_arguments_in_a_body_without_types(aval):
    mlir_type("f32")  # error: arg-type
    mlir_type()  # error: call-arg
    splat(1, aval, 2)  # error: call-arg
""",
    "collectives/topology.py": """
def seeded_operand(sizes):
    return len(sizes) + "axes"  # error: operator
""",
}


def seeded(path: str, text: str, folder: Path) -> tuple[Path, set[tuple[str, int, str]]]:
    """The copy of a module with its seeds, and what has to be reported: `(path, line, code)`."""
    source = (ROOT / path).read_text().rstrip("\n") + "\n" + text
    copy = folder / path.replace("/", "_")
    copy.write_text(source)
    expected = {
        (path, number, m[1])
        for number, line in enumerate(source.splitlines(), 1)
        if (m := re.search(r"# error: ([\w-]+)$", line))
    }
    return copy, expected


def test_seeded_mistakes_are_reported(tmp_path):
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary"]
    command += ["--cache-dir", str(tmp_path / "cache"), "--hide-error-context", "--no-pretty"]
    expected = set()
    for path, text in SEEDS.items():
        copy, errors = seeded(path, text, tmp_path)
        expected |= errors
        command += ["--shadow-file", path, str(copy), "-m", path.removesuffix(".py").replace("/", ".")]
    assert len(expected) >= len(SEEDS)
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=300)
    lines = re.finditer(r"^(\S+?):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    found = {(m[1], int(m[2]), m[3]) for m in lines}
    assert done.returncode == 1, done.stdout + done.stderr
    assert expected <= found, sorted(expected - found)
    # Only those: what is right in the seeds is accepted.
    begin = {path: min(line for p, line, _ in expected if p == path) for path in SEEDS}
    assert {f for f in found if f[1] >= begin.get(f[0], f[1] + 1)} == expected
