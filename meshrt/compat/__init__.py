"""`import jax` gives meshrt: for libraries and scripts that were written for JAX and are not to be changed.

    import meshrt.compat
    jax = meshrt.compat.as_jax()   # first of all, before anything imports jax
    import optax                   # its `import jax` gives meshrt

`meshrt run --as-jax script.py` does so for a script, and importing `meshrt.compat.installed` does so where a program
takes the name of a module (`python -m pytest -p meshrt.compat.installed`). docs/compat.md is the page for users.

`door` finds modules under JAX's names, `modules` says which names there are, `internal_names` where internal names
stand, of which `joined` makes modules, `distribution` answers questions about the installed package, `attributes` puts
on classes what only programs for JAX look at, `layer` holds what exists only for libraries: JAX's internal names for
what meshrt has.
"""

from meshrt.compat.door import as_jax

__all__ = ["as_jax"]
