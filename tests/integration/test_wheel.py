"""The wheel, in an environment of its own: what is in it, and the README's commands without a checkout."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from meshrt import examples

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def _run(command: list[str], cwd: Path, **env: str) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MESHRT_", "JAX_", "PYTHON"))}
    done = subprocess.run(
        command, cwd=cwd, env={**kept, **env}, check=False, capture_output=True, text=True, timeout=230
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), "."], ROOT
    )
    (found,) = folder.glob("meshrt-*.whl")
    return found


def test_what_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        (about,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        said = email.message_from_bytes(file.read(about))
    assert said["License-Expression"] == "Apache-2.0" and said["Author"] and said.get_all("Classifier")
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert {f"{room}/py.typed" for room in ("meshrt", "propagation", "collectives")} <= names
    assert {f"meshrt/_examples/{name}.py" for name in examples.names()} <= names
    configs = {p.relative_to(ROOT).as_posix() for p in (ROOT / "configs").rglob("*.toml")}
    assert {f"meshrt/_{name}" for name in configs} <= names
    assert {f"meshrt/inspect/page/bundle/{n}" for n in ("page.js", "page.css", "LICENSES.txt")} <= names
    assert not [n for n in names if "node_modules" in n]
    assert [n for n in names if "fuzz" in n or n.startswith(("tests/", "benchmarks/"))] == []


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The programs of an environment that has the wheel, and this one's libraries but not this checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next((folder / "lib").glob("python*/site-packages"))
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile"]
    _run([*install, "--prefix", str(folder), "--ignore-installed", str(wheel)], folder)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


@pytest.mark.slow
def test_the_commands_of_the_readme_without_a_checkout(installed, tmp_path):
    python = str(installed / "python")
    path = _run([python, "-c", "import meshrt; print(meshrt.__file__)"], tmp_path)
    assert Path(path.strip()).is_relative_to(installed.parent.resolve())
    lines = "".join(re.findall(r"^```console\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)).splitlines()
    commands = [line.partition("#")[0].strip() for line in lines if line.startswith(("meshrt ", "python "))]
    commands = [c for c in commands if " train.py" not in c]  # jobs of the reader's own script, on hosts of theirs
    assert len(commands) >= 4 and commands[0] == "python -m meshrt.examples --copy examples"
    # What the reader is taken to have: a module of their own, and a budget for it.
    lowered = "meshrt inspect examples/train_lm.py:step --mesh data=4,model=2 --stage lowered"
    commands[1:1] = [f"{lowered} | tee FILE > FILE.mlir", "meshrt inspect FILE.mlir --check budget.toml --update"]
    for command in commands:
        _run(["bash", "-c", command], tmp_path, PATH=f"{installed}:{os.environ['PATH']}", MESHRT_NUM_CPU_DEVICES="8")


@pytest.mark.slow
def test_demo_and_configurations_without_a_checkout(installed, tmp_path):
    assert "loss" in _run([str(installed / "meshrt"), "demo", "--config", "tiny", "--steps", "2"], tmp_path)
    assert "train_lm" in _run([str(installed / "python"), "-m", "meshrt.examples"], tmp_path)
