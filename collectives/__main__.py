"""`python -m collectives [FILE|-] [--plan] [--json]`: closed `sdy` text in, the per-device program or its plan out."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from dataclasses import asdict

from propagation import read
from propagation.errors import PropagationError
from propagation.quoting import printable

from . import PartitionedProgram, partition
from .errors import CollectivesError
from .heuristics import MEMORY_GROWTH_SHARE
from .options import COMPILERS, Options
from .topology import load

# Options that may be said, unsaid, or left to the library.
_SWITCHES = ("distribute", "optimize", "combine", "hoist", "collective_matmul", "order", "reorder", "repeat")
# `name   what it is about` in the docstring of `Options`, over as many lines as it takes.
_OPTION = re.compile(r"^    (\w+) {2,}(\S.*(?:\n {5,}\S.*)*)", re.MULTILINE)


def main(argv: list[str] | None = None) -> int:
    """Runs the filter; returns the exit code: 0, or 2 for input that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m collectives", description=__doc__)
    parser.add_argument("file", nargs="?", default="-", help="a StableHLO module with closed shardings; - reads stdin")
    parser.add_argument("--plan", action="store_true", help="print the table of collectives instead of the program")
    parser.add_argument("--json", action="store_true", help="print plan and findings as JSON, with --plan or without")
    parser.add_argument("--topology", help="a name as v5e:16x16, or a file; see configs/topologies")
    parser.add_argument("--no-full-gather", action="store_true", help="fail where a tensor must be gathered whole")
    parser.add_argument("--gather-custom-calls", action="store_true", help="gather operands of unknown custom calls")
    parser.add_argument("--unreduced-results", action="store_true", help="return results declared unreduced as addends")
    parser.add_argument("--uneven-boundary", action="store_true", help="pieces of arguments and results may be padded")
    told = {name: " ".join(text.split()) for name, text in _OPTION.findall(Options.__doc__ or "")}
    for name in _SWITCHES:
        parser.add_argument(
            f"--{name.replace('_', '-')}", action=argparse.BooleanOptionalAction, help=told[name].replace("%", "%%")
        )
    parser.add_argument("--keep-gathered", action="store_true", help="never gather a value again to save memory")
    parser.add_argument("--memory", type=int, metavar="BYTES", help="memory of a device; default: the topology's")
    growth = f"memory that passes may add; default {MEMORY_GROWTH_SHARE}"
    parser.add_argument("--memory-growth", type=float, metavar="SHARE", help=growth)
    parser.add_argument("--compiler", help=f"whose program it is: {', '.join(COMPILERS)}; default: the topology's")
    args = parser.parse_intermixed_args(argv)
    names = (*_SWITCHES, "memory", "memory_growth", "compiler")
    options = {name: value for name in names if (value := getattr(args, name)) is not None}
    try:
        data = sys.stdin.buffer.read() if args.file == "-" else _read(args.file)
        program = read(data, None if args.file == "-" else args.file)
        topology = load(args.topology) if args.topology else None
        options["allow_full_gather"] = not args.no_full_gather
        for name in ("keep_gathered", "gather_custom_calls", "unreduced_results", "uneven_boundary"):
            options[name] = getattr(args, name)
        text = _output(partition(program, topology, **options), args)
    except (CollectivesError, PropagationError) as e:
        print(f"{args.file}: {printable(str(e))}", file=sys.stderr)
        return 2
    except OSError as e:
        print(f"{e.filename or args.file}: {e.strerror or e}", file=sys.stderr)
        return 2
    try:
        sys.stdout.write(text.rstrip("\n") + "\n")
        sys.stdout.flush()
    except OSError as e:
        with contextlib.suppress(OSError):
            os.close(sys.stdout.fileno())  # or the interpreter would try to write the rest once more
        print(f"standard output: {e.strerror}", file=sys.stderr)
        return 2
    return 0


def _output(result: PartitionedProgram, args: argparse.Namespace) -> str:
    if args.json:
        findings = [{"kind": f.kind, "message": f.message, "where": f.where, "bytes": f.bytes} for f in result.findings]
        sent = {"bytes": result.plan.bytes, "least_bytes": result.plan.least_bytes}
        plan = {**sent, "seconds": result.plan.seconds, "exposed": result.plan.exposed}
        tried = [asdict(a) for a in result.plan.alternatives]
        return json.dumps({**plan, "collectives": result.plan.as_json(), "findings": findings, "alternatives": tried})
    if args.plan:
        return "\n".join([result.plan.as_text(), *map(str, result.findings)])
    return result.as_text()


def _read(path: str) -> bytes:
    with open(path, "rb") as f:
        return f.read()


if __name__ == "__main__":
    sys.exit(main())
