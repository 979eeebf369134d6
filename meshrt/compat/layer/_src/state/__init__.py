"""`jax._src.state`: references to arrays that programs write to."""
