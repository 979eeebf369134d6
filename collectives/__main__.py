"""`python -m collectives [FILE|-] [--plan] [--json]`: closed `sdy` text in, the per-device program or its plan out."""

from __future__ import annotations

import argparse
import json
import sys

from propagation.errors import PropagationError

from . import partition
from .errors import CollectivesError
from .topology import load


def main(argv: list[str] | None = None) -> int:
    """Runs the filter; returns the exit code: 0, or 2 for input that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m collectives", description=__doc__)
    parser.add_argument("file", nargs="?", default="-", help="a StableHLO module with closed shardings; - reads stdin")
    parser.add_argument("--plan", action="store_true", help="print the table of collectives instead of the program")
    parser.add_argument("--json", action="store_true", help="print plan and findings as JSON")
    parser.add_argument("--topology", help="a name as v5e:16x16, or a file; see configs/topologies")
    parser.add_argument("--no-full-gather", action="store_true", help="fail where a tensor must be gathered whole")
    for name in ("combine", "hoist", "collective-matmul", "order"):
        parser.add_argument(
            f"--{name}", action=argparse.BooleanOptionalAction, help=f"option {name.replace('-', '_')} of partition"
        )
    parser.add_argument("--keep-gathered", action="store_true", help="never gather a value again to save memory")
    parser.add_argument("--memory", type=int, metavar="BYTES", help="memory of a device; default: the topology's")
    parser.add_argument("--memory-growth", type=float, metavar="SHARE", help="memory that passes may add; default 0.25")
    args = parser.parse_args(argv)
    names = ("combine", "hoist", "collective_matmul", "order", "memory", "memory_growth")
    options = {name: value for name in names if (value := getattr(args, name)) is not None}
    try:
        data = sys.stdin.buffer.read() if args.file == "-" else _read(args.file)
        topology = load(args.topology) if args.topology else None
        result = partition(
            data, topology, allow_full_gather=not args.no_full_gather, keep_gathered=args.keep_gathered, **options
        )
    except (CollectivesError, PropagationError, OSError) as e:
        print(f"{args.file}: {e}", file=sys.stderr)
        return 2
    if args.json:
        findings = [{"kind": f.kind, "message": f.message, "where": f.where, "bytes": f.bytes} for f in result.findings]
        plan = {"bytes": result.plan.bytes, "seconds": result.plan.seconds, "exposed": result.plan.exposed}
        print(json.dumps({**plan, "collectives": result.plan.as_json(), "findings": findings}))
    elif args.plan:
        print(result.plan.as_text())
        for finding in result.findings:
            print(finding)
    else:
        print(result.as_text(), end="")
    return 0


def _read(path: str) -> bytes:
    with open(path, "rb") as f:
        return f.read()


if __name__ == "__main__":
    sys.exit(main())
