"""The HTML document: style, script and data in one file that asks for nothing else.

Its own policy (CSP) forbids every connection, and every script and style but the two whose hashes it names, so that
nothing in a program's names can become code. Data stands in a script element that is not run, with `<` and `&` escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from meshrt.inspect.changes import Comparison
from meshrt.inspect.model import Report
from meshrt.inspect.page.data import page_data
from meshrt.inspect.render import clean

__all__ = ["document", "policy"]

_ESCAPED = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def document(
    report: Report | None,
    against: Report | None = None,
    live: Mapping[str, str | None] | None = None,
    changes: Comparison | None = None,
) -> str:
    """The page of a report, beside that of the report that it is compared with, as ASCII text.

    `changes` are those between the two with their causes; by default what the reports tell.

    `live` is what a page that is served is told: `events`, the path of the server's events, and `error`, the text of
    what went wrong with the program last. Such a page may come without a report.
    """
    data: dict[str, Any] = {"reports": [], "changes": None} if report is None else page_data(report, against, changes)
    if live is not None:
        data["serve"] = dict(live)
    name = "meshrt inspect" if report is None else clean(report.name)
    script, style, licences = (_bundled(name) for name in ("page.js", "page.css", "LICENSES.txt"))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(live is not None)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{_ascii(html.escape(name))}</title>
<style>{style}</style>
</head>
<body>
<noscript>This page draws the report with its own script, which the browser does not run.</noscript>
<script type="application/json" id="data">{json.dumps(data, separators=(",", ":")).translate(_ESCAPED)}</script>
<script type="text/plain" id="licences">{_ascii(licences)}</script>
<script>{script}</script>
</body>
</html>
"""


@cache
def policy(is_served: bool = False) -> str:
    """The content security policy of the page; one that is served may ask its own server for events."""
    script, style = (f"'sha256-{_digest(_bundled(name))}'" for name in ("page.js", "page.css"))
    connect = "'self'" if is_served else "'none'"
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src {connect}; base-uri 'none'; "
        "form-action 'none'"
    )


@cache
def _bundled(name: str) -> str:
    return (files("meshrt.inspect.page") / "bundle" / name).read_text(encoding="utf-8").strip()


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _ascii(text: str) -> str:
    """Text of HTML with character references for all that is not ASCII."""
    return text.encode("ascii", "xmlcharrefreplace").decode()
