"""What the compiler for TPUs says of the kernels that ship, beside the programs of array operations they replace.

    python -m benchmarks.kernels            (make bench-kernels, which installs the compiler)

Nothing runs: no hardware is needed, and no time is measured. Each program is compiled for a topology, and the compiler
is asked what it costs: floating-point operations, bytes to and from a chip's memory, bytes of memory beside arguments
and results. Bytes between chips are those of the program's collectives; a kernel's are what it says of itself.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import meshrt
from meshrt import NamedSharding, P, lax
from meshrt import numpy as jnp
from meshrt.experimental.pallas import ops
from meshrt.sharding import AbstractMesh, AxisType

BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Pair:
    """A program with a kernel and one of array operations, for one topology."""

    name: str
    topology: str
    kernel: Callable[..., Any]
    arrays: Callable[..., Any]
    args: Sequence[Any]


def attention(batch: int = 4, length: int = 4096, heads: int = 8, groups: int = 4, width: int = 128) -> list[Pair]:
    """Causal attention on one chip, forward and with its derivative."""
    q = meshrt.ShapeDtypeStruct((batch, length, heads, width), BF16)
    kv = meshrt.ShapeDtypeStruct((batch, length, groups, width), BF16)
    kernel = lambda q, k, v: meshrt.nn.dot_product_attention(q, k, v, is_causal=True, implementation="flash")
    arrays = lambda q, k, v: meshrt.nn.dot_product_attention(q, k, v, is_causal=True)
    what = f"flash attention, {length} positions"
    return _both_ways(what, "v5e:1x1", kernel, arrays, [q, kv, kv])


def rings(devices: int = 8, rows: int = 8192, width: int = 4096, columns: int = 8192) -> list[Pair]:
    """A product whose rows are gathered over eight chips, forward and with its derivative."""
    mesh = AbstractMesh((devices,), ("x",), axis_types=(AxisType.Auto,))
    split = (P("x"), P(None, "x"))
    args = [
        meshrt.ShapeDtypeStruct(shape, BF16, sharding=NamedSharding(mesh, s))
        for shape, s in zip(((rows, width), (width, columns)), split)
    ]
    mapped = lambda f: meshrt.shard_map(f, mesh=mesh, in_specs=split, out_specs=P(None, "x"))
    kernel = mapped(lambda x, w: ops.all_gather_matmul(x, w, "x"))
    arrays = mapped(lambda x, w: lax.all_gather(x, "x", tiled=True) @ w)
    return _both_ways(f"ring matmul, {devices} chips", "v5e:2x4", kernel, arrays, args)


def _both_ways(name: str, topology: str, kernel: Any, arrays: Any, args: Sequence[Any]) -> list[Pair]:
    def gradient(f: Any) -> Any:
        return meshrt.grad(lambda *a: jnp.square(f(*a).astype(np.float32)).sum(), tuple(range(len(args))))

    return [
        Pair(f"{name}, forward", topology, kernel, arrays, args),
        Pair(f"{name}, derivative", topology, gradient(kernel), gradient(arrays), args),
    ]


@dataclass(frozen=True)
class Figures:
    """What the compiler says of a program, per chip."""

    operations: float
    moved: float
    memory: int
    sent: float

    @staticmethod
    def of(f: Any, pair: Pair) -> Figures:
        compiled = meshrt.jit(f).trace(*pair.args).lower(lowering_platforms=("tpu",)).compile(topology=pair.topology)
        cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
        sent = sum(c.bytes * (c.times or 1) for c in compiled.collectives())
        return Figures(cost["flops"], cost["bytes accessed"], memory.temp_size_in_bytes, sent)

    def row(self, name: str, what: str) -> str:
        return (
            f"{name:<38} {what:<7} {self.operations / 1e9:>10.1f} {self.moved / 2**20:>10.1f} "
            f"{self.memory / 2**20:>10.1f} {self.sent / 2**20:>10.1f}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table. Returns 0, also where the compiler is missing, which it says."""
    parser = argparse.ArgumentParser(description="The compiler's figures for kernels and for array operations.")
    parser.add_argument("--small", action="store_true", help="small sizes, to see that it works")
    small = parser.parse_args(argv).small
    if importlib.util.find_spec("libtpu") is None:
        print("bench-kernels: skipped, the compiler for TPUs (libtpu) is not installed here; make bench-kernels does")
        return 0
    pairs = [*attention(1, 1024), *rings(rows=1024, width=1024, columns=1024)] if small else [*attention(), *rings()]
    print(f"{'':<38} {'':<7} {'GFLOP':>10} {'MiB moved':>10} {'MiB held':>10} {'MiB sent':>10}   (per chip)")
    for pair in pairs:
        print(Figures.of(pair.kernel, pair).row(f"{pair.name} ({pair.topology})", "kernel"))
        print(Figures.of(pair.arrays, pair).row("", "arrays"), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
