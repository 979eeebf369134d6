"""The page as a file: what is in it, what it allows, who writes it."""

from __future__ import annotations

import hashlib
import html.parser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import meshrt.inspect.page
from meshrt.cli.main import main
from meshrt.inspect import report
from meshrt.inspect.page.document import document, policy
from tests.meshrt.inspect.page.programs import SCRIPT, lowered, report_with_program
from tests.meshrt.inspect.page.test_program import MODULE

PAGE = Path(meshrt.inspect.page.__file__).parent
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&lt;\u2028\u202e\x1b[2J\ud800"


class Elements(html.parser.HTMLParser):
    """The elements of a document, and what their scripts hold."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        tag, attrs = self.tags[-1] if self.tags else ("", {})
        key = attrs.get("id") or tag
        self.texts[key] = self.texts.get(key, "") + data


def test_a_page_is_one_file_of_ascii_that_asks_for_nothing():
    text = document(report_with_program())
    assert text.isascii() and text.startswith("<!DOCTYPE html>")
    found = Elements(text)
    assert not [attrs for _, attrs in found.tags if {"src", "href", "style"} & set(attrs)]
    assert not [tag for tag, _ in found.tags if tag in ("link", "iframe", "object", "base", "form")]
    assert policy() in text and "connect-src 'none'" in policy() and "unsafe" not in policy()
    assert json.loads(found.texts["data"])["reports"][0]["report"]["name"] == "train"
    assert "ISC" in found.texts["licences"]


def test_hostile_names_stay_text():
    found = Elements(document(report_with_program(HOSTILE)))
    assert [tag for tag, _ in found.tags].count("script") == 3 and "img" not in [tag for tag, _ in found.tags]
    name = json.loads(found.texts["data"])["reports"][0]["report"]["name"]
    assert name.startswith("</script><script>alert(1)") and name.isprintable()


def test_the_bundle_is_that_of_its_sources():
    digest = hashlib.sha256()
    sources = sorted(f"src/{p.name}" for p in (PAGE / "src").iterdir())
    for name in [*sources, "build.mjs", "package.json", "package-lock.json"]:
        data = (PAGE / name).read_bytes()
        digest.update(f"{name} {len(data)}\n".encode() + data)
    assert digest.hexdigest() == (PAGE / "bundle" / "SOURCES.sha256").read_text().strip(), "run make page"


@pytest.mark.skipif(not (PAGE / "node_modules").is_dir() or shutil.which("node") is None, reason="no npm packages here")
def test_bundling_again_makes_the_same():
    found = subprocess.run(["node", "build.mjs", "--check"], cwd=PAGE, check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_every_package_in_the_bundle_is_listed_with_its_licence():
    listed = set(
        re.findall(
            r"^([\w@/-]+) \d\S* \((?:ISC|MIT|BSD-3-Clause)\)$", (PAGE / "bundle" / "LICENSES.txt").read_text(), re.M
        )
    )
    assert set(json.loads((PAGE / "package.json").read_text())["dependencies"]) <= listed


def inspect(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "meshrt", "inspect", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command_writes_a_page(tmp_path):
    module, page, old = tmp_path / "m.mlir", tmp_path / "m.html", tmp_path / "old.json"
    module.write_text(MODULE)
    found = inspect(str(module), "--html", str(page))
    assert found.returncode == 0 and found.stdout.startswith(f"{page}: wrote the page of ")
    data = json.loads(Elements(page.read_text()).texts["data"])
    assert len(data["reports"]) == 1 and data["reports"][0]["program"]["operations"]["kind"]
    old.write_text(inspect(str(module), "--json").stdout)
    found = inspect(str(module), "--html", "-", "--against", str(old))
    data = json.loads(Elements(found.stdout).texts["data"])
    assert [each["program"] is None for each in data["reports"]] == [True, False]  # --json had no --program
    assert data["changes"]["figures"] == []


def test_a_program_stands_beside_itself_over_another_mesh(tmp_path):
    script = tmp_path / "step.py"
    script.write_text(SCRIPT)
    found = inspect(f"{script}:step", "--mesh", "x=4", "--against-mesh", "x=2", "--html", "-")
    data = json.loads(Elements(found.stdout).texts["data"])
    assert [each["report"]["mesh"] for each in data["reports"]] == [[["x", 2]], [["x", 4]]]
    assert [each["program"] is None for each in data["reports"]] == [False, False]
    assert [c["because"] != [] for c in data["changes"]["collectives"]] == [True]
    assert ("devices", 2, 4) in [(f["what"], f["before"], f["after"]) for f in data["changes"]["figures"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--html", "/nonexistent/x.html"], "/nonexistent/x.html: its directory is not there; give --html a file"),
        (["--html", "x.html", "--json"], "--html goes with none of"),
        (["--html", "x.html", "--against", "/nonexistent.json"], "/nonexistent.json: No such file"),
        (["--program"], "--program goes with --json"),
        (["--markdown", "--json"], "--json goes with none of"),
        (["--stage", "lowered", "--json"], "--stage goes with none of"),
        (["--stage", "lowered", "--lint"], "--stage goes with none of --lint"),
        (["--check", "b.toml", "--markdown"], "--check goes with none of"),
    ],
)
def test_what_cannot_be_written_is_said_in_one_line(tmp_path, arguments, said, capsys):
    module = tmp_path / "m.mlir"
    module.write_text(MODULE)
    with pytest.raises(SystemExit) as e:
        main(["inspect", str(module), *arguments])
    found = capsys.readouterr().err
    assert e.value.code == 2 and said in found and len(found.splitlines()) == 1


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(monkeypatch):
    made = report(lowered(), name='a"<b>')
    shown = Elements(made._repr_html_())
    ((tag, attrs),) = shown.tags
    assert tag == "iframe" and attrs["sandbox"] == "allow-scripts" and attrs["title"] == 'a"<b>'
    assert attrs["srcdoc"] == made.to_html() == made.to_html()
    assert made.program is not None and "meshrt" in made.to_html()
    both = json.loads(Elements(made.to_html(against=report(lowered()))).texts["data"])
    assert len(both["reports"]) == 2 and both["reports"][0]["program"] is not None
    monkeypatch.setattr("meshrt.inspect.api.MOST_KEPT", 1000)
    assert made._repr_html_() is None and made._repr_markdown_()


def test_the_page_of_a_text_has_the_text_as_its_source():
    page = json.loads(Elements(report(MODULE, name="m.mlir").to_html()).texts["data"])["reports"][0]["program"]
    assert [s["path"] for s in page["sources"]] == ["m.mlir"]
