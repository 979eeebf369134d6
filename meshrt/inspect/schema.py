"""The JSON schema of `meshrt inspect --json`, made from the classes of the report."""

from __future__ import annotations

import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any

from meshrt.inspect.model import Report

__all__ = ["TOTALS", "report_schema"]

_PLAIN: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
# What `Report.as_json` adds up.
TOTALS = {
    "devices": "integer", "bytes_sent_per_device": "number", "argument_bytes_per_device": "number",
    "result_bytes_per_device": "number", "replicated_argument_bytes": "number",
    "peak_bytes_per_device": ["number", "null"], "seconds_sending": "number",
    "seconds_per_run": ["number", "null"],
}  # fmt: skip


def report_schema() -> dict[str, Any]:
    """A JSON schema (draft 2020-12) that the report of every program fits."""
    defined: dict[str, Any] = {}
    report = _object(Report, defined)
    report["properties"]["mesh"] = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}}
    report["properties"]["totals"] = {
        "type": "object", "properties": {name: {"type": kind} for name, kind in TOTALS.items()},
        "required": [*TOTALS], "additionalProperties": False,
    }  # fmt: skip
    report["required"].append("totals")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "meshrt inspect --json", **report,
        "$defs": defined,
    }  # fmt: skip


def _object(cls: type, defined: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {
        "type": "object",
        "description": " ".join((cls.__doc__ or "").partition(">>>")[0].split()),  # examples are for Python
        "properties": {f.name: _of(hints[f.name], defined) for f in fields(cls)},
        "required": [f.name for f in fields(cls)],
        "additionalProperties": False,
    }


def _of(hint: Any, defined: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field: plain values, rows, tuples of them, or None."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_of(a, defined) for a in args]}
    if hint is types.NoneType:
        return {"type": "null"}
    if origin is tuple:
        return {"type": "array", "items": _of(args[0], defined)}
    if is_dataclass(hint) and isinstance(hint, type):
        if hint.__name__ not in defined:
            defined[hint.__name__] = {}
            defined[hint.__name__] = _object(hint, defined)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": _PLAIN[hint]}
