"""Programs in files of other formats: exported functions, ours and JAX's."""

from __future__ import annotations

from meshrt.errors import SavedProgramError, TargetError
from meshrt.export.container import MAGIC, module_of
from meshrt.pipeline.container import is_compiled

__all__ = ["module_in"]

_BYTECODE = b"ML\xefR"


def module_in(data: bytes, name: str) -> bytes | None:
    """The StableHLO in an exported function (`Exported.serialize` of ours, `jax.export`'s of JAX); None for what is
    neither, such as a module itself.

    Raises:
      TargetError: a compiled program, which has machine code only. SavedProgramError: an export that is damaged.
    """
    if data.startswith(MAGIC):
        return module_of(data)
    if is_compiled(data):
        raise TargetError(
            f"{name}: is a compiled program (Compiled.save), in which there is machine code only; give what it was "
            "made of: the function, its export, or lowered.as_text()"
        )
    if data.startswith(_BYTECODE) or not _is_binary(data):
        return None
    # Start-up time: files of JAX's need the room of exports.
    from meshrt.export.jax_format import module_of_jax

    try:
        return module_of_jax(data)
    except SavedProgramError:
        return None  # whoever reads it as a module says what it is not


def _is_binary(data: bytes) -> bool:
    """Whether no text begins so."""
    return b"\0" in data[:64]
