"""What mkdocs is told beyond mkdocs.yml: pages that are made, not written, and links that lead out of docs/.

The start page is README.md; the map of the house, the log of changes, the licence, the files of configs/ and the
scripts of examples/ become pages too; the reference is made of docstrings (docs/site/reference.py).
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from docs.site import reference  # noqa: E402

# Files of the repository, and the pages that show them.
_PAGES = {
    "README.md": "index.md", "ARCHITECTURE.md": "architecture.md", "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md", "LICENSE": "license.md", "examples/README.md": "examples/index.md",
}  # fmt: skip
_LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Adds the pages that are made to the table of contents."""
    groups = [{group: [{n: f"reference/{n}.md"} for n in names]} for group, names in reference.GROUPS.items()]
    made = {
        "REFERENCE": {"Reference": groups},
        "EXAMPLES": {"Examples": ["examples/index.md", *map(page_of, _scripts())]},
    }
    config["nav"] = [made.get(entry, entry) if isinstance(entry, str) else entry for entry in config["nav"]]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made."""
    made = {target: _shown(source) for source, target in _PAGES.items()}
    made |= {page_of(path): _source(path) for path in _scripts()}
    made["configs.md"] = _configurations()
    made |= {f"reference/{name}.md": reference.page(name) for name in reference.MODULES}
    for target, text in made.items():
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to files of the repository lead to the pages that show them."""
    source = next((s for s, target in _PAGES.items() if target == page.file.src_uri), None)
    base = posixpath.dirname(source or f"docs/{page.file.src_uri}")

    def moved(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(base, match[2]))
        target = page_of(path)
        if target is None:
            return match[0]
        start = posixpath.dirname(page.file.src_uri) or "."
        return f"{match[1]}{posixpath.relpath(target, start)}{match[3] or ''})"

    return _LINK.sub(moved, markdown)


def page_of(path: str) -> str | None:
    """The page that shows a file or folder of the repository; None where there is none."""
    if path in _PAGES:
        return _PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("configs"):
        return "configs.md"
    if path.startswith("examples/") and path.endswith(".py"):
        return path.removesuffix(".py") + ".md"
    return "examples/index.md" if path.startswith("examples") else None


def _scripts() -> list[str]:
    return sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "examples").rglob("*.py"))


def _shown(source: str) -> str:
    text = (ROOT / source).read_text(encoding="utf-8")
    return text if source.endswith(".md") else f"# {source}\n\n```text\n{text}```\n"


def _source(path: str) -> str:
    return f"# {path}\n\n```python\n{(ROOT / path).read_text(encoding='utf-8')}```\n"


def _configurations() -> str:
    parts = ["# Files of settings\n"]
    for path in sorted((ROOT / "configs").rglob("*.toml")):
        name = path.relative_to(ROOT).as_posix()
        parts.append(f"## {name}\n\n```toml\n{path.read_text(encoding='utf-8')}```\n")
    return "\n".join(parts)
