"""Compiled programs as bytes with the structures beside them (`jax.experimental.serialize_executable`).

`meshrt.stages.Compiled.save` and `meshrt.stages.load` keep the structures in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt import errors
from meshrt.pipeline.saved import to_bytes
from meshrt.pipeline.stateful import StatefulCompiled
from meshrt.runtime import backend as backends
from meshrt.stages import Compiled, load

__all__ = ["deserialize_and_load", "serialize"]


def serialize(compiled: Compiled) -> tuple[bytes, Any, Any]:
    """The program, and the structures of its arguments `(args, kwargs)` and results.

    Raises:
      SavedProgramError: the program calls back into Python, or captures what a file cannot hold.
    """
    if isinstance(compiled, StatefulCompiled):
        raise errors.SavedProgramError(
            f"can't serialize with a closed-over mutable array ref: what {compiled.program.name} writes to is in this "
            "process. Make the function take and return arrays"
        )
    if not isinstance(compiled, Compiled):
        raise errors.ArgumentTypeError(
            f"serialize takes what jit(f).lower(...).compile() gives. Got {compiled!r} of {type(compiled)}"
        )
    return to_bytes(compiled.program, compiled._written, trees=False), compiled.in_tree, compiled.out_tree


def deserialize_and_load(
    serialized: bytes,
    in_tree: Any,
    out_tree: Any,
    backend: Any = None,
    execution_devices: Sequence[Any] | None = None,
) -> Compiled:
    """The program that `serialize` gave, on `execution_devices`, or on the first devices.

    `backend` is the name of a platform or a client; by default the platform that the program was compiled for.

    Raises: what `meshrt.stages.load` raises.
    """
    here = backends.client(backend) if isinstance(backend, str) else backend
    if here is not None and any(d.client is not here for d in execution_devices or ()):
        raise errors.ArgumentValueError(
            f"Execution devices belong to a client other than `backend`. Got backend {here.platform!r} and the devices "
            f"{execution_devices}; leave one of the two out"
        )
    compiled = load(bytes(serialized), execution_devices, trees=(in_tree, out_tree))
    assert compiled.devices is not None, "a loaded program is somewhere"
    if here is not None and compiled.devices[0].client is not here:
        raise errors.IncompatibleProgramError(
            f"the program was compiled for {compiled.devices[0].platform!r}, not for the backend {here.platform!r}"
        )
    return compiled
