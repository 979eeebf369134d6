"""Clusters of points: `vq`."""

from meshrt.scipy.cluster import vq

__all__ = ["vq"]
