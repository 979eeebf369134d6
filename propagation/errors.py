"""The errors of this package. Each derives from `PropagationError` and says what is wrong, where, and what to do.

`str(error)` is one readable line: the source location if one is known, the problem, and a fix.
"""

from __future__ import annotations

__all__ = [
    "AxisReuseError",
    "BadOptionError",
    "BadRuleError",
    "LimitError",
    "ModuleParseError",
    "OverlappingAxesError",
    "PropagationError",
    "RankMismatchError",
    "SubAxisError",
    "UnknownAxisError",
    "UnknownMeshError",
    "UnsupportedModuleError",
]


class PropagationError(ValueError):
    """Base of all errors raised by `propagation`. `where` is a source location such as `model.py:12`."""

    def __init__(self, message: str, where: str | None = None):
        self.where = where
        super().__init__(f"{where}: {message}" if where else message)


class ModuleParseError(PropagationError):
    """The input is not StableHLO text, bytecode or an `ir.Module` (truncated, unknown syntax, ...)."""


class LimitError(ModuleParseError):
    """The input is too large or too deeply nested to be read safely (see `propagation.limits`)."""


class UnsupportedModuleError(PropagationError):
    """The module uses a structure that propagation does not handle (control flow between blocks, no main, ...)."""


class UnknownMeshError(PropagationError, KeyError):
    """A sharding names a mesh that the module does not define."""

    __str__ = ValueError.__str__


class UnknownAxisError(PropagationError, KeyError):
    """A sharding names an axis that its mesh does not have."""

    __str__ = ValueError.__str__


class AxisReuseError(PropagationError):
    """One axis is used twice in one sharding."""


class OverlappingAxesError(PropagationError):
    """Two sub-axes of one sharding overlap, or adjacent ones should have been written as one."""


class SubAxisError(PropagationError):
    """A sub-axis does not fit its axis (sizes that do not divide it, size one, or the whole axis)."""


class RankMismatchError(PropagationError):
    """A sharding has another number of dimensions than the value it annotates."""


class BadRuleError(PropagationError):
    """A sharding rule cannot be parsed or does not fit its operation."""


class BadOptionError(PropagationError):
    """An unknown stage, option or option value."""
