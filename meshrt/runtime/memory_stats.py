"""What a compiled program takes of a device's memory, as its compiler counted it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from meshrt.xla import jaxlib_executables

__all__ = ["CompiledMemoryStats", "memory_stats_of"]


@dataclass(frozen=True, slots=True)
class CompiledMemoryStats:
    """Bytes per device, under the names that jaxlib (and so `jax.stages.Compiled.memory_analysis`) gives them.

    A donated argument counts among the arguments and among the outputs, and once in `alias_size_in_bytes`: a program
    needs argument + output - alias + temp. `host_*` is the same of buffers that lie in host memory.
    `peak_memory_in_bytes` is the largest sum of what is alive at once; the CPU compiler leaves temporaries out of it.
    """

    generated_code_size_in_bytes: int
    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    host_generated_code_size_in_bytes: int
    host_argument_size_in_bytes: int
    host_output_size_in_bytes: int
    host_alias_size_in_bytes: int
    host_temp_size_in_bytes: int
    peak_memory_in_bytes: int
    serialized_buffer_assignment_proto: bytes = field(default=b"", repr=False)
    # None where jaxlib is too old to tell (0.12 does).
    indefinite_allocations: int | None = None
    peak_unpadded_heap_bytes: int | None = None
    total_allocation_bytes: int | None = None

    @property
    def device_size_in_bytes(self) -> int:
        """What the program holds of a device's memory if nothing is freed early: argument + output - alias + temp."""
        held = self.argument_size_in_bytes + self.output_size_in_bytes + self.temp_size_in_bytes
        return held - self.alias_size_in_bytes


_NAMES = tuple(f.name for f in fields(CompiledMemoryStats))


def memory_stats_of(executable: Any) -> CompiledMemoryStats:
    """The figures of one of jaxlib's executables."""
    stats = jaxlib_executables.memory_stats(executable)
    return CompiledMemoryStats(**{name: getattr(stats, name) for name in _NAMES if hasattr(stats, name)})
