"""`jax._src.numpy`: files of functions that `jax.numpy` publishes, and `util`."""
