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
from collections.abc import Callable

from ..errors import BadRuleError
from ..model import OpRule
from .options import RuleOptions
from .parse import parse_rule

__all__ = ["RuleOptions", "parse_rule", "register_sharding_rule", "rule_for", "table", "unregister_sharding_rule"]

RuleFunction = Callable[..., OpRule | None]


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


_user_rules: dict[str, object] = {}


def register_sharding_rule(target: str, rule) -> None:
    """Gives custom calls to `target` a sharding rule: text for `parse_rule`, or a function from a call (a
    `propagation.program.Op`) to an `OpRule`, to such a text, or to None for a call through which nothing passes.

    The text is bound to each call's shapes. Raises `BadRuleError` for a target or rule of another type and for text
    that is malformed or that no call can fit; a rule that does not fit a call raises when that call is met. A later
    registration of the same target replaces the earlier one.
    """
    if not isinstance(target, str) or not target:
        raise BadRuleError(f"a sharding rule is registered for the name of a custom call, got {target!r}")
    if isinstance(rule, str):
        parse_rule(rule)
    elif not callable(rule):
        raise BadRuleError(
            f"the sharding rule of {target!r} is text such as 'i j, j k -> i k, reduction={{j}}' or a function of the "
            f"call, got {type(rule).__name__}"
        )
    _user_rules[target] = rule


def unregister_sharding_rule(target: str) -> None:
    """Forgets a rule given by `register_sharding_rule`; unknown targets are ignored."""
    _user_rules.pop(target, None)


def user_rule(target: str):
    return _user_rules.get(target)


DEFAULT = RuleOptions()


class RuleCache:
    """Rules by operation signature (name, types, the attributes the rule looks at). One per run: attributes belong
    to the module's context."""

    __slots__ = ("_known", "_table", "options")

    def __init__(self, options: RuleOptions = DEFAULT):
        self._known: dict[tuple, OpRule | None] = {}
        self._table = table()
        self.options = options

    def rule_for(self, op) -> OpRule | None:
        function = self._table.get(op.name)
        if function is None:
            return None
        names = getattr(function, "signature", ())
        if names is None:
            return function(op, self.options)
        key = (op.name, *[v.type for v in op.operands], None, *[v.type for v in op.results])
        if names:
            key = (key, *[op.attr(n) for n in names])
        try:
            return self._known[key]
        except KeyError:
            rule = self._known[key] = function(op, self.options) if _has_shapes(op) else None
            return rule


def _has_shapes(op) -> bool:
    return all(v.type.is_tensor for v in op.results)


def rule_for(op, options: RuleOptions = DEFAULT) -> OpRule | None:
    """The sharding rule of an operation; None for operations through which nothing propagates.

    Does not look at an `sdy.sharding_rule` attribute that the operation may carry.
    """
    return RuleCache(options).rule_for(op)
