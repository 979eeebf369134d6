"""What an exported program may hold, and which checks its user may turn off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from meshrt import errors
from meshrt.runtime import backend

__all__ = [
    "DisabledSafetyCheck", "asked_checks", "asked_platforms", "check_custom_calls", "default_export_platform",
    "maximum_supported_calling_convention_version", "minimum_supported_calling_convention_version",
]  # fmt: skip

minimum_supported_calling_convention_version = 9
maximum_supported_calling_convention_version = 10

_LAPACK = [
    f"lapack_{kind}{name}_ffi"
    for name in (
        "potrf", "geqrf", "geev", "gesdd", "getrf", "gehrd", "gees", "trsm", "gtsv",
    )
    for kind in "sdcz"
] + [
    f"lapack_{kind}_ffi"
    for kind in (
        "sorgqr", "dorgqr", "cungqr", "zungqr", "ssyevd", "dsyevd", "cheevd", "zheevd", "ssytrd", "dsytrd", "chetrd",
        "zhetrd",
    )
]  # fmt: skip
_CUDA = [
    "cu_lu_pivots_to_permutation", "cu_threefry2x32_ffi", "cusolver_geqrf_ffi", "cusolver_gesvd_ffi",
    "cusolver_gesvdj_ffi", "cusolver_getrf_ffi", "cusolver_orgqr_ffi", "cusolver_potrf_ffi", "cusolver_syevd_ffi",
    "cusolver_sytrd_ffi", "cusparse_gtsv2_ffi",
]  # fmt: skip
_ROCM = [name.replace("cu_", "hip_").replace("cusolver", "hipsolver") for name in _CUDA]
_EVERYWHERE = [
    "AllocateBuffer", "ApproxTopK", "Eigh", "LuDecomposition", "ProductOfElementaryHouseholderReflectors", "Qr",
    "SPMDFullToShardShape", "SPMDShardToFullShape", "Sharding", "annotate_device_placement", "shape_assertion",
    "stablehlo.dynamic_approx_top_k", "stablehlo.dynamic_reduce_window", "stablehlo.dynamic_rng_bit_generator",
    "stablehlo.dynamic_top_k", "tpu_custom_call",
]  # fmt: skip
# Custom calls that their owners keep as they are from version to version.
_STABLE = frozenset([*_LAPACK, *_CUDA, *_ROCM, *_EVERYWHERE])


class DisabledSafetyCheck:
    """A check of `export` that is not made: `platform()` or `custom_call(target)`.

    >>> DisabledSafetyCheck.custom_call("my_kernel")
    custom_call:my_kernel
    """

    __slots__ = ("_name",)

    def __init__(self, name: str):
        self._name = name

    @classmethod
    def platform(cls) -> DisabledSafetyCheck:
        """Lets a program be called on platforms for which it was not exported."""
        return cls("platform")

    @classmethod
    def custom_call(cls, target_name: str) -> DisabledSafetyCheck:
        """Lets a program hold custom calls of a target that nobody promises to keep. ArgumentTypeError for no text."""
        if not isinstance(target_name, str):
            raise errors.ArgumentTypeError(f"the target of a custom call is a text. Got {target_name!r}")
        return cls(f"custom_call:{target_name}")

    def is_custom_call(self) -> str | None:
        """The target that is let through, None for the other check."""
        kind, _, target = self._name.partition(":")
        return target if kind == "custom_call" and target else None

    def __str__(self) -> str:
        return self._name

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DisabledSafetyCheck) and self._name == other._name

    def __hash__(self) -> int:
        return hash(self._name)


def default_export_platform() -> str:
    """The platform for which `export` writes by default, that of the default backend: "cpu", "cuda", "rocm", "tpu".

    >>> default_export_platform()
    'cpu'
    """
    return backend.default_platform()


def asked_platforms(platforms: Any) -> tuple[str, ...]:
    """The platforms that somebody asks for, by their names; none for None.

    Raises:
      ArgumentTypeError: no names. ArgumentValueError: one twice, or "gpu", which does not say which.
    """
    wanted = "platforms are names such as ('cpu', 'cuda')"
    if platforms is None or isinstance(platforms, str):
        found: tuple[Any, ...] = (platforms,) if platforms else ()
    elif isinstance(platforms, Iterable):
        found = tuple(platforms)
    else:
        raise errors.ArgumentTypeError(f"{wanted}. Got {platforms!r}")
    if not all(isinstance(p, str) and p for p in found):
        raise errors.ArgumentTypeError(f"{wanted}. Got {platforms!r}")
    if len(set(found)) != len(found):
        raise errors.ArgumentValueError(f"platforms must be different. Got {found}")
    if "gpu" in found:
        raise errors.ArgumentValueError(f"platforms {found}: 'gpu' is no platform; say which, 'cuda' or 'rocm'")
    return found


def asked_checks(disabled: Any) -> tuple[DisabledSafetyCheck, ...]:
    """The checks that somebody wants not to be made. ArgumentTypeError for what are none."""
    found = tuple(disabled) if isinstance(disabled, Iterable) else (None,)
    if not all(isinstance(c, DisabledSafetyCheck) for c in found):
        raise errors.ArgumentTypeError(
            "disabled_checks are DisabledSafetyCheck.platform() and DisabledSafetyCheck.custom_call(target). "
            f"Got {disabled!r}"
        )
    return found


def check_custom_calls(targets: Sequence[tuple[str, str]], disabled: Sequence[DisabledSafetyCheck]) -> None:
    """Raises ArgumentValueError for custom calls, as targets with their source lines, that no one keeps as they are."""
    allowed = {c.is_custom_call() for c in disabled}
    refused = [(target, where) for target, where in targets if target not in _STABLE and target not in allowed]
    if refused and "ALL" not in allowed:
        listed = "\n".join(f"  {target} at {where}" for target, where in refused[:10])
        raise errors.ArgumentValueError(
            "Cannot serialize code with custom calls whose targets have no compatibility guarantees. Examples are:\n"
            f"{listed}\nLet one through with disabled_checks=[DisabledSafetyCheck.custom_call({refused[0][0]!r})], or "
            "express it by other operations"
        )
