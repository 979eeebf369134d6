"""Where arrays lie in memory (`jax.experimental.layout`)."""

from meshrt.primitives.layout_constraint import with_layout_constraint
from meshrt.sharding.layout import Format, Layout

__all__ = ["Format", "Layout", "with_layout_constraint"]
