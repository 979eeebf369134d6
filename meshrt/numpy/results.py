"""Named results of decompositions."""

from __future__ import annotations

from typing import Any, NamedTuple

from meshrt.tree_files import register_namedtuple_serialization

__all__ = ["EigResult", "EighResult", "QRResult", "SVDResult", "SlogdetResult"]


class EigResult(NamedTuple):
    """Of :func:`meshrt.numpy.linalg.eig`."""

    eigenvalues: Any
    eigenvectors: Any


class EighResult(NamedTuple):
    """Of :func:`meshrt.numpy.linalg.eigh`."""

    eigenvalues: Any
    eigenvectors: Any


class QRResult(NamedTuple):
    """Of :func:`meshrt.numpy.linalg.qr`."""

    Q: Any
    R: Any


class SVDResult(NamedTuple):
    """Of :func:`meshrt.numpy.linalg.svd`."""

    U: Any
    S: Any
    Vh: Any


class SlogdetResult(NamedTuple):
    """Of :func:`meshrt.numpy.linalg.slogdet`."""

    sign: Any
    logabsdet: Any


for _class in (EigResult, EighResult, QRResult, SVDResult, SlogdetResult):  # so that files hold functions with them
    register_namedtuple_serialization(_class, serialized_name=f"meshrt.numpy.linalg.{_class.__name__}")
