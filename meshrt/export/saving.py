"""Exported functions as bytes: see `docs/export-format.md`."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

from meshrt import errors, tree_files
from meshrt.core.as_data import type_to_data
from meshrt.core.dimensions.expression import is_symbolic_dim
from meshrt.export.artifact import bytecode_of, read_artifact, target_version, write_artifact
from meshrt.export.container import pack
from meshrt.export.executables import Sizes, executables_of, to_sections
from meshrt.export.record import Record
from meshrt.sharding.as_data import mesh_to_data, row_to_data
from meshrt.sharding.mesh import AbstractMesh
from meshrt.version import __version__
from meshrt.xla import jaxlib_api

__all__ = ["serialize"]

TIERS = ("stable", "bytecode", "text")


def serialize(
    exported: Record, vjp_order: int = 0, *, tier: str = "stable", stablehlo_version: str | int | None = None,
    with_executable: Sizes = False,
) -> bytearray:  # fmt: skip
    """See `meshrt.export.Exported.serialize`."""
    if tier not in TIERS:
        raise errors.ArgumentValueError(f"unknown tier {tier!r}: it is one of {', '.join(map(repr, TIERS))}")
    if not isinstance(vjp_order, int) or vjp_order < 0:
        raise errors.ArgumentValueError(f"vjp_order is a number of derivatives. Got {vjp_order!r}")
    version = exported.stablehlo_version if stablehlo_version is None else target_version(stablehlo_version)
    sections = {
        "manifest": _json(_manifest(exported, tier, version)),
        "trees": _json({"arguments": tree_files.to_data(exported.in_tree),
                        "results": tree_files.to_data(exported.out_tree)}),
        "types": _json(_types(exported)),
        "shard": _json(_shardings(exported)),
        "module": _module(exported, tier, version),
    }  # fmt: skip
    if vjp_order:
        derivative = exported.vjp()
        sections["vjp"] = bytes(serialize(derivative, vjp_order - 1, tier=tier, stablehlo_version=stablehlo_version))
    if with_executable is not False:
        # Of the module in the file, so that what reads it finds the same program.
        written = dataclasses.replace(exported, mlir_module_serialized=sections["module"])
        sections |= to_sections(executables_of(written, with_executable))
    return pack(sections)


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _manifest(exported: Record, tier: str, version: str) -> dict[str, Any]:
    return {
        "function": exported.fun_name,
        "platforms": list(exported.platforms),
        "devices": exported.nr_devices,
        "ordered effects": [_effect(e) for e in exported.ordered_effects],
        "unordered effects": [_effect(e) for e in exported.unordered_effects],
        "disabled checks": [str(c) for c in exported.disabled_safety_checks],
        "calling convention": exported.calling_convention_version,
        "kept": list(exported.module_kept_var_idx),
        "global constants": exported.uses_global_constants,
        **({"repartitioned": True} if exported.is_repartitioned else {}),
        "tier": tier,
        "stablehlo": version,
        "meshrt": __version__,
        "jaxlib": jaxlib_api.RELEASE,
    }


def _effect(effect: Any) -> str:
    name = getattr(effect, "name", "")
    if not name:
        raise errors.UnsupportedError(f"the effect {effect!r} has no name by which a file could know it")
    return str(name)


def _types(exported: Record) -> dict[str, Any]:
    avals = (*exported.in_avals, *exported.out_avals)
    scope = next((n.scope for a in avals for n in a.shape if is_symbolic_dim(n)), None)
    return {
        "constraints": None if scope is None else [c.text for c in scope.constraints if c.is_given],
        "arguments": [type_to_data(a) for a in exported.in_avals],
        "results": [type_to_data(a) for a in exported.out_avals],
    }


def _shardings(exported: Record) -> dict[str, Any]:
    meshes: list[AbstractMesh] = [] if exported.mesh is None else [exported.mesh]

    row = functools.partial(row_to_data, meshes=meshes)
    rows = {"arguments": [row(s) for s in exported.in_shardings], "results": [row(s) for s in exported.out_shardings]}
    return {"of program": exported.mesh is not None, "meshes": [mesh_to_data(m) for m in meshes], **rows}


def _module(exported: Record, tier: str, version: str) -> bytes:
    if tier == "stable" and version == exported.stablehlo_version:
        return exported.mlir_module_serialized
    module = read_artifact(exported.mlir_module_serialized, trusted=exported._is_trusted)
    if tier == "bytecode":
        return bytecode_of(module)
    text = str(module.operation.get_asm(enable_debug_info=True))
    return text.encode() if tier == "text" else write_artifact(text, version)
