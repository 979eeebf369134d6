"""Random reshapes whose shardings often do not divide: shapes and axes of several prime factors."""

from __future__ import annotations

import random
import re

from propagation.fuzz.growing import tensor

MESHES = [
    [("x", 8), ("y", 3)],
    [("a", 2), ("c", 6)],
    [("a", 12), ("b", 2)],
    [("a", 6), ("b", 10)],
    [("a", 3), ("b", 2), ("c", 4)],
    [("a", 9), ("b", 4)],
]
SIZES = [12, 24, 36, 48, 60, 72, 96, 144, 240, 16, 64, 180]


def module(seed: int, is_open: bool = False) -> str:
    """One reshape of an annotated argument, with an annotation of its own, by seed; `is_open`: with dimensions open at
    random."""
    text, rng = _closed_module(random.Random(seed)), random.Random(seed)
    if not is_open:
        return text
    head, body = text.split("\n", 1)
    braces = r"(?<=[\[ ])\{((?:\"[^{}]*)?)\}(?=[\],])"

    def opened(match: re.Match[str]) -> str:
        axes = match[1]
        return "{" + (f"{axes}, ?" if axes else "?") + "}" if rng.random() < 0.5 else match[0]

    return head + "\n" + re.sub(braces, opened, body)


def _closed_module(rng: random.Random) -> str:
    mesh, size = rng.choice(MESHES), rng.choice(SIZES)
    before, after = _factorization(size, rng), _factorization(size, rng)
    argument = f" {{sdy.sharding = #sdy.sharding{_sharding(before, mesh, rng)}}}" if rng.random() < 0.9 else ""
    result = ""
    if rng.random() < 0.8:
        result = f" {{sdy.sharding = #sdy.sharding_per_value<[{_sharding(after, mesh, rng)}]>}}"
    axes = ", ".join(f'"{name}"={n}' for name, n in mesh)
    return (
        f"sdy.mesh @mesh = <[{axes}]>\n"
        f"func.func @main(%x: {tensor(before)}{argument}) -> {tensor(after)} {{\n"
        f"  %0 = stablehlo.reshape %x{result} : ({tensor(before)}) -> {tensor(after)}\n"
        f"  return %0 : {tensor(after)} }}\n"
    )


def _factorization(size: int, rng: random.Random) -> list[int]:
    out = []
    while size > 1:
        out.append(rng.choice([d for d in range(2, size + 1) if size % d == 0]))
        size //= out[-1]
    rng.shuffle(out)
    if rng.random() < 0.2:
        out.insert(rng.randrange(len(out) + 1), 1)
    return out


def _sharding(shape: list[int], mesh: list[tuple[str, int]], rng: random.Random) -> str:
    parts: list[tuple[str, int, int]] = []  # name, product of the sizes before it, size
    for name, size in mesh:
        divisors = [d for d in range(2, size) if size % d == 0]
        cut = rng.choice(divisors) if divisors and rng.random() < 0.4 else size
        parts.append((name, 1, cut))
        if cut < size:
            parts.append((name, cut, size // cut))
    rng.shuffle(parts)
    sizes = dict(mesh)
    dims: list[list[tuple[str, int, int]]] = [[] for _ in shape]
    for part in parts:
        dim = rng.choice(dims)
        follows = bool(dim) and dim[-1][0] == part[0] and dim[-1][1] * dim[-1][2] == part[1]
        if rng.random() < 0.7 and not follows:
            dim.append(part)
    texts = [", ".join(f'"{n}"' if k == sizes[n] else f'"{n}":({pre}){k}' for n, pre, k in dim) for dim in dims]
    return "<@mesh, [" + ", ".join(f"{{{text}}}" for text in texts) + "]>"
