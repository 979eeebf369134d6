"""Compiled code beside the program in a file, so that the first call on hardware like the writer's compiles nothing.

The code is that of calls of the exported function as it stands, for one set of sizes. A process that reads it uses it
where it would compile the very same program, for the very same compiler and hardware; else it compiles as without.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.types import ShapedArray
from meshrt.export.calling import call_exported
from meshrt.export.checks import default_export_platform
from meshrt.export.record import Record
from meshrt.jit import jit
from meshrt.pipeline.program import mesh_over
from meshrt.pipeline.saved import target_of
from meshrt.runtime import backend, compile_cache, offers
from meshrt.shape_dtype import ShapeDtypeStruct

__all__ = ["Sizes", "StoredExecutable", "executables_of", "from_sections", "shape_with", "to_sections"]

# Which calls are compiled: those without symbolic sizes, or of each of these.
Sizes = bool | Mapping[str, int] | Sequence[Mapping[str, int]]


@dataclass(frozen=True)
class StoredExecutable:
    """Compiled code of calls of an exported function.

    sizes      a number for each symbolic size
    devices    for how many devices it is
    target     what it was compiled by and for: versions, platform, kind of device, instruction set, flags
    key        of the program: see `meshrt.runtime.offers`
    code       machine code
    """

    sizes: Mapping[str, int]
    devices: int
    target: Mapping[str, Any]
    key: str
    code: bytes = field(repr=False)
    _offer: offers.Offer | None = field(default=None, repr=False, compare=False)

    @property
    def is_used(self) -> bool:
        """Whether calls with these sizes run this code: it was asked for when the file was read, and fits."""
        return self._offer is not None

    def differences(self) -> list[str]:
        """In what this process is another than what the code is for: names, with what is said there and here."""
        try:
            devices = backend.devices(str(self.target.get("platform")))
        except errors.BackendError:
            return [f"platform {self.target.get('platform')!r} is not here"]
        if len(devices) < self.devices:
            return [f"devices {self.devices}, here {len(devices)}"]
        here, there = _target(devices[: self.devices]), self.target
        names = {**there, **here}
        return [f"{k} {there.get(k)!r}, here {here.get(k)!r}" for k in names if there.get(k) != here.get(k)]

    def offered(self) -> StoredExecutable:
        """Itself, used where it fits. No compiler is given a byte of what does not."""
        return self if self.differences() else replace(self, _offer=offers.offer(self.key, self.code))


def _target(devices: Sequence[Any]) -> dict[str, Any]:
    return {**target_of(devices), "flags": compile_cache.xla_flags()}


# ---------------------------------------------------------------------------------------------------------------------
# Compiling


def executables_of(exported: Record, asked: Sizes) -> list[StoredExecutable]:
    """What is asked for, compiled here.

    Raises:
      ArgumentTypeError: it is neither.
      ArgumentValueError: the function is not for this platform or has more devices than are here; sizes are missing.
    """
    chosen = [{}] if asked is True else [asked] if isinstance(asked, Mapping) else asked
    if not isinstance(chosen, Sequence) or not all(isinstance(sizes, Mapping) for sizes in chosen):
        raise errors.ArgumentTypeError(
            f'with_executable is True, sizes by name such as {{"b": 8}}, or several of these. Got {asked!r}'
        )
    return [_compiled(exported, sizes) for sizes in chosen]


def _compiled(exported: Record, sizes: Mapping[str, int]) -> StoredExecutable:
    platform = default_export_platform()
    if platform not in exported.platforms:
        raise errors.ArgumentValueError(
            f"{exported.fun_name} was exported for {', '.join(exported.platforms)}, and code is compiled for what is "
            f"here, {platform}: serialize it there, or without with_executable"
        )
    devices = backend.devices(backend.default_backend())[: exported.nr_devices]
    if len(devices) < exported.nr_devices:
        raise errors.ArgumentValueError(
            f"{exported.fun_name} was exported for {exported.nr_devices} devices, and code is compiled for those that "
            f"are here, {len(devices)}: meshrt.config.update('num_cpu_devices', {exported.nr_devices}) at the start "
            "makes as many of a CPU"
        )
    shardings: Sequence[Any] = [None] * len(exported.in_avals)
    if exported.mesh is not None:
        shardings = exported.in_shardings_jax(mesh_over(exported.mesh, devices))
    specs = [
        ShapeDtypeStruct(shape_with(exported, a, sizes, "with_executable={{{0!r}: 8}}"), a.dtype, sharding=s)
        for a, s in zip(exported.in_avals, shardings)
    ]
    args, kwargs = tree_util.tree_unflatten(exported.in_tree, specs)
    compiled = jit(lambda *a, **k: call_exported(exported, a, k)).lower(*args, **kwargs).compile()
    program = compiled.program.executable
    return StoredExecutable(
        dict(sizes), program.num_devices, _target(program.first_devices()), program.offer_key(), program.serialize()
    )


def shape_with(exported: Record, aval: ShapedArray, sizes: Mapping[str, int], advice: str) -> tuple[int, ...]:
    """A shape with numbers for symbolic sizes. ArgumentValueError, with the advice, where one is missing."""
    names = set(exported.solution.values)
    if missing := sorted(names.difference(sizes)):
        raise errors.ArgumentValueError(
            f"{exported.fun_name} has the symbolic sizes {', '.join(sorted(names))}, and a number is needed for each: "
            f"{advice.format(missing[0])}"
        )
    found = [n.evaluate(sizes) if isinstance(n, DimExpr) else n for n in aval.shape]
    return tuple(map(int, found))


# ---------------------------------------------------------------------------------------------------------------------
# In files


def to_sections(executables: Sequence[StoredExecutable]) -> dict[str, bytes]:
    """The sections `execs`, which describes them, and `code`."""
    rows, at = [], 0
    for e in executables:
        rows.append({"sizes": dict(e.sizes), "devices": e.devices, "target": dict(e.target), "key": e.key,
                     "place": at, "length": len(e.code)})  # fmt: skip
        at += len(e.code)
    text = json.dumps(rows, separators=(",", ":"), allow_nan=False).encode()
    return {"execs": text, "code": b"".join(e.code for e in executables)}


def from_sections(rows: Any, code: memoryview) -> tuple[StoredExecutable, ...]:
    """What the sections hold. ValueError, KeyError or TypeError for descriptions that make no sense."""
    found, end = [], 0
    for row in rows:
        at, length, devices = row["place"], row["length"], row["devices"]
        if any(type(n) is not int or n < 0 for n in (at, length, devices)) or at != end or length > len(code) - at:
            raise ValueError(f"compiled code at {at!r} of {length!r} bytes, among {len(code)}")
        end = at + length
        sizes = {str(k): int(n) for k, n in row["sizes"].items()}
        target = {str(k): v for k, v in row["target"].items()}
        found.append(StoredExecutable(sizes, devices, target, str(row["key"]), bytes(code[at:end])))
    if end != len(code):
        raise ValueError(f"{len(code) - end} bytes of compiled code that nothing describes")
    return tuple(found)
