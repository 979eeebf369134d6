"""What drawn operations are written with: the choices of a seed, the text of a module, the regions of an operation."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from .growing import tensor

SIZES = [1, 2, 3, 4, 6, 8, 12, 16]
GROUPS = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
SCALAR = "tensor<f32>"
PRECISIONS = ["DEFAULT", "HIGH", "HIGHEST"]


class Draw:
    """One module in the making: a source of choices, and the text of its operations and arguments."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.args: list[str] = []
        self.lines: list[str] = []
        self.results: list[str] = []

    def shape(self, least: int = 0, most: int = 4, sizes: Sequence[int] = SIZES) -> tuple[int, ...]:
        return tuple(self.rng.choice(sizes) for _ in range(self.rng.randint(least, most)))

    def maybe(self, share: float = 0.5) -> bool:
        return self.rng.random() < share

    def argument(self, type_text: str) -> str:
        self.args.append(type_text)
        return f"%a{len(self.args) - 1}"

    def emit(self, name: str, operands: Sequence[str], ins: Sequence[str], outs: Sequence[str], attrs: str = "",
             regions: str = "") -> list[str]:  # fmt: skip
        """An operation over named values; the names of its results."""
        base = f"%r{len(self.lines)}"
        left = f"{base}:{len(outs)} = " if len(outs) > 1 else f"{base} = "
        region_text = f" ({regions})" if regions else ""
        self.lines.append(
            f'  {left}"{name}"({", ".join(operands)}){region_text} {{{attrs}}} : ({", ".join(ins)}) -> '
            f"({', '.join(outs)})"
        )
        self.results = list(outs)
        return [f"{base}#{i}" for i in range(len(outs))] if len(outs) > 1 else [base]

    def op(self, name: str, ins: Sequence[str], outs: Sequence[str], attrs: str = "", regions: str = "") -> list[str]:
        """An operation over arguments of @main."""
        return self.emit(name, [self.argument(t) for t in ins], ins, outs, attrs, regions)

    def module(self) -> str:
        args = ", ".join(f"%a{i}: {t}" for i, t in enumerate(self.args))
        last, count, types = f"%r{len(self.lines) - 1}", len(self.results), ", ".join(self.results)
        names = ", ".join(f"{last}#{i}" for i in range(count)) if count > 1 else last
        body = "\n".join(self.lines)
        return f"func.func @main({args}) -> ({types}) {{\n{body}\n  return {names} : {types}\n}}\n"


def bools(values: Iterable[bool]) -> str:
    text = ", ".join(map(word, values))
    return f"array<i1: {text}>" if text else "array<i1>"


def word(value: bool) -> str:
    return "true" if value else "false"


def pads(values: Sequence[Sequence[int]]) -> str:
    return f"dense<{[list(p) for p in values]}> : tensor<{len(values)}x2xi64>"


def windowed(
    size: int, window: int, stride: int = 1, pad: Sequence[int] = (0, 0), base: int = 1, holes: int = 1
) -> int:
    """How many windows of `window` elements, `holes` apart, start `stride` apart on padded, dilated `size` elements."""
    padded = ((size - 1) * base + 1 if size else 0) + sum(pad)
    span = (window - 1) * holes + 1
    return 0 if padded < span else (padded - span) // stride + 1


def combiner(d: Draw, dtypes: Sequence[str], kinds: Sequence[str]) -> str:
    """A body that combines old and new values of several operands, each in its own way: by an operation on both, in
    either order, or on one of them twice, or by taking one."""
    count = len(dtypes)
    args = ", ".join(f"%p{i}: tensor<{dtypes[i % count]}>" for i in range(2 * count))
    lines, results = [], []
    for i, dtype in enumerate(dtypes):
        old, new, kind = f"%p{i}", f"%p{count + i}", d.rng.choice(kinds)
        if kind in ("old", "new"):
            results.append(old if kind == "old" else new)
            continue
        a, b = (new, old) if d.maybe(0.3) else (old, new)
        if d.maybe(0.1):
            b = a
        lines.append(f"%c{i} = stablehlo.{kind} {a}, {b} : tensor<{dtype}>")
        results.append(f"%c{i}")
        if d.maybe(0.05):
            lines.append(f"%d{i} = stablehlo.{kind} %c{i}, {old} : tensor<{dtype}>")
            results[-1] = f"%d{i}"
    types = ", ".join(f"tensor<{t}>" for t in dtypes)
    return f"{{ ^bb0({args}):\n" + "\n".join(lines) + f"\n stablehlo.return {', '.join(results)} : {types} }}"


KINDS = {
    "f32": ["add", "maximum", "minimum", "multiply", "subtract", "old", "new"],
    "i32": ["add", "maximum", "and", "or", "xor", "new"],
    "i1": ["and", "or", "xor", "add", "new"],
}


def sum_body(dtypes: Sequence[str] = ("f32",)) -> str:
    count = len(dtypes)
    args = ", ".join(f"%p{i}: tensor<{dtypes[i % count]}>" for i in range(2 * count))
    lines = [f"%c{i} = stablehlo.add %p{i}, %p{count + i} : tensor<{t}>" for i, t in enumerate(dtypes)]
    names, types = ", ".join(f"%c{i}" for i in range(count)), ", ".join(f"tensor<{t}>" for t in dtypes)
    return f"{{ ^bb0({args}):\n" + "\n".join(lines) + f"\n stablehlo.return {names} : {types} }}"


def comparator(dtypes: Sequence[str], direction: str = "LT") -> str:
    args = ", ".join(f"%p{i}: tensor<{t}>" for i, t in enumerate(t for t in dtypes for _ in range(2)))
    t = dtypes[0]
    return (
        f"{{ ^bb0({args}): %c = stablehlo.compare {direction}, %p0, %p1 : (tensor<{t}>, tensor<{t}>) -> tensor<i1>\n"
        " stablehlo.return %c : tensor<i1> }"
    )


# ---- one function per operation


def with_size(shape: Sequence[int], dim: int, size: int) -> str:
    return tensor([*shape[:dim], size, *shape[dim + 1 :]])
