"""What JAX keeps in jax.example_libraries: small layers (`stax`) and small `optimizers`, for examples and tests."""
