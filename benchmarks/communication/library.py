"""All programs, in the order of the table."""

from __future__ import annotations

from . import attention, learning, models, operators, patterns, science, training
from .base import PROGRAMS

__all__ = ["PROGRAMS"]

_ = attention, learning, models, operators, patterns, science, training  # importing them registers their programs
