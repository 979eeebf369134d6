"""What TPUs have, by their kind: `get_tpu_info()` of the device that programs run on or are meant for.

All figures are those of one core, so that kernels can choose their blocks by them.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from meshrt import dtypes, errors
from meshrt.runtime.backend import default_device
from meshrt.sharding.axes import AbstractDevice
from meshrt.sharding.context import context_device

__all__ = [
    "ChipVersion", "SparseCoreInfo", "Tiling", "TpuInfo", "get_tpu_info", "get_tpu_info_for_chip", "is_tpu_device",
    "registry",
]  # fmt: skip


class ChipVersion(enum.Enum):
    """Kinds of TPU chips.

    >>> ChipVersion.TPU_V5P.num_physical_tensor_cores_per_chip, ChipVersion.TPU_V5P.supports_megacore
    (2, True)
    """

    TPU_V2 = "v2"
    TPU_V3 = "v3"
    TPU_V4I = "v4i"
    TPU_V4 = "v4"
    TPU_V5E = "v5e"
    TPU_V5P = "v5p"
    TPU_V6E = "v6e"
    TPU_7 = "7"
    TPU_7X = "7x"
    TPU_8I = "8i"

    def __str__(self) -> str:
        return self.value

    @property
    def is_lite(self) -> bool:
        """Whether the chip has one core."""
        return self in (ChipVersion.TPU_V4I, ChipVersion.TPU_V5E, ChipVersion.TPU_V6E)

    @property
    def num_physical_tensor_cores_per_chip(self) -> int:
        return 1 if self.is_lite else 2

    @property
    def supports_megacore(self) -> bool:
        """Whether its two cores can be one device."""
        return self in (ChipVersion.TPU_V4, ChipVersion.TPU_V5P)


_BY_DEVICE_KIND = {
    "TPU v2": ChipVersion.TPU_V2,
    "TPU v3": ChipVersion.TPU_V3,
    "TPU v4": ChipVersion.TPU_V4,
    "TPU v4 lite": ChipVersion.TPU_V4I,
    "TPU v5e": ChipVersion.TPU_V5E,
    "TPU v5 lite": ChipVersion.TPU_V5E,
    "TPU v5": ChipVersion.TPU_V5P,
    "TPU v5p": ChipVersion.TPU_V5P,
    "TPU v6e": ChipVersion.TPU_V6E,
    "TPU v6 lite": ChipVersion.TPU_V6E,
    "TPU7": ChipVersion.TPU_7,
    "TPU7x": ChipVersion.TPU_7X,
    "TPU8i": ChipVersion.TPU_8I,
}


class Tiling(enum.Enum):
    """How the last dimensions of arrays are cut into tiles."""

    COMPACT = enum.auto()
    SPARSE_CORE = enum.auto()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one tile of 32-bit elements."""
        return (8, 128) if self is Tiling.COMPACT else (8,)


@dataclass(frozen=True, kw_only=True)
class SparseCoreInfo:
    """What the SparseCores of a chip have; memory is that of one vector subcore."""

    num_cores: int
    num_subcores: int
    num_lanes: int
    vmem_capacity_bytes: int
    dma_granule_size_bytes: int


@dataclass(frozen=True, kw_only=True)
class TpuInfo:
    """What one core of a TPU has. Zero stands for what a chip lacks, or what is not known of it.

    >>> info = get_tpu_info_for_chip(ChipVersion.TPU_V5E, 1)
    >>> info.vmem_capacity_bytes >> 20, info.get_sublane_tiling("int8")
    (128, 32)
    """

    chip_version: Any
    generation: int
    num_cores: int
    num_lanes: int
    num_sublanes: int
    mxu_column_size: int
    num_mxus: int
    num_accumulators: int
    vmem_capacity_bytes: int
    cmem_capacity_bytes: int
    smem_capacity_bytes: int
    hbm_capacity_bytes: int
    mem_bw_bytes_per_second: int
    bf16_ops_per_second: int
    int8_ops_per_second: int
    fp8_ops_per_second: int
    int4_ops_per_second: int
    sparse_core: SparseCoreInfo | None = None

    @property
    def is_lite(self) -> bool:
        """Whether the chip has one core."""
        return bool(self.chip_version.is_lite)

    @property
    def is_split_chip(self) -> bool:
        """Whether each of a chip's several cores is a device of its own."""
        return self.num_cores == 1 and self.chip_version.num_physical_tensor_cores_per_chip > 1

    @property
    def is_megacore(self) -> bool:
        """Whether a chip's cores are one device."""
        return self.num_cores > 1

    def is_matmul_supported(self, lhs_dtype: Any, rhs_dtype: Any) -> bool:
        """Whether the unit that multiplies matrices takes these element types as they are."""
        pair = dtypes.dtype(lhs_dtype).name, dtypes.dtype(rhs_dtype).name
        return any(pair[0] in left and pair[1] in right for left, right in _PRODUCTS.get(self.generation, ()))

    def get_sublane_tiling(self, dtype: Any) -> int:
        """Rows of a tile of elements of this type: the least number that XLA takes of a second to last dimension."""
        bits = dtypes.itemsize_bits(dtype)
        if self.generation > 7:
            raise errors.UnsupportedError(f"TPU generation is not supported: tiles of TPU{self.chip_version}")
        is_tall = self.generation == 7 or bits not in (16, 32)
        return self.num_sublanes * (32 // bits if is_tall else 1)


# ----------------------------------------------------------------------------------------------------------------------
# The figures

_WIDE = ("float32", "bfloat16")
_EIGHTH_5 = ("float8_e5m2", "float8_e4m3b11fnuz")
_EIGHTH_7 = ("float8_e5m2", "float8_e4m3fn")
_BYTES, _NIBBLES = ("uint8", "int8"), ("uint4", "int4")
_SINGLE = ((("float32",), ("float32",)),)
_FIFTH = (((*_WIDE, *_EIGHTH_5), (*_WIDE, *_EIGHTH_5)), (_BYTES, _BYTES), (_NIBBLES, _NIBBLES))
_SEVENTH = ((_WIDE, _WIDE), ((*_WIDE, *_EIGHTH_7), _EIGHTH_7))

# Generation -> pairs of element types that are multiplied without a conversion.
_PRODUCTS: dict[int, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = {
    2: _SINGLE, 3: _SINGLE, 4: ((_WIDE, (*_WIDE, "int8")),), 5: _FIFTH, 6: _FIFTH, 7: _SEVENTH, 8: _SEVENTH,
}  # fmt: skip


class _Chip(NamedTuple):
    """Memories and rates of a whole chip, but VMEM and SMEM, units and accumulators, which are of one core."""

    generation: int
    column: int
    units: int
    accumulators: int
    vmem_mib: int
    smem_kib: int
    cmem: float
    hbm: float
    bandwidth: float
    bf16: float
    int8: float = 0
    fp8: float = 0
    int4: float = 0
    sparse: tuple[int, int, int, int, int] | None = None


_SEVEN = _Chip(7, 256, 2, 128, 64, 1024, 0, 206e9, 7.40e12, 2.31e15, 0, 4.60e15, 0, (2, 16, 16, 512, 32))
_CHIPS = {
    ChipVersion.TPU_V2: _Chip(2, 128, 1, 0, 16, 16, 0, 16e9, 7.16e11, 4.6e13),
    ChipVersion.TPU_V3: _Chip(3, 128, 2, 0, 16, 16, 0, 34.4e9, 8.25e11, 1.40e14),
    ChipVersion.TPU_V4I: _Chip(4, 128, 4, 0, 16, 1024, 134e6, 8.59e9, 6.14e11, 1.37e14),
    ChipVersion.TPU_V4: _Chip(4, 128, 4, 0, 16, 1024, 134e6, 34.4e9, 1.23e12, 2.75e14),
    ChipVersion.TPU_V5E: _Chip(5, 128, 4, 0, 128, 1024, 0, 17.2e9, 8.20e11, 1.97e14, 3.94e14, 0, 7.88e14),
    ChipVersion.TPU_V5P: _Chip(
        5, 128, 4, 0, 64, 1024, 0, 103e9, 2.46e12, 4.59e14, 9.18e14, 0, 1.84e15, (4, 16, 8, 512, 32)
    ),
    ChipVersion.TPU_V6E: _Chip(
        6, 256, 2, 0, 128, 1024, 0, 34.4e9, 1.64e12, 9.20e14, 1.84e15, 9.20e14, 3.68e15, (2, 16, 8, 256, 32)
    ),
    ChipVersion.TPU_7: _SEVEN,
    ChipVersion.TPU_7X: _SEVEN,
    ChipVersion.TPU_8I: _Chip(
        8, 256, 2, 256, 192, 1024, 0, 309e9, 8.60e12, 1.101e15, 0, 8.808e15, 0, (1, 4, 16, 512, 64)
    ),
}  # fmt: skip

# Kinds of devices that others have added, each with a function that gives its TpuInfo.
registry: dict[str, Callable[[], TpuInfo]] = {}


def _info(version: ChipVersion, num_cores: int) -> TpuInfo:
    chip = _CHIPS[version]
    of_core = lambda whole: int(whole // version.num_physical_tensor_cores_per_chip)
    sparse = None
    if chip.sparse is not None:
        cores, subcores, lanes, kib, granule = chip.sparse
        sparse = SparseCoreInfo(
            num_cores=cores, num_subcores=subcores, num_lanes=lanes, vmem_capacity_bytes=kib << 10,
            dma_granule_size_bytes=granule,
        )  # fmt: skip
    return TpuInfo(
        chip_version=version, generation=chip.generation, num_cores=num_cores, num_lanes=128, num_sublanes=8,
        mxu_column_size=chip.column, num_mxus=chip.units, num_accumulators=chip.accumulators,
        vmem_capacity_bytes=chip.vmem_mib << 20, cmem_capacity_bytes=of_core(chip.cmem),
        smem_capacity_bytes=chip.smem_kib << 10, hbm_capacity_bytes=of_core(chip.hbm),
        mem_bw_bytes_per_second=of_core(chip.bandwidth), bf16_ops_per_second=of_core(chip.bf16),
        int8_ops_per_second=of_core(chip.int8), fp8_ops_per_second=of_core(chip.fp8),
        int4_ops_per_second=of_core(chip.int4), sparse_core=sparse,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------------
# What users call


def _meant() -> AbstractDevice:
    """The kind of device that the mesh of the context is meant for, else the one that arrays go to."""
    return context_device() or AbstractDevice.of(default_device())


def is_tpu_device() -> bool:
    """Whether programs run on, or, under a mesh for such a device, are meant for a TPU.

    >>> import meshrt
    >>> from meshrt.sharding import AbstractDevice
    >>> chip = AbstractDevice("TPU v5 lite", 1, "tpu")
    >>> with meshrt.sharding.use_abstract_mesh(meshrt.sharding.AbstractMesh((4,), ("x",), abstract_device=chip)):
    ...     is_tpu_device()
    True
    """
    return _meant().device_kind in _BY_DEVICE_KIND


def get_tpu_info() -> TpuInfo:
    """What a core of the device has that programs run on, or that the mesh of the context is meant for.

    >>> import meshrt
    >>> from meshrt.sharding import AbstractDevice
    >>> chip = AbstractDevice("TPU v6 lite", 1, "tpu")
    >>> with meshrt.sharding.use_abstract_mesh(meshrt.sharding.AbstractMesh((4,), ("x",), abstract_device=chip)):
    ...     get_tpu_info().mxu_column_size
    256

    Raises:
      ArgumentValueError: the device is not a TPU that is known.
    """
    device = _meant()
    if device.device_kind in _BY_DEVICE_KIND:
        return _info(_BY_DEVICE_KIND[device.device_kind], device.num_cores or 1)
    if device.device_kind in registry:
        return registry[device.device_kind]()
    raise errors.ArgumentValueError(
        f"Unsupported TPU device kind: {device.device_kind}. Without a TPU name the chip, "
        "get_tpu_info_for_chip(ChipVersion.TPU_V5E, 1), or enter a mesh whose abstract_device is one"
    )


@functools.cache
def get_tpu_info_for_chip(chip_version: ChipVersion, num_tensor_cores_per_logical_device: int) -> TpuInfo:
    """What a core of a chip has.

    Args:
      chip_version: the kind of chip.
      num_tensor_cores_per_logical_device: 2 where both cores of a v4 or v5p are one device, else 1.

    >>> get_tpu_info_for_chip(ChipVersion.TPU_V4, 2).is_megacore
    True

    Raises:
      ArgumentValueError: a chip whose cores are devices of their own, and another number than 1.
    """
    if not chip_version.supports_megacore and num_tensor_cores_per_logical_device != 1:
        raise errors.ArgumentValueError(
            "Lite chips and dual-core chips that do not support Megacore must have "
            f"num_tensor_cores_per_logical_device=1, but got {num_tensor_cores_per_logical_device} for {chip_version}."
        )
    return _info(chip_version, num_tensor_cores_per_logical_device)
