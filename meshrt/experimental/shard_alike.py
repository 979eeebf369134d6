"""Values that are sharded alike (`jax.experimental.shard_alike`)."""

from meshrt.primitives.shard_alike import shard_alike

__all__ = ["shard_alike"]
