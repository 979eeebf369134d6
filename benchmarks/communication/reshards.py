"""Pairs of shardings: bytes over what the busiest device lacks, by our planner, by Shardy's passes and by XLA.

`python -m benchmarks.communication.reshards [--quick] [--all]` prints JSON. Ours and Shardy's are taken for all pairs
(on the large meshes for a sample), XLA's for a sample, or for all with `--all`. What Shardy and XLA send is read from
the collectives that they write; ours is the plan's, which tests compare with the compiled program.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import sys
import time
from typing import Any

import jax
import numpy as np

from collectives.cost import sent_bytes
from collectives.layout import Atoms
from collectives.reshard.planner import Planner, ReshardPlan
from meshrt.runtime import hlo
from meshrt.xla import mlir
from propagation.model import DimSharding, Mesh, TensorSharding

__all__ = ["pairs_of", "shardings_of"]

SMALL = {"8": (8,), "4x2": (4, 2), "2x2x2": (2, 2, 2), "6x2": (6, 2)}
LARGE = {"4x4x4": (4, 4, 4), "16x16": (16, 16)}
SHAPES = {2: (1152, 1152), 3: (288, 288, 192)}
LARGE_SHAPES = {2: (4096, 4096), 3: (1024, 1024, 256)}
ITEM = 4


def mesh_of(sizes: tuple[int, ...]) -> Mesh:
    return Mesh("mesh", tuple(zip("abc", sizes)))


def shardings_of(mesh: Mesh, rank: int, most: int = 2) -> list[TensorSharding]:
    """All shardings of a rank whose dimensions take at most `most` whole axes each."""
    lists = [t for k in range(most + 1) for t in itertools.permutations(mesh.axis_names, k)]
    out = []
    for choice in itertools.product(lists, repeat=rank):
        flat = [a for axes in choice for a in axes]
        if len(set(flat)) == len(flat):
            out.append(TensorSharding(mesh, [DimSharding([mesh.axis(a) for a in axes]) for axes in choice]))
    return out


def pairs_of(mesh: Mesh, rank: int, sample: int | None) -> list[tuple[TensorSharding, TensorSharding]]:
    """Ordered pairs of distinct shardings, or so many of them, the same every time."""
    found = list(itertools.permutations(shardings_of(mesh, rank), 2))
    return found if sample is None or sample >= len(found) else random.Random(0).sample(found, sample)


# --- Ours.


def ours(mesh: Mesh, shape, pairs) -> tuple[list[ReshardPlan], list[float]]:
    """Plans, and seconds of each by a planner that knows nothing yet."""
    plans, times = [], []
    for source, target in pairs:
        planner = Planner(Atoms(mesh))
        ends = planner.atoms.dims(source), planner.atoms.dims(target)
        start = time.process_time()
        plans.append(planner.plan(shape, ITEM, *ends))
        times.append(time.process_time() - start)
    return plans, times


# --- Shardy.

_STEP = re.compile(r"sdy\.(all_gather|all_slice|all_to_all|collective_permute|reduce_scatter|all_reduce)\b(.*)")
_AXIS = re.compile(r'"(\w+)"(?::\((\d+)\)(\d+))?')


def shardy(mesh: Mesh, shape, pairs) -> list[float]:
    """Bytes that the busiest device sends by the collectives that Shardy's pass writes for each pair."""
    tensor = f"tensor<{'x'.join(map(str, shape))}xf32>"
    functions = []
    for i, (source, target) in enumerate(pairs):
        dims = target.to_text().removeprefix("#sdy.sharding")
        functions.append(
            f"func.func @f{i}(%x: {tensor} {{sdy.sharding = {source.to_text()}}}) -> "
            f"({tensor} {{sdy.sharding = {target.to_text()}}}) {{\n"
            f"  %0 = sdy.reshard %x {dims} : {tensor}\n  return %0 : {tensor}\n}}"
        )
    text = f"sdy.mesh @mesh = {mesh.to_text()}\n" + "\n".join(functions)
    done = mlir.run_passes(text, "builtin.module(func.func(sdy-reshard-to-collectives))")
    parts = re.split(r"func\.func (?:public |private )?@f(\d+)\(", done)
    totals = {int(n): _shardy_bytes(mesh, shape, pairs[int(n)][0], body) for n, body in zip(parts[1::2], parts[2::2])}
    return [totals[i] for i in range(len(pairs))]


def _shardy_bytes(mesh: Mesh, shape, source: TensorSharding, body: str) -> float:
    size = lambda axes: math.prod(int(n) if n else mesh.axis_size(a) for a, _, n in _AXIS.findall(axes))
    piece = lambda counts: math.prod(-(-n // c) for n, c in zip(shape, counts)) * ITEM
    before = [math.prod(a.size for a in d.axes) for d in source.dims]
    total = 0.0
    for kind, rest in _STEP.findall(body):
        out = re.search(r"out_sharding\s*=\s*<@mesh, \[(.*?)\]>", rest)
        after = [size(d) for d in re.findall(r"\{(.*?)\}", out[1])]
        if kind == "all_to_all":
            n = size(rest[: rest.index("out_sharding")])
            total += sent_bytes(kind, n, max(piece(before), piece(after)))
        elif kind == "all_gather":
            total += sent_bytes(kind, math.prod(before) // math.prod(after), piece(before))
        elif kind == "collective_permute":
            total += piece(before)
        before = after
    return total


# --- XLA.


def xla(mesh: Mesh, shape, pairs) -> list[float]:
    """Bytes that the busiest device sends by the collectives in XLA's compiled program for each pair."""
    devices = np.array(jax.devices()[: mesh.size]).reshape([n for _, n in mesh.axes])
    real = jax.sharding.Mesh(devices, mesh.axis_names)
    to_spec = lambda s: jax.sharding.PartitionSpec(*[tuple(a.name for a in d.axes) or None for d in s.dims])
    named = lambda s: jax.sharding.NamedSharding(real, to_spec(s))
    x = jax.ShapeDtypeStruct(shape, np.float32)
    out = []
    for source, target in pairs:
        jitted = jax.jit(lambda x: x, in_shardings=named(source), out_shardings=named(target))
        out.append(hlo.traffic(jitted.lower(x).compile().as_text(), mesh.size).bytes[1])
    return out


# --- Together.


def over_bound(plans: list[ReshardPlan], sent: list[float]) -> dict[str, float]:
    """Geometric mean and worst of bytes over the bound, over pairs that must move something."""
    ratios = [b / p.bound for p, b in zip(plans, sent) if p.bound]
    logs = [math.log(r) for r in ratios if r]
    return {
        "geometric mean": round(math.exp(sum(logs) / max(1, len(logs))), 4), "worst": round(max(ratios, default=1), 3),
        "pairs": len(ratios), "needless": sum(1 for p, b in zip(plans, sent) if not p.bound and b > 0),
    }  # fmt: skip


def compare(name: str, sizes, rank: int, sample: int | None, sample_xla: int | None) -> dict[str, Any]:
    """One mesh and rank."""
    mesh = mesh_of(sizes)
    shape = (LARGE_SHAPES if name in LARGE else SHAPES)[rank]
    pairs = pairs_of(mesh, rank, sample)
    plans, times = ours(mesh, shape, pairs)
    ours_sent, shardy_sent = [p.bytes for p in plans], shardy(mesh, shape, pairs)
    row: dict[str, Any] = {
        "ours": over_bound(plans, ours_sent), "Shardy": over_bound(plans, shardy_sent),
        "ours above Shardy": sum(a > b * 1.001 for a, b in zip(ours_sent, shardy_sent)),
        "planning milliseconds, mean and worst": [round(1e3 * sum(times) / len(times), 2), round(1e3 * max(times), 1)],
        "steps a plan": round(sum(len(p.steps) for p in plans) / len(plans), 2),
    }  # fmt: skip
    if mesh.size <= len(jax.devices()) and sample_xla != 0:
        some = list(range(len(pairs)))
        if sample_xla is not None and sample_xla < len(some):
            some = random.Random(1).sample(some, sample_xla)
        theirs = xla(mesh, shape, [pairs[i] for i in some])
        row["XLA"] = over_bound([plans[i] for i in some], theirs)
        row["ours above XLA"] = sum(ours_sent[i] > b * 1.001 for i, b in zip(some, theirs))
    return row


def main() -> None:
    """Prints {mesh and rank: figures}."""
    quick, every = "--quick" in sys.argv, "--all" in sys.argv
    out = {}
    for name, sizes in (SMALL | LARGE).items():
        for rank in (2, 3):
            sample = 150 if name in LARGE else (400 if rank == 3 else None)
            if quick:
                sample = 40
            sample_xla = None if every else (10 if quick else 60)
            out[f"{name}, rank {rank}"] = compare(name, sizes, rank, sample, sample_xla)
    print("\n" + json.dumps(out))


if __name__ == "__main__":
    main()
