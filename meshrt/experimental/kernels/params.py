"""What a kernel says to compilers: parameters by platform, and what it costs."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from meshrt import errors

__all__ = [
    "ByPlatform", "CompilerParams", "CostEstimate", "DimensionSemantics", "GridDimensionSemantics", "SideEffectType",
    "TpuCompilerParams", "TritonCompilerParams", "by_platform", "for_gpus", "for_tpus",
]  # fmt: skip


@dataclass(frozen=True)
class CostEstimate:
    """What one call of a kernel computes and moves: all ints. Schedulers and `cost_analysis` read it.

    >>> CostEstimate(flops=2 * 8**3, transcendentals=0, bytes_accessed=3 * 4 * 8**2).to_json()
    b'{"flops": 1024, "transcendentals": 0, "bytes_accessed": 768, "remote_bytes_transferred": 0}'
    """

    flops: int
    transcendentals: int
    bytes_accessed: int
    remote_bytes_transferred: int = 0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not isinstance(value, int):
                raise errors.ArgumentValueError(
                    f"All fields in CostEstimate must be ints. {name} is not an int: {type(value)}({value})"
                )

    def to_json(self) -> bytes:
        """As compilers take it."""
        return json.dumps(dataclasses.asdict(self)).encode()

    def times(self, count: int) -> CostEstimate:
        """What `count` calls cost."""
        return CostEstimate(*[value * count for value in dataclasses.astuple(self)])


class GridDimensionSemantics(enum.Enum):
    """In which order the steps along a dimension of the grid may run."""

    PARALLEL = "parallel"
    CORE_PARALLEL = "core_parallel"
    SUBCORE_PARALLEL = "subcore_parallel"
    ARBITRARY = "arbitrary"


DimensionSemantics = GridDimensionSemantics | str


class SideEffectType(enum.Enum):
    """What compilers may do with a kernel's call: anything, drop it, neither drop nor merge it."""

    PURE = "pure"
    DATAFLOW_SIDE_EFFECTING = "dataflow_side_effecting"
    SIDE_EFFECTING = "side_effecting"


def _hashable(value: Any) -> Any:
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value


class CompilerParams(Protocol):
    """What `pallas_call(compiler_params=...)` takes: a dataclass of the platform, `pltpu.CompilerParams` or
    `pltriton.CompilerParams`."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


@dataclass(frozen=True, eq=False)
class TpuCompilerParams:
    """Parameters of the compiler for TPUs (`pallas.tpu.CompilerParams`).

    Args:
      dimension_semantics: per dimension of the grid "parallel" (its steps may run in any order, on several cores), or
        "arbitrary" (one after the other).
      allow_input_fusion: per operand, whether what computes it may be fused into the kernel.
      vmem_limit_bytes: how much of a core's vector memory the kernel may use.
      collective_id: which barrier semaphore the kernel meets other chips at; kernels that may run at the same time need
        different ones.
      has_side_effects: whether a call is kept though its results are not used.
      flags: options of the compiler by name.
      skip_device_barrier: no barrier between the chips before the kernel.

    The other fields are handed to the compiler as they are.
    """

    dimension_semantics: Sequence[DimensionSemantics] | None = None
    allow_input_fusion: Sequence[bool] | None = None
    vmem_limit_bytes: int | None = None
    collective_id: int | None = None
    has_side_effects: bool | SideEffectType = False
    flags: Mapping[str, Any] | None = None
    internal_scratch_in_bytes: int | None = None
    serialization_format: int = 1
    disable_bounds_checks: bool = False
    disable_semaphore_checks: bool = False
    skip_device_barrier: bool = False
    allow_collective_id_without_custom_barrier: bool = False
    shape_invariant_numerics: bool = True
    use_tc_tiling_on_sc: bool | None = None
    needs_layout_passes: bool = True
    fuse_transposed_lhs_in_matmul: bool = False

    def __post_init__(self) -> None:
        for name in ("dimension_semantics", "allow_input_fusion"):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else tuple(given))
        for kind in self.dimension_semantics or ():
            if not isinstance(kind, GridDimensionSemantics) and kind not in _SEMANTICS:
                raise errors.ArgumentValueError(
                    f"dimension_semantics: {kind!r} is none of {', '.join(map(repr, _SEMANTICS))}"
                )

    def _key(self) -> tuple[Any, ...]:
        return tuple([_hashable(getattr(self, f.name)) for f in dataclasses.fields(self)])

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    replace = dataclasses.replace


_SEMANTICS = tuple([kind.value for kind in GridDimensionSemantics])


@dataclass(frozen=True)
class TritonCompilerParams:
    """Parameters of the compiler for GPUs (`pallas.triton.CompilerParams`).

    Args:
      num_warps: warps per program.
      num_stages: stages of pipelines.
      turns: which steps along the last dimension of the grid do anything, where a program runs these one after the
        other: a hashable function of the indices of all other dimensions (int32) that gives the first and the one
        behind the last. No others are run. (JAX's has none: there a branch leaves steps out, and compilers fetch
        nothing ahead inside of one.)
    """

    num_warps: int | None = None
    num_stages: int | None = None
    turns: Callable[..., tuple[Any, Any]] | None = None


@dataclass(frozen=True)
class ByPlatform:
    """Parameters for several platforms, of which each reads its own."""

    tpu: TpuCompilerParams | None
    triton: TritonCompilerParams | None


def by_platform(given: Any) -> Any:
    """What a call was given for compilers; a dictionary (`{"mosaic": ..., "triton": ...}`) as what can be hashed."""
    if not isinstance(given, Mapping):
        return given
    tpu, triton = given.get("mosaic_tpu") or given.get("mosaic"), given.get("triton")
    return ByPlatform(
        TpuCompilerParams(**tpu) if isinstance(tpu, Mapping) else tpu,
        TritonCompilerParams(**triton) if isinstance(triton, Mapping) else triton,
    )


def for_tpus(given: Any) -> TpuCompilerParams | None:
    """The parameters for TPUs among what a call was given."""
    given = by_platform(given)
    found = given.tpu if isinstance(given, ByPlatform) else given
    return found if isinstance(found, TpuCompilerParams) else None


def for_gpus(given: Any) -> TritonCompilerParams:
    """The parameters for GPUs among what a call was given; those left open are None."""
    given = by_platform(given)
    found = given.triton if isinstance(given, ByPlatform) else given
    return found if isinstance(found, TritonCompilerParams) else TritonCompilerParams()
