"""Sharding rules that users write for operations of their own, einsum-like, in JAX's grammar.

    rule    ::= values "->" values
    values  ::= value ("," value)*
    value   ::= ("..." digits?)? dim*            an empty value is a scalar
    dim     ::= factor | "(" factor factor+ ")"  from major to minor
    factor  ::= a letter, then letters, digits and "_"

>>> rule = parse_rule("... i j, ... j k -> ... i k", reduction_factors=("j",))
>>> rule.bind([(2, 8, 16), (2, 16, 4)], [(2, 8, 4)]).to_text()
'([i, j, k], [i, k, l])->([i, j, l]) {i=2, j=8, k=16, l=4} reduction={k}, custom'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshrt import errors
from propagation.model import FactorType, OpRule

__all__ = ["BATCHING", "ArrayMapping", "CompoundFactor", "ShardingRule", "parse_rule", "with_batch"]

# Stands for "..." at the head of a value: any number of leading dimensions, equal wherever the group's number is.
BATCHING: str = "…"

Shape = Sequence[int]
_Names = tuple[str, ...]


def _error(message: str) -> errors.ShardingRuleError:
    return errors.ShardingRuleError(message)


def _group(factor: str) -> str | None:
    """The number of the group that an ellipsis stands for; None for a factor's name."""
    if not factor.startswith(BATCHING) or not (factor == BATCHING or factor[1:].isdigit()):
        return None
    return factor[1:] or "0"


def _check_name(factor: str) -> None:
    if not factor[:1].isalpha():
        raise _error(
            f"Factor names have to start with a letter, but got {factor[:1]!r}; name it for example 'i{factor}'"
        )
    for char in factor:
        if char != "_" and not char.isalnum():
            raise _error(f"Unknown character {char!r} in the factor name {factor!r}; use letters, digits and '_'")


class CompoundFactor(tuple[str, ...]):
    """A dimension of several factors, from major to minor: `CompoundFactor("heads", "width")`, in text `(heads width)`.

    Raises ShardingRuleError for fewer than two, for an ellipsis among them, and for what is no name.
    """

    __slots__ = ()

    def __new__(cls, *factors: str) -> CompoundFactor:
        if len(factors) < 2:
            raise _error(
                f"A compound factor should contain at least two factors, but got {factors}; write one as it is"
            )
        for factor in factors:
            if not isinstance(factor, str):
                raise _error(f"Each element of CompoundFactor must be a str, but got {type(factor)}")
            if _group(factor) is not None:
                raise _error("Ellipsis can't be used in a compound factor; put it at the head of the value")
            _check_name(factor)
        return super().__new__(cls, factors)


class ArrayMapping(tuple["str | CompoundFactor", ...]):
    """The factors of an operand or result, one entry a dimension; the first may be `BATCHING` ("...").

    Raises ShardingRuleError for an ellipsis elsewhere and for what is no factor.
    """

    __slots__ = ()

    def __new__(cls, *dims: str | CompoundFactor) -> ArrayMapping:
        for i, dim in enumerate(dims):
            if isinstance(dim, CompoundFactor):
                continue
            if not isinstance(dim, str):
                raise _error(f"Each element of ArrayMapping must be a str or CompoundFactor, but got {type(dim)}")
            if _group(dim) is None:
                _check_name(dim)
            elif i:
                raise _error(
                    f"Ellipsis can only be used at the beginning of a dimension list, but is entry {i} of {dims}"
                )
        return super().__new__(cls, dims)


@dataclass(frozen=True)
class ShardingRule:
    """How the dimensions of an operation's operands and results correspond (JAX: `SdyShardingRule`).

    A factor stands for a loop of the operation; by default it passes through: split along it, each device computes its
    part of the results from its parts of the operands.

    Args:
      operand_mappings, result_mappings: an `ArrayMapping` for each.
      factor_sizes: the sizes of factors that stand only in compound factors, and of no others.
      reduction_factors: summed over; results of devices that split one are addends.
      need_replication_factors: never split.
      permutation_factors: splitting one moves elements between neighbours.

    Raises ShardingRuleError where these do not fit together.
    """

    operand_mappings: tuple[ArrayMapping, ...]
    result_mappings: tuple[ArrayMapping, ...]
    reduction_factors: _Names = ()
    need_replication_factors: _Names = ()
    permutation_factors: _Names = ()
    factor_sizes: Mapping[str, int] = field(default_factory=dict)

    def __init__(
        self,
        operand_mappings: Sequence[ArrayMapping],
        result_mappings: Sequence[ArrayMapping],
        *,
        reduction_factors: _Names = (),
        need_replication_factors: _Names = (),
        permutation_factors: _Names = (),
        **factor_sizes: int,
    ):
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)  # the class is frozen

        as_mapping = lambda m: m if isinstance(m, ArrayMapping) else ArrayMapping(*m)
        put("operand_mappings", tuple(map(as_mapping, operand_mappings)))
        put("result_mappings", tuple(map(as_mapping, result_mappings)))
        put("reduction_factors", reduction_factors)
        put("need_replication_factors", need_replication_factors)
        put("permutation_factors", permutation_factors)
        put("factor_sizes", dict(factor_sizes))
        self._check_sizes()
        self._check_kinds()

    def __hash__(self) -> int:
        return hash((self.operand_mappings, self.result_mappings, self._kinds(), tuple(self.factor_sizes.items())))

    def _kinds(self) -> tuple[tuple[str, FactorType, _Names], ...]:
        return (
            ("reduction_factors", FactorType.REDUCTION, self.reduction_factors),
            ("need_replication_factors", FactorType.NEED_REPLICATION, self.need_replication_factors),
            ("permutation_factors", FactorType.PERMUTATION, self.permutation_factors),
        )

    def _is_alone(self) -> dict[str, bool]:
        """Every factor, and whether some dimension is that factor alone, which tells its size."""
        found: dict[str, bool] = {}
        for mapping in (*self.operand_mappings, *self.result_mappings):
            for dim in mapping:
                if isinstance(dim, CompoundFactor):
                    for factor in dim:
                        found.setdefault(factor, False)
                else:
                    found[dim] = True
        return found

    def _check_sizes(self) -> None:
        alone = self._is_alone()
        for factor, size in self.factor_sizes.items():
            if isinstance(size, bool) or not isinstance(size, int):
                raise errors.ArgumentTypeError(f"the size of factor {factor} must be an int, but got {size!r}")
            if factor not in alone:
                raise _error(f"Factor {factor} is not used in the rule, but size is provided; drop {factor}={size}")
            if alone[factor]:
                raise _error(f"Factor {factor} represents a whole dimension; do not specify its size ({size})")
            if size < 1:
                raise _error(f"the size of factor {factor} must be positive, but got {size}")
        for factor, is_alone in alone.items():
            if not is_alone and factor not in self.factor_sizes:
                raise _error(f"Factor {factor} is only used in compound factors; must specify its size: {factor}=...")

    def _check_kinds(self) -> None:
        alone, seen = self._is_alone(), dict[str, str]()
        for kind, _, factors in self._kinds():
            if not isinstance(factors, tuple):
                raise _error(f"{kind} must be a tuple of factors, but got {factors!r}")
            if len(set(factors)) != len(factors):
                raise _error(f"{kind} contains duplicated factors: {factors}")
            for factor in factors:
                if factor not in alone:
                    raise _error(f"Factor {factor} in {kind} is not used in the rule; it has {', '.join(alone)}")
                if factor in seen:
                    raise _error(
                        f"Factor {factor} can only be in one of the reduction, need replication, or permutation factor "
                        f"sets, but is in {seen[factor]} and {kind}"
                    )
                seen[factor] = kind

    def __str__(self) -> str:
        special = "".join(f" {kind}={factors}" for kind, _, factors in self._kinds() if factors)
        return f"SdyShardingRule({self.operand_mappings}, {self.result_mappings}, {self.factor_sizes}{special})"

    def bind(self, operand_shapes: Sequence[Shape], result_shapes: Sequence[Shape]) -> OpRule:
        """The rule over factors with the sizes that these shapes give them.

        A factor of dimensions of several sizes has the smallest. Raises ShardingRuleError for other numbers of
        operands, results or dimensions than the rule has, and for sizes that do not fit.
        """
        return _Binding(self, operand_shapes, result_shapes).rule()


class _Binding:
    """`ShardingRule.bind`: factors get numbers in the order in which they stand in the rule."""

    def __init__(self, rule: ShardingRule, operand_shapes: Sequence[Shape], result_shapes: Sequence[Shape]):
        self.source = rule
        self.sizes: dict[str, int | None] = {}
        self.ranks: dict[str, int] = {}
        sides = (
            ("operand", rule.operand_mappings, operand_shapes),
            ("result", rule.result_mappings, result_shapes),
        )
        for what, mappings, shapes in sides:
            if len(mappings) != len(shapes):
                raise _error(
                    f"Sharding rule has {len(mappings)} {what}s, but the operation has {len(shapes)} {what}s; separate "
                    "them by commas"
                )
        self.values = [(f"{i}th {what}", m, tuple(s)) for what, ms, ss in sides for i, (m, s) in enumerate(zip(ms, ss))]
        self.count = len(operand_shapes)

    def rule(self) -> OpRule:
        dims = [self._expanded(*value) for value in self.values]
        for names, (_, _, shape) in zip(dims, self.values):
            for dim, size in zip(names, shape):
                self._note(dim, size)
        index = {name: i for i, name in enumerate(self.sizes)}
        for names, (what, _, shape) in zip(dims, self.values):
            for dim, size in zip(names, shape):
                self._check_compound(what, dim, size)
        tensors = tuple(tuple(tuple(index[f] for f in dim) for dim in names) for names in dims)
        types = [FactorType.PASS_THROUGH] * len(index)
        for _, kind, factors in self.source._kinds():
            for factor in factors:
                for name in self._names_of(factor):
                    types[index[name]] = kind
        sizes = [n for n in self.sizes.values() if n is not None]
        return OpRule(sizes, tensors[: self.count], tensors[self.count :], types, custom=True)

    def _names_of(self, factor: str) -> Sequence[str]:
        group = _group(factor)
        return [factor] if group is None else [f"{BATCHING}{group}_{i}" for i in range(self.ranks[group])]

    def _expanded(self, what: str, mapping: ArrayMapping, shape: Shape) -> list[tuple[str, ...]]:
        """The factors of each dimension, those that an ellipsis stands for included."""
        head = mapping[0] if mapping and not isinstance(mapping[0], CompoundFactor) else ""
        group = _group(head)
        own = mapping if group is None else mapping[1:]
        leading = 0 if group is None else max(0, len(shape) - len(own))
        if len(own) + leading != len(shape):
            raise _error(
                f"Sharding rule {what} has rank {len(own) + leading}, but the operation {what} has rank {len(shape)} "
                f"(shape {tuple(shape)})"
            )
        names: list[tuple[str, ...]] = []
        if group is not None:
            known = self.ranks.setdefault(group, leading)
            if known != leading:
                raise _error(
                    f"Ellipsis represents different number of leading dimensions {known} and {leading} ({what}); "
                    "number them (...0, ...1) where they differ"
                )
            names = [(name,) for name in self._names_of(f"{BATCHING}{group}")]
        return names + [tuple(dim) if isinstance(dim, CompoundFactor) else (dim,) for dim in own]

    def _note(self, dim: tuple[str, ...], size: int) -> None:
        """The sizes that a dimension tells."""
        if len(dim) > 1:
            for factor in dim:
                if self.sizes.get(factor) is None:
                    self.sizes[factor] = self.source.factor_sizes.get(factor)
            return
        (factor,) = dim
        known = self.sizes.get(factor)
        if known is not None and known != size and factor.startswith(BATCHING):
            raise _error(f"Batching dimension {factor[1:]} corresponds to two sizes: {known} and {size}")
        self.sizes[factor] = size if known is None else min(known, size)

    def _check_compound(self, what: str, dim: tuple[str, ...], size: int) -> None:
        made = math.prod(n for f in dim if (n := self.sizes[f]) is not None)
        if len(dim) > 1 and made != size:
            raise _error(
                f"{what} actual size {size} doesn't match the size {made} derived from the compound factors {dim}"
            )


def with_batch(rule: OpRule, size: int, operands: Sequence[bool], results: Sequence[bool]) -> OpRule:
    """`rule` with one more factor, the first: the leading dimension, of `size`, of the flagged operands and results."""

    def tensors(
        given: Sequence[Sequence[tuple[int, ...]]], flags: Sequence[bool]
    ) -> tuple[tuple[tuple[int, ...], ...], ...]:
        moved = [tuple(tuple(f + 1 for f in dim) for dim in dims) for dims in given]
        return tuple(((0,), *dims) if flag else dims for dims, flag in zip(moved, flags))

    return OpRule(
        (size, *rule.sizes), tensors(rule.operands, operands), tensors(rule.results, results),
        (FactorType.PASS_THROUGH, *rule.types), [f + 1 for f in rule.blocked], rule.custom,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Text


def parse_rule(
    rule: str,
    *,
    reduction_factors: _Names = (),
    need_replication_factors: _Names = (),
    permutation_factors: _Names = (),
    **factor_sizes: int,
) -> ShardingRule:
    """The rule that a text such as "i j, j k -> i k" stands for; the arguments are those of `ShardingRule`.

    Raises ShardingRuleError for text outside of the grammar, ArgumentTypeError for what is no text.
    """
    if not isinstance(rule, str):
        raise errors.ArgumentTypeError(f"rule must be a str, but got {type(rule)}")
    if BATCHING in rule:
        raise _error(f"Unknown character {BATCHING!r} in the rule {rule!r}; write '...'")
    text = rule.replace("...", BATCHING)
    if "." in text:
        raise _error(f"Character '.' must be used inside ellipsis '...' in the rule {rule!r}")
    sides = text.split("->")
    if len(sides) != 2:
        found = "no" if len(sides) == 1 else str(len(sides) - 1)
        raise _error(f"There is {found} -> in rule: {rule!r}; write operands, '->', results")
    try:
        operands, results = (tuple(map(_value, side.split(","))) for side in sides)
        return ShardingRule(
            operands, results, reduction_factors=reduction_factors, need_replication_factors=need_replication_factors,
            permutation_factors=permutation_factors, **factor_sizes,
        )  # fmt: skip
    except errors.ShardingRuleError as e:
        raise _error(f"{e} (in the rule {rule!r})") from None


def _value(text: str) -> ArrayMapping:
    """One operand or result."""
    dims: list[str | CompoundFactor] = []
    open_: list[str] | None = None
    for token in _tokens(text):
        if token == "(":
            if open_ is not None:
                raise _error("Compound factors should be one level, nested brackets are not allowed")
            open_ = []
        elif token == ")":
            if open_ is None:
                raise _error(f"Brackets are not balanced in rule: {text.strip()!r} has ')' without '('")
            if len(open_) < 2:
                raise _error("Brackets should contain at least two factors")
            dims.append(CompoundFactor(*open_))
            open_ = None
        elif _group(token) is not None:
            if dims or open_ is not None:
                raise _error("Ellipsis can only be used at the beginning of a dimension list")
            dims.append(token)
        else:
            (dims if open_ is None else open_).append(token)
    if open_ is not None:
        raise _error(f"Brackets are not balanced in rule: {text.strip()!r} has '(' without ')'")
    return ArrayMapping(*dims)


def _tokens(text: str) -> list[str]:
    """Brackets, ellipses with their numbers, and words."""
    out: list[str] = []
    word = ""
    for char in f"{text} ":
        is_ellipsis = word.startswith(BATCHING)
        if char.isspace() or char in "()" or char == BATCHING or (is_ellipsis and not char.isdigit()):
            if word:
                out.append(f"{BATCHING}{int(word[1:] or 0)}" if is_ellipsis else word)
            word = ""
            if char in "()":
                out.append(char)
                continue
        if not char.isspace():
            word += char
    return out
