"""`python -m tests.libraries [NAME ...]`: runs libraries' own tests with JAX and with meshrt, and writes the page."""

from __future__ import annotations

import argparse

from tests.libraries import document
from tests.libraries.environments import FOLDER, environment
from tests.libraries.libraries import LIBRARIES, Library
from tests.libraries.runs import outcomes, run, test_id


def main() -> None:
    """Runs the named libraries, all by default."""
    parser = argparse.ArgumentParser(prog="python -m tests.libraries", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="libraries; all by default")
    parser.add_argument("--page-only", action="store_true", help="write the page from the results that there are")
    parser.add_argument(
        "--keep-jax", action="store_true", help="read the last report of the run with JAX, if it is there"
    )
    parser.add_argument(
        "--again", action="store_true", help="run, with meshrt only, what failed or skipped itself the last time"
    )
    chosen = parser.parse_args()
    known = {library.name: library for library in LIBRARIES}
    unknown = [name for name in chosen.names if name not in known]
    if unknown:
        parser.error(f"{', '.join(unknown)}: not among {', '.join(known)}")
    for name in () if chosen.page_only else chosen.names or known:
        library, both = known[name], []
        if chosen.again:
            _run_again(library)
            continue
        for with_jax in (True, False):
            report = FOLDER / f"{name}-{'with' if with_jax else 'without'}-jax.xml"
            if with_jax and chosen.keep_jax and report.exists():
                both.append(outcomes(report))
                continue
            where = environment(with_jax)
            where.add(library)
            both.append(run(library, where, report))
        document.note(library, *both)
    document.PAGE.write_text(document.page())
    print(f"{document.PAGE}: written anew")


def _run_again(library: Library) -> None:
    names = document.not_passed(library)
    if names:
        where = environment(with_jax=False)
        where.add(library)
        tests = tuple(test_id(library, name) for name in names)
        found = run(library, where, FOLDER / f"{library.name}-again.xml", tests)
        document.note_again(library, {name: found.get(name, "not collected") for name in names})


if __name__ == "__main__":
    main()
