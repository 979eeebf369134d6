"""From a file to a `Compiled`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from meshrt import errors
from meshrt.core.types import aval_of
from meshrt.pipeline.compiled import Compiled
from meshrt.pipeline.container import read_file, unpack
from meshrt.pipeline.loaded import Loaded
from meshrt.pipeline.program import CompiledProgram
from meshrt.pipeline.saved import SavedLoads, restore
from meshrt.runtime.signature import signature
from meshrt.sharding.mesh import Mesh
from meshrt.xla import jaxlib_api, jaxlib_executables

__all__ = ["load"]


def load(
    source: str | os.PathLike[str] | bytes,
    devices: Mesh | Sequence[Any] | None = None,
    *,
    trees: tuple[Any, Any] | None = None,
) -> Compiled:
    """A compiled program that `Compiled.save` or `Compiled.serialize` wrote, ready to run, without compiling.

    >>> saved = meshrt.jit(lambda x: 2 * x).lower(jnp.arange(3)).compile().serialize()
    >>> meshrt.stages.load(saved, devices=meshrt.devices()[:1])(jnp.arange(3))
    Array([0, 2, 4], dtype=int32)

    A program is machine code and runs with your rights. A file is therefore read only if it belongs to you or root and
    nobody else can write it; bytes are taken as they are.

    Args:
      source: a path, or the bytes.
      devices: where it is to run: a Mesh, or as many devices as it was compiled for, in the order of its mesh. Any of
        the same kind will do. By default those of the mesh in context if it has the program's axes, else the first.
      trees: the structures of arguments and results, where it was serialized without them.

    Raises:
      SavedProgramError: not such a file, damaged, of another version, or one that others can write.
      IncompatibleProgramError: for another compiler, other hardware or another number of devices.
      TreeError: it has containers of classes that are not registered here. ArgumentTypeError: `source` is neither a
        path nor bytes.
    """
    origin = "the program in these bytes"
    if not isinstance(source, bytes | bytearray | memoryview):
        if not isinstance(source, str | os.PathLike):
            raise errors.ArgumentTypeError(
                f"load takes a path or bytes. Got {source!r} of type {type(source).__name__}"
            )
        origin = f"the program in {os.fspath(source)}"
        source = read_file(source, "pass its bytes: load(open({path!r}, 'rb').read())")
    chosen = devices.flat_devices if isinstance(devices, Mesh) else devices
    found = restore(unpack(bytes(source), origin), chosen, trees, origin)
    compiled = Compiled(None, found.program, found.mesh, found.devices, SavedLoads(), found.written)
    _check_code(found.program, compiled._loaded(), origin)  # loads, so that what the runtime has to say is said here
    return compiled


def _check_code(program: CompiledProgram, loaded: Loaded, origin: str) -> None:
    """Whether the code takes and gives on each device what the description says: XLA aborts the process if not."""
    try:
        found = jaxlib_executables.boundary_types(loaded.executable.executable)
    except jaxlib_api.XlaError:  # a platform that tells nothing of its code
        return
    args = [*map(aval_of, program.consts), *(program.in_avals[i] for i in program.kept)]
    said = _local(args, loaded.arg_shardings), _local(program.out_avals, loaded.out_shardings)
    for what, have, want in zip(("arguments", "results"), found, said):
        if have != want:
            raise errors.SavedProgramError(
                f"{origin} is not what its description says: on each device the code's {what} are {have}, and the "
                f"description's {want}; save the program again"
            )


def _local(avals: Sequence[Any], shardings: Sequence[Any]) -> list[Any]:
    """Shape and element type of the buffers on one device."""
    made = [signature(a, s) for a, s in zip(avals, shardings)]
    return [(s.shard_shape, s.physical.dtype) for s in made]
