"""`jax._src.distributed`: what this process is among those that were joined."""

from __future__ import annotations

from typing import Any

from meshrt import distributed
from meshrt.numpy.names import missing as _missing

__all__ = ["global_state"]


class _State:
    """As things are when they are asked for."""

    @property
    def client(self) -> Any:
        """jaxlib's client of the coordination service; None in a program of one process."""
        joined = distributed.context()
        return None if joined is None else joined.client

    @property
    def process_id(self) -> int:
        """The number of this process."""
        joined = distributed.context()
        return 0 if joined is None else joined.node_id

    @property
    def num_processes(self) -> int:
        """How many processes there are."""
        joined = distributed.context()
        return 1 if joined is None else joined.num_nodes


global_state = _State()
__getattr__ = _missing("jax._src.distributed", __all__)
