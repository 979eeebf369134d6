"""One run of a library's tests: pytest in another process, and what its report says."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from tests.libraries.environments import FOLDER, Environment, source
from tests.libraries.libraries import Library

__all__ = ["PASSED", "SKIPPED", "outcomes", "run", "test_id"]

PASSED, SKIPPED = "passed", "skipped"
SECONDS_PER_TEST = 300


def run(library: Library, where: Environment, report: Path, chosen: tuple[str, ...] = ()) -> dict[str, str]:
    """Runs the tests of a library (those `chosen`, files or single tests, if any); gives what became of each by its
    name: `passed`, `skipped`, or the message of the error."""
    folder = source(library)
    door = () if where.with_jax else ("-p", "meshrt.compat.installed")
    options = ("-q", "--tb=short", "-p", "no:cacheprovider", f"--timeout={SECONDS_PER_TEST}", f"--junitxml={report}")
    options = (*options, f"--rootdir={folder}")  # names in reports begin there, whatever pytest's settings are found in
    ignored = [f"--ignore={path}" for path, _ in library.left_out]
    command = [where.python, "-m", "pytest", *door, *options, *ignored, *(chosen or library.tests)]
    subprocess.run(command, cwd=folder, env=where.variables(library), check=False)
    return outcomes(report)


def test_id(library: Library, name: str) -> str:
    """What pytest calls a test that a report calls `name`: its file, the class in it, and its own name."""
    module, _, test = name.partition("::")
    parts, folder = module.split("."), source(library)
    for n in range(len(parts), 0, -1):
        file = "/".join(parts[:n]) + ".py"
        if (folder / file).exists():
            return "::".join([file, *parts[n:], test])
    raise FileNotFoundError(f"{name}: there is no such file below {folder}")


def outcomes(report: Path) -> dict[str, str]:
    """What a report says of each test."""
    return dict(_cases(ElementTree.parse(report)))


def _cases(report: ElementTree.ElementTree) -> Iterator[tuple[str, str]]:
    for case in report.iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        if bad is not None:
            lines = (bad.get("message") or bad.text or "failed").strip().splitlines()
            # Where the sources lie on this machine is no part of the result.
            yield name, lines[0].replace(f"{FOLDER}/sources/", "")[:200] if lines else "failed"
        else:
            yield name, SKIPPED if case.find("skipped") is not None else PASSED
