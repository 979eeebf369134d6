"""`python -m propagation [STAGE] [FILE|-]`: propagates a module as a filter.

Reads MLIR text or bytecode from FILE (default: standard input) and writes the annotated module to standard output.
Exit status 2 and one line on standard error for bad input, and for output that cannot be written.
"""

from __future__ import annotations

import argparse
import os
import sys

from . import Propagated, errors, run
from .pipeline import STAGES
from .quoting import printable
from .report import explain, explained_json, shardings_json


def main(argv: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_intermixed_args(argv)
    stage, file = _stage_and_file(parser, args.words)
    explained = args.explain or args.value or args.function
    for flag in ("origins", "edges", "locations"):
        if (args.json or explained) and getattr(args, flag):
            parser.error(f"--{flag} is about the module's text; --json, --explain and --value write something else")
    try:
        result = run(
            _read(file),
            stage,
            file=None if file == "-" else file,
            strategy=args.strategy,
            conservative=args.conservative,
            dedup_functions_fully=args.dedup_functions_fully,
            version=args.shardy_version,
            origins=args.origins,
            edges=args.edges,
            chlo=not args.no_chlo,
            shardy_faults=args.shardy_faults,
        )
        text = _output(result, args)
    except errors.PropagationError as e:
        print(f"propagation: {printable(str(e))}", file=sys.stderr)
        return 2
    except OSError as e:
        print(f"propagation: {e.filename or file}: {e.strerror or e}", file=sys.stderr)
        return 2
    return _write(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m propagation",
        description=__doc__.split("\n\n")[1],
        usage="%(prog)s [options] [STAGE] [FILE|-]",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="STAGE, FILE",
        help=f"what to do: {', '.join(STAGES)} (default: closed); and a file, or - for standard input, the default",
    )
    parser.add_argument("--strategy", default="aggressive", help="aggressive, basic or basic-then-aggressive")
    parser.add_argument("--conservative", action="store_true", help="only full axes, no halo exchanges")
    parser.add_argument(
        "--dedup-functions-fully", action="store_true", help="a function stays one for all its calls, not inlined"
    )
    parser.add_argument("--shardy-version", default="0.12", help="whose rules to follow: 0.12 or 0.10")
    parser.add_argument("--json", action="store_true", help="write each value's sharding as JSON instead")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="write why each argument and result is sharded, and what stopped the axes of values that are whole, "
        "instead; with --json, as JSON",
    )
    parser.add_argument(
        "--value",
        action="append",
        default=[],
        metavar="VALUE[:DIM]",
        help="explain this value: arg[0]:1, result[0], an argument's name, %%3:0 as in the propagated module's text, "
        "or FILE:LINE; may be repeated",
    )
    parser.add_argument("--function", metavar="NAME", help="the function of these values (default: the entry)")
    parser.add_argument("--origins", action="store_true", help="say which annotation each axis comes from")
    parser.add_argument("--edges", action="store_true", help="say at which step each operation passed axes on")
    parser.add_argument("--no-chlo", action="store_true", help="nothing passes CHLO operations, as in Shardy")
    parser.add_argument("--shardy-faults", action="store_true", help="copy what Shardy gets wrong, for comparisons")
    parser.add_argument(
        "--locations",
        action=argparse.BooleanOptionalAction,
        help="write source locations with the module (default: unless to a terminal), so that what reads it can name "
        "the program's lines",
    )
    return parser


def _stage_and_file(parser: argparse.ArgumentParser, words: list[str]) -> tuple[str, str]:
    """One word is a stage if there is one of that name, else a file."""
    if len(words) > 2:
        parser.error(f"a stage and a file are read, but there are {len(words)} words: {' '.join(words)}")
    if len(words) == 2:
        if words[0] not in STAGES:
            parser.error(f"unknown stage {words[0]!r}; choose from {', '.join(STAGES)}")
        return words[0], words[1]
    word = words[0] if words else "-"
    if word in STAGES:
        return word, "-"
    if word != "-" and not os.path.exists(word):
        parser.error(f"{word!r} is no file and no stage; stages are {', '.join(STAGES)}")
    return "closed", word


def _write(text: str) -> int:
    try:
        sys.stdout.write(text.rstrip("\n") + "\n")
        sys.stdout.flush()
    except OSError as e:
        print(f"propagation: cannot write to standard output: {e}", file=sys.stderr)
        # What is still buffered would be tried, and fail, once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    return 0


def _output(result: Propagated, args: argparse.Namespace) -> str:
    if args.explain or args.value or args.function:
        found = explain(result, args.value, args.function)
        return explained_json(found) if args.json else found.as_text()
    if args.json:
        return shardings_json(result)
    return result.as_text(debug_info=not sys.stdout.isatty() if args.locations is None else args.locations)


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
