"""`jax._src.cudnn`: what of it does not need cuDNN."""
