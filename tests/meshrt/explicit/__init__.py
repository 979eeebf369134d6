"""Explicit axes: shardings in types."""
