"""`python -m benchmarks.propagation`: our propagation beside the C++ passes of the same jaxlib, in one process.

Both read MLIR text, decide every sharding (stage `closed`) and write MLIR text; pairs of runs alternate, and the ratio
is the median of the pairs' ratios with its quartiles. Then the curves: time and memory per operation up to 100,000
operations, and time over the size of the mesh.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

import propagation
from benchmarks.figures import MESH, unrolled
from benchmarks.peers import Pairs, Peer, alternate
from propagation import program
from propagation.contexts import context
from propagation.fuzz.compare import VERSION
from propagation.fuzz.oracle import pass_manager, passes

__all__ = ["chain", "cpp", "main", "ours"]

STAGE = "closed"
MUST = 1.0  # of the C++ passes' time


def chain(operations: int, mesh: str = '"data"=4, "model"=2') -> str:
    """A module of about `operations` operations: layers of a matrix product, a constant and pointwise operations."""
    t, w = "tensor<64x128xf32>", "tensor<128x128xf32>"
    lines = [
        f"sdy.mesh @mesh = <[{mesh}]>",
        f'func.func public @main(%x0: {t} {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}, {{?}}]>}}, '
        '%w: tensor<128x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"model"}]>}) -> ' + t + " {",
    ]
    layers = max(1, operations // 5)
    for k in range(layers):
        lines += [
            f"%a{k} = stablehlo.dot_general %x{k}, %w, contracting_dims = [1] x [0] : ({t}, {w}) -> {t}",
            f"%b{k} = stablehlo.tanh %a{k} : {t}",
            f"%c{k} = stablehlo.constant dense<1.5> : {t}",
            f"%d{k} = stablehlo.multiply %b{k}, %c{k} : {t}",
            f"%x{k + 1} = stablehlo.add %d{k}, %x{k} : {t}",
        ]
    return "\n".join([*lines, f"return %x{layers} : {t} }}"])


def ours(text: str) -> float:
    """Seconds of our propagation, from text to text."""
    start = time.perf_counter()
    propagation.run(text, STAGE).as_text()
    return time.perf_counter() - start


class _Cpp:
    """The C++ passes in this process. Their passes are parsed once; the context is ours, made once too."""

    def __init__(self) -> None:
        self.managers: dict[str, PassManager] = {}

    def __call__(self, text: str, stage: str = STAGE) -> float:
        """Seconds of the C++ passes, from text to text."""
        with context():
            if stage not in self.managers:
                self.managers[stage] = pass_manager(passes(stage, VERSION == "0.12"))
            start = time.perf_counter()
            module = ir.Module.parse(text)
            self.managers[stage].run(module.operation)
            str(module)
            return time.perf_counter() - start


cpp = _Cpp()


def _pairs(text: str, pairs: int) -> Pairs:
    return alternate(lambda: _collected(ours, text), lambda: _collected(cpp, text), pairs)


def _collected(run: Callable[[str], float], text: str) -> float:
    gc.collect()
    return run(text)


def _row(name: str, text: str, pairs: int) -> dict[str, Any]:
    taken = _pairs(text, pairs)
    a, b = taken.medians
    low, high = taken.spread
    count = len(program.read(text).ops())
    print(
        f"{name:38} {count:8,} ops  ours {a * 1e3:9.1f} ms  C++ {b * 1e3:9.1f} ms  ratio {taken.ratio:5.2f} "
        f"({low:.2f} to {high:.2f}, {pairs} pairs)",
        flush=True,
    )
    return {"name": name, "operations": count, "ours": a, "cpp": b, "ratio": taken.ratio, "spread": [low, high]}


_MEMORY = """
import gc, sys
from benchmarks.propagation import chain
import propagation

def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096

propagation.run(chain(100)).as_text()
count = int(sys.argv[1])
text = chain(count)
gc.collect()
before = resident()
result = propagation.run(text)
print((resident() - before) / count)
"""


def memory_per_operation(operations: int) -> float:
    """Bytes of resident memory per operation while a result is held, the parsed module included; in a process of its
    own, on Linux."""
    command = [sys.executable, "-c", _MEMORY, str(operations)]
    root = Path(__file__).resolve().parent.parent
    return float(subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout)


def main(argv: list[str] | None = None) -> int:
    """Prints all figures; exit status 1 if a train step takes longer than the C++ passes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.propagation", description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="two pairs each and a short curve, to see that all runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    args = parser.parse_args(argv)
    print(f"jaxlib {VERSION}, Python {sys.version.split()[0]}: text to text, medians of alternating pairs")
    rows = []
    for package in ("meshrt", "jax"):
        peer = Peer(package)
        try:
            for layers, pairs in ((12, 9), (48, 5)):
                text = peer("lowered_text", model=unrolled(layers), mesh=MESH)
                name = f"train step of {layers} layers, by {package}"
                rows.append(_row(name, text, 2 if args.quick else pairs))
        finally:
            peer.close()
    missed = any(row["ratio"] > MUST for row in rows)
    sizes = (1_000, 10_000) if args.quick else (1_000, 3_000, 10_000, 30_000, 100_000)
    for n in sizes:
        rows.append(_row("a chain of layers", chain(n), 2 if args.quick or n > 30_000 else 3))
        print(f"{'':38} ours {rows[-1]['ours'] / n * 1e6:.1f} µs per operation")
    for n in (8, 64, 512, 4096, 65_536):
        text = chain(3_000, f'"data"={n // 2}, "model"=2')
        seconds = statistics.median(_collected(ours, text) for _ in range(2 if args.quick else 5))
        print(f"mesh of {n:6,} devices, 3,000 operations    ours {seconds * 1e3:9.1f} ms", flush=True)
        rows.append({"name": f"mesh of {n} devices", "ours": seconds})
    used = memory_per_operation(sizes[-1])
    print(f"memory: {used:.0f} bytes per operation at {sizes[-1]:,} operations")
    rows.append({"name": "memory per operation", "bytes": used})
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
