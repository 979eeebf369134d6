"""The README's Python runs as it stands, from top to bottom; its commands and the files it names exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from meshrt.cli.main import group

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
PYTHON = [code for language, code in BLOCKS if language == "python"]
COMMANDS = [line.partition(" ")[2] for _, code in BLOCKS for line in re.findall(r"^meshrt [^#\n]*", code, re.MULTILINE)]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What all of the README's Python prints when it is run as one script."""
    script = tmp_path_factory.mktemp("readme") / "readme.py"
    script.write_text("\n".join(PYTHON))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MESHRT_", "JAX_", "XLA_FLAGS"))}
    done = subprocess.run(
        [sys.executable, str(script)], env={**env, "PYTHONPATH": str(ROOT)}, check=False, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_every_snippet_runs(printed):
    assert len(PYTHON) >= 3
    assert printed.startswith("P('data', 'model') ")


def test_the_plan_is_a_table_with_causes(printed):
    assert re.search(r"^kind +axes .* source +cause$", printed, re.MULTILINE)
    assert re.search(r"^reduce_scatter +data .*readme\.py:\d+ .*partial sum", printed, re.MULTILINE)


def test_the_explanation_ends_at_the_annotation(printed):
    assert "annotated with axis 'model' by the user" in printed.splitlines()[-1]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_take_the_options_shown(line):
    assert len(COMMANDS) >= 3
    name, *arguments = shlex.split(line)
    command = group.get_command(None, name)
    with command.make_context(name, list(arguments)) as context:
        assert context.params["target"]


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"])
def test_what_documents_link_to_exists(document):
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / document).read_text())
    assert all((ROOT / link).exists() for link in links), links


def test_the_map_names_what_is_there_and_every_room():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name in re.findall(r"[\w/]+/[\w/]*\.py|(?<![\w/])(?:meshrt|propagation|collectives)(?:/\w+)+(?![\w./*])", text):
        assert (ROOT / name).exists() or (ROOT / "meshrt" / name).exists(), f"ARCHITECTURE.md names {name}"
    rooms = [p.name for p in (ROOT / "meshrt").iterdir() if (p / "__init__.py").exists()]
    assert [room for room in rooms if f"{room}/" not in text] == []
    folders = [p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith((".", "_"))]
    tracked = subprocess.run(["git", "ls-files", "--", *folders], cwd=ROOT, capture_output=True, text=True, check=False)
    assert {line.partition("/")[0] for line in tracked.stdout.splitlines()} <= set(re.findall(r"^(\w+)/", text, re.M))


def test_files_of_a_room_that_the_map_lists_exist():
    rooms = re.findall(r"^(\w+)/ .*\n((?:  .*\n)+)", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert [room for room, _ in rooms] == ["propagation", "collectives", "meshrt"]
    for room, lines in rooms:
        listed = re.findall(r"^  ((?:[\w*/]+(?:\.py|/) ?)+)", lines, re.MULTILINE)
        assert listed
        for name in " ".join(listed).split():
            assert list((ROOT / room).glob(name)), f"ARCHITECTURE.md lists {name} in {room}/"
