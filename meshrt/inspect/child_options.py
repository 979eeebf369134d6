"""What the process that parses a foreign module makes of its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import propagation
from collectives.topology import Topology
from meshrt.inspect.annotations import Annotations, argument_axes
from meshrt.inspect.exported import module_of_export
from meshrt.pipeline.partitioned import platform_options
from propagation.annotation_sites import Edit
from propagation.overrides import annotating
from propagation.program import argument_names

__all__ = ["annotating_of", "module_text", "partitioning_of"]


def module_text(data: bytes, options: Mapping[str, Any]) -> tuple[str | bytes, Mapping[str, Any]]:
    """A module's text, or bytecode as it is, and the options that are still to be followed: an exported function is
    partitioned again for the mesh that they ask for, and called with the numbers that they give for symbolic sizes."""
    if options.get("is_exported"):
        data, mesh, platform = module_of_export(data, options["mesh"], options["sizes"])
        options = {**options, "mesh": mesh, "platform": platform}
    return data if data.startswith(b"ML\xefR") else data.decode("utf-8"), options


def partitioning_of(options: Mapping[str, Any], topology: Topology | None) -> Mapping[str, Any]:
    """How the module is partitioned: one that is known to be for a platform as calls there partition it."""
    if not options.get("platform"):
        return {}
    found = platform_options(options["platform"], {"topology": topology})
    return {name: value for name, value in found.items() if name != "topology"}


def annotating_of(module: str | bytes, options: Mapping[str, Any]) -> Edit | None:
    """What gives the arguments the shardings that `--annotations`, `--annotate` and `--mesh` ask for."""
    if options.get("mesh") is None and options.get("annotations") is None:
        return None
    given = Annotations(**options["annotations"]) if options.get("annotations") else Annotations()
    program = propagation.read(module, options["file"])
    main, named = program.main, next((dict(m.axes) for m in program.meshes.values() if m.axes), {})
    mesh = options.get("mesh") or named
    names = [name or f"arg{i}" for i, name in enumerate(argument_names(main))]
    axes = argument_axes(given, names, [a.type.shape for a in main.args], mesh)
    return annotating(mesh or None, axes)
