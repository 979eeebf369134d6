"""Random numbers inside of kernels for TPUs, whose cores have generators with a state of their own.

    prng_seed[] state seeds...              a = prng_random_bits[shape] state

A kernel that draws has the state as one more scratch reference, behind its own: so branches, loops and the steps of the
grid pass it on as they do with all that a kernel writes. Chips keep it in the generator and draw their own bits; the
loop of array operations draws Threefry's, of a key that the seeds make and the number of the draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt import numpy as jnp
from meshrt.core.primitive import Primitive
from meshrt.core.references import READ, WRITE, AbstractRef
from meshrt.core.source import capture
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray, aval_of
from meshrt.experimental.kernels.memory import TpuMemorySpace
from meshrt.experimental.kernels.semaphores import KERNEL_ONLY, only_in_kernels
from meshrt.lax import bitcast_convert_type, erf_inv
from meshrt.primitives.threefry import threefry_fold_in, threefry_random_bits
from meshrt.random.uniforms import between, unit_floats

__all__ = [
    "STATE", "StateNeededError", "drawing_from", "prng_random_bits", "prng_random_bits_p", "prng_seed", "prng_seed_p",
    "stateful_bernoulli", "stateful_bits", "stateful_normal", "stateful_uniform",
]  # fmt: skip

_U32, _I32 = np.dtype(np.uint32), np.dtype(np.int32)

# The state: two words of a key, and how often was drawn since it was seeded.
STATE = AbstractRef(ShapedArray((3,), _U32), TpuMemorySpace.SMEM)


class StateNeededError(Exception):
    """A kernel draws random numbers, and is traced without a state: it is traced once more, with one."""


_UNKNOWN = object()
_state: ContextVar[Any] = ContextVar("meshrt_kernel_state", default=_UNKNOWN)


@contextmanager
def drawing_from(state: Any | None) -> Iterator[None]:
    """What kernels that are traced inside draw from: a reference of the type `STATE`; None if there is none yet."""
    token = _state.set(state)
    try:
        yield
    finally:
        _state.reset(token)


def _current(what: str) -> Any:
    state = _state.get()
    if state is _UNKNOWN:
        raise errors.ArgumentValueError(
            f"{what} at {capture()} is outside of a kernel: only functions that pallas_call runs have a generator with "
            "a state. Use meshrt.random with a key"
        )
    if state is None:
        raise StateNeededError
    return state


# ----------------------------------------------------------------------------------------------------------------------
# The operations


@boundary
def prng_seed(*seeds: Any) -> None:
    """Seeds the generator of the core: draws that follow depend on the seeds and on how many went before.

    Args:
      seeds: int32 scalars, of which chips take one or two.

    >>> import meshrt, numpy as np
    >>> from meshrt.experimental import pallas as pl
    >>> from meshrt.experimental.pallas import tpu as pltpu
    >>> def kernel(bits_ref):
    ...     pltpu.prng_seed(7, pl.program_id(0))
    ...     bits_ref[...] = pltpu.prng_random_bits((8, 128))
    >>> block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    >>> draw = pl.pallas_call(kernel, meshrt.ShapeDtypeStruct((16, 128), np.int32), grid=2, out_specs=block)
    >>> len(np.unique(draw()))
    2048

    Raises:
      ArgumentValueError: outside of a kernel, without a seed, or with one that is no int32 scalar.
    """
    state = _current("prng_seed")
    if not seeds:
        raise errors.ArgumentValueError("prng_seed() needs at least one seed, an int32 scalar")
    prng_seed_p.bind(state, *[_seed(s) for s in seeds])


def _seed(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return np.int32(np.uint32(value & 0xFFFFFFFF).view(np.int32))
    aval = aval_of(value)
    if aval.shape or aval.dtype not in (_I32, _U32):
        raise errors.ArgumentValueError(f"prng_seed takes int32 scalars, not {aval.short()}: use astype")
    return value if aval.dtype == _I32 else bitcast_convert_type(value, _I32)


@boundary
def prng_random_bits(shape: Sequence[int]) -> Any:
    """Random bits from the generator of the core: `int32[*shape]`.

    Raises:
      ArgumentValueError: outside of a kernel.
    """
    return prng_random_bits_p.bind(_current("prng_random_bits"), shape=tuple(int(n) for n in shape))


def _seed_discharge(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    cell, *seeds = args
    key: Any = jnp.zeros(2, _U32)
    for seed in seeds:
        key = threefry_fold_in(key, bitcast_convert_type(seed, _U32))
    cell.value = jnp.concatenate([key, jnp.zeros(1, _U32)])
    return []


def _bits_discharge(args: Sequence[Any], params: dict[str, Any]) -> Any:
    (cell,) = args
    key = threefry_fold_in(cell.value[:2], cell.value[2])
    cell.value = cell.value + np.asarray([0, 0, 1], _U32)
    shape = params["shape"]
    return bitcast_convert_type(threefry_random_bits(32, shape, True, key), _I32)


prng_seed_p = Primitive(
    "prng_seed", lambda state, *seeds: [], multiple_results=True, typed=True, discharge=_seed_discharge,
    effects=lambda *avals: frozenset([WRITE]), lower=only_in_kernels, absent=KERNEL_ONLY,
)  # fmt: skip
prng_random_bits_p = Primitive(
    "prng_random_bits", lambda state, *, shape: ShapedArray(shape, _I32), typed=True, discharge=_bits_discharge,
    effects=lambda *avals, shape: frozenset([READ, WRITE]), lower=only_in_kernels, absent=KERNEL_ONLY,
)  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------------
# Samplers, of the arguments that those of `meshrt.random` have behind the key


def stateful_bits(shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Random bits from the generator of the core, as unsigned integers of up to 32 bits (uint32 by default)."""
    dtype = _U32 if dtype is None else dtypes.dtype(dtype)
    if not dtypes.issubdtype(dtype, np.unsignedinteger) or dtype.itemsize > 4:
        raise errors.ArgumentValueError(f"stateful_bits: dtype is an unsigned integer of up to 32 bits, not {dtype}")
    words = bitcast_convert_type(prng_random_bits(shape), _U32)
    return words if dtype == _U32 else (words >> np.uint32(32 - 8 * dtype.itemsize)).astype(dtype)


def stateful_uniform(shape: Sequence[int] = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0) -> Any:
    """Numbers from [minval, maxval), drawn in float32 from the generator of the core."""
    dtype = dtypes.dtype(np.float32 if dtype is None else dtype)
    if not dtypes.issubdtype(dtype, np.floating) or dtype.itemsize > 4:
        raise errors.ArgumentValueError(f"stateful_uniform: dtype is a float of up to 32 bits, not {dtype}")
    single = np.dtype(np.float32)
    floats = unit_floats(stateful_bits(shape), 32, single)
    return between(floats, single, tuple(shape), minval, maxval).astype(dtype)


def stateful_normal(shape: Sequence[int] = (), dtype: Any = None) -> Any:
    """Numbers from the standard normal distribution, drawn in float32 from the generator of the core."""
    low = np.nextafter(np.float32(-1), np.float32(0))
    drawn = stateful_uniform(shape, np.float32, low, 1.0)
    out = np.float32(math.sqrt(2)) * erf_inv(drawn)
    return out if dtype is None else out.astype(dtype)


def stateful_bernoulli(p: Any = 0.5, shape: Sequence[int] | None = None) -> Any:
    """True with probability `p`; `shape` is that of `p` by default."""
    return stateful_uniform(np.shape(p) if shape is None else shape) < p
