"""`python -m propagation.fuzz --cases N --seed S`: random modules, ours beside the real Shardy passes of this jaxlib.

Prints each failure as a minimal module, then how many operations and modules agree. Exit status 1 if any fails.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time

from .. import errors
from ..pipeline import STAGES
from .compare import VERSION, compare
from .generator import generate
from .oracle import Oracle
from .sweep import Case, Tally, oracle_stage, shrink_case, sweep


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m propagation.fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("--cases", type=int, default=2000, help="how many modules (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; the others follow (default 0)")
    parser.add_argument("--stage", default="closed", choices=STAGES, metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--dedup", action="store_true", help="with the option dedup_functions_fully")
    parser.add_argument("--plain", action="store_true", help="operations without control flow, calls or constraints")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds (default 1)")
    parser.add_argument("--show", type=int, default=3, help="how many failures to shrink and print (default 3)")
    parser.add_argument("--print", type=int, metavar="SEED", help="only print the module of one seed")
    parser.add_argument("--file", metavar="FILE", help="compare the module in FILE instead of random ones")
    args = parser.parse_args(argv)
    logging.getLogger("propagation").setLevel(logging.ERROR)
    if args.print is not None:
        print(generate(args.print, features=not args.plain)[0])
        return 0
    try:
        tally = _file(args) if args.file else _sweep(args)
    except (errors.PropagationError, OSError) as e:
        print(f"propagation.fuzz: {e}", file=sys.stderr)
        return 2
    for case in tally.failures[: args.show]:
        small = shrink_case(case, args.stage, dedup_functions_fully=args.dedup)
        print(f"---- {case.found.verdict}, seed {case.seed}; minimal module:\n{small}", flush=True)
    print(tally.as_text())
    return 1 if tally.failures else 0


def _file(args: argparse.Namespace) -> Tally:
    with open(args.file) as f:
        text = f.read()
    tally = Tally()
    with Oracle() as oracle:
        expected = oracle(oracle_stage(args.stage, args.dedup), text)
        case = Case(-1, text, frozenset(), compare(text, expected, args.stage, dedup_functions_fully=args.dedup))
    tally.add(case)
    return tally


def _sweep(args: argparse.Namespace) -> Tally:
    start, progress = time.monotonic(), _Progress(args.cases)
    seeds = range(args.seed, args.seed + args.cases)
    print(f"jaxlib {VERSION}, stage {args.stage}, seeds {seeds.start} to {seeds.stop - 1}", flush=True)
    if args.jobs <= 1:
        tally = sweep(seeds, args.stage, not args.plain, progress, dedup_functions_fully=args.dedup)
    else:
        tally = Tally()
        chunks = [(seeds[i : i + 50], args.stage, not args.plain, args.dedup) for i in range(0, len(seeds), 50)]
        with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
            for part in pool.imap_unordered(_chunk, chunks):
                tally.merge(part)
                progress.more(part.verdicts.total(), part.failures)
        tally.failures.sort(key=lambda case: case.seed)
    progress.end()
    print(f"{args.cases} modules in {time.monotonic() - start:.0f} s")
    return tally


def _chunk(work: tuple[range, str, bool, bool]) -> Tally:
    logging.getLogger("propagation").setLevel(logging.ERROR)
    seeds, stage, features, dedup = work
    return sweep(seeds, stage, features, dedup_functions_fully=dedup)


class _Progress:
    """A line on standard error that counts, where that is a terminal; failures as they come."""

    def __init__(self, total: int):
        self.total, self.done = total, 0
        self.is_live = sys.stderr.isatty()

    def __call__(self, case: Case) -> None:
        self.more(1, [case] if case.found.is_failure else [])

    def more(self, count: int, failures: list[Case]) -> None:
        self.done += count
        for case in failures:
            print(f"seed {case.seed}: {case.found.verdict}: {case.found.detail}", flush=True)
        if self.is_live:
            print(f"\r{self.done} of {self.total}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.is_live:
            print(file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
