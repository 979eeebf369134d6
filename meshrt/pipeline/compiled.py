"""A compiled program as a function of its own: what `lower(...).compile()` gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from meshrt import errors, tree_util
from meshrt.config import settings
from meshrt.core.trace import Tracer
from meshrt.core.types import ShapedArray, aval_of
from meshrt.pipeline.entry import Entry, any_committed, in_place
from meshrt.pipeline.loaded import Loaded
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.program import CompiledProgram
from meshrt.pipeline.station import Station
from meshrt.pipeline.written import Written
from meshrt.runtime.array import Array
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.sharding.layout import Format
from meshrt.sharding.mesh import AbstractMesh, Mesh
from meshrt.sharding.named import Sharding
from meshrt.transforms.high import flatten

if TYPE_CHECKING:
    from meshrt.runtime.executable import LoadedExecutable
    from meshrt.runtime.memory_stats import CompiledMemoryStats

__all__ = ["Compiled", "Loads", "check_devices"]


class Loads(Protocol):
    """What binds a program to devices and remembers the calls of known types: `meshrt.pipeline.driver.Driver`."""

    def load(self, program: CompiledProgram, mesh: Mesh | None, devices: tuple[Any, ...]) -> Loaded: ...

    def known_call(self, key: Any) -> Entry | None: ...

    def remember_call(self, key: Any, entry: Entry) -> None: ...


def check_devices(lowered: Lowered, devices: tuple[Any, ...]) -> Mesh | None:
    """The mesh of a program's axes over `devices`; None for a program on a single device.

    Raises:
      MeshMismatchError: not as many devices as the mesh has. CompileError: devices of another platform.
    """
    axes, platform = lowered.mesh, lowered.request.platform
    mesh = None
    if axes is not None:
        if len(devices) != axes.size:
            raise errors.MeshMismatchError(
                f"compile(device_assignment=...) of {lowered.fun_name} was given {len(devices)} devices for a program "
                f"of {axes.size} ({axes}); give as many, in the order of the mesh"
            )
        mesh = mesh_over(axes, devices)
    client = devices[0].client
    if platform not in (devices[0].platform, client.platform_version, client.platform):
        raise errors.CompileError(
            f"{lowered.fun_name} was lowered for {platform!r}, but the devices are {devices[0].platform!r}; lower it "
            f"for them (lowering_platforms=({devices[0].platform!r},))"
        )
    return mesh


def mesh_over(axes: AbstractMesh, devices: Sequence[Any]) -> Mesh:
    """The devices, in order, along the axes of an AbstractMesh."""
    array = np.array(devices, dtype=object).reshape(axes.axis_sizes)
    return Mesh(array, axes.axis_names, axis_types=axes.axis_types)


class Compiled(Station):
    """A compiled program that checks its arguments instead of compiling again.

    Raises ArgumentTypeError when called with other types than those it was compiled for, ShardingError for other
    shardings.
    """

    __slots__ = ("_loads", "_written", "devices", "lowered", "mesh", "program")

    def __init__(
        self,
        lowered: Lowered,
        program: CompiledProgram,
        mesh: Mesh | None,
        devices: tuple[Any, ...] | None,
        loads: Loads,
        written: Written | None,
    ):
        self.record, self.lowered, self.program = lowered.record, lowered, program
        self.mesh, self.devices, self._loads, self._written = mesh, devices, loads, written

    @property
    def in_avals(self) -> list[ShapedArray]:
        return self.lowered.in_avals

    @property
    def out_avals(self) -> list[ShapedArray]:
        return self.lowered.out_avals

    @property
    def args_info(self) -> Any:
        """An ArgInfo for each argument, in the structure of the arguments."""
        return self.lowered.args_info

    @property
    def out_info(self) -> Any:
        """A ShapeDtypeStruct for each result, with its sharding if the devices are known."""
        shardings = self._loaded().shown(self._written) if self.devices is not None else [None] * len(self.out_avals)
        outs = [
            ShapeDtypeStruct(a.shape, a.dtype, sharding=s, weak_type=a.weak_type)
            for a, s in zip(self.out_avals, shardings)
        ]
        return tree_util.tree_unflatten(self.out_tree, outs)

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """Positions among the flat arguments."""
        return self.lowered.donate_argnums

    def as_text(self) -> str:
        """The optimised HLO."""
        return self.program.executable.hlo_text()

    def cost_analysis(self) -> dict[str, float]:
        """The compiler's estimates per device (flops, bytes accessed ...)."""
        return self.program.executable.cost_analysis()

    def memory_analysis(self) -> CompiledMemoryStats:
        """The compiler's memory figures, bytes per device."""
        return self.program.executable.memory_analysis()

    def runtime_executable(self) -> LoadedExecutable:
        """The executable on its devices."""
        return self._loaded().executable

    @property
    def input_shardings(self) -> Any:
        """(args, kwargs) of shardings."""
        loaded = self._loaded()
        offset = len(self.program.consts)
        by_arg = dict(zip(self.program.kept, loaded.arg_shardings[offset:]))
        missing = loaded.arg_shardings[0] if loaded.arg_shardings else None
        return tree_util.tree_unflatten(self.in_tree, [by_arg.get(i, missing) for i in range(len(self.in_avals))])

    @property
    def output_shardings(self) -> Any:
        return tree_util.tree_unflatten(self.out_tree, self._loaded().shown(self._written))

    @property
    def input_formats(self) -> Any:
        """(args, kwargs) of Formats: where the program expects each argument. Of one that it does not use, Format().

        UnsupportedError where the platform does not tell layouts.
        """
        loaded, offset = self._loaded(), len(self.program.consts)
        layouts, _ = loaded.executable.layouts()
        known = [Format(layout, s) for layout, s in zip(layouts[offset:], loaded.arg_shardings[offset:])]
        by_arg = dict(zip(self.program.kept, known))
        return tree_util.tree_unflatten(self.in_tree, [by_arg.get(i, Format()) for i in range(len(self.in_avals))])

    @property
    def output_formats(self) -> Any:
        """The Format of each result. UnsupportedError where the platform does not tell layouts."""
        loaded = self._loaded()
        _, layouts = loaded.executable.layouts()
        formats = [Format(layout, s) for layout, s in zip(layouts, loaded.shown(self._written))]
        return tree_util.tree_unflatten(self.out_tree, formats)

    def _loaded(self) -> Loaded:
        if self.devices is None:
            raise errors.MeshContextError(
                f"{self.fun_name} was compiled for an AbstractMesh, so it is not known where to run; give devices with "
                "compile(device_assignment=...)"
            )
        return self._loads.load(self.program, self.mesh, self.devices)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = flatten((args, kwargs))
        for x in leaves:
            if isinstance(x, Tracer):
                raise errors.ArgumentTypeError(
                    "Cannot apply transformations (jit, grad, vmap) to a function lowered and compiled for a "
                    f"particular signature. Detected argument of Tracer type {type(x).__name__}; transform the "
                    "function before compiling it"
                )
        if tree != self.in_tree:
            raise self._tree_error(args, kwargs)
        signatures = [x._sig if type(x) is Array else aval_of(x) for x in leaves]
        key = (self.program, self.devices, self._written, settings.dispatch_key(), *signatures)
        entry = self._loads.known_call(key)
        if entry is None:
            self._check_types(leaves)
            self._check_shardings(leaves)
            committed = self.mesh is not None or any_committed(leaves)
            entry = Entry(self.fun_name, self._loaded(), leaves, committed, self._written)
            self._loads.remember_call(key, entry)
        return entry.result(leaves)

    call = __call__

    def _tree_error(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> errors.ArgumentTypeError:
        example = tree_util.tree_unflatten(self.in_tree, [0] * self.in_tree.num_leaves)
        found = tree_util.equality_errors(example, (args, kwargs))
        lines = [f"* at {_spelled(path)}, seen {a} but now given {b}, so {why}" for path, a, b, why in found] or [
            f"* compiled for {self.in_tree}"
        ]
        return errors.ArgumentTypeError(
            "Function compiled with input pytree does not match the input pytree it was called with. There are "
            f"{len(lines)} mismatches, including:\n" + "\n".join(lines)
        )

    def _check_types(self, leaves: Sequence[Any]) -> None:
        paths, wrong = None, []
        for i, (x, want) in enumerate(zip(leaves, self.in_avals)):
            got = aval_of(x)
            if got.shape == want.shape and (got.dtype == want.dtype):
                continue
            paths = paths or self.record.arg_paths()
            wrong.append(f"Argument '{paths[i]}' compiled with {want} and called with {got}")
        if wrong:
            raise errors.ArgumentTypeError(
                "Argument types differ from the types for which this computation was compiled. "
                "The mismatches are:\n" + "\n".join(wrong)
            )

    def _check_shardings(self, leaves: Sequence[Any]) -> None:
        loaded, wrong, paths = self._loaded(), [], self.record.arg_paths()
        offset = len(self.program.consts)
        for k, i in enumerate(self.program.kept):
            x, want = leaves[i], loaded.arg_shardings[offset + k]
            if type(x) is Array and x.committed and not in_place(x, want):
                alike = repr(want) == repr(x.sharding)  # but for the devices
                wanted, given = (_with_devices(s) if alike else s for s in (want, x.sharding))
                wrong.append(f"Argument {paths[i]} compiled with {wanted} and called with {given}")
        if wrong:
            raise errors.ShardingError(
                "Computation was compiled for input shardings that disagree with the shardings of arguments passed to "
                f"it. Here are {len(wrong)} mismatches:\n" + "\n".join(wrong)
            )


def _with_devices(sharding: Sharding) -> str:
    return f"{sharding} on the devices {[d.id for d in sharding.device_assignment]}"


def _spelled(path: Sequence[Any]) -> str:
    head = "args" if path and path[0].idx == 0 else "kwargs"
    return head + tree_util.keystr(tuple(path[1:]))
