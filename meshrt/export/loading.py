"""Exported functions from bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from meshrt import errors, tree_files
from meshrt.core import effects
from meshrt.core.as_data import type_from_data
from meshrt.core.dimensions.scope import SymbolicScope
from meshrt.export.artifact import check_artifact, newest_version, numbers
from meshrt.export.checks import DisabledSafetyCheck
from meshrt.export.container import json_of, unpack
from meshrt.export.executables import StoredExecutable, from_sections
from meshrt.export.exported import Exported
from meshrt.export.record import split_types
from meshrt.sharding.as_data import mesh_from_data, sharding_from_data
from meshrt.sharding.named import NamedSharding
from meshrt.xla import jaxlib_api

__all__ = ["deserialize", "flat"]

_MAX_DERIVATIVES = 32
# What descriptions that make no sense raise where they are read.
_SENSELESS = (errors.MeshrtError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
_EFFECTS = {e.name: e for e in (effects.DEBUG, effects.ORDERED_DEBUG, effects.IO, effects.ORDERED_IO, effects.NO_DCE)}


def deserialize(blob: bytes | bytearray | memoryview, *, with_executable: bool = False) -> Exported:
    """The exported function that `Exported.serialize` wrote.

    >>> import meshrt, numpy as np
    >>> from meshrt import export
    >>> exported = export.export(meshrt.jit(lambda x: x + 1))(np.float32(0))
    >>> float(deserialize(exported.serialize()).call(np.float32(2)))
    3.0

    Args:
      with_executable: whether calls may run compiled code that the file has (`serialize(with_executable=True)`) instead
        of compiling. It is offered to them where everything that it was compiled by and for is the same here
        (`executables` of the result tells), and taken by those of the program that it was compiled of. Machine code
        runs with your rights: say so only of files from those you trust.

    Raises:
      SavedProgramError: damaged, cut off, or no such bytes. IncompatibleProgramError: bytecode or text of another
        version of jaxlib; an artifact of a newer version of StableHLO with an operation or type that this one does not
        have. TreeError: a structure with classes that are not registered here.
    """
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise errors.ArgumentTypeError(f"an exported function is read from bytes. Got {type(blob).__name__}")
    found = _read(unpack(blob), 0)
    if with_executable:
        return dataclasses.replace(found, executables=tuple(e.offered() for e in found.executables))
    return found


def flat(blob: bytes) -> Exported:
    """The exported function of a file, to be looked at: without structures of arguments and results, for which classes
    would have to be registered, and without derivatives. Errors as `deserialize`."""
    return _read({name: data for name, data in unpack(blob).items() if name != "vjp"}, 0, is_flat=True)


def _read(sections: Mapping[str, memoryview], depth: int, is_flat: bool = False) -> Exported:
    manifest, trees, types, shard = (json_of(sections, name) for name in ("manifest", "trees", "types", "shard"))
    try:
        if is_flat:
            args, results = (["*"] * len(types[k]) for k in ("arguments", "results"))
            trees = {"arguments": {"tuple": [{"tuple": args}, {"dict": [], "of": []}]}, "results": {"tuple": results}}
        made = _exported(manifest, trees, types, shard, sections, depth)
    except (errors.SavedProgramError, errors.TreeError, errors.UnsupportedError):
        raise
    except _SENSELESS as e:
        raise errors.SavedProgramError(
            f"the exported function has a description that this meshrt cannot read ({type(e).__name__}: {e}); write it "
            "again with Exported.serialize()"
        ) from None
    return made


def _exported(
    manifest: Any, trees: Any, types: Any, shard: Any, sections: Mapping[str, memoryview], depth: int
) -> Exported:
    if manifest["tier"] != "stable" and manifest["jaxlib"] != jaxlib_api.RELEASE:
        raise errors.IncompatibleProgramError(
            f"the exported function {manifest['function']} is {manifest['tier']} of jaxlib {manifest['jaxlib']}, which "
            f"jaxlib {jaxlib_api.RELEASE} may not read; serialize it with tier='stable'"
        )
    scope = None if types["constraints"] is None else SymbolicScope([str(c) for c in types["constraints"]])
    in_avals, out_avals = (tuple(type_from_data(t, scope) for t in types[k]) for k in ("arguments", "results"))
    meshes = [mesh_from_data(m) for m in shard["meshes"]]
    in_shardings, out_shardings = (tuple(_sharding(r, meshes) for r in shard[k]) for k in ("arguments", "results"))
    in_avals, out_avals = split_types(in_avals, in_shardings), split_types(out_avals, out_shardings)
    in_tree, out_tree = (tree_files.from_data(trees[k]) for k in ("arguments", "results"))
    kept = tuple(manifest["kept"])
    mesh = meshes[0] if shard["of program"] else None
    fits = (
        in_tree.num_leaves == len(in_avals) == len(in_shardings)
        and out_tree.num_leaves == len(out_avals) == len(out_shardings)
        and all(type(k) is int and 0 <= k < len(in_avals) for k in kept)
        and manifest["devices"] == (1 if mesh is None else mesh.size)
        and "module" in sections
    )
    if not fits:
        raise ValueError("its structures, types, shardings and devices do not fit together")
    if manifest["tier"] == "stable" and numbers(manifest["stablehlo"]) > numbers(newest_version()):
        # Every operation carries the version of its meaning, so what can be read means what it says. What cannot is
        # found here rather than at the first call.
        check_artifact(bytes(sections["module"]))
    derivative = None
    if "vjp" in sections:
        if depth >= _MAX_DERIVATIVES:
            raise ValueError(f"more than {_MAX_DERIVATIVES} derivatives")
        derivative = _read(unpack(sections["vjp"]), depth + 1)
    return Exported(
        fun_name=str(manifest["function"]),
        in_tree=in_tree,
        in_avals=in_avals,
        out_tree=out_tree,
        out_avals=out_avals,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        nr_devices=manifest["devices"],
        platforms=tuple(str(p) for p in manifest["platforms"]),
        ordered_effects=tuple(_EFFECTS[e] for e in manifest["ordered effects"]),
        unordered_effects=tuple(_EFFECTS[e] for e in manifest["unordered effects"]),
        disabled_safety_checks=tuple(DisabledSafetyCheck(str(c)) for c in manifest["disabled checks"]),
        mlir_module_serialized=bytes(sections["module"]),
        calling_convention_version=int(manifest["calling convention"]),
        module_kept_var_idx=kept,
        uses_global_constants=bool(manifest["global constants"]),
        stablehlo_version=str(manifest["stablehlo"]),
        mesh=mesh,
        is_repartitioned=bool(manifest.get("repartitioned", False)),
        executables=_executables(sections),
        _get_vjp=None if derivative is None else lambda primal: derivative,
    )


def _sharding(row: Any, meshes: Sequence[Any]) -> NamedSharding | None:
    return None if row is None else sharding_from_data(meshes[row["mesh"]], row)


def _executables(sections: Mapping[str, memoryview]) -> tuple[StoredExecutable, ...]:
    if "execs" not in sections and "code" not in sections:
        return ()
    return from_sections(json_of(sections, "execs"), sections["code"])
