"""The documentation site: what is made of docstrings, the table of contents, and the whole as mkdocs builds it."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys

import pytest

from docs.site import reference
from tests.docs.pages import DOCS, PAGES, ROOT


def test_the_examples_of_the_maker_of_the_reference():
    found = doctest.testmod(reference)
    assert found.attempted and not found.failed


@pytest.mark.parametrize("name", reference.MODULES)
def test_each_public_module_has_a_page(name):
    page = reference.page(name)
    assert page.startswith(f"# `{name}`\n")
    assert re.search(r"^## ", page, re.MULTILINE), "a module without public names"
    assert page.count("```") % 2 == 0
    assert " at 0x" not in page, "an address, which is another one in each build"


def test_every_page_stands_in_the_table_of_contents():
    contents = (ROOT / "mkdocs.yml").read_text()
    assert [p.name for p in PAGES if p.relative_to(DOCS).as_posix() not in contents] == []


@pytest.mark.slow
def test_the_site_is_built_and_needs_no_network(tmp_path):
    pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False, capture_output=True, text=True,
        timeout=230,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(PAGES) + len(reference.MODULES)
    fetched = r"<(?:script|link|img)[^>]+(?:src|href)=\"?https?://[^\"\s>]+"
    assert {found for page in pages for found in re.findall(fetched, page.read_text())} == set()
