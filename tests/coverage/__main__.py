"""`python -m tests.coverage` writes docs/jax-coverage.md."""

from __future__ import annotations

import sys

from tests.coverage.document import PATH, text


def main() -> int:
    """Writes the document; says whether it had been up to date."""
    new, old = text(), PATH.read_text() if PATH.exists() else ""
    PATH.write_text(new)
    print(f"{PATH}: {'as it was' if new == old else 'written anew'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
