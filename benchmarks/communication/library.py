"""All programs, in the order of the table."""

from __future__ import annotations

from . import attention, learning, models, networks, operators, patterns, science, training
from .base import PROGRAMS

__all__ = ["PROGRAMS"]

# Importing them registers their programs.
_ = attention, learning, models, networks, operators, patterns, science, training
