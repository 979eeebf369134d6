"""StableHLO as bytes that other versions read, and what is asked of such a module."""

from __future__ import annotations

import re

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from meshrt import errors
from meshrt.lowering.legalize import operations, portable_artifact
from meshrt.xla import jaxlib_api
from meshrt.xla.mlir import bytecode
from propagation.bytecode import check
from propagation.errors import PropagationError
from propagation.parsing import parse

__all__ = [
    "bytecode_of", "check_artifact", "custom_calls", "newest_version", "numbers", "read_artifact", "target_version",
    "write_artifact",
]  # fmt: skip

# How a portable artifact begins: MLIR's magic, the version of its bytecode, who wrote it.
_ARTIFACT = re.compile(rb"ML\xefR.StableHLO_v(\d{1,9}\.\d{1,9}\.\d{1,9})\0", re.DOTALL)

# Consumers of at most this age in weeks read what is written by default.
_WEEKS = {4: "WEEK_4", 12: "WEEK_12"}


def target_version(wanted: str | int | None = None) -> str:
    """The version of StableHLO to write: a number such as "1.9.0", the one that consumers of 4 or 12 weeks of age
    read, "current", or by default that for 4 weeks.

    Raises:
      ArgumentValueError: none of these, or a version that cannot be written.
    """
    requirement = stablehlo.StablehloCompatibilityRequirement
    if wanted is None or wanted in _WEEKS:
        name = _WEEKS[4 if wanted is None else int(wanted)]
        return str(stablehlo.get_version_from_compatibility_requirement(getattr(requirement, name)))
    if wanted == "current":
        return str(stablehlo.get_current_version())
    low, high = stablehlo.get_minimum_version(), stablehlo.get_current_version()
    try:
        number = numbers(str(wanted))
        bounds = [numbers(v) for v in (low, high)]
    except ValueError:
        number, bounds = (), [(), ()]
    if len(number) != 3 or not bounds[0] <= number <= bounds[1]:
        raise errors.ArgumentValueError(
            f"StableHLO version {wanted!r} cannot be written: give one between {low} and {high}, 4 or 12 (weeks of age "
            "of what reads it), or 'current'"
        )
    return str(wanted)


def newest_version() -> str:
    """The newest version of StableHLO that can be written and read."""
    return str(stablehlo.get_current_version())


def numbers(version: str) -> tuple[int, ...]:
    """A version in an order: (1, 9, 0); none comes first."""
    return tuple(map(int, version.split("."))) if version else ()


def write_artifact(text: str, version: str) -> bytes:
    """A portable artifact of a module.

    Raises:
      CompileError: it is no module, or has an operation that the version does not have.
    """
    return portable_artifact(jaxlib_api.parse(text), version)


def read_artifact(data: str | bytes, *, trusted: bool) -> ir.Module:
    """The module of a portable artifact or of bytecode. What this process has not written is read with limits.

    Raises:
      SavedProgramError: it is no module.
      IncompatibleProgramError: it is of a newer version of StableHLO, and says what this one has no words for.
    """
    try:
        return parse(data, trusted=trusted)
    except (PropagationError, RuntimeError) as e:
        raise _unread(data, e) from None


def check_artifact(data: bytes) -> None:
    """Whether `read_artifact` can read it. That is found out by a child process: MLIR's reader ends the process on some
    of what it does not know. Errors as there."""
    try:
        check(data)
    except PropagationError as e:
        raise _unread(data, e) from None


def _unread(data: str | bytes, error: Exception) -> errors.SavedProgramError:
    found = None if isinstance(data, str) else _ARTIFACT.match(data)
    if found is not None and numbers(found[1].decode()) > numbers(newest_version()):
        return errors.IncompatibleProgramError(
            f"the exported program is written in StableHLO {found[1].decode()}, and jaxlib {jaxlib_api.RELEASE} "
            f"reads up to {newest_version()} and does not have all that is in it: {error}. Write it for an older "
            "version with serialize(stablehlo_version=12) or a number, or read it with a newer jaxlib"
        )
    return errors.SavedProgramError(
        f"the exported program holds no StableHLO that this version reads: {error}. Export it again"
    )


def bytecode_of(module: ir.Module) -> bytes:
    """A module as bytecode, which this version of jaxlib reads."""
    return bytecode(module)


def custom_calls(module: ir.Module) -> list[tuple[str, str]]:
    """The targets of custom calls, with where they come from."""
    found = []
    for op in operations(module):
        if op.name == "stablehlo.custom_call":
            found.append((ir.StringAttr(op.attributes["call_target_name"]).value, str(op.location)))
    return found
