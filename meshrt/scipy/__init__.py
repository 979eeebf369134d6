"""SciPy's functions over arrays of ours. Names, signatures and dtype rules are those of ``jax.scipy``.

Every module below is imported when it is first asked for.
"""

from __future__ import annotations

from meshrt.numpy.names import submodules as _submodules

__all__ = [
    "cluster", "fft", "integrate", "interpolate", "linalg", "ndimage", "optimize", "signal", "sparse", "spatial",
    "special", "stats",
]  # fmt: skip

__getattr__ = _submodules(__name__, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
