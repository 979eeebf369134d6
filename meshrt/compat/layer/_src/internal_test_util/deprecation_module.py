"""A module with deprecated names: one that warns and gives another, and one that is gone."""

from meshrt.compat.layer._src.deprecations import deprecation_getattr as _deprecation_getattr

x = 42

_deprecations = {"y": ("Please use x", 101), "z": ("Please do not use z", None)}
__getattr__ = _deprecation_getattr(__name__, _deprecations)
