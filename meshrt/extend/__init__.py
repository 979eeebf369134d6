"""For libraries that read and rewrite programs. Names are ``jax.extend``'s.

Every module below is imported when it is first asked for.
"""

from __future__ import annotations

from meshrt.numpy.names import submodules as _submodules

__all__ = ["backend", "core", "linear_util", "random", "source_info_util"]

__getattr__ = _submodules(__name__, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
