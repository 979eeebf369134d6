"""The directory of compiled programs, under the names of `jax.experimental.compilation_cache`."""
