"""Rules written as text: einsum-like by users, and as Shardy prints them.

>>> rule = parse_rule("i j, j k -> i k, reduction={j}")
>>> rule.bind([(8, 16), (16, 4)], [(8, 4)]).to_text()
'([i, j], [j, k])->([i, k]) {i=8, j=16, k=4} reduction={j}, custom'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir

from ..errors import BadRuleError
from ..graph import Op
from ..locations import source
from ..model import FactorType, OpRule, factor_symbol

__all__ = ["RuleText", "fitted", "parse_printed", "parse_rule", "written_rule"]

Shapes = Sequence[Sequence[int]]

_KINDS = {
    "reduction": FactorType.REDUCTION,
    "need_replication": FactorType.NEED_REPLICATION,
    "permutation": FactorType.PERMUTATION,
}
_LABELS = (*_KINDS, "blocked_propagation")
_FACTOR = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class RuleText:
    """A parsed rule without sizes for most factors; `bind` gives it those of concrete shapes."""

    text: str
    operands: tuple[tuple[tuple[str, ...], ...], ...]
    results: tuple[tuple[tuple[str, ...], ...], ...]
    sizes: tuple[tuple[str, int], ...]
    labels: tuple[tuple[str, tuple[str, ...]], ...]

    def check(self) -> None:
        """Raises `BadRuleError` for what no shapes can make right: a size or label of a factor that no dimension has, a
        factor twice in one tensor, of two kinds, or a sum that a result still has."""
        known = {name for tensor in (*self.operands, *self.results) for dim in tensor for name in dim}
        named: list[tuple[str, tuple[str, ...]]] = [("size", (name,)) for name, _ in self.sizes]
        for what, members in (*named, *self.labels):
            for name in members:
                if name not in known:
                    raise self._error(f"{what} names factor {name!r}, which no dimension has", None)
        for tensor in (*self.operands, *self.results):
            names = [name for dim in tensor for name in dim]
            for name in names:
                if names.count(name) > 1:
                    raise self._error(f"factor {name!r} is twice in one tensor; give each dimension its own", None)
        kinds = [(name, label) for label, names in self.labels if label in _KINDS for name in names]
        for i, (name, label) in enumerate(kinds):
            other = next((k for n, k in kinds[:i] if n == name), label)
            if other != label:
                raise self._error(f"factor {name!r} is of two kinds, {other} and {label}; choose one", None)
        for name, label in kinds:
            if label == "reduction" and any(name in dim for tensor in self.results for dim in tensor):
                raise self._error(f"factor {name!r} is summed, so no result has it; take it out of one of them", None)

    def bind(self, operand_shapes: Shapes, result_shapes: Shapes, where: str | None = None) -> OpRule:
        """The `OpRule` for these shapes. Raises `BadRuleError` if they do not fit."""
        self._check_ranks(operand_shapes, result_shapes, where)
        sizes = dict(self.sizes)
        tensors = [*zip(self.operands, operand_shapes), *zip(self.results, result_shapes)]
        for _ in range(2):  # twice: a compound dimension may need the sizes that a later one fixes
            for dims, shape in tensors:
                for dim, n in zip(dims, shape):
                    self._infer(dim, n, sizes, where)
        names: dict[str, int] = {}
        for dims, _ in tensors:
            for dim in dims:
                for name in dim:
                    if name not in sizes:
                        raise self._error(f"the size of factor {name!r} is not known; add {name}=SIZE", where)
                    names.setdefault(name, len(names))
        types = [FactorType.PASS_THROUGH] * len(names)
        blocked: list[int] = []
        for label, members in self.labels:
            for name in members:
                if name not in names:
                    raise self._error(f"{label} names factor {name!r}, which no dimension has", where)
                if label == "blocked_propagation":
                    blocked.append(names[name])
                else:
                    types[names[name]] = _KINDS[label]
        ins, outs = (
            tuple(tuple(tuple(names[n] for n in dim) for dim in dims) for dims in side)
            for side in (self.operands, self.results)
        )
        return OpRule([sizes[n] for n in names], ins, outs, types, sorted(blocked), custom=True)

    def _infer(self, dim: tuple[str, ...], n: int, sizes: dict[str, int], where: str | None) -> None:
        unknown = [name for name in dim if name not in sizes]
        known = prod(sizes[name] for name in dim if name in sizes)
        if len(unknown) == 1 and n % known == 0:
            sizes[unknown[0]] = n // known
        elif not unknown and dim and known != n:
            raise self._error(f"factors {' '.join(dim)} have size {known}, the dimension has {n}", where)

    def _check_ranks(self, operand_shapes: Shapes, result_shapes: Shapes, where: str | None) -> None:
        for what, dims, shapes in (("operand", self.operands, operand_shapes), ("result", self.results, result_shapes)):
            if len(dims) != len(shapes):
                raise self._error(f"it has {len(dims)} {what}s, the operation has {len(shapes)}", where)
            for i, (d, s) in enumerate(zip(dims, shapes)):
                if len(d) != len(s):
                    raise self._error(
                        f"{what} {i} has {len(d)} dimensions in the rule and {len(s)} in the program", where
                    )

    def _error(self, problem: str, where: str | None) -> BadRuleError:
        return BadRuleError(f"sharding rule {self.text!r}: {problem}", where)


def parse_rule(text: str) -> RuleText:
    """Parses `operand, operand, ... -> result, ..., label={factors}, factor=size`.

    Each tensor lists its dimensions separated by spaces; a dimension is a factor name or several in parentheses,
    from major to minor; an empty tensor is a scalar. Labels: reduction, need_replication, permutation,
    blocked_propagation. Raises `BadRuleError`.
    """
    if text.count("->") != 1:
        raise BadRuleError(f"sharding rule {text!r}: write operands, '->', results, as in 'i j, j k -> i k'")
    left, right = text.split("->")
    sizes: list[tuple[str, int]] = []
    labels: list[tuple[str, tuple[str, ...]]] = []
    results: list[str] = []
    for part in re.split(r",(?![^{]*\})", right):
        if "=" not in part:
            if sizes or labels:
                raise BadRuleError(f"sharding rule {text!r}: result {part.strip()!r} stands behind sizes or labels")
            results.append(part)
            continue
        name, value = (s.strip() for s in part.split("=", 1))
        if value.isdigit() and _FACTOR.fullmatch(name) and int(value) > 0:
            sizes.append((name, int(value)))
        elif name in _LABELS and value.startswith("{") and value.endswith("}"):
            labels.append((name, tuple(re.split(r"[,\s]+", value[1:-1].strip()))))
        else:
            raise BadRuleError(f"sharding rule {text!r}: cannot read {part.strip()!r}; labels are {', '.join(_LABELS)}")
    operands = left.split(",") if left.strip() else []
    ins, outs = (tuple(_dims(p, text) for p in parts) for parts in (operands, results))
    rule = RuleText(text, ins, outs, tuple(sizes), tuple(labels))
    rule.check()
    return rule


def _dims(tensor: str, text: str) -> tuple[tuple[str, ...], ...]:
    dims: list[tuple[str, ...]] = []
    for group, single in re.findall(r"\(([^()]*)\)|(\S+)", tensor):
        names = tuple(group.split()) if not single else (single,)
        for name in names:
            if not _FACTOR.fullmatch(name):
                raise BadRuleError(f"sharding rule {text!r}: {name!r} is not a factor name (letters, digits, _)")
        dims.append(names)
    return tuple(dims)


_PRINTED = re.compile(r"\((.*?)\)->\((.*?)\)(?:\s*\{(.*?)\})?((?:\s*\w+=\{[^}]*\})*)(\s*,\s*custom)?\s*>?$")
_SYMBOL = re.compile(r"z_\d+|[a-z]")


def parse_printed(text: str) -> OpRule:
    """The `OpRule` of an `#sdy.op_sharding_rule<...>` attribute's text. Raises `BadRuleError`."""
    body = text.removeprefix("#sdy.op_sharding_rule<").strip()
    match = _PRINTED.match(body)
    if match is None:
        raise BadRuleError(f"cannot read sharding rule {text!r}")
    ins, outs, sizes_text, labels_text, custom = match.groups()
    sizes = dict(re.findall(r"(z_\d+|[a-z])=(\d+)", sizes_text or ""))
    index = {factor_symbol(i): i for i in range(len(sizes))}

    def view(side: str) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return tuple(
            tuple(tuple(index[s] for s in _SYMBOL.findall(dim)) for dim in tensor.split(",")) if tensor.strip() else ()
            for tensor in re.findall(r"\[([^\]]*)\]", side)
        )

    types = [FactorType.PASS_THROUGH] * len(sizes)
    blocked: list[int] = []
    for label, members in re.findall(r"(\w+)=\{([^}]*)\}", labels_text or ""):
        for symbol in _SYMBOL.findall(members):
            if label == "blocked_propagation":
                blocked.append(index[symbol])
            else:
                types[index[symbol]] = _KINDS[label]
    return OpRule([int(sizes[s]) for s in index], view(ins), view(outs), types, blocked, custom=custom is not None)


def written_rule(op: Op, attr: ir.Attribute) -> OpRule:
    """The rule that an operation carries as `sdy.sharding_rule`. Raises `BadRuleError` if it does not fit."""
    return fitted(parse_printed(str(attr)), op, "the sharding rule written at the operation", source(op))


def fitted(rule: OpRule, op: Op, what: str, where: str | None) -> OpRule:
    """`rule`, if it fits the operands and results of `op`; else `BadRuleError`, in which `what` names the rule.

    Ranks must agree, and each factor must have the size that some dimension gives it: a factor of several dimensions
    may be larger than one of them (of the operand of a slice and its result, say), but not other than all.
    """
    shapes = [v.type.shape if v.type.is_tensor else None for v in (*op.operands, *op.results)]
    mappings = (*rule.operands, *rule.results)
    if (len(rule.operands), len(rule.results)) != (len(op.operands), len(op.results)):
        raise BadRuleError(
            f"{what} has {len(rule.operands)} operands and {len(rule.results)} results, {op.name} has "
            f"{len(op.operands)} and {len(op.results)}",
            where,
        )
    if op.name == "stablehlo.convolution" and not rule.custom:
        return rule  # derived ones give windows sizes of their own
    fits, seen = set(), {}
    for i, (mapping, shape) in enumerate(zip(mappings, shapes)):
        if shape is None or len(mapping) != len(shape):
            side = f"operand {i}" if i < len(op.operands) else f"result {i - len(op.operands)}"
            has = "is no tensor" if shape is None else f"has {len(shape)}"
            if shape is None and not mapping:
                continue
            raise BadRuleError(f"{what} gives {side} {len(mapping)} dimensions, which {has}", where)
        for dim, size in zip(mapping, shape):
            exact = prod(rule.sizes[f] for f in dim) == size
            for f in dim:
                seen[f] = size
                if exact:
                    fits.add(f)
    for f, size in seen.items():
        if f not in fits:
            raise BadRuleError(
                f"{what} gives factor {factor_symbol(f)} the size {rule.sizes[f]}, which fits no dimension of "
                f"{op.name} (one has {size})",
                where,
            )
    return rule
