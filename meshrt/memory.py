"""Spaces of memory (`jax.memory`).

>>> import meshrt
>>> x = meshrt.device_put(meshrt.numpy.ones(3), meshrt.memory.Space.Host)
>>> x.sharding.memory_kind
'pinned_host'
"""

from meshrt.sharding.memory import Space

__all__ = ["Space"]
