"""`python -m propagation [STAGE] [FILE|-]`: propagates a module as a filter.

Reads MLIR text or bytecode from FILE (default: standard input) and writes the annotated module to standard output.
Exit status 2 and one line on standard error for bad input.
"""

from __future__ import annotations

import argparse
import sys

from . import Propagated, errors, run
from .pipeline import STAGES
from .report import explain, explained_json, shardings_json


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m propagation", description=__doc__.split("\n\n")[1])
    parser.add_argument("stage", nargs="?", default="closed", choices=STAGES, metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("file", nargs="?", default="-", help="a file, or - for standard input")
    parser.add_argument("--strategy", default="aggressive", help="aggressive, basic or basic-then-aggressive")
    parser.add_argument("--conservative", action="store_true", help="only full axes, no halo exchanges")
    parser.add_argument("--shardy-version", default="0.12", help="whose rules to follow: 0.12 or 0.10")
    parser.add_argument("--json", action="store_true", help="write each value's sharding as JSON instead")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="write why each argument and result is sharded, and which values are not though an operand is (and why) "
        "instead; with --json, as JSON",
    )
    parser.add_argument(
        "--value",
        action="append",
        default=[],
        metavar="VALUE[:DIM]",
        help="explain this value, by its name in the propagated module (%%3, %%arg0:1, ...); may be repeated",
    )
    parser.add_argument("--function", metavar="NAME", help="the function of these values (default: the entry)")
    parser.add_argument("--origins", action="store_true", help="say which annotation each axis comes from")
    parser.add_argument("--edges", action="store_true", help="say at which step each operation passed axes on")
    parser.add_argument("--no-chlo", action="store_true", help="nothing passes CHLO operations, as in Shardy")
    parser.add_argument("--shardy-faults", action="store_true", help="copy what Shardy gets wrong, for comparisons")
    args = parser.parse_args(argv)
    try:
        result = run(
            _read(args.file),
            args.stage,
            strategy=args.strategy,
            conservative=args.conservative,
            version=args.shardy_version,
            origins=args.origins,
            edges=args.edges,
            chlo=not args.no_chlo,
            shardy_faults=args.shardy_faults,
        )
        text = _output(result, args)
    except (errors.PropagationError, OSError) as e:
        print(f"propagation: {e}", file=sys.stderr)
        return 2
    sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


def _output(result: Propagated, args: argparse.Namespace) -> str:
    if args.explain or args.value or args.function:
        found = explain(result, args.value, args.function)
        return explained_json(found) if args.json else found.as_text()
    return shardings_json(result) if args.json else result.as_text()


def _read(name: str) -> bytes | str:
    if name == "-":
        data = sys.stdin.buffer.read()
    else:
        with open(name, "rb") as f:
            data = f.read()
    if data.startswith(b"ML\xefR"):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise errors.ModuleParseError(
            f"{name} is neither MLIR text nor bytecode (byte {e.start} is not UTF-8)"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
