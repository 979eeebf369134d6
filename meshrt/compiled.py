"""From a lowering to something that runs: Program (no devices), Loaded (bound to devices), Entry (a call ready to go).

Lowered -> build_program -> Program -> load_program(devices) -> Loaded -> make_entry(arguments) -> Entry.run(leaves)
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt import config, errors, tree_util
from meshrt.calling import builder, only
from meshrt.core.trace import Tracer
from meshrt.core.types import aval_of
from meshrt.placement import Placement
from meshrt.runtime import backend, executable, jaxlib_api, transfer
from meshrt.runtime.array import Array, Signature, arrays, blank, copy_array, sharing, signature
from meshrt.runtime.reshard import reshard
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.mesh import Mesh
from meshrt.sharding.named import NamedSharding, SingleDeviceSharding
from meshrt.stages import Lowered, Program, Traced, _Stage

__all__ = ["Call", "Compiled", "Entry", "Loaded", "build_program", "load", "load_program", "make_entry"]

_buf = operator.attrgetter("_buf")

# The name of an operation that defines a value: it follows the value's name at the start of a line, so no text inside
# an attribute (a name, a metadata string) is taken for it.
_RESHARD = re.compile(r"^(\s*%[\w$.-]+ = )sdy\.reshard (?=%)", re.MULTILINE)


# ---------------------------------------------------------------------------------------------------------------------
# Compiling


def build_program(lowered: Lowered, options: dict[str, Any]) -> Program:
    """Partitions and compiles; nothing here knows a device, only how many there are."""
    mesh = lowered.mesh
    if mesh is None:
        portable = executable.compile_program(
            lowered.module.text, num_devices=1, mode="replica", backend=lowered.request.platform, options=options
        )
        return Program(lowered, portable, None, None, None)
    partitioned = None
    if config.partitioner == "xla":
        shardings, text = _boundary(lowered)
        mode = "spmd"
        arg_shardings, out_shardings = shardings
    else:
        partitioned = lowered.partition()
        arg_shardings, out_shardings = partitioned.arg_shardings, partitioned.out_shardings
        text, mode = partitioned.result.as_text(), "replica"
    portable = executable.compile_program(
        text, num_devices=mesh.size, mode=mode, backend=lowered.request.platform, options=options
    )
    return Program(lowered, portable, arg_shardings, out_shardings, partitioned)


def _boundary(lowered: Lowered) -> tuple[tuple[Any, Any], str]:
    """For XLA's partitioner: shardings of all arguments and results by our propagation, and the annotated text."""
    from meshrt.stages import named

    result = lowered.propagate().result
    mesh = lowered.mesh
    args = tuple(named(s, mesh) for s in result.arg_shardings)
    outs = tuple(named(s, mesh) for s in result.result_shardings)
    # XLA's importer knows constraints but not reshards; for closed shardings they mean the same.
    return (args, outs), _RESHARD.sub(r"\1sdy.sharding_constraint ", result.as_text())


# ---------------------------------------------------------------------------------------------------------------------
# Loading


class Loaded:
    """A program on devices: what is needed to run it on arrays that are in place."""

    __slots__ = ("arg_shardings", "const_buffers", "devices", "execute", "loaded", "out_shardings", "program")

    def __init__(self, program: Program, mesh: Mesh | None, devices: tuple[Any, ...]):
        self.program, self.devices = program, devices
        self.loaded = program.executable.load(devices)
        if mesh is not None:
            concrete = lambda s: NamedSharding(mesh.reshaped(s.mesh), s.spec)
            self.arg_shardings = [concrete(s) for s in program.arg_shardings]
            outs, request = program.out_shardings, program.lowered.request
            if request.views:
                outs = [request.as_asked(i, s) for i, s in enumerate(outs)]
            self.out_shardings = [concrete(s) for s in outs]
        else:
            single = SingleDeviceSharding(devices[0])
            self.arg_shardings = [single] * (len(program.consts) + len(program.kept))
            self.out_shardings = [single] * len(program.lowered.out_avals)
        # Copies: the caller may donate or delete what the function captured.
        self.const_buffers = [
            transfer.put_value(c, s, may_alias=False)._buf for c, s in zip(program.consts, self.arg_shardings)
        ]


def load_program(program: Program, mesh: Mesh | None, devices: tuple[Any, ...]) -> Loaded:
    """The program on these devices; loading again on other devices costs no compilation."""
    key = mesh if mesh is not None else devices
    loaded = program.loaded.get(key)
    if loaded is None:
        loaded = program.loaded[key] = Loaded(program, mesh, devices)
    return loaded


class Call(NamedTuple):
    """A jitted call that was not in the dispatch cache."""

    name: str
    traced: Traced
    placement: Placement
    options: tuple[tuple[str, Any], ...]


def make_entry(call: Call, leaves: Sequence[Any]) -> Entry:
    """Compiles and loads for a call, and plans how its arguments reach the devices."""
    from meshrt.stages import lower

    record, request = call.traced.record, call.traced.request
    devices = call.placement.devices
    if devices is None:
        raise errors.MeshContextError(
            f"the shardings of {call.name} name an AbstractMesh only, so it is not known where to run: pass an array "
            "placed on a mesh (meshrt.device_put) or enter a mesh with `with meshrt.set_mesh(mesh):`"
        )
    program = lower(record, request).program(call.options)
    loaded = load_program(program, call.placement.mesh, devices)
    return Entry(call.name, record, request, loaded, leaves, call.placement.mesh is not None or _any_committed(leaves))


def _any_committed(leaves: Sequence[Any]) -> bool:
    return any(type(x) is Array and x.committed for x in leaves)


class Entry:
    """A compiled call for one signature: `run(leaves)` gives the flat results, `result(leaves)` their pytree.

    `direct(buffers, leaves)` is the same as `result` for a caller that has the buffers of all leaves.
    """

    __slots__ = (
        "build", "consts", "direct", "donated", "kept", "launch", "moves", "name", "out_tree", "plain", "record",
        "several", "signatures",
    )  # fmt: skip

    def __init__(self, name: str, record: Any, request: Any, loaded: Loaded, leaves: Sequence[Any], committed: bool):
        self.name, self.record, self.out_tree = name, record, record.out_tree
        program = loaded.program
        self.kept = program.kept
        self.consts = loaded.const_buffers
        offset = len(program.consts)
        # What has to be brought into place: position, signature there, whether equal scalars may share a buffer.
        self.moves = [
            (k, signature(record.closed.in_avals[i], loaded.arg_shardings[offset + k]), not request.donated[i])
            for k, i in enumerate(program.kept) if not _in_place(leaves[i], loaded.arg_shardings[offset + k])
        ]  # fmt: skip
        self.donated = (
            [
                (i, f"donated as argument {path} of {name}")
                for i, (donated, path) in enumerate(zip(request.donated, record.arg_paths()))
                if donated
            ]
            if any(request.donated)
            else []
        )
        self.signatures = [
            signature(a, sharding, committed) for a, sharding in zip(record.closed.out_avals, loaded.out_shardings)
        ]
        # The common case: every argument is used, in its place, and nothing is captured.
        self.several = len(loaded.devices) > 1
        self.plain = len(program.kept) == len(leaves) and not self.moves and not self.consts
        self.build = builder(record.out_tree)
        self.launch = loaded.loaded.runner(executable.ResultPlan(self.signatures))
        self.direct = self._direct()

    def _direct(self) -> Callable[[list[Any], Sequence[Any]], Any]:
        """The call as one function with everything that can be looked up beforehand looked up."""
        launch, signatures, build, explained = self.launch, self.signatures, self.build, self._explained
        if not self.plain:
            return lambda buffers, leaves: self.result(leaves)
        if self.donated:
            return self._direct_donating()
        if len(signatures) == 1 and build is only:
            signature = signatures[0]

            def call_for_one(buffers: list[Any], leaves: Sequence[Any]) -> Any:
                try:
                    (buf,) = launch(buffers)
                except jaxlib_api.XlaError as e:
                    raise explained(e, leaves) from None
                out = blank()
                out._buf, out._sig = buf, signature
                return out

            return call_for_one

        def call(buffers: list[Any], leaves: Sequence[Any]) -> Any:
            try:
                outs = launch(buffers)
            except jaxlib_api.XlaError as e:
                raise explained(e, leaves) from None
            return build(arrays(outs, signatures))

        return call

    def _direct_donating(self) -> Callable[[list[Any], Sequence[Any]], Any]:
        launch, signatures, build, explained = self.launch, self.signatures, self.build, self._explained
        count, mark = len(self.kept), self._mark_donated

        def call_donating(buffers: list[Any], leaves: Sequence[Any]) -> Any:
            if sharing or len(set(map(id, buffers))) < count:  # what another array holds as well; one array given twice
                return self.result(leaves)
            try:
                outs = launch(buffers)
            except jaxlib_api.XlaError as e:
                raise explained(e, leaves) from None
            mark(leaves)
            return build(arrays(outs, signatures))

        return call_donating

    def result(self, leaves: Sequence[Any]) -> Any:
        """Launches the program on the call's flat arguments; returns its result."""
        return self.build(self.run(leaves))

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        """Launches the program on the call's flat arguments; returns its flat results."""
        given = leaves
        if self.donated and sharing:
            leaves = self._unshared(leaves)
        buffers = [x._buf for x in leaves] if self.plain else self._buffers(leaves)
        if self.donated and len(set(map(id, buffers))) < len(buffers):
            self._check_donated_once(leaves)
        try:
            outs = arrays(self.launch(buffers), self.signatures)
        except jaxlib_api.XlaError as e:
            raise self._explained(e, leaves) from None
        if self.donated:
            self._mark_donated(leaves)
            if given is not leaves:
                for i, fate in self.donated:
                    if given[i] is not leaves[i]:
                        given[i]._give_up(fate)
        return outs

    def _unshared(self, leaves: Sequence[Any]) -> list[Any]:
        """The arguments with copies of those donated arrays whose memory another array holds as well."""
        out = list(leaves)
        for i, _ in self.donated:
            if id(out[i]) in sharing and not out[i].is_deleted():
                out[i] = copy_array(out[i])
        return out

    def _buffers(self, leaves: Sequence[Any]) -> list[Any]:
        """What the program takes: captured arrays, then the arguments that it uses, moved to their places."""
        kept = [leaves[i] for i in self.kept]
        for k, sig, shared in self.moves:
            kept[k] = _place(kept[k], sig, shared)
        return self.consts + list(map(_buf, kept))

    def _explained(self, e: Exception, leaves: Sequence[Any]) -> errors.MeshrtError:
        """Names the argument that is gone; everything else is the runtime's own failure."""
        for path, x in zip(self.record.arg_paths(), leaves):
            if type(x) is Array and x.is_deleted():
                how = f" It was {x._fate}." if x._fate else ""
                return errors.DeletedArrayError(
                    f"argument {path} of {self.name} is an array that has been deleted or donated "
                    f"(shape {x.aval.str_short()}).{how} Use the result of that call instead, or don't donate it"
                )
        return errors.ExecutionError(f"running {self.name} failed: {e}")

    def _check_donated_once(self, leaves: Sequence[Any]) -> None:
        """A donated array that is also another argument: XLA would fail on some devices and wait on the others."""
        places: dict[int, int] = {}
        for i, x in enumerate(leaves):
            if type(x) is Array and places.setdefault(id(x._buf), i) != i:
                first = places[id(x._buf)]
                if any(k in (first, i) for k, _ in self.donated):
                    paths = self.record.arg_paths()
                    raise errors.ArgumentValueError(
                        f"{self.name} was given one array (shape {x.aval.str_short()}) as argument {paths[first]} and "
                        f"as argument {paths[i]}, and donates it: it cannot be used twice. Pass a copy (x.copy()) as "
                        "one of them, or don't donate it (donate_argnums)"
                    )

    def _mark_donated(self, leaves: Sequence[Any]) -> None:
        several = self.several
        for i, fate in self.donated:
            x = leaves[i]
            if type(x) is Array:
                x._set_fate = fate
                if several and x._buf.is_deleted():  # its memory is gone, but XLA crashes unless told so
                    x._buf.delete()


def _place(x: Any, sig: Signature, shared: bool) -> Array:
    """An argument laid out as the program wants it."""
    if type(x) is Array:
        return reshard(x, sig.sharding)
    if shared and isinstance(x, transfer.SCALARS):
        return transfer.scalar(x, sig)
    return Array(transfer.buffer_of(x, sig), sig)


def _in_place(x: Any, sharding: Any) -> bool:
    return type(x) is Array and (
        x.sharding is sharding or x.sharding.is_equivalent_to(sharding, x.aval.physical().ndim)
    )


# ---------------------------------------------------------------------------------------------------------------------
# Ahead-of-time compiled functions


def load(lowered: Lowered, program: Program, devices: tuple[Any, ...] | None) -> Compiled:
    """A Compiled on `devices`, or on those of the context, or on the default ones for a single device.

    Compiled for an AbstractMesh alone, it goes through the compiler when it is first asked for something.
    """
    mesh = lowered.mesh
    if devices is None and mesh is not None:
        found = mesh_context.concrete
        if found is not None and found.abstract_mesh is mesh:
            devices = found.flat_devices
    if devices is None and mesh is None:
        devices = (backend.default_device(),)
    concrete = None
    if devices is not None and mesh is not None:
        if len(devices) != mesh.size:
            raise errors.MeshMismatchError(f"{len(devices)} devices were given for a program of {mesh.size} ({mesh})")
        concrete = Mesh(
            np.array(devices, dtype=object).reshape(mesh.axis_sizes), mesh.axis_names, axis_types=mesh.axis_types
        )
    if (
        devices is not None
        and devices[0].platform != lowered.request.platform
        and lowered.request.platform not in (devices[0].client.platform_version, devices[0].client.platform)
    ):
        raise errors.CompileError(
            f"the program was lowered for {lowered.request.platform!r}, but the devices are {devices[0].platform!r}; "
            "lower it for that platform"
        )
    compiled = Compiled(lowered, program, concrete, devices)
    if devices is not None:
        compiled._loaded()  # now, so that the compiler's time and errors are here and not in the first call
    return compiled


class Compiled(_Stage):
    """A compiled program that checks its arguments instead of compiling again.

    Raises ArgumentTypeError when called with other types than those it was compiled for, ShardingError for other
    shardings.
    """

    def __init__(self, lowered: Lowered, program: Program, mesh: Mesh | None, devices: tuple[Any, ...] | None):
        self.record, self.lowered, self.program, self.mesh, self.devices = (
            lowered.record,
            lowered,
            program,
            mesh,
            devices,
        )
        self._entries: dict[Any, Entry] = {}

    in_avals = property(lambda self: self.lowered.in_avals)
    out_avals = property(lambda self: self.lowered.out_avals)
    args_info = property(lambda self: self.lowered.args_info)
    out_info = property(lambda self: self.lowered.out_info)
    donate_argnums = property(lambda self: self.lowered.donate_argnums)

    def as_text(self) -> str:
        """The optimised HLO."""
        return self.program.executable.hlo_text()

    def cost_analysis(self) -> dict[str, float]:
        """The compiler's estimates per device (flops, bytes accessed ...)."""
        return self.program.executable.cost_analysis()

    def memory_analysis(self) -> Any:
        """The compiler's memory figures, bytes per device."""
        return self.program.executable.memory_analysis()

    def runtime_executable(self) -> Any:
        return self._loaded().loaded

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
        return tree_util.tree_unflatten(self.out_tree, self._loaded().out_shardings)

    def _loaded(self) -> Loaded:
        if self.devices is None:
            raise errors.MeshContextError(
                "the program was compiled for an AbstractMesh; give devices with compile(device_assignment=...)"
            )
        return load_program(self.program, self.mesh, self.devices)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, tree = tree_util.tree_flatten((args, kwargs))
        for x in leaves:
            if isinstance(x, Tracer):
                raise errors.ArgumentTypeError(
                    "Cannot apply transformations (jit, grad, vmap) to a function lowered and compiled for a "
                    f"particular signature. Detected argument of Tracer type {type(x).__name__}; transform the "
                    "function before compiling it"
                )
        if tree != self.in_tree:
            raise self._tree_error(args, kwargs)
        key = tuple([x._sig if type(x) is Array else aval_of(x) for x in leaves])
        entry = self._entries.get(key)
        if entry is None:
            self._check_types(leaves)
            self._check_shardings(leaves)
            committed = self.mesh is not None or _any_committed(leaves)
            entry = self._entries[key] = Entry(
                self.fun_name, self.record, self.lowered.request, self._loaded(), leaves, committed
            )
        return entry.result(leaves)

    call = __call__

    def _tree_error(self, args: tuple, kwargs: dict) -> errors.TreeError:
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
            if type(x) is Array and x.committed and not _in_place(x, want):
                wrong.append(f"Argument {paths[i]} compiled with {want} and called with {x.sharding}")
        if wrong:
            raise errors.ShardingError(
                "Computation was compiled for input shardings that disagree with the shardings of arguments passed to "
                f"it. Here are {len(wrong)} mismatches:\n" + "\n".join(wrong)
            )


def _spelled(path: Sequence[Any]) -> str:
    head = "args" if path and path[0].idx == 0 else "kwargs"
    return head + tree_util.keystr(tuple(path[1:]))
