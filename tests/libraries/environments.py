"""Two environments, one with JAX and one without, and the sources of libraries with their tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.libraries.libraries import Library

__all__ = ["Environment", "environment", "source"]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-libraries"
JAX = "jax==0.10.2"
# What the libraries and their tests import.
COMMON = (
    "jaxlib==0.10.2", "numpy", "scipy", "ml_dtypes", "absl-py", "opt_einsum", "typing_extensions", "toolz",
    "wadler-lindig", "parameterized", "dm-tree", "fastprogress", "cloudpickle", "etils", "tqdm", "pytest",
    "pytest-timeout", "click", "rich", "hatchling", "editables",
)  # fmt: skip


class Environment:
    """A virtual environment with what libraries need, with JAX or with meshrt in its place."""

    def __init__(self, with_jax: bool):
        self.with_jax = with_jax
        self.folder = FOLDER / ("with-jax" if with_jax else "without-jax")

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def pip(self, *words: str) -> None:
        """Installs packages."""
        quiet = ("--quiet", "--disable-pip-version-check")
        subprocess.run([self.python, "-m", "pip", "install", *quiet, *words], check=True)

    def add(self, library: Library) -> None:
        """Installs a library without what it depends on, which would bring JAX, and the packages that it needs."""
        self.pip("--no-deps", f"{library.package}=={library.version}", *library.needs)
        if "scikit-learn" in library.needs:
            self.pip("scikit-learn")

    def variables(self, library: Library) -> dict[str, str]:
        """The environment variables of a run."""
        return {**os.environ, "JAX_PLATFORMS": "cpu", "MESHRT_PLATFORMS": "cpu", **dict(library.environ)}


def environment(with_jax: bool) -> Environment:
    """The environment, made if it is not there."""
    made = Environment(with_jax)
    if not made.python.exists():
        subprocess.run([sys.executable, "-m", "venv", made.folder], check=True)
        made.pip(*COMMON)
        if with_jax:
            made.pip(JAX)
        else:
            made.pip("--no-deps", "--no-build-isolation", "-e", str(ROOT))
    return made


def source(library: Library) -> Path:
    """The unpacked source distribution of a library."""
    folder = FOLDER / "sources" / f"{library.package.replace('-', '_')}-{library.version}"  # as distributions are named
    if not folder.exists():
        place = FOLDER / "downloads"
        words = ("download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(place))
        asked = f"{library.package}=={library.version}"
        subprocess.run([sys.executable, "-m", "pip", *words, asked], check=True)
        (archive,) = place.glob(f"{folder.name}.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder.parent, filter="data")
    return folder
