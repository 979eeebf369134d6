"""Programs on disk between lowering and compiling: a process that lowers what another one has lowered need not
propagate and partition it again.

An entry holds one device's program and the shardings of its boundary. Its key is the lowered module (without the lines
it was written on), what was asked of the two stations, and which code of ours did the work.
"""

from __future__ import annotations

import functools
import json
import os
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import propagation
from meshrt import errors
from meshrt.pipeline.device_program import DeviceProgram
from meshrt.pipeline.lowered import Lowered
from meshrt.runtime import compile_cache
from meshrt.sharding.as_data import sharding_from_data, sharding_to_data
from meshrt.xla import jaxlib_api

__all__ = ["stored"]


def stored(lowered: Lowered, asked: Mapping[str, Any], make: Callable[[], DeviceProgram]) -> DeviceProgram:
    """What `make` gives for a lowered module and what is `asked` (partitioner, propagator, options), from disk if it
    is there. The directory of programs must be in use."""
    name = f"{_key(lowered, asked)}.program"
    found = _load(name, lowered)
    if found is not None:
        return found
    with compile_cache.making(name) as waited:
        found = _load(name, lowered) if waited else None
        if found is None:
            start = time.perf_counter()
            found = make()
            seconds = time.perf_counter() - start
            content = _written(found, lowered)
            if content is not None:
                compile_cache.store_entry(
                    name, content, seconds=seconds, program=lowered.record.fun_name, platform=lowered.request.platform
                )
    return found


def _key(lowered: Lowered, asked: Mapping[str, Any]) -> str:
    text = compile_cache.content(lowered.module.text)
    options = ";".join(f"{k}={asked[k]!r}" for k in sorted(asked))
    request = lowered.request
    return compile_cache.fingerprint(
        text, repr(lowered.mesh), repr(request.uneven), request.platform, options, _our_code()
    )


@functools.cache
def _our_code() -> str:
    """What of ours makes programs: the files of the packages that do, by their sizes and times, and jaxlib's version.

    Times, as reading two megabytes of source at the start of each process would cost more than a wrong miss.
    """
    here = Path(__file__).resolve().parents[1]
    roots = [here / "pipeline", here / "lowering", Path(propagation.__file__).parent, here.parent / "collectives"]
    rows = [".".join(map(str, jaxlib_api.VERSION))]
    for root in roots:
        for folder, _, files in sorted(os.walk(root)):
            for file in sorted(files):
                if file.endswith((".py", ".toml")):
                    status = os.stat(os.path.join(folder, file))
                    rows.append(f"{os.path.relpath(folder, root)}/{file} {status.st_size} {status.st_mtime_ns}")
    return compile_cache.fingerprint(*rows)


# ----------------------------------------------------------------------------------------------------------
# As bytes: a line of JSON, then the compressed module.


def _written(program: DeviceProgram, lowered: Lowered) -> bytes | None:
    """None for what cannot be written: meshes whose axes have names that are no text, shardings over parts of axes."""
    boundary = (program.arg_shardings, program.out_shardings)
    if any(s.mesh is not lowered.mesh for shardings in boundary for s in shardings):
        return None
    try:
        specs = [[sharding_to_data(s) for s in shardings] for shardings in boundary]
    except errors.UnsupportedError:
        return None
    head = json.dumps({"mode": program.mode, "arguments": specs[0], "results": specs[1]})
    return head.encode() + b"\n" + zlib.compress(program.module.encode(), 1)


def _load(name: str, lowered: Lowered) -> DeviceProgram | None:
    content = compile_cache.load_entry(name)
    if content is None:
        return None
    mesh = lowered.mesh
    assert mesh is not None, "a partitioned program has a mesh"
    try:
        head, _, module = content.partition(b"\n")
        read = json.loads(head)
        args, outs = ([sharding_from_data(mesh, row) for row in read[k]] for k in ("arguments", "results"))
        return DeviceProgram(zlib.decompress(module).decode(), read["mode"], tuple(args), tuple(outs))
    except (KeyError, TypeError, ValueError, zlib.error) as e:
        compile_cache.discard_entry(name, f"it is not a program ({e})")
        return None
