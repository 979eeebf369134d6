"""What `jax.experimental.sparse.random` has: random sparse arrays."""

from meshrt.experimental.sparse.making import random_bcoo as random_bcoo
