"""Kernels for NVIDIA's GPUs, through the dialect of Triton that jaxlib ships.

    pointers.py     loads and stores through tensors of pointers, masked at the edges of arrays
    arrays.py       shapes, reductions, functions of libdevice
    products.py     products, by tensor cores or term by term
    places.py       elements at other places: shapes, slices, concatenations, gathers
    parts.py        parts of values that begin where the program says
    ordering.py     sorting
    stacks.py       loops over stacks of values, scatters
    composed.py     functions that consist of others
    walk.py         all rules together
    module.py       the program: its function, where its blocks begin
    call.py         the custom call and its launch

Programs of a grid run beside one another, in any order, and none may rely on what another wrote. Where steps hand
scratch memory on, or dimensions of the grid are said to be `arbitrary`, one program runs those steps in a loop.
"""

from __future__ import annotations

from meshrt.experimental.kernels.backends import register_backend
from meshrt.experimental.kernels.triton.call import lower

__all__ = ["lower"]

register_backend("cuda", lower)
