"""`jax._src.internal_test_util`: what several files of tests written for JAX share."""
