"""Compiled code beside the program in a file, so that the first call on hardware like the writer's compiles nothing.

The code is that of calls of the exported function as it stands, for one set of sizes. A process that reads it uses it
where it would compile the very same program, for the very same compiler and hardware; else it compiles as without.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meshrt import config, errors, tree_util
from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.types import ShapedArray
from meshrt.export.calling import call_exported
from meshrt.export.checks import default_export_platform
from meshrt.export.record import Record
from meshrt.jit import jit
from meshrt.pipeline.program import mesh_over
from meshrt.pipeline.saved import target_of
from meshrt.runtime import backend, compile_cache, offers
from meshrt.runtime.kernel_library import asked_ynnpack
from meshrt.shape_dtype import ShapeDtypeStruct

__all__ = ["Sizes", "StoredExecutable", "executables_of", "from_sections", "numbers_for", "shape_with", "to_sections"]

# Which calls are compiled: those without symbolic sizes, or of each of these.
Sizes = bool | Mapping[str, int] | Sequence[Mapping[str, int]]


@dataclass(frozen=True)
class StoredExecutable:
    """Compiled code of calls of an exported function.

    sizes      a number for each symbolic size
    devices    for how many devices it is
    target     what it was compiled by and for: versions, platform, kind of device, instruction set, flags, settings
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
    def is_offered(self) -> bool:
        """Whether it was asked for when the file was read, and fits. A call takes it if its program is that of `key`:
        one with these sizes and the shardings of the export, of the function alone. `meshrt.runtime.events` counts as
        `offered` what calls have taken."""
        return self._offer is not None

    def differences(self) -> list[str]:
        """In what this process is another than what the code is for: names, with what is said there and here."""
        try:
            devices = backend.devices(self.target["platform"])
        except errors.BackendError:
            return [f"platform {self.target['platform']!r} is not here"]
        if len(devices) < self.devices:
            return [f"devices {self.devices}, here {len(devices)}"]
        here, there = _target(devices[: self.devices]), self.target
        names = {**there, **here}
        return [f"{k} {there.get(k)!r}, here {here.get(k)!r}" for k in names if there.get(k) != here.get(k)]

    def offered(self) -> StoredExecutable:
        """Itself, offered to calls where it fits. No compiler is given a byte of what does not."""
        return self if self.differences() else replace(self, _offer=offers.offer(self.key, self.code))


def _target(devices: Sequence[Any]) -> dict[str, Any]:
    """What has to be the same here for the code to be that of a call: hardware, compiler, and what is asked of it."""
    target = {**target_of(devices), "flags": compile_cache.xla_flags()}
    if target["platform"] == "cpu":
        target["cpu_ynnpack"] = asked_ynnpack()
    return {**target, "partitioner": config.settings.partitioner, "propagator": config.settings.propagator}


# ---------------------------------------------------------------------------------------------------------------------
# Compiling


def executables_of(exported: Record, asked: Sizes) -> list[StoredExecutable]:
    """What is asked for, compiled here.

    Raises:
      ArgumentTypeError: it is neither, or a size is no int.
      ArgumentValueError: the function is not for this platform or has more devices than are here; sizes are missing,
        or are of no symbolic size.
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
    devices = backend.devices()[: exported.nr_devices]
    if len(devices) < exported.nr_devices:
        raise errors.ArgumentValueError(
            f"{exported.fun_name} was exported for {exported.nr_devices} devices, and code is compiled for those that "
            f"are here, {len(devices)}: meshrt.config.update('num_cpu_devices', {exported.nr_devices}) at the start "
            "makes as many of a CPU"
        )
    numbers = numbers_for(exported, sizes, "with_executable={{{0!r}: 8}}")
    shardings: Sequence[Any] = [None] * len(exported.in_avals)
    if exported.mesh is not None:
        shardings = exported.in_shardings_jax(mesh_over(exported.mesh, devices))
    specs = [
        ShapeDtypeStruct(shape_with(a, numbers), a.dtype, sharding=s) for a, s in zip(exported.in_avals, shardings)
    ]
    args, kwargs = tree_util.tree_unflatten(exported.in_tree, specs)
    compiled = jit(lambda *a, **k: call_exported(exported, a, k)).lower(*args, **kwargs).compile()
    program = compiled.program.executable
    return StoredExecutable(
        numbers, program.num_devices, _target(program.first_devices()), program.offer_key(), program.serialize()
    )


def numbers_for(exported: Record, sizes: Mapping[str, Any], advice: str) -> dict[str, int]:
    """A number for each symbolic size, of those given by name; the advice says how one is given.

    Raises:
      ArgumentTypeError: one that is no int.
      ArgumentValueError: one is missing, or is of no symbolic size.
    """
    names = sorted(exported.solution.values)
    if unknown := [n for n in sizes if n not in names]:
        raise errors.ArgumentValueError(
            f"{exported.fun_name} has no symbolic size {unknown[0]!r}; it has {', '.join(names) or 'none'}"
        )
    if missing := [n for n in names if n not in sizes]:
        raise errors.ArgumentValueError(
            f"{exported.fun_name} has the symbolic sizes {', '.join(names)}, and a number is needed for each: "
            f"{advice.format(missing[0])}"
        )
    return {name: _number(exported, name, sizes[name]) for name in names}


def _number(exported: Record, name: str, given: Any) -> int:
    try:
        if isinstance(given, bool):
            raise TypeError
        return operator.index(given)
    except TypeError:
        raise errors.ArgumentTypeError(
            f"the symbolic size {name} of {exported.fun_name} is an int. Got {given!r}, a {type(given).__name__}"
        ) from None


def shape_with(aval: ShapedArray, numbers: Mapping[str, int]) -> tuple[int, ...]:
    """A shape with numbers for symbolic sizes."""
    found = [n.evaluate(numbers) if isinstance(n, DimExpr) else n for n in aval.shape]
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
    if not isinstance(rows, list):
        raise TypeError(f"descriptions of compiled code are a list. Got {rows!r}")
    found, end = [], 0
    for row in rows:
        at, length, devices = (_int(row, name) for name in ("place", "length", "devices"))
        if at != end or length > len(code) - at:
            raise ValueError(f"compiled code at {at!r} of {length!r} bytes, among {len(code)}")
        if devices < 1:
            raise ValueError(f"compiled code for {devices} devices")
        end = at + length
        sizes = {name: _int(row["sizes"], name) for name in dict(row["sizes"])}
        target, key = dict(row["target"]), row["key"]
        if not isinstance(key, str) or not isinstance(target["platform"], str):
            raise TypeError(f"compiled code of key {key!r} for {target}")
        found.append(StoredExecutable(sizes, devices, target, key, bytes(code[at:end])))
    if end != len(code):
        raise ValueError(f"{len(code) - end} bytes of compiled code that nothing describes")
    return tuple(found)


def _int(row: Mapping[str, Any], name: str) -> int:
    """A number that counts something, of what a file says."""
    found = row[name]
    if type(found) is not int or found < 0:
        raise ValueError(f"{name} of compiled code is {found!r}")
    return found
