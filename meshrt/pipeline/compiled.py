"""A compiled program as a function of its own: what `lower(...).compile()` gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from meshrt import errors, tree_util
from meshrt._tree_paths import structure_differences
from meshrt.config import settings
from meshrt.core.trace import Tracer
from meshrt.core.types import ShapedArray, aval_of
from meshrt.pipeline.box_contents import CLOSED_OVER, finished
from meshrt.pipeline.entry import Entry, any_committed
from meshrt.pipeline.loaded import Loaded
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.program import Called, CompiledProgram, mesh_over
from meshrt.pipeline.rooted import rooted
from meshrt.pipeline.station import Station, args_info
from meshrt.pipeline.written import Written
from meshrt.runtime import backend, events
from meshrt.runtime.array import Array
from meshrt.runtime.cost_analysis import CostAnalysis
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.sharding.layout import Format, Layout
from meshrt.sharding.mesh import Mesh
from meshrt.sharding.named import Sharding
from meshrt.transforms.high import keys_of, taken_apart
from meshrt.xla import jaxlib_api

if TYPE_CHECKING:
    from meshrt.runtime.executable import LoadedExecutable
    from meshrt.runtime.memory_stats import CompiledMemoryStats

__all__ = ["Compiled", "Loads", "check_devices", "not_here"]

T = TypeVar("T")


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
                f"The size of abstract mesh {axes.size} in {axes} must match the length of device assignment: "
                f"{len(devices)}, given to compile(device_assignment=...) of {lowered.fun_name}. Give as many devices "
                "as the mesh has, in its order"
            )
        mesh = mesh_over(axes, devices)
    if not is_platform_of(devices[0], platform):
        raise not_here(lowered, backend.platform_of(devices[0]))
    return mesh


def is_platform_of(device: Any, platform: str) -> bool:
    """Whether a device is of a platform, by any of its names."""
    return platform in (
        device.platform,
        backend.platform_of(device),
        device.client.platform_version,
        device.client.platform,
    )


def not_here(lowered: Lowered, platform: str) -> errors.CompileError:
    """A program that was lowered for another platform than the one that it is to run on."""
    wanted = lowered.request.platforms or lowered.request.platform
    return errors.CompileError(
        f"{lowered.fun_name} was lowered for {wanted!r}, but the devices are {platform!r}; lower it "
        f"for them (lowering_platforms=({platform!r},)), give devices of that platform (device_assignment=...), or see "
        "what its compiler makes of it with compile(topology=...)"
    )


class Compiled(Station):
    """A compiled program that checks its arguments instead of compiling again: called, it gives the function's results.

    What asks where it runs (calls, `out_info`, `runtime_executable`, shardings and formats) needs its devices. Of a
    program that was compiled for an AbstractMesh alone they are not known: `out_info` then has no shardings, and the
    others raise MeshContextError.

    >>> compiled = meshrt.jit(lambda x: 2 * x).lower(jnp.arange(3)).compile()
    >>> compiled(jnp.arange(3))
    Array([0, 2, 4], dtype=int32)
    """

    __slots__ = ("_loads", "_lowered", "_written", "devices", "mesh", "program")

    def __init__(
        self,
        lowered: Lowered | None,
        program: CompiledProgram,
        mesh: Mesh | None,
        devices: tuple[Any, ...] | None,
        loads: Loads,
        written: Written | None,
    ):
        self._lowered, self.program = lowered, program
        self.mesh, self.devices, self._loads, self._written = mesh, devices, loads, written

    @property
    def _record(self) -> Called:
        return self.program.record

    @property
    def lowered(self) -> Lowered:
        """The station before. UnsupportedError of a program from a file, which has compiled code only."""
        if self._lowered is None:
            raise errors.UnsupportedError(
                f"{self.fun_name} was loaded from a file, which holds compiled code only; lower the function here"
            )
        return self._lowered

    @property
    def args_info(self) -> Any:
        """An ArgInfo for each argument, in the structure of the arguments."""
        return args_info(self._record, self.program.request.donated)

    @property
    def out_info(self) -> Any:
        """A ShapeDtypeStruct for each result, with its sharding if the devices are known, and its layout where the
        platform tells it."""
        avals, places = self._record.out_avals, self._out_places()
        outs = [ShapeDtypeStruct(a.shape, a.dtype, sharding=s, weak_type=a.weak_type) for a, s in zip(avals, places)]
        return tree_util.tree_unflatten(self.out_tree, outs)

    def _out_places(self) -> Sequence[Any]:
        """Of each result the Format; the sharding, where its layout is not known; None where its devices are not."""
        avals = self._record.out_avals
        if self.devices is None:
            return (None,) * len(avals)
        try:
            formats = self._out_formats()
        except errors.UnsupportedError:
            return [s for s, _ in self._loaded().delivered(self._written)]
        return [f.sharding if a.is_key else f for a, f in zip(avals, formats)]  # keys have no layout of their own

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """Positions among the flat arguments."""
        return tuple(i for i, d in enumerate(self.program.request.donated) if d)

    def serialize(self) -> bytes:
        """The program as bytes for `meshrt.stages.load`: machine code with what it needs to be called, no pickle.

        Raises:
          SavedProgramError: the program calls back into Python, or captures a key or an array of several processes.
          TreeError: a container among arguments or results that is not registered for files.
        """
        from meshrt.pipeline.saved import to_bytes  # start-up time: most programs are never written

        return to_bytes(self.program, self._written)

    def save(self, path: str | os.PathLike[str]) -> None:
        """`serialize()` in a file, which appears whole or not at all; see docs/aot.md.

        Raises:
          SavedProgramError: as `serialize`, or the file cannot be written.
        """
        from meshrt.pipeline.container import write_file  # start-up time: as above

        write_file(path, self.serialize())

    @property
    def fingerprint(self) -> str:
        """A hash of the program, its options and the number of devices; equal on every host."""
        return self.program.executable.fingerprint[:32]

    def as_text(self) -> str:
        """The optimised HLO."""
        return rooted(self.program.executable.hlo_text(), self.fun_name)

    def cost_analysis(self) -> CostAnalysis | None:
        """The compiler's estimates per device (flops, bytes accessed ...); None where the platform has none."""
        found = _unless_missing(self.program.executable.cost_analysis)
        return None if found is None else CostAnalysis(found)

    def memory_analysis(self) -> CompiledMemoryStats | None:
        """The compiler's memory figures, bytes per device; None where the platform has none."""
        return _unless_missing(self.program.executable.memory_analysis)

    def runtime_executable(self) -> LoadedExecutable:
        """The executable on its devices. MeshContextError where these are not known."""
        return self._loaded().executable

    @property
    def input_shardings(self) -> Any:
        """`(args, kwargs)` with the Sharding that the program expects of each argument in its place."""
        loaded = self._loaded()
        offset = len(self.program.consts)
        by_arg = dict(zip(self.program.kept, loaded.arg_shardings[offset:]))
        if self._written is not None:
            avals = self._record.in_avals
            by_arg = {i: self._written.of_argument(i, s, avals[i].ndim) for i, s in by_arg.items()}
        missing = loaded.arg_shardings[0] if loaded.arg_shardings else None
        return tree_util.tree_unflatten(
            self.in_tree, [by_arg.get(i, missing) for i in range(len(self._record.in_avals))]
        )

    @property
    def output_shardings(self) -> Any:
        """The Sharding of each result, in the structure of the results."""
        return tree_util.tree_unflatten(self.out_tree, [s for s, _ in self._loaded().delivered(self._written)])

    @property
    def input_formats(self) -> Any:
        """(args, kwargs) of Formats: where the program expects each argument. Of one that it does not use, Format().

        UnsupportedError where the platform does not tell layouts.
        """
        loaded, offset = self._loaded(), len(self.program.consts)
        layouts, _ = loaded.executable.layouts()
        by_arg = {
            i: Format(self._asked_layout(i) or layout, s)
            for i, layout, s in zip(self.program.kept, layouts[offset:], loaded.arg_shardings[offset:])
        }
        return tree_util.tree_unflatten(
            self.in_tree, [by_arg.get(i, Format()) for i in range(len(self._record.in_avals))]
        )

    def _asked_layout(self, i: int) -> Layout | None:
        """What `in_shardings` said of the layout of an argument."""
        return None if self._written is None else self._written.argument_layout(i)

    @property
    def output_formats(self) -> Any:
        """The Format of each result. UnsupportedError where the platform does not tell layouts."""
        return tree_util.tree_unflatten(self.out_tree, self._out_formats())

    def _out_formats(self) -> list[Format]:
        loaded = self._loaded()
        _, layouts = loaded.executable.layouts()
        ends = loaded.delivered(self._written)
        return [Format(asked or layout, s) for layout, (s, asked) in zip(layouts, ends)]

    def _loaded(self) -> Loaded:
        if self.devices is None:
            raise errors.MeshContextError(
                f"{self.fun_name} was compiled for an AbstractMesh, so it is not known where to run; give devices with "
                "compile(device_assignment=...)"
            )
        return self._loads.load(self.program, self.mesh, self.devices)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program; static arguments are left out, as they are in the code.

        Raises:
          ArgumentTypeError: another structure, shape or dtype than was compiled for (all that differ are named), or a
            tracer. ShardingError: a committed argument has another sharding or layout.
          MeshContextError: it was compiled for an AbstractMesh alone. ExecutionError: the program failed.
          DeletedArrayError, DonatedTwiceError: an argument was donated before, or is donated twice.
        """
        captured = getattr(self._loads, "captured", ())
        arguments = (args, {**kwargs, CLOSED_OVER: list(captured)} if captured else kwargs)
        leaves, tree = tree_util.tree_flatten(taken_apart(arguments))
        for x in leaves:
            if isinstance(x, Tracer):
                raise errors.ArgumentTypeError(
                    "Cannot apply JAX transformations to a function lowered and compiled for a particular signature. "
                    f"Detected argument of Tracer type {type(x).__name__} in a call of {self.fun_name}; transform "
                    "the function before compiling it"
                )
        if tree != self.program.record.in_tree:
            raise self._tree_error(args, kwargs)
        signatures = [x._sig if type(x) is Array else aval_of(x) for x in leaves]
        key = (self.program, self.devices, self._written, settings.dispatch_key(), *signatures)
        entry = self._loads.known_call(key)
        if entry is None:
            events.record("compiled_miss", leaves=leaves)
            backend.refuse_fork()
            self._check_types(leaves)
            self._check_places(leaves)
            committed = self.mesh is not None or any_committed([leaves[i] for i in self.program.kept])
            entry = Entry(self.fun_name, self._loaded(), leaves, committed, self._written)
            self._loads.remember_call(key, entry)
        return finished(entry.result(leaves), arguments)

    call = __call__

    def _tree_error(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> errors.ArgumentTypeError:
        found = structure_differences(self.in_tree, tree_util.tree_structure((args, kwargs)), keys_of)
        lines = [
            f"* at {_spelled(p)}, seen {_seen(a)} but now given {_seen(b)}, so {why}" for p, a, b, why in found
        ] or [f"* compiled for {self.in_tree}"]
        return errors.ArgumentTypeError(
            "Function compiled with input pytree does not match the input pytree it was called with. There are "
            f"{len(lines)} mismatches, including:\n" + "\n".join(lines)
        )

    def _check_types(self, leaves: Sequence[Any]) -> None:
        paths, wrong = None, []
        for i, (x, want) in enumerate(zip(leaves, self._record.in_avals)):
            got = aval_of(x)
            if got.shape == want.shape and (got.dtype == want.dtype):
                continue
            paths = paths or self._record.arg_paths()
            wrong.append(f"Argument '{paths[i]}' compiled with {_plain(want)} and called with {_plain(got)}")
        if wrong:
            raise errors.ArgumentTypeError(
                f"Argument types differ from the types for which this computation was compiled ({self.fun_name}). Pass "
                "arrays of these types, or compile again; Python numbers are 32 bits wide unless enable_x64 is set. "
                "The mismatches are:\n" + "\n".join(wrong)
            )

    def _check_places(self, leaves: Sequence[Any]) -> None:
        """ShardingError for committed arguments that lie elsewhere, or in another layout, than was compiled for."""
        loaded, shardings, layouts = self._loaded(), [], []
        paths = self._record.arg_paths()
        offset = len(self.program.consts)
        for k, i in enumerate(self.program.kept):
            x, want = leaves[i], loaded.arg_shardings[offset + k]
            if type(x) is not Array or not x.committed:
                continue
            if x.sharding is not want and not x.sharding.is_equivalent_to(want, x.aval.physical().ndim):
                alike = repr(want) == repr(x.sharding)  # but for the devices
                wanted, given = (_with_devices(s) if alike else s for s in (want, x.sharding))
                shardings.append(f"Argument {paths[i]} compiled with {wanted} and called with {given}")
            asked, found = self._asked_layout(i) or loaded.arg_layouts.get(offset + k), x._sig.layout
            if found is not asked and (found is None or asked is None or not asked.agrees(found)):
                required = Layout(tuple(range(x.ndim)), ()) if asked is None else asked
                layouts.append(
                    f"Argument {paths[i]} with shape {x.aval.short()}:\n  Passed layout: {x.layout}\n  Required "
                    f"layout: {required}"
                )
        for what, wrong in (("shardings", shardings), ("layouts", layouts)):
            if wrong:
                raise errors.ShardingError(
                    f"Computation was compiled for input {what} that disagree with the {what} of arguments passed to "
                    f"it. Here are {len(wrong)} mismatches:\n" + "\n".join(wrong)
                )


def _unless_missing(ask: Callable[[], T]) -> T | None:
    """What `ask` gives; None where the platform does not implement it."""
    try:
        return ask()
    except jaxlib_api.XlaError as e:
        if "UNIMPLEMENTED" in str(e):
            return None
        raise


def _with_devices(sharding: Sharding) -> str:
    return f"{sharding} on the devices {[d.id for d in sharding.device_assignment]}"


def _plain(aval: Any) -> str:
    """`int32[3]`, however it came about."""
    return str(ShapedArray(aval.shape, aval.dtype)) if isinstance(aval, ShapedArray) else str(aval)


def _seen(what: str) -> str:
    """Of structures only the places of leaves are known, not their types."""
    return "a pytree leaf" if what.startswith("a leaf") else what


def _spelled(path: Sequence[Any]) -> str:
    head = "args" if path and path[0].idx == 0 else "kwargs"
    return head + tree_util.keystr(tuple(path[1:]))
