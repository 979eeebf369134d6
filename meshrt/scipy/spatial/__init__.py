"""Geometry: `transform`."""

from meshrt.scipy.spatial import transform

__all__ = ["transform"]
