"""`python -m propagation [STAGE] [FILE|-]`: propagates a module as a filter.

Reads MLIR text or bytecode from FILE (default: standard input) and writes the annotated module to standard output.
Exit status 2 and one line on standard error for bad input.
"""

from __future__ import annotations

import argparse
import json
import sys

from . import Propagated, errors, run
from .pipeline import STAGES
from .program import source


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m propagation", description=__doc__.split("\n\n")[1])
    parser.add_argument("stage", nargs="?", default="closed", choices=STAGES, metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("file", nargs="?", default="-", help="a file, or - for standard input")
    parser.add_argument("--strategy", default="aggressive", help="aggressive, basic or basic-then-aggressive")
    parser.add_argument("--conservative", action="store_true", help="only full axes, no halo exchanges")
    parser.add_argument("--shardy-version", default="0.12", help="whose rules to follow: 0.12 or 0.10")
    parser.add_argument("--json", action="store_true", help="write each value's sharding as JSON instead")
    parser.add_argument("--explain", action="store_true", help="write why each argument and result is sharded instead")
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
        text = to_json(result) if args.json else explain(result) if args.explain else result.as_text()
    except (errors.PropagationError, OSError) as e:
        print(f"propagation: {e}", file=sys.stderr)
        return 2
    sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


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


def to_json(result: Propagated) -> str:
    """Functions with their arguments, results and operations, as JSON text."""

    def text(sharding):
        return None if sharding is None else sharding.to_text()

    out = {}
    for func in result.program.funcs.values():
        out[func.name] = {
            "args": [text(result.sharding(v)) for v in func.args],
            "results": [text(s) for s in result.shardings.results[func]],
            "ops": [
                {
                    "op": op.name,
                    "source": source(op),
                    "types": [v.type.text for v in op.results],
                    "shardings": [text(result.sharding(v)) for v in op.results],
                }
                for op in func.body.walk()
                if op.results
            ],
        }
    return json.dumps(out, indent=1)


def explain(result: Propagated) -> str:
    """For each sharded dimension of the entry function's arguments and results, the steps that led there."""
    main_func = result.program.main
    lines = []
    values = [(f"argument {i}", v) for i, v in enumerate(main_func.args)]
    values += [(f"result {i}", v) for i, v in enumerate(main_func.returned)]
    for name, value in values:
        for dim in range(value.type.rank):
            for chain in result.explain(value, dim):
                lines.append(f"{name}, dimension {dim}:")
                lines += [f"  {step}" for step in chain]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
