"""The registry of sharding rules: which dimensions of an operation's operands and results correspond.

Each module of this package handles one family of operations and exports `RULES`, a table from operation name to a
function `op -> OpRule | None`. Nothing else is edited to add an operation. `rule_for` looks a rule up, and
`register_sharding_rule` adds one for a custom call of one's own:

>>> register_sharding_rule("my_matmul", "i j, j k -> i k, reduction={j}")
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..graph import Op
from ..model import OpRule
from .builder import RuleFunction
from .options import RuleOptions
from .parse import parse_rule
from .registered import register_sharding_rule, unregister_sharding_rule

__all__ = ["RuleOptions", "parse_rule", "register_sharding_rule", "rule_for", "table", "unregister_sharding_rule"]


@functools.cache
def table() -> dict[str, RuleFunction]:
    """All rule functions by operation name, collected from the modules of this package."""
    rules: dict[str, RuleFunction] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, function in getattr(module, "RULES", {}).items():
            if name in rules:
                raise RuntimeError(f"two rule modules define {name}; the second is {info.name}.py")
            rules[name] = function
    return rules


DEFAULT = RuleOptions()
# What is a reshard now was a constraint when propagation looked it up; CHLO has rules by an option.
_CHANGING = ("sdy.reshard", "chlo.")


class RuleCache:
    """Rules by operation, and by signature (name, types, the attributes the rule looks at) for those that look alike.
    One per run: attributes belong to the module's context. Operations must stay as they are."""

    __slots__ = ("_known", "_learnt", "_of", "_table", "options")

    def __init__(self, options: RuleOptions = DEFAULT):
        self._known: dict[tuple[Any, ...], OpRule | None] = {}
        self._of: dict[Op, OpRule | None] = {}
        self._learnt: Mapping[Op, OpRule | None] = self._of  # by another one
        self._table = table()
        self.options = options

    def rule_for(self, op: Op) -> OpRule | None:
        """The sharding rule of an operation, as `rule_for` has it."""
        try:
            return self._of[op]
        except KeyError:
            rule = self._learnt.get(op)
            if rule is None or op.name.startswith(_CHANGING):
                rule = self._by_signature(op)
            self._of[op] = rule
            return rule

    def rules_for(self, ops: Sequence[Op]) -> list[OpRule | None]:
        """Those of several operations."""
        of, look = self._of, self.rule_for
        return [of[op] if op in of else look(op) for op in ops]

    def learn(self, other: RuleCache) -> None:
        """Asks another one first, where its options lead to the same rule."""
        if replace(other.options, chlo=self.options.chlo) == self.options:
            self._learnt = other._of

    def _by_signature(self, op: Op) -> OpRule | None:
        function = self._table.get(op.name)
        if function is None:
            return None
        names = getattr(function, "signature", ())
        if names is None:
            return function(op, self.options)
        key: tuple[Any, ...] = (op.name, *[v.type for v in op.operands], None, *[v.type for v in op.results])
        if names:
            key = (key, *[op.attr(n) for n in names])
        try:
            return self._known[key]
        except KeyError:
            rule = self._known[key] = function(op, self.options) if _has_shapes(op) else None
            return rule


def _has_shapes(op: Op) -> bool:
    return all(v.type.is_tensor for v in op.results)


def rule_for(op: Op, options: RuleOptions = DEFAULT) -> OpRule | None:
    """The sharding rule of an operation; None for operations through which nothing propagates.

    Does not look at an `sdy.sharding_rule` attribute that the operation may carry.
    """
    return RuleCache(options).rule_for(op)
