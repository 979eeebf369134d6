"""What the compilers of the platforms take: dialects, versions of StableHLO, element types, custom calls.

A compiler's row is the table's below, changed by what its client says of itself, by `configs/backends/NAME.toml` and by
NAME.toml in the folder of the setting `backend_configs`. Plugins that no row knows get a cautious one: StableHLO only.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from meshrt import errors
from meshrt.config import settings

__all__ = ["BackendCapabilities", "capabilities_of", "is_older", "known_backends"]


@dataclass(frozen=True, slots=True)
class BackendCapabilities:
    """What a compiler takes.

    name                the platform: "cpu", "cuda", "rocm", "tpu", or a plugin's
    stable_only         modules cross as portable artifacts of the newest version that it reads
    oldest, newest      the versions of StableHLO that it reads; "current" is that of this jaxlib
    chlo, sdy, shape    whether it takes operations of these dialects beside StableHLO
    custom_calls        patterns of the targets that it knows; ("*",) where only it can tell
    not_custom_calls    patterns of targets among these that it does not know
    not_operations      operations that it does not take, with their dialect: "stablehlo.cholesky"; those that it takes,
                        but not of some element types, with these: "stablehlo.remainder of complex<f32> complex<f64>"
    wider               operations that are done for it on a wider element type wherever that is exact, with the narrow
                        types: "stablehlo.concatenate of i2 ui2"
    not_dtypes          element types that it does not take, in MLIR's words: "f64", "f8E4M3"
    sources             where each fact is from

    >>> capabilities_of("cpu").supports("stablehlo", "add", "1.9.0")
    True
    >>> capabilities_of("somebody's").supports("chlo")
    False
    """

    name: str
    stable_only: bool = True
    oldest: str = "0.9.0"
    newest: str = "0.9.0"
    chlo: bool = False
    sdy: bool = False
    shape: bool = False
    custom_calls: tuple[str, ...] = ("*",)
    not_custom_calls: tuple[str, ...] = ()
    not_operations: tuple[str, ...] = ()
    wider: tuple[str, ...] = ()
    not_dtypes: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    def supports(
        self, dialect: str, op: str | None = None, version: str | None = None, dtype: str | None = None
    ) -> bool:
        """Whether the compiler takes a dialect, an operation of it, as it is in a version of StableHLO.

        The answer is cautious: no for operations that nobody here knows.

        Args:
          dialect: "stablehlo", "chlo", ...
          op: an operation without its dialect, "add"; None for the dialect as such.
          version: a version of StableHLO, in which programs are written for it; None for any that it reads.
          dtype: an element type of what the operation takes or gives, "complex<f32>"; None for those of most programs.
        """
        if not self.takes_dialect(dialect):
            return False
        written = None if version is None else _number(version)
        if written is not None and not _number(self.oldest_version) <= written <= _number(self.newest_version):
            return False
        if op is None:
            return True
        from propagation.ops import OPS  # start-up time: compiling asks for no single operation

        name = f"{dialect}.{op}"
        if name not in OPS or self.refused_of(name) == () or dtype in self.not_dtypes:
            return False
        if dtype in (self.refused_of(name) or ()):
            return False
        first = _number(_FIRST_VERSIONS.get(name, "0.9.0"))
        return first <= (_number(self.newest_version) if written is None else written)

    @property
    def oldest_version(self) -> str:
        """The oldest version of StableHLO that it reads, as a number."""
        return _current() if self.oldest == "current" else self.oldest

    @property
    def newest_version(self) -> str:
        """The newest version of StableHLO that it reads, as a number."""
        return _current() if self.newest == "current" else self.newest

    def takes_dialect(self, dialect: str) -> bool:
        """Whether it takes operations of a dialect."""
        return dialect in ("builtin", "func", "stablehlo") or (
            dialect in ("chlo", "sdy", "shape") and bool(getattr(self, dialect))
        )

    def refused_of(self, operation: str) -> tuple[str, ...] | None:
        """The element types of which it does not take an operation, none for any; None where it takes all."""
        return _by_operation(self.not_operations).get(operation)

    def wider_of(self, operation: str) -> tuple[str, ...]:
        """The element types of which an operation is done on wider ones."""
        return _by_operation(self.wider).get(operation, ())

    def takes_custom_call(self, target: str) -> bool:
        """Whether it may know the target of a custom call."""
        if any(fnmatchcase(target, p) for p in self.not_custom_calls):
            return False
        return any(fnmatchcase(target, p) for p in self.custom_calls)


@functools.lru_cache(64)
def _by_operation(entries: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """By operation the element types that stand behind it, none where it stands alone."""
    named = [entry.partition(" of ") for entry in entries]
    return {name.strip(): tuple(dtypes.split()) for name, _, dtypes in named}


# Operations that are younger than StableHLO 0.9.0, with the first version that has them (stablehlo/dialect/VhloOps.td),
# or that of the first jaxlib that was seen with it.
_FIRST_VERSIONS = {
    "stablehlo.collective_broadcast": "0.16.0",
    "stablehlo.composite": "0.19.0",
    "stablehlo.tan": "1.4.0",
    "stablehlo.async_start": "1.17.0",
    "stablehlo.async_done": "1.17.0",
    "stablehlo.collective_reduce": "1.22.0",
}

# What stands only for a shape check, which is made before a program is compiled.
_CHECKS = ("shape_assertion",)
_CPU_ONLY = ("lapack_*", "xla_ffi_python_cpu_callback", "xla_ffi_partitioned_python_cpu_callback")
_CUDA_ONLY = ("cusolver_*", "cusparse_*", "cu_*", "cudnn_*", "xla_ffi_python_gpu_callback", "mosaic_gpu*")
_ROCM_ONLY = ("hipsolver_*", "hipsparse_*", "hip_*")
_TPU_ONLY = ("tpu_custom_call", "LuDecomposition")

# What ends the process of XLA's compiler for CPUs, by element types: found by compiling every operation of every type.
_NARROW = "i1 i2 i4 i8 i16 ui2 ui4 ui8 ui16"
_INTEGERS = f"{_NARROW} i32 i64 ui32 ui64"
_NARROW_FLOATS = "f4E2M1FN f8E3M4 f8E4M3 f8E4M3FN f8E4M3B11FNUZ f8E4M3FNUZ f8E5M2 f8E5M2FNUZ f8E8M0FNU"
_COMPLEX = "complex<f32> complex<f64>"
_CPU_CRASHES = (
    f"stablehlo.remainder of {_COMPLEX}",
    f"stablehlo.rng of {_NARROW} {_NARROW_FLOATS}",
    f"chlo.broadcast_next_after of {_COMPLEX}",
    f"chlo.broadcast_polygamma of {_INTEGERS} {_COMPLEX}",
    f"chlo.broadcast_remainder of {_COMPLEX}",
)
# Over the first one it ends the process, too. Greatest and least ones of narrow floats it computes one by one (where it
# does not hand them to YNNPACK, which loses NaN: `meshrt/runtime/kernel_library.py`): over a matrix of 1024 x 1024,
# bf16 took 7.9 ms of CPU, f16 3.2, f8E4M3FN 18.5; as f32 they take 0.7 to 1.5. (Measured.)
_CPU_WIDER = ("stablehlo.concatenate of i2 ui2", *(
    f"stablehlo.{op} of bf16 f16 {_NARROW_FLOATS}" for op in ("reduce", "reduce_window")
))  # fmt: skip
# Element types that XLA has none for: its importer ends the process over them.
_NOT_XLA = ("f6E2M3FN", "f6E3M2FN")

_XLA = {
    "chlo": "xla/pjrt/mlir_to_hlo.cc: MlirToXlaComputation legalizes CHLO, 2026-11-23",
    "sdy": "xla/service/spmd/shardy: imported where the option use_shardy_partitioner is on, 2026-11-23",
    "newest": "the version of the jaxlib that holds the compiler, or the client's stablehlo_current_version",
    "not_dtypes": "XLA's primitive types, xla/xla_data.proto, 2026-11-27",
    "not_operations": "compiled in processes of their own, jaxlib 0.10.2 and 0.12, 2026-11-27",
    "wider": "compiled, and CPU time measured, jaxlib 0.10.2, 2026-11-28",
    "not_custom_calls": "targets are registered by platform: jaxlib/cpu/lapack.py, jaxlib/gpu_*.py, 2026-11-23",
}


def _xla(name: str, others: Sequence[str], not_dtypes: Sequence[str] = (), **more: Any) -> BackendCapabilities:
    """A compiler that is XLA's: it reads what jaxlib writes, CHLO and Shardy's attributes too."""
    return BackendCapabilities(
        name, stable_only=False, newest="current", chlo=True, sdy=True,
        not_custom_calls=(*_CHECKS, *others), not_dtypes=(*_NOT_XLA, *not_dtypes), sources=_XLA, **more,
    )  # fmt: skip


def _unknown(name: str) -> BackendCapabilities:
    """A plugin's compiler, of which nothing is known: it is taken to be at most 12 weeks older than this jaxlib."""
    from jaxlib.mlir.dialects import stablehlo  # start-up time, as in `_current`

    requirement = stablehlo.StablehloCompatibilityRequirement.WEEK_12
    newest = stablehlo.get_version_from_compatibility_requirement(requirement)
    return BackendCapabilities(name, newest=newest, sources={"stable_only": "no row knows the compiler"})


def _table() -> dict[str, BackendCapabilities]:
    return {
        "cpu": _xla("cpu", (*_CUDA_ONLY, *_ROCM_ONLY, *_TPU_ONLY), not_operations=_CPU_CRASHES, wider=_CPU_WIDER),
        "cuda": _xla("cuda", (*_CPU_ONLY, *_ROCM_ONLY, *_TPU_ONLY)),
        "rocm": _xla("rocm", (*_CPU_ONLY, *_CUDA_ONLY, *_TPU_ONLY)),
        "tpu": _xla("tpu", (*_CPU_ONLY, *_CUDA_ONLY, *_ROCM_ONLY), not_dtypes=("complex<f64>",)),
    }


def _current() -> str:
    """The version of StableHLO that this jaxlib writes."""
    from jaxlib.mlir.dialects import stablehlo  # start-up time: the dialects' classes take 30 ms

    return str(stablehlo.get_current_version())


def _number(version: str) -> tuple[int, ...]:
    try:
        return tuple(int(p) for p in version.split("."))
    except ValueError:
        raise errors.ArgumentValueError(f"{version!r} is no version of StableHLO; write it as '1.9.0'") from None


def is_older(version: str, operation: str) -> bool:
    """Whether a version of StableHLO does not have an operation yet."""
    return _number(version) < _number(_FIRST_VERSIONS.get(operation, "0.9.0"))


def known_backends() -> tuple[str, ...]:
    """The platforms that the table or a file has a row for."""
    return (*_table(), *sorted({p.stem for folder in _folders() for p in folder.glob("*.toml")} - set(_table())))


def capabilities_of(platform: str, attributes: Mapping[str, Any] | None = None) -> BackendCapabilities:
    """The row of a platform's compiler.

    Args:
      platform: its name.
      attributes: what the client says of itself: `stablehlo_current_version` and `stablehlo_minimum_version`, each
        three numbers.

    Raises:
      ConfigError: a file that says what no row has.
    """
    told = {name: ".".join(map(str, found)) for name, found in (attributes or {}).items() if found is not None}
    said = tuple(sorted(told.items()))
    return _row(platform, said, settings.backend_configs)


@functools.lru_cache(64)
def _row(platform: str, said: tuple[tuple[str, str], ...], configs: str | None) -> BackendCapabilities:
    told = dict(said)
    row = _table().get(platform) or _unknown(platform)
    current = told.get("stablehlo_current_version")
    if current is not None:
        # jaxlib writes no version that is newer than its own.
        newest = min(current, _current(), key=_number)
        row = replace(row, newest=newest, sources={**row.sources, "newest": "the client's stablehlo_current_version"})
    if "stablehlo_minimum_version" in told:
        row = replace(row, oldest=told["stablehlo_minimum_version"])
    for folder in _folders():
        path = folder / f"{platform}.toml"
        if path.is_file():
            row = replace(row, **_read(path))
            if _number(row.oldest_version) > _number(row.newest_version):
                raise errors.ConfigError(
                    f"{path}: the oldest version of StableHLO that the compiler for {platform} reads, "
                    f"{row.oldest_version}, is above the newest, {row.newest_version}"
                )
    return row


def _folders() -> list[Path]:
    """Where files of rows are looked for; the last one has the last word."""
    root = Path(__file__).parent.parent
    named = settings.backend_configs
    if named is not None and not Path(named).is_dir():
        raise errors.ConfigError(
            f"the setting backend_configs names {named}, which is no folder: make it, with NAME.toml for the platform "
            "NAME, or unset it"
        )
    folders = [root / "_configs" / "backends", root.parent / "configs" / "backends"]
    return [*folders, *([Path(named)] if named is not None else [])]


_VERSION = r"\d{1,9}\.\d{1,9}\.\d{1,9}"
_DTYPE = r"(?:u?i\d+|bf16|tf32|f\d+\w*|complex<f\d+>)"
# What the entries of a list look like. (Texts: `re` compiles them when files are read, and keeps them.)
_ENTRIES = {
    "not_operations": rf"[a-z_]\w*\.[\w.]+(?: of(?: {_DTYPE})+)?",
    "wider": rf"[a-z_]\w*\.[\w.]+ of(?: {_DTYPE})+",
    "not_dtypes": _DTYPE,
}
_KINDS = {f.name: f.type for f in fields(BackendCapabilities) if f.name != "name"}


def _read(path: Path) -> dict[str, Any]:
    import tomllib  # start-up time: compilers with files are few

    try:
        data = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise errors.ConfigError(f"cannot read what a backend takes from {path}: {e}") from None
    return {name: _value(path, name, value) for name, value in data.items()}


def _value(path: Path, name: str, value: Any) -> Any:
    kind = str(_KINDS.get(name, ""))
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "str" and isinstance(value, str):
        if value != "current" and not re.fullmatch(_VERSION, value):
            raise errors.ConfigError(f"{path}: {name} = {value!r} is no version of StableHLO; write it as '1.9.0'")
        return value
    if kind.startswith("tuple") and isinstance(value, list) and all(isinstance(v, str) for v in value):
        wrong = next((v for v in value if not re.fullmatch(_ENTRIES.get(name, "(?s:.*)"), v)), None)
        if wrong is None:
            return tuple(value)
        raise errors.ConfigError(
            f"{path}: {wrong!r} in {name} names nothing: operations stand with their dialect, 'stablehlo.sine', or "
            "with element types, 'stablehlo.sine of f16', and these in MLIR's words, 'f16', 'complex<f32>'"
        )
    if kind.startswith("Mapping") and isinstance(value, dict):
        return {str(k): str(v) for k, v in value.items()}
    raise errors.ConfigError(
        f"{path}: {name} = {value!r} says nothing of a backend; the rows are {', '.join(_KINDS)}, true or false, a "
        "version as '1.9.0', or a list of names"
    )
