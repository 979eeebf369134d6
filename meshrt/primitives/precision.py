"""How precisely contractions and elementwise functions are computed: what `precision` and `accuracy` may be."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from meshrt import config, dtypes, errors
from meshrt.core.types import ShapedArray
from meshrt.lowering.types import mlir_type

__all__ = ["AccuracyMode", "DotAlgorithm", "DotAlgorithmPreset", "Precision", "PrecisionLike", "Tolerance"]


class Precision(enum.Enum):
    """How much precision the hardware's matrix units may trade for speed."""

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2

    @classmethod
    def _missing_(cls, value: object) -> Precision | None:
        return _PRECISIONS.get(value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __str__(self) -> str:
        return self.name


_PRECISIONS: dict[Any, Precision] = {
    "highest": Precision.HIGHEST, "float32": Precision.HIGHEST, "high": Precision.HIGH,
    "bfloat16_3x": Precision.HIGH, "tensorfloat32": Precision.HIGH, "default": Precision.DEFAULT,
    "bfloat16": Precision.DEFAULT, "fastest": Precision.DEFAULT, None: Precision.DEFAULT,
}  # fmt: skip


class DotAlgorithm(NamedTuple):
    """How a matrix product is computed: what operands are rounded to, what sums are kept in, by how many products.

    `lhs_component_count` and `rhs_component_count` say into how many parts an operand is split to emulate a higher
    precision, `num_primitive_operations` how many products of parts are added up. Compilers refuse what their hardware
    does not have; `DotAlgorithmPreset` lists what some of it has.

    >>> import numpy as np
    >>> from meshrt import lax
    >>> lax.DotAlgorithm(np.float16, np.float16, np.float32).num_primitive_operations
    1
    """

    lhs_precision_type: Any
    rhs_precision_type: Any
    accumulation_type: Any
    lhs_component_count: int = 1
    rhs_component_count: int = 1
    num_primitive_operations: int = 1
    allow_imprecise_accumulation: bool = False


class DotAlgorithmPreset(enum.Enum):
    """The algorithms for matrix products that some hardware has, named LHS_RHS_SUM after the types they compute in.

    X3, X6 and X9 emulate a higher precision by that many products.
    """

    DEFAULT = enum.auto()
    ANY_F8_ANY_F8_F32 = enum.auto()
    ANY_F8_ANY_F8_F32_FAST_ACCUM = enum.auto()
    ANY_F8_ANY_F8_ANY = enum.auto()
    ANY_F8_ANY_F8_ANY_FAST_ACCUM = enum.auto()
    F16_F16_F16 = enum.auto()
    F16_F16_F32 = enum.auto()
    BF16_BF16_BF16 = enum.auto()
    BF16_BF16_F32 = enum.auto()
    BF16_BF16_F32_X3 = enum.auto()
    BF16_BF16_F32_X6 = enum.auto()
    BF16_BF16_F32_X9 = enum.auto()
    TF32_TF32_F32 = enum.auto()
    TF32_TF32_F32_X3 = enum.auto()
    F32_F32_F32 = enum.auto()
    F64_F64_F64 = enum.auto()

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __str__(self) -> str:
        return self.name

    @property
    def supported_lhs_types(self) -> tuple[Any, ...] | None:
        """The dtypes that a left operand may be stored in, the one to convert others to first; None for any."""
        return _PRESETS[self].stored

    @property
    def supported_rhs_types(self) -> tuple[Any, ...] | None:
        """The same of a right operand."""
        return self.supported_lhs_types

    @property
    def accumulation_type(self) -> Any:
        """What sums are kept in; None for whatever the result is to be."""
        return _PRESETS[self].summed

    def supported_output_types(self, lhs_dtype: Any, rhs_dtype: Any) -> tuple[Any, ...] | None:
        """The dtypes that results may be stored in, the one to compute others from first; None for any."""
        if self.name.startswith("ANY_F8_ANY_F8_F32"):
            return (np.float32, np.float16, *_OUTPUTS_OF_F8)
        summed = self.accumulation_type
        if self in (DotAlgorithmPreset.F16_F16_F32, DotAlgorithmPreset.BF16_BF16_F32):
            narrow = np.float16 if self is DotAlgorithmPreset.F16_F16_F32 else ml_dtypes.bfloat16
            return (summed, narrow) if dtypes.promote_types(lhs_dtype, rhs_dtype) == narrow else (summed,)
        return None if summed is None else (summed,)


class _Preset(NamedTuple):
    """What operands are rounded to, in MLIR's words; what sums are kept in; what operands are stored in; how many
    products are added up."""

    rounded: str
    summed: Any
    stored: tuple[Any, ...] | None
    operations: int = 1


_HALF: tuple[Any, ...] = (np.float16,)
_SINGLE: tuple[Any, ...] = (np.float32,)
_BRAIN: tuple[Any, ...] = (ml_dtypes.bfloat16, np.float32)
_PRESETS: dict[DotAlgorithmPreset, _Preset] = {
    DotAlgorithmPreset.DEFAULT: _Preset("", None, None),
    DotAlgorithmPreset.ANY_F8_ANY_F8_F32: _Preset("", np.float32, None),
    DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM: _Preset("", np.float32, None),
    DotAlgorithmPreset.ANY_F8_ANY_F8_ANY: _Preset("", None, None),
    DotAlgorithmPreset.ANY_F8_ANY_F8_ANY_FAST_ACCUM: _Preset("", None, None),
    DotAlgorithmPreset.F16_F16_F16: _Preset("f16", np.float16, _HALF),
    DotAlgorithmPreset.F16_F16_F32: _Preset("f16", np.float32, _HALF),
    DotAlgorithmPreset.BF16_BF16_BF16: _Preset("bf16", ml_dtypes.bfloat16, _BRAIN),
    DotAlgorithmPreset.BF16_BF16_F32: _Preset("bf16", np.float32, _BRAIN),
    DotAlgorithmPreset.BF16_BF16_F32_X3: _Preset("bf16", np.float32, _SINGLE, 3),
    DotAlgorithmPreset.BF16_BF16_F32_X6: _Preset("bf16", np.float32, _SINGLE, 6),
    DotAlgorithmPreset.BF16_BF16_F32_X9: _Preset("bf16", np.float32, _SINGLE, 9),
    DotAlgorithmPreset.TF32_TF32_F32: _Preset("tf32", np.float32, _SINGLE),
    DotAlgorithmPreset.TF32_TF32_F32_X3: _Preset("tf32", np.float32, _SINGLE, 3),
    DotAlgorithmPreset.F32_F32_F32: _Preset("f32", np.float32, _SINGLE),
    DotAlgorithmPreset.F64_F64_F64: _Preset("f64", np.float64, (np.float64,)),
}
_OUTPUTS_OF_F8 = (
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz,
    ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e4m3b11fnuz,
)  # fmt: skip
# What XLA computes on CPUs as it is asked to; others it would silently compute in the operands' types.
_ON_CPUS = frozenset(
    DotAlgorithmPreset[n]
    for n in (
        "DEFAULT", "F16_F16_F16", "F32_F32_F32", "F64_F64_F64", "BF16_BF16_F32", "BF16_BF16_F32_X3", "BF16_BF16_F32_X6"
    )
)  # fmt: skip

Algorithm = DotAlgorithm | DotAlgorithmPreset
CanonicalPrecision = tuple[Precision, Precision] | Algorithm | None


# What `precision` of a contraction or convolution may be.
PrecisionLike = (
    str | Precision | tuple[str, str] | tuple[Precision, Precision] | DotAlgorithm | DotAlgorithmPreset | None
)


class ComputeTypes(NamedTuple):
    """What a contraction converts its operands to, and the dtype it gives before the result is converted."""

    lhs: Any
    rhs: Any
    out: Any


def compute_types(algorithm: Algorithm, lhs: Any, rhs: Any, out: Any) -> ComputeTypes:
    """The dtypes that a contraction of `lhs` and `rhs` to `out` has under `algorithm`."""
    if isinstance(algorithm, DotAlgorithm):
        types = algorithm.lhs_precision_type, algorithm.rhs_precision_type, algorithm.accumulation_type
        return ComputeTypes(*map(np.dtype, types))
    lhs = _one_of(algorithm.supported_lhs_types, lhs)
    rhs = _one_of(algorithm.supported_rhs_types, rhs)
    return ComputeTypes(lhs, rhs, _one_of(algorithm.supported_output_types(lhs, rhs), out))


def _one_of(supported: tuple[Any, ...] | None, dtype: Any) -> Any:
    if supported is None or dtype in tuple(map(np.dtype, supported)):
        return np.dtype(dtype)
    return np.dtype(supported[0])


def preset_of(algorithm: Algorithm) -> DotAlgorithmPreset | None:
    """The preset that says what `algorithm` does, or None: no preset does it."""
    if isinstance(algorithm, DotAlgorithmPreset):
        return algorithm
    lhs, rhs, summed = map(np.dtype, algorithm[:3])
    if lhs != rhs or algorithm[3:5] != (1, 1) or algorithm.allow_imprecise_accumulation:
        return None
    found = _word(lhs), summed, algorithm.num_primitive_operations
    return next((p for p, a in _PRESETS.items() if a.rounded and (a.rounded, a.summed, a.operations) == found), None)


def is_in_full(precision: CanonicalPrecision) -> bool:
    """Whether products of float32 are those of all of its bits, on hardware that multiplies fewer by default."""
    if isinstance(precision, DotAlgorithm | DotAlgorithmPreset):
        return preset_of(precision) is DotAlgorithmPreset.F32_F32_F32
    return precision == (Precision.HIGHEST, Precision.HIGHEST)


def algorithm_attribute(algorithm: Algorithm, types: ComputeTypes, platform: str) -> str:
    """`#stablehlo.dot_algorithm<...>`, or nothing where the compiler is to choose.

    Raises:
      ArgumentValueError: the platform does not have it, or it takes other dtypes.
    """
    if platform == "cpu" and algorithm not in _ON_CPUS:
        raise errors.ArgumentValueError(
            f"The precision '{algorithm}' is not supported by dot_general on CPU; there are "
            f"{', '.join(sorted(map(str, _ON_CPUS)))}"
        )
    if isinstance(algorithm, DotAlgorithm):
        words = [_word(t) for t in types]
        counts = algorithm.lhs_component_count, algorithm.rhs_component_count, algorithm.num_primitive_operations
        return _algorithm_text(words, counts, algorithm.allow_imprecise_accumulation)
    if algorithm is DotAlgorithmPreset.DEFAULT:
        return ""
    preset = _PRESETS[algorithm]
    if preset.rounded:
        words = [preset.rounded, preset.rounded, _word(np.dtype(preset.summed))]
        return _algorithm_text(words, (1, 1, preset.operations), False)
    if not all(dtypes.finfo(t).bits == 8 if dtypes.issubdtype(t, np.floating) else False for t in types[:2]):
        raise errors.ArgumentValueError(
            f"The dot algorithm '{algorithm}' requires both inputs to have float8 dtypes. Got {types.lhs} and "
            f"{types.rhs} instead."
        )
    words = [_word(t) for t in types[:2]]
    return _algorithm_text([*words, "f32"], (1, 1, 1), algorithm is DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM)


def _word(dtype: Any) -> str:
    """`f32`: the dtype in MLIR."""
    return mlir_type(ShapedArray((), dtype))[len("tensor<") : -1]


def _algorithm_text(words: list[str], counts: tuple[int, int, int], imprecise: bool) -> str:
    lhs, rhs, summed = words
    return (
        f"#stablehlo.dot_algorithm<lhs_precision_type = {lhs}, rhs_precision_type = {rhs}, accumulation_type = "
        f"{summed}, lhs_component_count = {counts[0]}, rhs_component_count = {counts[1]}, num_primitive_operations = "
        f"{counts[2]}, allow_imprecise_accumulation = {str(imprecise).lower()}>"
    )


def canonical_precision(precision: Any) -> CanonicalPrecision:
    """One Precision per operand, an algorithm, or None for the default of both operands."""
    if precision is None:
        precision = config.default_matmul_precision
        if precision is None:
            return None
    if isinstance(precision, str) and precision not in _PRECISIONS and precision in DotAlgorithmPreset.__members__:
        precision = DotAlgorithmPreset[precision]
    if isinstance(precision, DotAlgorithm | DotAlgorithmPreset):
        return precision
    pair = precision if isinstance(precision, tuple | list) else (precision, precision)
    try:
        first, second = (p if isinstance(p, Precision) else _PRECISIONS[p or ""] for p in pair)
    except (KeyError, TypeError, ValueError):
        known = ", ".join(repr(k) for k in _PRECISIONS if k)
        raise errors.ArgumentValueError(
            f"Precision argument must be one of: None, one of {known}, a lax.Precision, a tuple of two of these, a "
            f"lax.DotAlgorithmPreset or its name, or a lax.DotAlgorithm; but got {precision!r}"
        ) from None
    return None if first is second is Precision.DEFAULT else (first, second)


def precision_attribute(precision: CanonicalPrecision) -> str:
    """`[#stablehlo<precision HIGH>, ...]`, one per operand."""
    pair = precision if type(precision) is tuple else (Precision.DEFAULT, Precision.DEFAULT)
    return f"[{', '.join(f'#stablehlo<precision {p}>' for p in pair)}]"


# ---------------------------------------------------------------------------------------------------------------------
# Elementwise functions


@dataclass(frozen=True)
class Tolerance:
    """How far results of an elementwise function may lie from the exact ones: at least one bound, none negative."""

    atol: float = 0.0
    rtol: float = 0.0
    ulps: int = 0

    def __post_init__(self) -> None:
        if self.atol < 0 or self.rtol < 0 or self.ulps < 0:
            raise errors.ArgumentValueError(f"Tolerances must be non-negative, got {self}")
        if not (self.atol or self.rtol or self.ulps):
            raise errors.ArgumentValueError("At least one of atol, rtol, or ulps must be set.")


class AccuracyMode(enum.Enum):
    """Which of several implementations of an elementwise function is taken, where hardware has several."""

    HIGHEST = 1
    DEFAULT = 2


def accuracy_attribute(accuracy: Tolerance | AccuracyMode | None) -> str:
    """The attribute of an elementwise operation that says how accurate it has to be; nothing for None.

    Raises:
      UnsupportedError: it is neither a Tolerance nor an AccuracyMode.
    """
    if accuracy is None:
        return ""
    if isinstance(accuracy, AccuracyMode):
        bounds, mode = "", accuracy.name
    elif isinstance(accuracy, Tolerance):
        mode = "TOLERANCE"
        bounds = f"atol = {accuracy.atol:.17e}, rtol = {accuracy.rtol:.17e}, ulps = {accuracy.ulps}, "
    else:
        raise errors.UnsupportedError(f"Accuracy {accuracy} not supported. Give a lax.Tolerance or a lax.AccuracyMode")
    mode = f"#stablehlo.result_accuracy_mode<{mode}>"
    return f"result_accuracy = #stablehlo.result_accuracy<{bounds}mode = {mode}>"
