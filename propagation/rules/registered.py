"""Sharding rules that users gave for custom calls of their own."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import BadRuleError
from ..graph import Op
from ..model import OpRule
from .parse import parse_rule

__all__ = ["UserRule", "register_sharding_rule", "unregister_sharding_rule", "user_rule"]

UserRule = str | Callable[[Op], OpRule | str | None]

_user_rules: dict[str, UserRule] = {}


def register_sharding_rule(target: str, rule: UserRule) -> None:
    """Gives custom calls to `target` a sharding rule: text for `parse_rule`, or a function from a call (a
    `propagation.program.Op`) to an `OpRule`, to such a text, or to None for a call through which nothing passes.

    The text is bound to each call's shapes. Raises `BadRuleError` for a target or rule of another type and for text
    that is malformed or that no call can fit; a rule that does not fit a call raises when that call is met. A later
    registration of the same target replaces the earlier one.

    >>> import propagation
    >>> propagation.register_sharding_rule("example_matmul", "i j, j k -> i k, reduction={j}")
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


def user_rule(target: str) -> UserRule | None:
    """What was registered for calls of `target`."""
    return _user_rules.get(target)
