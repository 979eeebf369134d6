"""Importing this module makes `import jax` give meshrt, for programs that take the name of a module to import."""

from meshrt.compat.door import as_jax

as_jax()
