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
    args = parser.parse_args(argv)
    try:
        data = sys.stdin.buffer.read() if args.file == "-" else _read(args.file)
        topology = load(args.topology) if args.topology else None
        result = partition(data, topology, allow_full_gather=not args.no_full_gather)
    except (CollectivesError, PropagationError, OSError) as e:
        print(f"{args.file}: {e}", file=sys.stderr)
        return 2
    if args.json:
        findings = [{"kind": f.kind, "message": f.message, "where": f.where, "bytes": f.bytes} for f in result.findings]
        print(json.dumps({"bytes": result.plan.bytes, "collectives": result.plan.as_json(), "findings": findings}))
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
