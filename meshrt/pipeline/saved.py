"""Compiled programs in files: `Compiled.save`, and `load` on any devices of the same kind and number.

The container (`meshrt.pipeline.container`) has machine code and a description: what it was compiled by and for, the
structures and types of arguments and results, and their shardings over the AbstractMesh. Nothing in it names a device,
so loading binds the code to whatever devices it is given.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshrt import errors, tree_files
from meshrt.core.as_data import dtype_from_data, type_from_data, type_to_data
from meshrt.core.explicit import unreduced_of
from meshrt.core.types import ShapedArray, aval_of
from meshrt.dtypes import ExtendedDType
from meshrt.pipeline.container import Content, pack
from meshrt.pipeline.loaded import Loaded
from meshrt.pipeline.program import CompiledProgram, mesh_over
from meshrt.pipeline.traced import LoweringRequest
from meshrt.pipeline.written import Written, written
from meshrt.runtime import backend, compile_cache
from meshrt.runtime.executable import PortableExecutable
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.as_data import mesh_from_data, mesh_to_data, row_to_data, sharding_from_data
from meshrt.sharding.layout import Layout
from meshrt.sharding.mesh import AbstractMesh, Mesh
from meshrt.sharding.named import NamedSharding

if TYPE_CHECKING:
    from meshrt.pipeline.entry import Entry

__all__ = ["SavedLoads", "SavedRecord", "restore", "target_of", "to_bytes"]

# ---------------------------------------------------------------------------------------------------------------------
# Writing


def to_bytes(program: CompiledProgram, shown: Written | None, *, trees: bool = True) -> bytes:
    """The container of a program; without `trees` the structures of arguments and results are left to the caller.

    Raises:
      SavedProgramError: it calls back into Python, or captures values that files cannot hold.
      TreeError: a structure that files cannot hold. UnsupportedError: mesh axes whose names are no strings.
    """
    executable, record = program.executable, program.record
    if executable.host_callbacks:
        raise errors.SavedProgramError(
            f"{record.fun_name} calls back into Python, and a file cannot hold its functions; remove the callbacks "
            "before saving"
        )
    consts = [_const(record.fun_name, c) for c in program.consts]
    code = executable.serialize()
    description = {
        "function": record.fun_name,
        "target": target_of(executable.first_devices()),
        "program": {
            "devices": executable.num_devices, "mode": executable.mode, "shardy": executable.shardy,
            "options": [list(item) for item in executable.xla_options], "fingerprint": executable.fingerprint,
            "kept": list(program.kept), "donated": list(program.request.donated),
            "chosen layouts": [list(program.request.auto_args), list(program.request.auto_outs)],
            "argument memories": list(program.arg_memories), "result memories": list(program.out_memories),
        },
        "arguments": {
            "tree": tree_files.to_data(record.in_tree) if trees else None,
            "names": record.arg_paths(), "types": [type_to_data(a) for a in program.in_avals],
        },
        "results": {
            "tree": tree_files.to_data(record.out_tree) if trees else None,
            "types": [type_to_data(a) for a in program.out_avals],
        },
        "captured": [{"shape": list(c.shape), "dtype": c.dtype.name} for c in consts],
        **_shardings(program, shown),
    }  # fmt: skip
    return pack(description, code, b"".join(c.tobytes() for c in consts))


def target_of(devices: Sequence[Any]) -> dict[str, Any]:
    """What compiled code needs to be the same where it runs."""
    first: dict[int, int] = {}
    processes = [first.setdefault(d.process_index, len(first)) for d in devices]
    return {**compile_cache.compiler_of(devices[0]), "processes": processes if len(first) > 1 else 1}


def _const(name: str, value: Any) -> np.ndarray:
    if unreduced_of(aval_of(value)):
        raise errors.SavedProgramError(
            f"{name} captures an array of type {aval_of(value).short()}, which a file cannot hold: devices hold "
            "addends of it. Pass it as an argument, or add it up before with meshrt.reshard"
        )
    if isinstance(value.dtype, ExtendedDType) or not getattr(value, "is_fully_addressable", True):
        raise errors.SavedProgramError(
            f"{name} captures an array of type {value.dtype}{list(value.shape)}, which a file cannot hold: it is a "
            "key, or has parts on other processes. Pass it as an argument"
        )
    return np.ascontiguousarray(np.asarray(value)).reshape(value.shape)


def _shardings(program: CompiledProgram, shown: Written | None) -> dict[str, Any]:
    """Of the module's arguments and results, and how results are shown; None on a single device."""
    request = program.request
    layouts = ((), ()) if shown is None else (shown.layouts, shown.arg_layouts)
    asked = {
        what: [None if at is None else asdict(at) for at in found]
        for what, found in zip(("layouts", "argument_layouts"), layouts)
    }
    if request.mesh is None or program.arg_shardings is None or program.out_shardings is None:
        return {"mesh": None, **asked, "named": shown is not None and shown.named}
    meshes = [request.mesh, *request.views]

    row = functools.partial(row_to_data, meshes=meshes)
    rows = {
        "arguments": [row(s) for s in program.arg_shardings],
        "results": [row(s) for s in program.out_shardings],
        "asked": [row(s) for s in request.out_shardings],
        "written": None if shown is None else [row(s if isinstance(s, NamedSharding) else None) for s in shown.outs],
        "written_arguments": [] if shown is None else [row(s) for s in shown.args],
        "example": None if shown is None else row(shown.example),
        "example_ndim": -1 if shown is None else shown.example_ndim,
    }
    return {"mesh": [mesh_to_data(m) for m in meshes], "views": len(request.views), "shardings": rows, **asked}


# ---------------------------------------------------------------------------------------------------------------------
# Reading


class SavedRecord(NamedTuple):
    """What a file has of the function that was compiled."""

    fun_name: str
    in_tree: Any
    out_tree: Any
    in_avals: list[ShapedArray]
    out_avals: list[ShapedArray]
    names: list[str]

    def arg_paths(self) -> list[str]:
        """What the user called each argument: `x`, `state['w']`."""
        return self.names


class Restored(NamedTuple):
    """A program from a file, and where it is to run."""

    program: CompiledProgram
    mesh: Mesh | None
    devices: tuple[Any, ...]
    written: Written | None


def restore(content: Content, devices: Sequence[Any] | None, trees: tuple[Any, Any] | None, origin: str) -> Restored:
    """The program of a container, whose checksum has been found right, for `devices`.

    By default these are those of the mesh in context if it has the program's axes, else the first ones of the platform.

    Raises:
      IncompatibleProgramError: another compiler, other hardware, or another number of devices.
      SavedProgramError: a description that this meshrt cannot read. TreeError: a structure with unknown classes.
    """
    said = content.description
    try:
        mesh = None if said["mesh"] is None else mesh_from_data(said["mesh"][0])
        count = said["program"]["devices"]
        if count != (1 if mesh is None else mesh.size):
            raise ValueError(f"{count} devices for the mesh {mesh}")
        chosen = tuple(_default_devices(said, mesh, count, origin) if devices is None else devices)
        _check_target(said, chosen, count, origin)
        record, shown = _record(said, trees), None
        args, outs, request = None, None, _request(said, mesh, backend.platform_of(chosen[0]))
        if mesh is not None:
            args, outs, request, shown = _placed(said, request)
        elif said["layouts"] or said["argument_layouts"] or said.get("named"):
            shown = written(
                (None,) * len(record.out_avals), layouts=_layouts(said["layouts"]),
                arg_layouts=_layouts(said["argument_layouts"]), named=bool(said.get("named")),
            )  # fmt: skip
        consts = _captured(said["captured"], content.data)
        executable = _executable(said, content.code, chosen)
        memories = [tuple(map(_memory, said["program"][f"{what} memories"])) for what in ("argument", "result")]
        kept = tuple(said["program"]["kept"])
        program = CompiledProgram(record, request, executable, args, outs, consts, kept, *memories)
        _check_counts(program, shown)
    except errors.MeshrtError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as e:
        raise errors.SavedProgramError(
            f"{origin} has a description that this meshrt cannot read ({type(e).__name__}: {e}); save the program again"
        ) from e
    return Restored(program, None if mesh is None else mesh_over(mesh, chosen), chosen, shown)


def _default_devices(said: Mapping[str, Any], mesh: AbstractMesh | None, count: int, origin: str) -> Sequence[Any]:
    around = mesh_context.concrete
    if mesh is not None and around is not None and around.abstract_mesh is mesh:
        found: Sequence[Any] = around.flat_devices
        return found
    platform = said["target"]["platform"]
    try:
        every = backend.devices(platform)
    except errors.BackendError as e:
        raise errors.IncompatibleProgramError(
            f"{origin} is for the platform {platform!r}, which is not here: {e}"
        ) from e
    if count == 1:
        default = backend.default_device()
        return (default,) if default in every else backend.local_devices(backend=platform)[:1]
    return every[:count]


def _check_target(said: Mapping[str, Any], devices: tuple[Any, ...], count: int, origin: str) -> None:
    if len(devices) != count:
        raise errors.IncompatibleProgramError(
            f"{origin} was compiled for {errors.counted(count, 'device')}, and {len(devices)} are to run it: pass "
            "devices=... with as many, in the order of the mesh"
        )
    if len(set(devices)) != count:
        raise errors.IncompatibleProgramError(f"{origin} runs on {count} different devices. Got {list(devices)}")
    here, there = target_of(devices), said["target"]
    wrong = [f"{k} {there.get(k)!r}, here {here.get(k)!r}" for k in {**there, **here} if there.get(k) != here.get(k)]
    if wrong:
        raise errors.IncompatibleProgramError(
            f"{origin} was compiled for {'; '.join(wrong)}. Compile the function here and save it again"
        )


def _record(said: Mapping[str, Any], trees: tuple[Any, Any] | None) -> SavedRecord:
    args, results = said["arguments"], said["results"]
    if trees is None:
        if args["tree"] is None:
            raise errors.SavedProgramError(
                "this program was serialized without the structures of its arguments and results; load it with "
                "meshrt.experimental.serialize_executable.deserialize_and_load(serialized, in_tree, out_tree)"
            )
        trees = tree_files.from_data(args["tree"]), tree_files.from_data(results["tree"])
    names = [str(n) for n in args["names"]]
    in_tree, out_tree = trees
    return SavedRecord(
        str(said["function"]),
        in_tree,
        out_tree,
        [type_from_data(t) for t in args["types"]],
        [type_from_data(t) for t in results["types"]],
        names,
    )


def _memory(name: Any) -> str:
    if name not in ("device", "pinned_host", "unpinned_host"):
        raise ValueError(f"the kind of memory {name!r}")
    return str(name)


def _request(said: Mapping[str, Any], mesh: AbstractMesh | None, platform: str) -> LoweringRequest:
    donated = tuple(bool(d) for d in said["program"]["donated"])
    # (A file without the entry is of a program that chose none.)
    chosen = [tuple(map(int, side)) for side in said["program"].get("chosen layouts", [(), ()])]
    return LoweringRequest(mesh, (), (), donated, platform, auto_args=chosen[0], auto_outs=chosen[1])


def _placed(said: Mapping[str, Any], request: LoweringRequest) -> tuple[Any, Any, LoweringRequest, Written | None]:
    meshes = [mesh_from_data(m) for m in said["mesh"]]
    rows = said["shardings"]

    def read(row: Any) -> NamedSharding | None:
        return None if row is None else sharding_from_data(meshes[row["mesh"]], row)

    args, outs, asked = (tuple(read(r) for r in rows[k]) for k in ("arguments", "results", "asked"))
    if None in args or None in outs or any(m.size != meshes[0].size for m in meshes):
        raise ValueError("an argument or result without a sharding, or meshes of several sizes")
    request = request._replace(out_shardings=asked, views=tuple(meshes[1 : 1 + said["views"]]))
    if rows["written"] is None:
        return args, outs, request, None
    shown = written(
        tuple(read(r) for r in rows["written"]), read(rows["example"]), rows["example_ndim"], _layouts(said["layouts"]),
        _layouts(said["argument_layouts"]), args=tuple(read(r) for r in rows["written_arguments"]),
    )  # fmt: skip
    return args, outs, request, shown


def _layouts(rows: Sequence[Mapping[str, Any] | None]) -> tuple[Layout | None, ...]:
    return tuple(None if row is None else Layout(**row) for row in rows)


def _captured(rows: Sequence[Mapping[str, Any]], data: bytes) -> tuple[np.ndarray, ...]:
    out, start = [], 0
    for row in rows:
        dtype = dtype_from_data(row["dtype"])
        count = int(np.prod(row["shape"], dtype=np.int64))
        if count < 0 or start + count * dtype.itemsize > len(data):
            raise ValueError("captured values beyond the end of the data")
        out.append(np.frombuffer(data, dtype, count, start).reshape(row["shape"]))
        start += count * dtype.itemsize
    if start != len(data):
        raise ValueError("data that no captured value takes")
    return tuple(out)


def _executable(said: Mapping[str, Any], code: bytes, devices: tuple[Any, ...]) -> PortableExecutable:
    program = said["program"]
    options = tuple((str(name), value) for name, value in program["options"])
    return PortableExecutable.of_code(
        code, devices, mode=program["mode"], shardy=bool(program["shardy"]), options=options,
        fingerprint=str(program["fingerprint"]), name=str(said["function"]),
    )  # fmt: skip


def _check_counts(program: CompiledProgram, shown: Written | None) -> None:
    """Whether what was read fits together, so that running it cannot go astray."""
    record, consts, kept = program.record, len(program.consts), program.kept
    many = len(record.in_avals)
    asked = program.request.out_shardings if program.request.mesh is not None else None
    layouts = None if shown is None or not shown.layouts else shown.layouts
    results = (program.out_shardings, asked, None if shown is None else shown.outs, layouts)
    fits = (
        record.in_tree.num_leaves == many == len(record.arg_paths()) == len(program.request.donated)
        and record.out_tree.num_leaves == len(record.out_avals)
        and all(type(k) is int and 0 <= k < many for k in kept)
        and (program.arg_shardings is None or len(program.arg_shardings) == consts + len(kept))
        and all(0 <= i < many for i in program.request.auto_args)
        and all(0 <= i < len(record.out_avals) for i in program.request.auto_outs)
        and len(program.arg_memories) in (0, consts + len(kept))
        and len(program.out_memories) in (0, len(record.out_avals))
        and all(len(outs) == len(record.out_avals) for outs in results if outs is not None)
        and (shown is None or len(shown.args) in (0, many))
    )
    if not fits:
        raise errors.SavedProgramError(
            f"the structures of {record.fun_name} have {record.in_tree.num_leaves} arguments and "
            f"{record.out_tree.num_leaves} results, and the program has {many} and {len(record.out_avals)}; give the "
            "structures that it was serialized with"
        )


# ---------------------------------------------------------------------------------------------------------------------
# Binding

_alive: weakref.WeakSet[SavedLoads] = weakref.WeakSet()


class SavedLoads:
    """What a driver is for a function: binds a program from a file to devices, and knows its calls."""

    def __init__(self) -> None:
        self._loaded: dict[Any, Loaded] = {}
        self._calls: dict[Any, Entry] = {}
        _alive.add(self)

    def load(self, program: CompiledProgram, mesh: Mesh | None, devices: tuple[Any, ...]) -> Loaded:
        """The program on these devices."""
        key = (program, mesh, devices)
        found = self._loaded.get(key)
        if found is None:
            found = self._loaded[key] = Loaded(program, mesh, devices)
        return found

    def known_call(self, key: Any) -> Entry | None:
        return self._calls.get(key)

    def remember_call(self, key: Any, entry: Entry) -> None:
        self._calls[key] = entry

    def forget_devices(self) -> None:
        """Drops what is bound to devices."""
        self._loaded.clear()
        self._calls.clear()


@backend.on_clear
def _forget_devices() -> None:
    for loads in list(_alive):
        loads.forget_devices()
