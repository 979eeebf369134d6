"""Compiling for hardware that is not here, with its own compiler.

The compilers come in optional packages: libtpu for TPUs, the CUDA plugin for GPUs. They take a description of the
hardware (`v5e:16x16`, or of one GPU and how many there are) in place of devices. What they give cannot run; it tells
the memory that a program takes, its schedule, and whether it compiles at all.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from collectives.errors import CollectivesError
from collectives.topology import Topology, load
from meshrt import errors
from meshrt.lowering.capabilities import capabilities_of
from meshrt.lowering.legalize import legalize
from meshrt.runtime import backend, hardware
from meshrt.runtime.cost_analysis import CostAnalysis
from meshrt.runtime.executable import read_layouts
from meshrt.runtime.memory_stats import CompiledMemoryStats, memory_stats_of
from meshrt.sharding.layout import Layout
from meshrt.xla import jaxlib_api, jaxlib_executables, jaxlib_plugins

__all__ = ["TopologyExecutable", "compile_for", "devices_of", "platform_of", "topology_of"]

# libtpu asks a metadata server and the environment where it runs, and waits for answers that never come elsewhere. It
# also lets one process at a time have it, which protects TPUs: where none is, several may compile beside one another.
_NO_TPU_HERE = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
}
# Chips of a host, unless a compiler is told otherwise, and the most that one has.
_HOST = (2, 2, 1)
_MOST_OF_A_HOST = 8
# Autotuning would time kernels on the device.
_CUDA_OPTIONS = (("xla_gpu_autotune_level", 0),)
_GPU_TEXT = """gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: {shared_memory_per_core} threads_per_core_limit: {threads_per_core} core_count: {cores}
  fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {memory_bandwidth} l2_cache_size: {l2_bytes} clock_rate_ghz: {clock_ghz}
  device_memory_size: {memory} shared_memory_per_block_optin: 232448
  cuda_compute_capability {{ major: {compute_capability} }}
  registers_per_core_limit: {registers_per_core} registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation" device_address_bits: 64 name: "{name}"
  driver_version: "13.0.0" runtime_version: "12.8.0" compile_time_toolkit_version: "12.8.0" dnn_version: "9.10.0"
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} device_description_str: "{name}"
"""
_DEVICE_ROWS = {
    "cores", "l2_bytes", "clock_ghz", "compute_capability", "shared_memory_per_core", "registers_per_core",
    "threads_per_core", "name",
}  # fmt: skip


def topology_of(what: str | Topology) -> Topology:
    """A topology with a shape and a compiler. ArgumentValueError for names, files and shapes that give none."""
    try:
        topology = load(what) if isinstance(what, str) else what
    except CollectivesError as e:
        raise errors.ArgumentValueError(f"topology: {e}") from None
    if not isinstance(topology, Topology):
        raise errors.ArgumentTypeError(f"topology is a name as 'v5e:16x16', a file or a Topology, got {what!r}")
    if topology.compiler not in _HARDWARE:
        raise errors.ArgumentValueError(
            f"topology {topology.spec} has no compiler of hardware that is elsewhere; use a v5e, v5p, v6e, h100 or h200"
        )
    if not topology.shape:
        dims = 1 if topology.compiler == "cuda" or topology.network is None else len(topology.network.limits)
        example = "8" if dims == 1 else "x".join(["4"] * dims)
        raise errors.ArgumentValueError(f"topology {topology.name} lacks a shape; write {topology.name}:{example}")
    return topology


def platform_of(topology: Topology) -> str:
    """The platform of the compiler of what `topology_of` gave: "tpu" or "cuda"."""
    assert topology.compiler is not None, "topology_of refuses those without a compiler"
    return topology.compiler


def devices_of(topology: Topology) -> list[Any]:
    """What stands for the devices of what `topology_of` gave where something is compiled, its dimensions row-major.

    Raises:
      MissingCompilerError: the compiler's package is not installed.
    """
    devices = _HARDWARE[platform_of(topology)](topology)
    backend.add_elsewhere(devices, topology)
    return devices


def compile_for(
    topology: Topology, module: str | bytes, *, devices: Sequence[Any] | None = None, mode: str = "replica",
    options: Sequence[tuple[str, Any]] = (),
) -> TopologyExecutable:  # fmt: skip
    """Compiles a StableHLO module for devices of `topology`: all of them, its dimensions counted row-major.

    Args:
      topology: what `topology_of` gives.
      devices: some of `devices_of(topology)`, or in another order.
      module: one device's program (`mode` "replica") or a program that XLA's partitioner splits ("spmd").
      options: XLA's debug options as (name, value).

    Raises:
      MissingCompilerError: the compiler's package is not installed.
      DeviceMemoryError: the program needs more memory than a device has.
      CompileError: the compiler refused the program.
    """
    devices = devices_of(topology) if devices is None else devices
    extra = _CUDA_OPTIONS if topology.compiler == "cuda" else ()
    chosen = jaxlib_api.compile_options(devices, mode=mode, xla_options=[*extra, *options])
    legal = legalize(module, capabilities_of(platform_of(topology)))
    try:
        executable = jaxlib_api.compile_only(legal, devices, chosen)
    except errors.CompileError as e:
        raise explained(e, topology) from e
    compiled = TopologyExecutable(executable, topology)
    compiled.check_memory()
    return compiled


class TopologyExecutable:
    """What a compiler made of a program for hardware that is not here."""

    __slots__ = ("_executable", "topology")

    def __init__(self, executable: Any, topology: Topology):
        self._executable, self.topology = executable, topology

    def memory_analysis(self) -> CompiledMemoryStats:
        """The compiler's memory figures, in bytes per device."""
        return memory_stats_of(self._executable)

    def check_memory(self) -> None:
        """DeviceMemoryError if the program does not fit; only some compilers refuse such a program themselves."""
        memory, limit = self.memory_analysis(), self.topology.memory
        if limit is not None and memory.peak_memory_in_bytes > limit:
            arguments, results = _gib(memory.argument_size_in_bytes), _gib(memory.output_size_in_bytes)
            temporaries, shared = _gib(memory.temp_size_in_bytes), _gib(memory.alias_size_in_bytes)
            parts = f"arguments {arguments}, results {results}, temporaries {temporaries}, shared by donation {shared}"
            raise errors.DeviceMemoryError(_too_large(self.topology, _gib(memory.peak_memory_in_bytes), parts))

    def cost_analysis(self) -> CostAnalysis | None:
        """The compiler's estimates per device: `flops`, `bytes accessed`, and `optimal_seconds` on TPUs.

        None where the compiler gives none, as the CUDA plugin; the plan of `lowered.partition(topology=...)` has ours.
        """
        try:
            return CostAnalysis(jaxlib_executables.cost_analysis(self._executable))
        except jaxlib_api.XlaError:
            return None

    def layouts(self) -> tuple[list[Layout], list[Layout]]:
        """How the arguments and the results of one device lie in its memory. UnsupportedError if nothing tells."""
        try:
            return read_layouts(self._executable)
        except jaxlib_api.XlaError as e:
            raise errors.UnsupportedError(
                f"the compiler for {self.topology.spec} does not tell the layouts of arguments and results ({e}); "
                "as_text() has layouts"
            ) from None

    def hlo_text(self) -> str:
        """The optimised, scheduled HLO of one device.

        UnsupportedError where the compiler is newer than jaxlib and uses what that cannot read.
        """
        try:
            return jaxlib_executables.hlo_text(self._executable)
        except jaxlib_api.XlaError as e:
            raise errors.UnsupportedError(
                f"the program that the compiler for {self.topology.spec} made cannot be read by this jaxlib "
                f"({str(e).partition(chr(10))[0][:200]}); install a compiler of jaxlib's age. memory_analysis() and "
                "cost_analysis() tell of it nevertheless"
            ) from None


# ----------------------------------------------------------------------------------------------------------
# Hardware.


def _tpu_devices(topology: Topology) -> list[Any]:
    if importlib.util.find_spec("libtpu") is None:
        raise errors.MissingCompilerError(
            f"compiling for {topology.spec} needs the TPU compiler, which is not installed: pip install 'meshrt[tpu]'"
        )
    if _hosts(topology) > 1:
        raise errors.ArgumentValueError(
            f"{topology.spec} is of several slices; compile for one of them, and use partition(topology=...) for times"
        )
    return _tpu_slice(topology.spec)


@functools.lru_cache(8)
def _tpu_slice(spec: str) -> list[Any]:
    import libtpu  # optional wheel

    if not hardware.has_tpu():
        for name, value in _NO_TPU_HERE.items():
            os.environ.setdefault(name, value)
    try:
        jaxlib_plugins.load_plugin("tpu", libtpu.get_library_path())
    except jaxlib_api.XlaError as e:
        raise errors.BackendError(
            f"the TPU compiler does not start: {_first_line(e)}; a process that uses this machine's TPUs keeps libtpu "
            "to itself: compile in that process, or on a machine without TPUs"
        ) from None
    try:
        return jaxlib_api.compile_only_devices(jaxlib_plugins.topology("tpu", spec, _chips_of_a_host(spec)))
    except jaxlib_api.XlaError as e:
        raise errors.ArgumentValueError(f"the TPU compiler knows no slice {spec}: {_first_line(e)}") from None


def _chips_of_a_host(spec: str) -> dict[str, Any]:
    """What compilers are told of hosts: a slice that hosts of 2x2 chips, their default, do not divide is one host's."""
    sizes = [int(n) for n in spec.partition(":")[2].split("x")]
    sizes += [1] * (3 - len(sizes))
    if all(n % own == 0 for n, own in zip(sizes, _HOST)) or math.prod(sizes) > _MOST_OF_A_HOST:
        return {}
    return {"chips_per_host_bounds": sizes}


def _cuda_devices(topology: Topology) -> list[Any]:
    library = hardware.cuda_library()
    if library is None:
        raise errors.MissingCompilerError(
            f"compiling for {topology.spec} needs the CUDA compiler, which is not installed: "
            "pip install 'meshrt[cuda12-compiler]'"
        )
    missing = sorted(_DEVICE_ROWS - set(topology.device))
    if missing or topology.memory is None:
        raise errors.ArgumentValueError(
            f"topology {topology.name} does not describe its GPU: [device] lacks {', '.join(missing) or 'its memory'}; "
            "see configs/topologies/h100.toml"
        )
    text = _gpu_description(topology.device, topology.memory, topology.memory_bandwidth)
    return _gpu_hosts(library, topology.spec, text, _hosts(topology), math.prod(topology.shape) // _hosts(topology))


def _hosts(topology: Topology) -> int:
    return 1 if topology.network is None else topology.network.hosts(topology.shape)


def _gpu_description(device: Mapping[str, Any], memory: float, bandwidth: float) -> str:
    name = re.sub(r"[^\w .-]", "", str(device["name"]))  # it stands in quotes
    rows = {k: v for k, v in device.items() if k != "name"}
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in rows.values()):
        raise errors.ArgumentValueError(f"the rows of [device] are numbers, got {rows}")
    return _GPU_TEXT.format(**rows, name=name, memory=int(memory), memory_bandwidth=int(bandwidth))


@functools.lru_cache(8)
def _gpu_hosts(library: str, spec: str, description: str, hosts: int, each: int) -> list[Any]:
    jaxlib_plugins.load_plugin("cuda", library)
    options = {"target_config": description, "topology": f"1x{hosts}x{each}"}
    try:
        return jaxlib_api.compile_only_devices(jaxlib_plugins.topology("cuda", spec, options))
    except jaxlib_api.XlaError as e:
        raise errors.ArgumentValueError(f"the CUDA compiler does not take {spec}: {_first_line(e)}") from None


_HARDWARE = {"tpu": _tpu_devices, "cuda": _cuda_devices}


# ----------------------------------------------------------------------------------------------------------
# Explaining refusals.

_OUT_OF_MEMORY = re.compile(r"Ran out of memory|RESOURCE_EXHAUSTED|exceeds available HBM", re.IGNORECASE)
_NEEDED = re.compile(r"\((\d[\d.]*[KMGT]?)\) exceeds available HBM|Used ([\d.]+[KMGT]?) of", re.IGNORECASE)
# A kernel's own memory on a chip: what it asks for, what there is.
_CORE_MEMORY = re.compile(
    r"Scoped allocation with size ([\d.]+[KMGT]?) and limit ([\d.]+[KMGT]?) exceeded scoped vmem|"
    r"Shared memory size limit exceeded: requested (\d+), available: (\d+)"
)
_NO_KERNEL = re.compile(r"(?:custom[- ]call(?: target)?|No registered implementation)[^\n]*", re.IGNORECASE)


def explained(error: errors.CompileError, topology: Topology) -> errors.CompileError:
    """The compiler's refusal in words that say what to do; the compiler's own message stands at the end."""
    message = str(error)
    core = _CORE_MEMORY.search(message)
    if core is not None:
        asked, limit = filter(None, core.groups())
        return errors.DeviceMemoryError(
            f"{topology.spec}: the blocks and scratch memory of a kernel need {asked} bytes of a core's memory, and "
            f"there are {limit}. Take smaller blocks or fewer buffers (pl.Buffered(1), num_stages); on TPUs "
            f"CompilerParams(vmem_limit_bytes=...) allows more than is usual.\nThe compiler: {message}"
        )
    if _OUT_OF_MEMORY.search(message):
        needed = _NEEDED.search(message)
        amount = f"{needed[1] or needed[2]}iB" if needed else "more than there is"
        detail = "temporaries alone" if "HLO temporaries" in message else "arguments, results and temporaries"
        return errors.DeviceMemoryError(f"{_too_large(topology, amount, detail)}\nThe compiler: {message}")
    kernel = _NO_KERNEL.search(message)
    if kernel is not None and ("UNIMPLEMENTED" in message or "NOT_FOUND" in message or "registered" in message):
        return errors.CompileError(
            f"{topology.spec}: the program calls a kernel that exists only on another platform ({kernel[0].strip()}); "
            f"compute it on the CPU, or write it with operations that {topology.name} has.\nThe compiler: {message}"
        )
    return errors.CompileError(f"{topology.spec}: {message}")


def _too_large(topology: Topology, needed: str, what: str) -> str:
    return (
        f"the program does not fit {topology.spec}: a device needs {needed} ({what}) and has "
        f"{_gib(topology.memory or 0)}. Shard more (an argument that is replicated is whole on every device), use a "
        "smaller batch, donate what is replaced, or recompute with meshrt.checkpoint"
    )


def _gib(n: float) -> str:
    return f"{n / 2**30:.2f} GiB"


def _first_line(e: Exception) -> str:
    return str(e).splitlines()[0]
