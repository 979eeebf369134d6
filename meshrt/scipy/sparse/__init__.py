"""Solvers that only need products with a matrix: `linalg`."""

from meshrt.scipy.sparse import linalg

__all__ = ["linalg"]
