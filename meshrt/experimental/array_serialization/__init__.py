"""Arrays in TensorStore's formats (`jax.experimental.array_serialization`), for files that other programs share.

`meshrt.checkpoint` keeps whole trees, needs no further package and is what programs of one's own want. Here are the
pieces on which checkpoint libraries are built; they need the package `tensorstore`.

    tensorstore_impl  one array: where it lies (`get_tensorstore_spec`), writing and reading its parts
    serialization     lists of arrays, written while the program goes on (`GlobalAsyncCheckpointManager`)
"""

from __future__ import annotations

from meshrt.numpy.names import submodules as _submodules

__all__ = ["serialization", "tensorstore_impl"]

__getattr__ = _submodules(__name__, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
