"""Kernels for TPUs, through the dialect of Mosaic that jaxlib ships.

    types.py        elements, vectors, memories
    references.py   loads, stores, parts of memory; what run_scoped allocates
    arrays.py       shapes, reductions, products
    values.py       other instructions, prints
    communication.py    copies, semaphores, other chips
    walk.py         all rules together
    module.py       the kernel's function, its windows, the bytes that the compiler reads
    call.py         the custom call and what the compiler is told beside

The compiler pipelines a grid's windows itself. What it does not check is checked here or before (`check`): it takes a
module whose memory has other sizes or elements than the arrays.
"""

from __future__ import annotations

from meshrt.experimental.kernels.backends import register_backend
from meshrt.experimental.kernels.mosaic.call import lower

__all__ = ["lower"]

register_backend("tpu", lower)
