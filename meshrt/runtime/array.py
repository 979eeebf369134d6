"""`Array`: a value on devices.

An Array holds one of jaxlib's buffers and a `Signature`: an interned object for its type, sharding and whether it is
committed to its devices. Two arrays may enter the same compiled program in the same way exactly if they have the same
signature, so dispatch compares signatures by identity.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.operators import ArrayOperators
from meshrt.core.types import ShapedArray, no_truth_value, register_aval
from meshrt.runtime import array_text, dlpack, guards, process_groups, sub_byte
from meshrt.runtime.pieces import cut, fill, relaid
from meshrt.runtime.shard import Shard
from meshrt.runtime.signature import Signature, extents, local_parts, local_positions, shard_slices, signature
from meshrt.sharding.layout import Format, Layout
from meshrt.sharding.named import Sharding, SingleDeviceSharding
from meshrt.xla import jaxlib_api, jaxlib_executables
from meshrt.xla.host_memory import aligned_empty

__all__ = [
    "Array", "Shard", "Signature", "arrays", "assembled", "blank", "copied", "copy_array", "local_positions",
    "shard_slices", "sharing", "signature",
]  # fmt: skip


# The arrays whose memory another array holds as well, by identity (arrays have no hash).
sharing: weakref.WeakValueDictionary[int, Array] = weakref.WeakValueDictionary()


class _ArrayType(type):
    """Tracers are instances of `Array`: what a function is given is an array, traced or not. (`type(x) is Array` tells
    arrays that exist from those that stand for one.)"""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, ArrayOperators)


class Array(ArrayOperators, metaclass=_ArrayType):
    """An array of numbers (or of random keys) on one or more devices; immutable.

    Made by `meshrt.numpy` functions, `device_put` and compiled functions, not by its constructor.
    """

    # The last two are set only when needed: making an array is on the path of every call.
    __slots__ = ("__weakref__", "_buf", "_set_fate", "_set_npy", "_sig")

    def __init__(self, buf: Any, sig: Signature):
        self._buf = buf
        self._sig = sig

    def _share_with(self, other: Array) -> None:
        """Notes that two arrays hold the same memory, so that donating one does not take the other's away."""
        sharing[id(self)], sharing[id(other)] = self, other

    @property
    def _fate(self) -> str | None:
        """How the buffer went away, in words ("donated as ..."), for messages."""
        try:
            return self._set_fate
        except AttributeError:
            return None

    @_fate.setter
    def _fate(self, text: str) -> None:
        self._set_fate = text

    @property
    def _npy(self) -> np.ndarray | None:
        """The value on the host, once fetched."""
        try:
            return self._set_npy
        except AttributeError:
            return None

    @_npy.setter
    def _npy(self, value: np.ndarray | None) -> None:
        self._set_npy = value

    # --- type.

    @property
    def aval(self) -> ShapedArray:
        return self._sig.aval

    @property
    def shape(self) -> tuple[int, ...]:
        return self._sig.shape

    @property
    def dtype(self) -> Any:
        return self._sig.dtype

    @property
    def weak_type(self) -> bool:
        return self._sig.aval.weak_type

    @property
    def ndim(self) -> int:
        return self._sig.aval.ndim

    @property
    def size(self) -> int:
        return self._sig.aval.size

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self._sig.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole (global) array."""
        return self._sig.aval.nbytes

    # --- placement.

    @property
    def sharding(self) -> Sharding:
        return self._sig.sharding

    @property
    def committed(self) -> bool:
        """Whether the array stays where it is; one that is not follows the others of a computation."""
        return self._sig.committed

    _committed = committed

    @property
    def device(self) -> Any:
        """The device, or the sharding if there are several."""
        sharding = self._sig.sharding
        return sharding.device_assignment[0] if sharding.num_devices == 1 else sharding

    def devices(self) -> set[Any]:
        """The devices that hold a part."""
        self._check()
        return self._sig.sharding.device_set

    @property
    def is_fully_replicated(self) -> bool:
        return self._sig.sharding.is_fully_replicated

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process has all devices that hold a part."""
        return self._sig.sharding.is_fully_addressable

    @property
    def format(self) -> Format:
        """The layout of each device's part in its memory, and the sharding; the layout is None if it is not known."""
        return Format(self._layout(), self._sig.sharding)

    @property
    def layout(self) -> Layout | None:
        """How the elements of each part lie in its device's memory; None if the platform does not tell."""
        self._check()
        return self._layout()

    def _layout(self) -> Layout | None:
        parts = None if self._buf.is_deleted() else jaxlib_executables.buffer_layout(self._buf)
        return None if parts is None else Layout(parts[0][::-1][: self.ndim], *parts[1:])

    def addressable_data(self, index: int) -> Array:
        """The part on this process's `index`-th device of the sharding, as an Array on that device."""
        self._check()
        sharding = self._sig.sharding
        positions = self._sig.local
        if not -len(positions) <= index < len(positions):
            raise errors.AxisError(
                f"list index out of range: addressable_data({index}) of an array that has {len(positions)} parts in "
                "this process"
            )
        if sharding.num_devices == 1:
            return self
        local = index % len(positions)
        device = sharding.device_assignment[positions[local]]
        part = extents(sharding.shard_indices(self.shape)[positions[local]], self.shape)
        sig = signature(
            self._sig.aval.with_shape(part), SingleDeviceSharding(device, memory_kind=sharding.memory_kind), True
        )
        return Array(self._piece(local, sig, device), sig)

    def _piece(self, local: int, sig: Signature, device: Any) -> Any:
        if device.platform == "cpu":
            # A view of the shard's memory, which the new buffer shares and keeps alive.
            return jaxlib_api.put(sig.physical, sig.native, [self._shard_numpy(local)], [device])
        piece = jaxlib_api.shards(self._buf)[local]
        if self._sig.parts is not None and sig.physical.shape != self._sig.shard_shape:
            return cut(piece, sig.physical.with_shape(self._sig.shard_shape), sig.physical, sig.native, device)
        return jaxlib_api.rewrap(piece, sig.physical, sig.native)

    def local_parts(self) -> list[Array]:
        """The parts on this process's devices, in the order of the sharding."""
        return [self.addressable_data(i) for i in range(len(self._sig.local))]

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts on this process's devices."""
        return [s for s in self.global_shards if s._local is not None]

    @property
    def global_shards(self) -> list[Shard]:
        """The parts on all devices."""
        self._check()
        sharding = self._sig.sharding
        local = {p: i for i, p in enumerate(self._sig.local)}
        seen: dict[Any, int] = {}
        out = []
        tiles = map(tuple, sharding.tile_indices(self.ndim).tolist())
        held = zip(sharding.device_assignment, sharding.shard_indices(self.shape), tiles)
        for position, (device, index, key) in enumerate(held):
            replica = seen.get(key, 0)
            seen[key] = replica + 1
            out.append(Shard(self, local.get(position), device, index, replica))
        return out

    # --- life.

    def block_until_ready(self) -> Array:
        """Waits until the value has been computed, and returns the array; raises what its computation raised."""
        try:
            self._buf.block_until_ready()
        except jaxlib_api.XlaError as e:
            self._fail(e)
        jaxlib_api.collect_garbage()
        return self

    def is_ready(self) -> bool:
        """Whether the value has been computed."""
        self._check()
        return self._buf.is_ready()

    def copy_to_host_async(self) -> None:
        """Begins to fetch the value, so that a later `numpy.asarray` waits less."""
        self._check()
        if guards.active and self._sig.local and self._sig.local_devices[0].platform != "cpu":
            guards.check("device_to_host", self.aval, self.sharding, True)
        if self._npy is None and self._sig.sharding.num_devices == 1:
            jaxlib_api.start_copy_to_host(self._buf)

    def is_deleted(self) -> bool:
        """Whether the buffer was deleted or donated."""
        return self._buf.is_deleted()

    def delete(self) -> None:
        """Gives the buffer up; later use raises DeletedArrayError. Views of its memory stay valid."""
        self._give_up("deleted by .delete()")

    def _give_up(self, how: str) -> None:
        self._fate = self._fate or how
        if not self._buf.is_deleted():
            self._buf = jaxlib_api.deleted_buffer(self._sig.local_devices[0])
        self._npy = None

    def _check(self) -> None:
        if self._buf.is_deleted():
            raise array_text.deleted(self)

    def _fail(self, e: Exception) -> NoReturn:
        if self._buf.is_deleted():
            raise array_text.deleted(self) from e
        error = process_groups.explained(e, f"the computation of an array of type {self.aval} failed")
        raise error from error.__cause__

    def on_device_size_in_bytes(self) -> int:
        """Bytes of all addressable parts as the devices store them."""
        self._check()
        return self._buf.on_device_size_in_bytes()

    def unsafe_buffer_pointer(self) -> int:
        """The address of the buffer of an array on one device."""
        self._check()
        if self._sig.sharding.num_devices != 1:
            raise errors.SeveralBuffersError(
                f"unsafe_buffer_pointer() is supported only for unsharded arrays: this one is on "
                f"{self._sig.sharding.num_devices} devices; ask one of its parts, x.addressable_data(i)"
            )
        return jaxlib_api.buffer_address(self._buf)

    # --- value on the host.

    def _shard_numpy(self, local: int) -> np.ndarray:
        """The physical value of this process's `local`-th part, read-only."""
        dtype = self._sig.physical.dtype
        if guards.active and self._sig.local_devices[0].platform != "cpu":
            guards.check("device_to_host", self.aval, self.sharding, False)
        if dtype in sub_byte.WIDER:
            buffer, wide = sub_byte.widened(self._buf, self._sig)
            whole = jaxlib_api.shard_to_numpy(buffer, wide.local_devices, local, wide.physical.dtype)
            value = whole.astype(dtype)
            value.flags.writeable = False
        else:
            try:
                devices, kind = self._sig.local_devices, self._sig.sharding.other_memory
                value = jaxlib_api.shard_to_numpy(self._buf, devices, local, dtype, kind)
            except jaxlib_api.XlaError as e:
                self._fail(e)
        parts = self._sig.parts
        return value if parts is None else value[tuple(map(slice, parts[local]))]

    @property
    def _value(self) -> np.ndarray:
        """The whole value on the host, read-only; of a key array its physical uint32 form."""
        value = self._npy
        if value is None:
            self._check()
            value = self._npy = self._fetch()
            jaxlib_api.collect_garbage()
        elif self._fate is not None:
            self._check()
        return value

    def _fetch(self) -> np.ndarray:
        sharding, physical = self._sig.sharding, self._sig.physical
        if sharding.unreduced_axes or not self._sig.local:
            raise array_text.not_added_up(self) if sharding.unreduced_axes else array_text.not_addressable(self)
        if sharding.is_fully_replicated:
            return self._shard_numpy(0)
        if not physical.size:  # all parts have the same, empty bounds
            return np.empty(physical.shape, physical.dtype)
        held = local_parts(sharding, self.shape)
        if len(held.indices) != math.prod(sharding.tiling(self.ndim)):
            raise array_text.not_addressable(self)
        out = aligned_empty(physical.shape, physical.dtype)
        for k, index in enumerate(held.indices):
            out[index] = self._shard_numpy(held.which.index(k))
        out.flags.writeable = False
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self.aval.is_key:
            raise errors.ArgumentTypeError(
                f"JAX array with PRNGKey dtype cannot be converted to a NumPy array. Its dtype is {self.dtype}; use "
                "meshrt.random.key_data(keys)"
            )
        # (NumPy's asarray has no such keyword before NumPy 2.)
        return np.asarray(self._value, dtype=dtype) if copy is None else np.array(self._value, dtype=dtype, copy=copy)

    def __buffer__(self, flags: int) -> memoryview:
        """The elements on the host, for `memoryview(x)` (from Python 3.12 on)."""
        return self.__array__().data

    def __bytes__(self) -> bytes:
        return self.__array__().tobytes()

    def _scalar(self, what: str) -> Any:
        if self.ndim:
            raise errors.ArgumentTypeError(
                f"Only scalar arrays can be converted to Python scalars; got arr.ndim={self.ndim}. Index the element "
                f"first, as in x[{', '.join('0' * self.ndim)}]"
            )
        value = self.__array__().item()
        if isinstance(value, complex) and what != "complex":
            raise errors.ArgumentTypeError(
                f"a complex number cannot be converted to {what}; take x.real or abs(x) first"
            )
        return value

    def __bool__(self) -> bool:
        if self.size != 1:
            raise no_truth_value(self.aval)
        if self.aval.is_key:
            raise errors.ArgumentTypeError("key array cannot be converted to boolean.")
        return bool(self.__array__())

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if self.ndim or not dtypes.issubdtype(self.dtype, np.integer):
            raise errors.ArgumentTypeError(
                f"Only integer scalar arrays can be converted to a scalar index. Got {self.aval}"
            )
        return int(self._value)

    def item(self, *args: int) -> Any:
        """One element as a Python scalar."""
        return self.__array__().item(*args)

    def tolist(self) -> Any:
        """The elements as nested lists of Python scalars."""
        return self.__array__().tolist()

    def __len__(self) -> int:
        if not self._sig.shape:
            raise errors.ArgumentTypeError("len() of unsized object: the array has no dimensions")
        return self._sig.shape[0]

    def __format__(self, spec: str) -> str:
        if self.ndim == 0 and not self.aval.is_key:
            return format(self.__array__()[()], spec)
        if spec:
            raise TypeError(f"unsupported format string passed to Array.__format__: {spec!r} of type {self.aval}")
        return str(self)

    def __repr__(self) -> str:
        return array_text.long(self)

    def __str__(self) -> str:
        return array_text.short(self)

    # --- exchange.

    def __copy__(self) -> Array:
        return copy_array(self)

    def __deepcopy__(self, memo: dict) -> Array:
        return copy_array(self)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        self._check()
        return dlpack.capsule_of(self._buf, self._sig, stream, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.device_of(self._sig)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self._check()
        return dlpack.array_interface(self._buf, self._sig)


# `blank()` is an Array whose `_buf` and `_sig` are still to be set: cheaper than the constructor.
blank = functools.partial(object.__new__, Array)


def arrays(buffers: Sequence[Any], signatures: Sequence[Signature]) -> list[Array]:
    """One Array per buffer, in half the time of as many constructor calls."""
    out: list[Array] = [blank() for _ in signatures]
    array: Array
    for array, array._buf, array._sig in zip(out, buffers, signatures):  # noqa: B007
        pass
    return out


def copy_array(array: Array) -> Array:
    """A new array of the same value, type and sharding in memory of its own."""
    array._check()
    return Array(copied(array, array._sig), array._sig)


def copied(array: Array, sig: Signature) -> Any:
    """A buffer of `sig`, which has the layout and the processes of the array, part *i* from its part *i*."""
    if sig.layout is not None:  # jaxlib's copies are row-major, and say that they are not
        return relaid(array._buf, sig, sig)
    if sig.sharding.is_fully_addressable:
        return jaxlib_api.copy_to_devices([array._buf], [sig.sharding.device_assignment], [sig.native])[0]
    # jaxlib copies only where all devices are this process's: each part by itself.
    return assembled([_copied_part(p, d, sig) for p, d in zip(array.local_parts(), sig.local_devices)], sig)


def _copied_part(part: Array, device: Any, sig: Signature) -> Array:
    single = signature(part.aval, SingleDeviceSharding(device, memory_kind=sig.sharding.memory_kind), True)
    (buffer,) = jaxlib_api.copy_to_devices([part._buf], [(device,)], [single.native])
    return Array(buffer, single)


def assembled(parts: Sequence[Array], sig: Signature) -> Any:
    """A buffer of `sig` from its parts, one on each local device in order; it shares their memory, but for parts that
    are shorter than the others."""
    if sig.parts is None:
        return jaxlib_api.assemble(sig.stored, sig.native, [p._buf for p in parts])
    whole = sig.physical.with_shape(sig.shard_shape)
    buffers = [
        p._buf if shape == whole.shape else fill(p._buf, p._sig.physical, whole, p._sig.native, device)
        for p, shape, device in zip(parts, sig.parts, sig.local_devices)
    ]
    return jaxlib_api.assemble(sig.stored, sig.native, buffers)


register_aval(Array, lambda x: x._sig.aval)
