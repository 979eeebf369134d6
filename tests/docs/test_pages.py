"""Every snippet on every page of docs/ runs as it stands, or says why it cannot."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import meshrt
from meshrt import errors
from meshrt.cli.main import group
from tests.docs.examples import run_examples
from tests.docs.pages import PAGES, ROOT, SHOWN, read

FILES = Path(__file__).parent / "files"  # what the reader is taken to have: train.py
_READ = {p.stem: read(p) for p in PAGES}
BLOCKS = [block for page in _READ.values() for block in page.blocks]
COMMANDS = [
    pytest.param(block.page.stem, words, id=f"{block.where} {' '.join(words)}"[:100])
    for block in BLOCKS if block.language == "console" and not block.not_run
    for words in block.commands()
]  # fmt: skip
CONSOLE = [name for name, page in _READ.items() if any(b.language == "console" and not b.not_run for b in page.blocks)]
PYTHON = [name for name, page in _READ.items() if page.source().strip()]


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MESHRT_", "JAX_"))}
    path = os.pathsep.join([os.path.dirname(sys.executable), kept.get("PATH", "")])
    return {**kept, "PYTHONPATH": str(ROOT), "PATH": path, "MESHRT_NUM_CPU_DEVICES": "8", "COLUMNS": "100"}


def test_every_block_is_of_a_kind_that_is_known():
    known = {"python", "pycon", "console", "toml"} | SHOWN
    assert [b.where for b in BLOCKS if b.language not in known] == []


def test_what_is_not_run_says_why():
    assert [b.where for b in BLOCKS if b.not_run is not None and len(b.not_run.split()) < 3] == []


@pytest.mark.parametrize("name", PYTHON)
def test_python(name, tmp_path, monkeypatch):
    page = _READ[name]
    source = page.source()
    for file, content in page.files.items():
        (tmp_path / file).write_text(content)
    if page.own_process:
        (tmp_path / "page.py").write_text(source)
        command = [sys.executable, "page.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=_environment(), check=False, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return
    monkeypatch.chdir(tmp_path)
    script = tmp_path / f"{name}.py"  # a file, so that messages can show its lines
    script.write_text(source)
    names = {"__name__": "__main__"}
    exec(compile(source, str(script), "exec"), names)  # the page is ours
    for block in page.blocks:
        if block.language == "pycon":
            failures = run_examples(block.code, names, block.where)
            assert failures == "", failures


@pytest.mark.parametrize(("name", "words"), COMMANDS)
def test_commands_take_the_options_shown(name, words, tmp_path, monkeypatch):
    if words[0] != "meshrt":
        assert words[0] in ("python", "make", "pip", "cat"), words
        return
    assert len(words) > 1
    command = group.get_command(None, words[1])
    assert command is not None or words[1].startswith("--"), words
    if command is not None and "--help" not in words:
        monkeypatch.chdir(tmp_path)
        for file in re.findall(r"^[\w-]+\.\w+$", "\n".join(words[2:]), re.MULTILINE):
            (tmp_path / file).touch()
        shell = next((i for i, word in enumerate(words) if word in (">", "|", "&&")), len(words))
        with contextlib.suppress(click.exceptions.Exit):  # options such as --schema, which print and end
            command.make_context(words[1], words[2:shell])


@pytest.mark.slow
@pytest.mark.parametrize("name", CONSOLE)
def test_commands_run(name, tmp_path):
    page = _READ[name]
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for file, content in page.files.items():
        (tmp_path / file).write_text(content)
    for block in page.blocks:
        if block.language != "console" or block.not_run:
            continue
        script = "".join(code for _, code in block.before) + block.code
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=_environment(), check=False,
            capture_output=True, text=True, timeout=230,
        )  # fmt: skip
        assert done.returncode == 0, f"{block.where}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "toml"], ids=lambda b: b.where)
def test_toml(block):
    assert tomllib.loads(block.code)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for link, _, anchor in re.findall(r"\]\(([^)#:\s]*)(#([^)\s]*))?\)", text):
        target = (page.parent / link) if link else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor and target.suffix == ".md":
            heads = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in {slug(head) for head in heads}, f"{page.name} links to {link}#{anchor}"


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def test_the_version_in_the_log_of_changes():
    assert f"## {meshrt.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_page_of_errors_has_each_class_and_what_it_raises_is_of_it():
    sections = re.split(r"^### (\w+)$", (ROOT / "docs" / "errors.md").read_text(), flags=re.MULTILINE)[1:]
    pages = dict(zip(sections[::2], sections[1::2]))
    ours = (errors.MeshrtError, UserWarning)
    classes = {n: c for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, ours) and c.__name__ == n}
    assert set(pages) == set(classes) - {"MeshrtError"}
    for name, text in pages.items():
        assert "*Fix:*" in text, name
        raised = re.findall(r"^meshrt\.errors\.(\w+):", text, re.MULTILINE)
        assert raised == [name] or "<!-- not run:" in text, name
