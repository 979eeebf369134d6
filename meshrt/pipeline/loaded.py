"""The sixth station: a compiled program on a list of devices. Here devices appear for the first time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt.pipeline.program import CompiledProgram
from meshrt.pipeline.written import Written
from meshrt.runtime import transfer
from meshrt.runtime.array import signature
from meshrt.runtime.executable import LoadedExecutable
from meshrt.runtime.layouts import chosen_layouts
from meshrt.sharding.layout import Layout
from meshrt.sharding.mesh import Mesh
from meshrt.sharding.named import NamedSharding, Sharding, SingleDeviceSharding

__all__ = ["Loaded"]


class Loaded:
    """A program on devices: what is needed to run it on arrays that are in place.

    executable     the loaded executable
    arg_shardings  of the module's arguments, captured arrays first, on these devices; likewise `out_shardings`
    const_buffers  the captured arrays
    arg_layouts    of the module's arguments whose layout the compiler chose, by number, where it is not the one that
                   arrays have anyway; likewise `out_layouts`
    """

    __slots__ = (
        "arg_layouts", "arg_shardings", "const_buffers", "devices", "executable", "out_layouts", "out_shardings",
        "program",
    )  # fmt: skip

    def __init__(self, program: CompiledProgram, mesh: Mesh | None, devices: tuple[Any, ...]):
        self.program, self.devices = program, devices
        self.executable: LoadedExecutable = program.executable.load(devices)
        self.arg_shardings, self.out_shardings = _on_devices(program, mesh, devices)
        self.arg_layouts, self.out_layouts = self._chosen_layouts()
        # Copies: the caller may donate or delete what the function captured.
        self.const_buffers = [
            transfer.put_value(c, s, may_alias=False)._buf for c, s in zip(program.consts, self.arg_shardings)
        ]

    def _chosen_layouts(self) -> tuple[dict[int, Layout], dict[int, Layout]]:
        program, request, offset = self.program, self.program.request, len(self.program.consts)
        if not (request.auto_args or request.auto_outs):
            return {}, {}
        places = {i: offset + k for k, i in enumerate(program.kept) if i in request.auto_args}
        args = {at: signature(program.in_avals[i], self.arg_shardings[at]) for i, at in places.items()}
        outs = {i: signature(program.out_avals[i], self.out_shardings[i]) for i in request.auto_outs}
        return chosen_layouts(self.executable, args, outs)

    def shown(self, written: Written | None) -> list[Sharding]:
        """The shardings of the results, spelled as the user wrote them where that says the same."""
        if written is None:
            return self.out_shardings
        return [written.of(i, s, a.ndim) for i, (a, s) in enumerate(zip(self.program.out_avals, self.out_shardings))]

    def delivered(self, written: Written | None) -> list[tuple[Sharding, Layout | None]]:
        """Where results are, with the layouts that they get in the end where these are not row-major."""
        return [(s, None if written is None else written.layout(i)) for i, s in enumerate(self.shown(written))]


def _on_devices(
    program: CompiledProgram, mesh: Mesh | None, devices: Sequence[Any]
) -> tuple[list[Sharding], list[Sharding]]:
    args, outs = program.arg_shardings, program.out_shardings
    if mesh is None or args is None or outs is None:
        single = SingleDeviceSharding(devices[0])
        return (
            _in_memories([single] * (len(program.consts) + len(program.kept)), program.arg_memories),
            _in_memories([single] * len(program.out_avals), program.out_memories),
        )
    if program.request.views:
        typed = [a.explicit is not None for a in program.out_avals]
        outs = tuple(program.request.as_asked(i, s, t) for i, (s, t) in enumerate(zip(outs, typed)))
    return (
        _in_memories([_concrete(s, mesh) for s in args], program.arg_memories),
        _in_memories([_concrete(s, mesh) for s in outs], program.out_memories),
    )


def _concrete(sharding: NamedSharding, mesh: Mesh) -> NamedSharding:
    """The same over the devices of `mesh`."""
    return sharding.update(mesh=mesh.reshaped(sharding.mesh.abstract_mesh))


def _in_memories(shardings: Sequence[Sharding], memories: Sequence[str]) -> list[Sharding]:
    """The same in these kinds of memory; in the devices' own where nothing is said."""
    if not memories:
        return list(shardings)
    return [s.with_memory_kind(_own(kind)) for s, kind in zip(shardings, memories)]


def _own(kind: str) -> str | None:
    """A kind of memory, None for that of the devices, whatever they call it."""
    return None if kind == "device" else kind
