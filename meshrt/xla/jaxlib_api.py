"""The door to jaxlib's private modules, for jaxlib 0.10.2 to 0.12.

What every program asks of XLA goes through here: clients and devices, buffers, compilation, execution, serialisation
and pytrees. (What executables say of themselves, the distributed runtime, calls by name, plugins and profiles have
doors beside it.) Nothing here sets one of jaxlib's process-wide hooks or changes one of its classes, so JAX may be
imported in the same process, before or after.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

# XLA logs the devices of each new client at level INFO unless told otherwise before it is loaded.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

import jaxlib._jax as _jax
import jaxlib.version
import numpy as np
from jaxlib import xla_client as _xc
from jaxlib.mlir import ir

from meshrt import errors
from meshrt.xla.host_memory import HostMemory, private_copies
from meshrt.xla.mlir import bytecode as bytecode
from meshrt.xla.mlir import expanded as expanded
from meshrt.xla.mlir import parse as parse
from meshrt.xla.mlir import pretty as pretty
from meshrt.xla.protobuf import changed

VERSION: tuple[int, ...] = tuple(int(p) for p in jaxlib.version.__version__.split(".")[:3])
RELEASE = ".".join(map(str, VERSION))

Device: TypeAlias = _jax.Device
Buffer: TypeAlias = _jax.ArrayImpl
Client: TypeAlias = _jax.Client
XlaError = _jax.JaxRuntimeError
# What is done where arrays are collected, and where other threads run programs of several processes.
guard_lib: Any = _jax.guard_lib
HloSharding: Any = _xc.HloSharding

# ----------------------------------------------------------------------------------------------------------
# Pytrees: a registry of our own, so that registrations never meet JAX's.

_pytree = _jax.pytree
if TYPE_CHECKING:
    from meshrt.xla.jaxlib_types import PyTreeDef as PyTreeDef
    from meshrt.xla.jaxlib_types import PyTreeRegistry
else:
    PyTreeDef = _pytree.PyTreeDef
DictKey = _pytree.DictKey
SequenceKey = _pytree.SequenceKey
GetAttrKey = _pytree.GetAttrKey
FlattenedIndexKey = _pytree.FlattenedIndexKey
pytree_registry: PyTreeRegistry = _pytree.PyTreeRegistry(
    enable_none=True, enable_tuple=True, enable_namedtuple=True, enable_list=True, enable_dict=True
)
# Structures are pickled with the registry that they are of, by the name under which it is found.
pytree_registry.__module__, pytree_registry.__name__ = "meshrt.tree_util", "default_registry"


def treedef_tuple(treedefs: list) -> PyTreeDef:
    """The structure of a tuple of trees with these structures."""
    return _pytree.treedef_tuple(pytree_registry, treedefs)


def treedef_of_node(cls: type, aux: Any, children: list) -> PyTreeDef:
    """The structure of a node of `cls` with auxiliary data `aux` over structures."""
    return _pytree.PyTreeDef.from_node_data_and_children(pytree_registry, (cls, aux), children)


def all_leaves(values: Iterable[Any]) -> bool:
    """Whether no value is a container."""
    return _pytree.all_leaves(pytree_registry, values)


# ----------------------------------------------------------------------------------------------------------
# Clients.


def cpu_client(
    num_devices: int,
    *,
    distributed: Any = None,
    process_id: int = 0,
    num_processes: int = 1,
    collectives: Any = None,
) -> Client:
    """A CPU client with `num_devices` devices in this process.

    Args:
      distributed: a connected client of the distributed runtime, for several processes.
      collectives: what `gloo_collectives` gives; needed with several processes.
    """
    return _xc.make_cpu_client(
        distributed_client=distributed, node_id=process_id, num_nodes=num_processes, collectives=collectives,
        num_devices=num_devices,
    )  # fmt: skip


def approximate_top_k_size(size: int, rank: int, k: int, recall_target: float, size_override: int) -> int:
    """How many candidates among `size` elements XLA's approximate top-k keeps for `recall_target` of k to be right."""
    return int(_jax.approx_top_k_reduction_output_size(size, rank, k, recall_target, False, size_override)[0])


def compile_only_devices(topology_description: Any) -> list[Any]:
    """Devices of a topology, for compiling only, along its dimensions (the last varies fastest) where it has some."""
    devices = topology_description._make_compile_only_devices()
    return sorted(devices, key=lambda d: (*getattr(d, "coords", ()), d.id))


# ----------------------------------------------------------------------------------------------------------
# Shardings and buffers.


class NativeSharding(_jax.GSPMDSharding):
    """What C++ code wants to know of a sharding. JAX's own classes cannot be used: their constructors import jax."""

    memory_kind: str | None = None

    def _to_xla_hlo_sharding(self, ndim: int) -> Any:
        return self._hlo_sharding

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


class _KindedSharding(NativeSharding):
    def __init__(self, devices: Any, hlo: Any, memory_kind: str):
        super().__init__(devices, hlo, memory_kind=memory_kind)
        self.memory_kind = memory_kind


@functools.lru_cache(4096)
def device_list(devices: tuple) -> Any:
    """jaxlib's list of these devices."""
    return _jax.DeviceList(devices)


@functools.lru_cache(8)
def deleted_buffer(device: Any) -> Buffer:
    """A buffer that was deleted, to stand in for one that is given up.

    Deleting a buffer aborts the process where a NumPy view or a DLPack consumer still reads its memory; dropping the
    reference does not, and frees the memory as soon as nobody reads it.
    """
    sharding = NativeSharding(device_list((device,)), _xc.HloSharding.replicate())
    buffer = put(_Scalar(), sharding, [np.zeros((), np.float32)], [device])
    buffer.delete()
    return buffer


class _Scalar:
    shape, dtype, weak_type = (), np.dtype("float32"), False


def clear_device_caches() -> None:
    """Drops every device that this module remembers."""
    device_list.cache_clear()
    deleted_buffer.cache_clear()
    _with_first.cache_clear()


def native_sharding(
    devices: tuple, tiling: tuple[int, ...], tiles: np.ndarray, memory_kind: str | None = None
) -> NativeSharding:
    """The C++ counterpart of a sharding.

    Args:
      devices: the device assignment.
      tiling: parts per dimension.
      tiles: int64[num_devices, ndim], the part of each dimension that each device holds.
    """
    hlo = hlo_sharding(len(devices), tiling, tiles)
    if memory_kind is None:
        return NativeSharding(device_list(devices), hlo)
    return _KindedSharding(device_list(devices), hlo, memory_kind)


def hlo_sharding(num_devices: int, tiling: tuple[int, ...], tiles: np.ndarray) -> Any:
    """XLA's form: `{devices=[...]...}` over positions in the device assignment, or replicated."""
    parts = int(np.prod(tiling, dtype=np.int64)) if tiling else 1
    if parts == 1:
        return _xc.HloSharding.replicate()
    flat = np.ravel_multi_index(tuple(tiles.T), tiling)
    order = np.argsort(flat, kind="stable").astype(np.int64)  # positions grouped by tile, in order of tiles
    copies = num_devices // parts
    dims = tiling if copies == 1 else (*tiling, copies)
    kinds = [] if copies == 1 else [_xc.OpSharding.Type.REPLICATED]
    steps = _steps(order)
    if steps is None:
        return _xc.HloSharding.subgroup_with_device_ordering(np.ascontiguousarray(order.reshape(dims)), kinds)
    widest = sorted(steps, key=lambda pair: -pair[1])
    turned = [] if widest == steps else [widest.index(pair) for pair in steps]
    return _xc.HloSharding.iota_tile(dims, [size for size, _ in widest] if turned else [], turned, kinds)


def _steps(order: np.ndarray) -> list[tuple[int, int]] | None:
    """A permutation as nested loops, outermost first: (length, step) of each. None if it is no counter whose digits
    are read in another order, which is what XLA writes in short.

    >>> _steps(np.array([0, 2, 4, 6, 1, 3, 5, 7]))
    [(2, 1), (4, 2)]
    """
    found: list[tuple[int, int]] = []
    while len(order) > 1:
        step = int(order[1] - order[0])
        other = np.flatnonzero(np.diff(order) != step)
        length = len(order) if not len(other) else int(other[0]) + 1
        if step <= 0 or len(order) % length:
            return None
        rows = order.reshape(-1, length)
        if (rows != rows[:, :1] + step * np.arange(length)).any():
            return None
        found.insert(0, (length, step))
        order = rows[:, 0]
    below = 1
    for length, step in sorted(found, key=lambda pair: pair[1]):
        if step != below:
            return None
        below *= length
    return found


def put(aval: Any, sharding: Any, shards: Sequence[Any], devices: Sequence[Any], *, may_alias: bool = True) -> Buffer:
    """A buffer from one host array (or single-device buffer) per addressable device.

    With `may_alias` an aligned host array may be used in place (CPU), so it must never change afterwards.

    Raises:
      CompileOnlyError: a device stands for hardware that is not here.
    """
    # Asked to copy, jaxlib fails on partly replicated shardings (bad_function_call), so it is given private copies.
    if not may_alias:
        shards = private_copies(shards)
    # enable_x64 is passed so that the process-wide x64 slot, which belongs to JAX when it is imported, plays no part.
    try:
        return _jax.batched_device_put(
            aval, sharding, shards, list(devices), True, force_copy=False, enable_x64=True,
            host_buffer_semantics=_jax.HostBufferSemantics.ZERO_COPY,
        )  # fmt: skip
    except XlaError as e:
        if "compile-only" not in str(e):
            raise
        raise errors.CompileOnlyError(
            f"{devices[0]} stands for a device of hardware that is not here: no array can lie there. Describe the "
            "argument with meshrt.ShapeDtypeStruct(shape, dtype, sharding=...), and compile with "
            "jit(f).lower(...).compile()"
        ) from e


def device_puts() -> dict[str, int]:
    """How often jaxlib has put values onto devices in calls of compiled functions, by its ways of doing so."""
    return dict(_jax.get_internal_device_put_info())


def assemble(aval: Any, sharding: Any, pieces: list[Buffer]) -> Buffer:
    """One buffer over several devices from single-device buffers, without copying."""
    return _jax.ArrayImpl(aval, sharding, pieces, True, _skip_checks=True)


def rewrap(buffer: Buffer, aval: Any, sharding: Any) -> Buffer:
    """The same memory with another type and sharding."""
    return buffer._rewrap_with_aval_and_sharding(aval, sharding)


def copy_to_devices(buffers: Sequence[Buffer], devices: Sequence[tuple], shardings: Sequence[Any]) -> list[Buffer]:
    """Shard *i* of each buffer onto device *i* of its device list; always into new memory."""
    # DONATE_INPUT would abort the process where a NumPy view of the buffer is alive.
    lists = [device_list(tuple(d)) for d in devices]
    kinds = [_jax.ArrayCopySemantics.ALWAYS_COPY] * len(buffers)
    return _jax.batched_copy_array_to_devices_with_sharding(list(buffers), lists, list(shardings), kinds)


def reorder(buffer: Buffer, sharding: Any) -> Buffer:
    """The same shards on the same devices, listed in the order of `sharding`'s devices."""
    return _jax.reorder_shards(buffer, sharding, _jax.ArrayCopySemantics.REUSE_INPUT)


def shard_to_numpy(
    buffer: Buffer, devices: tuple, position: int, dtype: np.dtype, memory_kind: str | None = None
) -> np.ndarray:
    """Addressable shard `position` of a buffer, read-only; shares the buffer's memory where that is the host's.

    `devices` are the addressable devices of the buffer, in order. Not for element types below a byte.

    `ArrayImpl._arrays` and its methods that give NumPy arrays would import jax, since their C++ code looks for
    `jax.core`. DLPack reads the first shard without that, and any shard can be listed first.
    """
    if position:
        buffer = _shard_first(buffer, devices, position, memory_kind)
    buffer.block_until_ready()
    if devices[0].platform != "cpu":
        return buffer._single_device_array_to_np_array_did_copy()[0]
    memory = HostMemory(_jax.buffer_to_dlpack_managed_tensor(buffer, stream=None), dtype.itemsize)
    return np.asarray(memory).view(dtype)


def _shard_first(buffer: Buffer, devices: tuple, position: int, memory_kind: str | None) -> Buffer:
    return reorder(buffer, _with_first(devices, position, memory_kind))


@functools.lru_cache(1024)
def _with_first(devices: tuple, position: int, memory_kind: str | None) -> NativeSharding:
    order = (devices[position], *devices[:position], *devices[position + 1 :])
    everywhere = _xc.HloSharding.replicate()
    if memory_kind is None:
        return NativeSharding(_jax.DeviceList(order), everywhere)
    return _KindedSharding(_jax.DeviceList(order), everywhere, memory_kind)


def buffer_address(buffer: Buffer) -> int:
    """Where the first shard lies in its device's memory."""
    return HostMemory(_jax.buffer_to_dlpack_managed_tensor(buffer, stream=None), 1).address


def shards(buffer: Buffer) -> list[Buffer]:
    """The addressable shards as single-device buffers. Imports jax where it is installed; not needed on CPU."""
    return buffer._arrays


def start_copy_to_host(buffer: Buffer) -> None:
    """Begins to fetch the first shard; nothing needs fetching from a CPU device."""
    if buffer.platform() != "cpu":
        buffer._copy_single_device_array_to_host_async()


# jaxlib notes the Python frames of each launch, and frees them only here: elsewhere it may not hold the interpreter's
# lock. Python's own collector asks for it too, but a loop of steps may go on for long without it.
collect_garbage: Callable[[], None] = _jax.collect_garbage


def _collect_with_python(phase: str, info: Any, collect: Callable[[], None] = collect_garbage) -> None:
    if phase == "stop":  # also when a process ends, and the names of this module are gone
        collect()


gc.callbacks.append(_collect_with_python)


def block_until_ready(buffers: list[Buffer]) -> None:
    """Waits for all; raises what their computation raised."""
    _jax.batched_block_until_ready(buffers)
    collect_garbage()


def to_dlpack(buffer: Buffer, stream: Any = None) -> Any:
    """A DLPack capsule of a single-device buffer."""
    return _jax.buffer_to_dlpack_managed_tensor(buffer, stream=stream)


def from_dlpack(external: Any, device: Device) -> Buffer:
    """The buffer of what an object that speaks DLPack has in the memory of `device`, a GPU, shared with it."""
    stream = device.get_stream_for_external_ready_events()
    return _jax.dlpack_managed_tensor_to_buffer(external.__dlpack__(stream=stream), device, stream)


# ----------------------------------------------------------------------------------------------------------
# Compiling, loading and running.

Executable: TypeAlias = _jax.LoadedExecutable


def compile_options(
    devices: Sequence[Any],
    *,
    mode: str = "replica",
    shardy: bool = True,
    xla_options: Sequence[tuple[str, Any]] = (),
    ynnpack: str = "all",
) -> Any:
    """Options for a program over `devices`.

    `mode` "replica" runs the module once per device as it stands; "spmd" lets XLA's partitioner split it, reading
    Shardy's attributes if `shardy`. `xla_options` are (name, value) of XLA's debug options. `ynnpack` says what the CPU
    compiler hands to YNNPACK, "all" that it can, "products" (and convolutions), "convolutions" or "none"; the rest is
    Eigen's and its own (`meshrt.runtime.kernel_library` says why).
    """
    n = len(devices)
    options = _xc.CompileOptions()
    options.num_replicas, options.num_partitions = (n, 1) if mode == "replica" else (1, n)
    ids = np.array([d.id for d in devices], dtype=np.int64)
    options.device_assignment = _xc.DeviceAssignment.create(ids.reshape((n, 1) if mode == "replica" else (1, n)))
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = options.num_replicas, options.num_partitions
    if mode == "spmd":
        build.use_spmd_partitioning = True
        build.use_shardy_partitioner = shardy
    options.env_option_overrides = [(k, v) for k, v in xla_options if k not in _EFFORTS]
    for name, value in xla_options:
        if name in _EFFORTS:
            setattr(build, name, _EFFORTS[name](value))
    if ynnpack != "all":
        # An override cannot take something out of a list of XLA's.
        wanted = _YNN_KINDS[ynnpack]
        keep = lambda kinds: bytes(kind for kind in kinds if kind in wanted)
        options = _xc.CompileOptions.ParseFromString(changed(options.SerializeAsString(), _YNN_FUSIONS, keep))
    return options


def plain_compile_options(
    replicas: int, partitions: int, assignment: Any, overrides: Mapping[str, Any], profile: bytes | None
) -> Any:
    """Options as XLA has them, for programs that drive a client themselves; `assignment` holds devices or numbers."""
    options = _xc.CompileOptions()
    options.num_replicas, options.num_partitions = replicas, partitions
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = replicas, partitions
    build.use_spmd_partitioning = partitions > 1
    if profile is not None:
        build.fdo_profile = profile
    if assignment is not None:
        ids = np.vectorize(lambda d: getattr(d, "id", d), otypes=[np.int64])(np.asarray(assignment, dtype=object))
        options.device_assignment = _xc.DeviceAssignment.create(ids.reshape(replicas, partitions))
    options.env_option_overrides = list(overrides.items())
    return options


# What is said of a compilation as a whole, not by a flag of XLA's: how hard it tries, and what such a value is.
_EFFORTS: dict[str, Any] = {
    "exec_time_optimization_effort": float,
    "memory_fitting_effort": float,
    "optimization_level": int,
    "memory_fitting_level": int,
}

# CompileOptionsProto.executable_build_options.debug_options.xla_cpu_experimental_ynn_fusion_type (xla.proto).
_YNN_FUSIONS = (3, 3, 422)
# Of its values (LibraryFusionType) those that are kept: 4 is LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT, 5
# LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION.
_YNN_KINDS = {"none": (), "products": (4, 5), "convolutions": (5,)}


def options_fingerprint(mode: str, shardy: bool, xla_options: Sequence[tuple[str, Any]], ynnpack: str) -> str:
    """What of the options decides the compiled code, as text."""
    return f"{mode};{shardy};{ynnpack};{sorted((str(k), str(v)) for k, v in xla_options)}"


def compile_and_load(
    module: str | bytes | ir.Module,
    devices: Sequence[Any],
    options: Any,
    host_callbacks: Sequence[Callable] = (),
) -> Executable:
    """Compiles a module and binds it to `devices`. Raises CompileError with the compiler's message."""
    if host_callbacks and not isinstance(module, ir.Module):
        module = parse(module)  # C++ accepts callbacks with a parsed module only
    client = devices[0].client
    try:
        if isinstance(module, ir.Module):
            with module.context:
                return client.compile_and_load(module, device_list(tuple(devices)), options, list(host_callbacks))
        return client.compile_and_load(module, device_list(tuple(devices)), options)
    except (XlaError, ValueError) as e:
        raise errors.CompileError(f"the compiler for {client.platform} refused the program: {e}") from e


def compile_only(module: str | bytes | ir.Module, devices: Sequence[Any], options: Any) -> Any:
    """Compiles for devices that need not exist (`compile_only_devices`); the result cannot run."""
    if not isinstance(module, ir.Module):
        module = parse(module)
    try:
        with module.context:
            return devices[0].client.compile(module, device_list(tuple(devices)), options)
    except (XlaError, ValueError) as e:
        raise errors.CompileError(f"the compiler for {devices[0].device_kind} refused the program: {e}") from e


def serialize(executable: Any) -> bytes:
    """The compiled code as bytes, for `deserialize` on as many devices of the same kind."""
    return executable.serialize()


def deserialize(
    blob: bytes, devices: Sequence[Any], options: Any, host_callbacks: Sequence[Callable] = ()
) -> Executable:
    """Binds serialised code to `devices`. `blob` is trusted: only what this user's meshrt wrote may come here."""
    client = devices[0].client
    if host_callbacks:
        return client.deserialize_executable(blob, device_list(tuple(devices)), options, list(host_callbacks))
    return client.deserialize_executable(blob, device_list(tuple(devices)), options)


_HANDLER_OPTIONS = {"_skip_checks": True} if "_skip_checks" in (_jax.array_result_handler.__doc__ or "") else {}


def result_handler(aval: Any, sharding: Any) -> Any:
    """Wraps one output of an execution as a buffer; made once per output."""
    # 0.10.2 checks results with a method that only JAX adds to the class, unless told not to.
    return _jax.array_result_handler(aval, sharding, True, **_HANDLER_OPTIONS)
