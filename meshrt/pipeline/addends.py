"""Values that are unreduced, as XLA's own partitioner has to be told of them.

Where it computes a value that is declared unreduced from one that is whole, it hands the whole to each of the devices
that add: their sum is several times the value. It knows addends for what they are where they come in as arguments, and
where a contraction, a sum or a manual computation makes them; elementwise operations pass them on if some axis splits
a dimension of them; sums that none splits it keeps where nothing uses them as wholes. All else is told to it as whole,
which it adds up before, and made addends where it leaves, or a manual computation takes it for that: the value on the
first of the devices that add, zero on the others.
"""

from __future__ import annotations

import math
import re

from meshrt import errors

__all__ = ["EACH_SHARDING", "with_addends"]

_UNREDUCED = re.compile(r", unreduced=\{([^}]*)\}")
_MESH = re.compile(r"^ *sdy\.mesh @(\S+) = <\[(.*?)\]", re.MULTILINE)
_FUNC = re.compile(r"^ *func\.func (public @main\b)?")
_OP = re.compile(r'^( *)(%[\w$.-]+)(?::\d+)? = "?([\w.]+)"?')
_NAME = re.compile(r"%[\w$.-]+(?:#\d+)?")
_RESULT = re.compile(r"<@([\w$.-]+), \[(.*?)\](?:, replicated=\{[^}]*\})?, unreduced=\{([^}]*)\}>")
_ARGUMENT = re.compile(r"(%[\w$.-]+): tensor<[^{}]*?> \{[^%]*?unreduced=\{([^}]*)\}")
_ZERO = re.compile(r" dense<(?:0|0\.0+e\+00|false|\(0\.0+e\+00, ?0\.0+e\+00\))> ?: ")
_AXIS = re.compile(r'"([^"]*)"(?::\((\d+)\)(\d+))?')
EACH_SHARDING = re.compile(r"<@[\w$.-]+, .*?>(?=, <@|$)")  # of several, as in `in_shardings`
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(.*)>")
_SUMMED = frozenset({"stablehlo.dot_general", "stablehlo.reduce", "stablehlo.convolution"})
_PASSING = frozenset(
    f"stablehlo.{name}" for name in ("add", "subtract", "negate", "multiply", "divide", "convert")
)  # fmt: skip
_FILLS = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.convert", "sdy.sharding_constraint"})


def with_addends(text: str) -> str:
    """A propagated module whose unreduced values XLA's partitioner reads rightly.

    UnsupportedError where a manual computation adds a value that is unreduced along others of the axes.
    """
    if ", unreduced={" not in text:
        return text
    sizes = {m: {a: int(n) for a, n in re.findall(r'"([^"]*)"=(\d+)', axes)} for m, axes in _MESH.findall(text)}
    try:
        return _written(text, sizes, sums_whole=False)
    except _Mixed:
        return _written(text, sizes, sums_whole=True)


class _Mixed(Exception):
    """A sum that no axis splits is used as a whole."""


def _written(text: str, sizes: dict[str, dict[str, int]], sums_whole: bool) -> str:
    lines: list[str] = []
    function = _Function(sizes, "", sums_whole)
    for line in text.split("\n"):
        func = _FUNC.match(line)
        if func:
            function = _Function(sizes, line if func[1] else "", sums_whole)
            lines.append(line if func[1] else _UNREDUCED.sub("", line))
        else:
            lines += function.line(line)
    return "\n".join(lines)


class _Function:
    """A function that is read line by line; `signature` is its first one if it is @main.

    addends   the values that the partitioner knows as addends, with the axes over which they are added
    zeros     those that are zero, whatever is said of them
    summed    the addends that a contraction or a sum makes and no axis splits: used as a whole, the partitioner may
              make wholes of them, and of those that are computed alike, for all uses; `sums_whole` says so of them all
    """

    def __init__(self, sizes: dict[str, dict[str, int]], signature: str, sums_whole: bool):
        self.sizes = sizes
        arguments, _, results = signature.rpartition(") -> ")
        self.addends = dict(_ARGUMENT.findall(arguments))
        self.zeros: set[str] = set()
        self.summed: set[str] = set()
        self.results = re.split(r"(?<=\}|>), (?=tensor<|!)", results.strip("( {"))
        self.is_main, self.sums_whole = bool(signature), sums_whole
        self.regions: list[tuple[str, frozenset[str]]] = []  # manual computations around: the indent, the Manual axes
        self.made = 0

    def line(self, line: str) -> list[str]:
        """What is written in place of one."""
        if self.regions and line.startswith(self.regions[-1][0] + "}"):
            self.regions.pop()
        op = _OP.match(line)
        if op is None:
            if self.is_main and line.startswith("    return "):
                return self.returned(line)
            return [_UNREDUCED.sub("", line)]
        indent, name, kind = op.groups()
        body = line[op.end() :]
        if kind == "sdy.manual_computation":
            return self.manual(line, indent, name, body)
        operands = _NAME.findall(body.partition(" {sdy.sharding")[0])
        if (kind.endswith(".constant") and _ZERO.search(line)) or (
            kind in _FILLS and operands and self.zeros.issuperset(operands)
        ):
            self.zeros.add(name)
            return [line]
        said = _RESULT.search(line)
        if said is not None and self.knows(kind, said, operands):
            self.addends[name] = said[3]
            if kind in _SUMMED and not self.is_split(said):
                self.summed.add(name)
            return [line]
        if not self.summed.isdisjoint(operands):
            raise _Mixed
        return [_UNREDUCED.sub("", line)]

    def is_split(self, said: re.Match[str]) -> bool:
        """Whether some axis splits a dimension."""
        sizes = self.sizes[said[1]]
        return any(_size(axis, sizes) > 1 for axis in _AXIS.finditer(said[2]))

    def knows(self, kind: str, said: re.Match[str], operands: list[str]) -> bool:
        """Whether the partitioner makes addends of the result of an operation."""
        if kind in _SUMMED:
            return not any(v in self.addends for v in operands) and (not self.sums_whole or self.is_split(said))
        own = [v for v in operands if v in self.addends]
        if kind not in _PASSING or not self.is_split(said) or any(self.addends[v] != said[3] for v in own):
            return False
        others = [v for v in operands if v not in self.addends and v not in self.zeros]
        return bool(own) and (not others or kind in ("stablehlo.multiply", "stablehlo.divide"))

    def manual(self, line: str, indent: str, name: str, body: str) -> list[str]:
        """The first line of a manual computation, and what makes addends of wholes that it takes as such. It says
        itself what is added up."""
        operands, _, rest = body.partition(" in_shardings=[")
        taken, _, made = rest.partition("] out_shardings=[")
        axes_of, _, block = made.partition("] manual_axes=")[2].partition("}")
        own = frozenset(re.findall(r'"([^"]*)"', axes_of))
        around = frozenset().union(*[axes for _, axes in self.regions])
        values, kinds, lines = _NAME.findall(operands), re.findall(r": (tensor<.*?>)(?=[,)])", block), []
        for i, (value, sharding) in enumerate(zip(list(values), EACH_SHARDING.findall(taken))):
            said = _RESULT.fullmatch(sharding)
            if said is None or value in self.zeros or self.addends.get(value) == said[3]:
                continue
            if value in self.addends:
                raise errors.UnsupportedError(
                    f"XLA's partitioner would be given a value that is unreduced along {self.addends[value]}, and a "
                    f"manual computation that adds along {said[3]}: the operand {value} of\n{line.strip()}\nUse "
                    'meshrt.config.update("partitioner", "meshrt"), or reduce the value before the manual computation'
                )
            sizes, self.made = self.sizes[said[1]], self.made + 1
            values[i] = f"%addends_before_{self.made}"
            lines += _masked(values[i], value, _whole(kinds[i], said[2], own, sizes), said, sizes, around)
        if lines:
            line = line.replace(operands, f"({', '.join(values)})", 1)
        results = EACH_SHARDING.findall(made.partition("] manual_axes=")[0])
        for i, sharding in enumerate(results):
            axes = _UNREDUCED.search(sharding)
            if axes:
                self.addends[name if len(results) == 1 else f"{name}#{i}"] = axes[1]
        self.regions.append((indent, own))
        return [*lines, line]

    def returned(self, line: str) -> list[str]:
        """The end of @main: results that are declared unreduced are made addends where they are none."""
        head, _, types = line.partition(" : ")
        values, lines = _NAME.findall(head), []
        for i, (value, kind, result) in enumerate(zip(list(values), re.split(r", (?=tensor<)", types), self.results)):
            said = _RESULT.search(result)
            if said is not None and value not in self.zeros and self.addends.get(value) != said[3]:
                values[i] = f"%addends_of_{i}"
                lines += _masked(values[i], value, kind, said, self.sizes[said[1]], frozenset())
        return [*lines, f"    return {', '.join(values)} : {types}"] if lines else [line]


def _size(axis: re.Match[str], sizes: dict[str, int]) -> int:
    return int(axis[3] or sizes[axis[1]])


def _masked(
    name: str, value: str, kind: str, said: re.Match[str], sizes: dict[str, int], around: frozenset[str]
) -> list[str]:  # fmt: skip
    """The lines that make `name` of `value`: it on the first device along the unreduced axes, zero on the others. The
    axes `around` are Manual there."""
    mesh, dims, axes = said.groups()
    count = math.prod(_size(a, sizes) for a in _AXIS.finditer(axes))
    typed = _TENSOR.fullmatch(kind)
    assert typed is not None, f"results of static shapes are unreduced, not {kind}"
    shape, dtype = re.findall(r"\d+", typed[1]), typed[2]
    parts = [math.prod(_size(a, sizes) for a in _AXIS.finditer(d)) for d in re.findall(r"\{([^}]*)\}", dims)]
    local = f"tensor<{''.join(f'{int(n) // k}x' for n, k in zip(shape, parts, strict=True))}{dtype}>"
    zero = "(0.0,0.0)" if dtype.startswith("complex") else "false" if dtype == "i1" else "0"
    zero = "0.0" if dtype.startswith(("f", "bf")) else zero
    number, every = f"{name}_number", ", ".join(f'"{a}"' for a in sizes if a not in around)
    return [
        f"    {number} = stablehlo.iota dim = 0 : tensor<{count}xi32>",
        f"    {name} = sdy.manual_computation({value}, {number}) in_shardings=[<@{mesh}, [{dims}]>, <@{mesh}, "
        f"[{{{axes}}}]>] out_shardings=[<@{mesh}, [{dims}], unreduced={{{axes}}}>] manual_axes={{{every}}} "
        f"({name}_whole: {local}, {name}_here: tensor<1xi32>) {{",
        f"      {name}_first = stablehlo.constant dense<0> : tensor<1xi32>",
        f"      {name}_is = stablehlo.compare EQ, {name}_here, {name}_first : (tensor<1xi32>, tensor<1xi32>) -> "
        "tensor<1xi1>",
        f"      {name}_if = stablehlo.reshape {name}_is : (tensor<1xi1>) -> tensor<i1>",
        f"      {name}_zero = stablehlo.constant dense<{zero}> : {local}",
        f"      {name}_own = stablehlo.select {name}_if, {name}_whole, {name}_zero : tensor<i1>, {local}",
        f"      sdy.return {name}_own : {local}",
        f"    }} : ({kind}, tensor<{count}xi32>) -> {kind}",
    ]


def _whole(kind: str, dims: str, own: frozenset[str], sizes: dict[str, int]) -> str:
    """The type of an operand of a manual computation over the axes `own`, of which a device has a `kind`."""
    typed = _TENSOR.fullmatch(kind)
    assert typed is not None, f"operands of static shapes are unreduced, not {kind}"
    parts = [
        math.prod(_size(a, sizes) for a in _AXIS.finditer(d) if a[1] in own) for d in re.findall(r"\{([^}]*)\}", dims)
    ]
    shape = [int(n) * k for n, k in zip(re.findall(r"\d+", typed[1]), parts, strict=True)]
    return f"tensor<{''.join(f'{n}x' for n in shape)}{typed[2]}>"
