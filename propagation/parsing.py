"""Text and bytecode as MLIR modules, with the errors of this package where MLIR refuses them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from . import bytecode, errors, limits
from .contexts import context
from .locations import location_text

__all__ = ["parse", "parse_location", "utf8_errors", "written_location_text"]


def parse(
    module: str | bytes | ir.Module, trusted: bool = False, file: str | None = None, into: ir.Context | None = None
) -> ir.Module:
    """The `ir.Module` of text or bytecode; an `ir.Module` is returned as it is.

    Text is checked against the limits of `propagation.limits` first, bytecode is turned into text by a child process,
    because MLIR's readers end the process on some malformed input. `trusted` input goes to MLIR at once. `file` is the
    file that text was read from: MLIR reads it again, so that operations without a location have their place in it.
    `into` is the context (default: `context`).

    Raises `ModuleParseError` for what is no module, and its subclass `LimitError` for what is too large or too deeply
    nested.
    """
    if isinstance(module, ir.Module):
        return module
    if not isinstance(module, str | bytes):
        raise errors.ModuleParseError(f"expected text, bytes or an ir.Module, got {type(module).__name__}")
    is_bytecode = isinstance(module, bytes) and module.startswith(bytecode.MAGIC)
    if not trusted:
        if isinstance(module, bytes) and is_bytecode:
            if len(module) > limits.MAX_BYTES:
                raise errors.LimitError(f"{len(module):,} bytes of bytecode; at most {limits.MAX_BYTES:,} are read")
            module = bytecode.to_text(module)
        limits.check_text(module)
    try:
        with into if into is not None else context(len(module)):
            reread = file if not is_bytecode and file is not None and _is_readable(file) else None
            parsed = ir.Module.parse(module) if reread is None else ir.Module.parseFile(reread)
            return _from_portable(parsed, module)
    except ir.MLIRError as e:
        raise _typed(e) from None
    except (ValueError, UnicodeError, MemoryError) as e:
        raise errors.ModuleParseError(f"not a module: {' '.join(str(e).split())[:300]}") from None


def parse_location(text: str) -> ir.Location:
    """A location from what stands between the parentheses of `loc(...)`."""
    with context():
        return ir.Module.parse(f"module {{}} loc({text})").operation.location


# A line, and nothing else; reading one takes a hundredth of the time of parsing it.
_LINE = re.compile(r'"([^"\\]+)":([0-9]+)(?::[0-9]+(?: to [0-9:]+)?)?')


def written_location_text(text: str) -> str | None:
    """The `location_text` of what stands between the parentheses of `loc(...)`.

    >>> written_location_text('"train.py":7:3 to :9'), written_location_text('"tanh"("train.py":7:3)')
    ('train.py:7', 'train.py:7')
    """
    line = _LINE.fullmatch(text)
    return location_text(parse_location(text)) if line is None else f"{line[1]}:{line[2]}"


def _is_readable(file: str) -> bool:
    """Whether MLIR can read a file by this name: it takes names in UTF-8 only."""
    return os.path.isfile(file) and not any("\ud800" <= c <= "\udfff" for c in file)


def _from_portable(parsed: ir.Module, data: str | bytes) -> ir.Module:
    """StableHLO from a portable artifact (VHLO, what exporters write); any other module as it is."""
    if not any(op.operation.name.startswith("vhlo.") for op in parsed.body.operations):
        return parsed
    if isinstance(data, str):
        raise errors.ModuleParseError("a portable artifact (VHLO) must be given as the bytes of its file, not as text")
    return stablehlo.deserialize_portable_artifact(parsed.context, data)


# What the verifier of the sdy dialect says, the error that it is, and what to do about it.
_VERIFIER = (
    (r"unknown axis name", errors.UnknownAxisError, "use an axis of the sharding's mesh"),
    (r"unknown mesh", errors.UnknownMeshError, "define it with sdy.mesh"),
    (r"duplicate axis", errors.AxisReuseError, "an axis may be used once"),
    (
        r"both sub-axis and full-axis|overlapping sub-axes",
        errors.OverlappingAxesError,
        "use disjoint parts of the axis",
    ),
    (r"consecutive sub-axes can be merged", errors.OverlappingAxesError, "write them as one"),
    (r"sub-axis", errors.SubAxisError, "(pre)size needs pre*size to divide the axis size, and size to be smaller"),
    (r"tensor rank|doesn't match.*rank", errors.RankMismatchError, "write one {...} per dimension"),
    (
        r"mapping rank|op_sharding_rule|factor",
        errors.BadRuleError,
        "the rule must fit the operation's operands and results",
    ),
)


def _typed(error: ir.MLIRError) -> errors.PropagationError:
    """MLIR's first message as one of our errors."""
    where, message = None, " ".join(str(error).split())[:300]
    for d in error.error_diagnostics:
        where = re.sub(r"^loc\((.*)\)$", r"\1", str(d.location)).replace('"', "")
        message = " ".join(d.message.split())[:300]
        break
    for pattern, kind, fix in _VERIFIER:
        if re.search(pattern, message):
            return kind(f"{message}; {fix}", where)
    return errors.ModuleParseError(message, where)


@contextlib.contextmanager
def utf8_errors() -> Iterator[None]:
    """What MLIR's bindings raise for text that is not UTF-8 as a `ModuleParseError`. Attributes are read when first
    asked for, so this is around every pass, not only around `read`."""
    try:
        yield
    except (UnicodeDecodeError, RuntimeError) as e:
        if isinstance(e, RuntimeError) and "conversion error" not in str(e):
            raise
        raise errors.ModuleParseError("a name or text in the module is not UTF-8") from None
