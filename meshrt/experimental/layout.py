"""Where arrays lie in memory (`jax.experimental.layout`)."""

from meshrt.sharding.layout import Format, Layout

__all__ = ["Format", "Layout"]
