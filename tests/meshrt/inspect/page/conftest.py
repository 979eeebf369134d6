"""The browser of the tests of the page."""

from __future__ import annotations

import pytest

from tests.meshrt.inspect.page.browser import Browser, chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    path = chromium()
    if path is None:
        pytest.skip("no Chromium is installed here; $CHROMIUM may name one")
    made = Browser(path, tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


@pytest.fixture
def tab(browser):
    """A tab in which nothing may have gone wrong, and that may have asked nobody for anything."""
    with browser.tab() as made:
        yield made
        assert not made.errors
        assert not [
            url for url in made.requests if not url.startswith(("file:", "about:", "data:", "http://127.0.0.1"))
        ]
