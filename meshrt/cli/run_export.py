"""``meshrt run-export``: a function in a file that `meshrt export` wrote, on arrays from a file."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import click

from meshrt.errors import ArgumentValueError, SavedProgramError

_EPILOG = """\b
Examples:
  meshrt run-export step.mexp --inputs x.npz
  meshrt run-export step.mexp --inputs x.npz --mesh data=8 -o results.npz
"""
# What NumPy calls arrays that are given without a name.
_UNNAMED = "arr_"


@click.command(name="run-export", epilog=_EPILOG)
@click.option("--inputs", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="An .npz file: arrays by the arguments' names (args[0], kwargs['b']), or in order.")  # fmt: skip
@click.option("--mesh", metavar="AXIS=N,...", help="Runs on this mesh, of virtual CPU devices if there are no others.")
@click.option("--with-executable", is_flag=True, help="Run compiled code that the file has, if it fits what is here.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the results, as .npz.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def command(file: Path, inputs: Path | None, mesh: str | None, with_executable: bool, output: Path | None) -> int:
    """Runs the function in FILE, which must be yours: a program does what it says."""
    # Start-up time: `meshrt --help` shows every command.
    import numpy as np

    # Start-up time too: these are what a command needs that runs.
    import meshrt
    from meshrt.export import deserialize
    from meshrt.export.record import argument_names
    from meshrt.export.repartition import over_mesh
    from meshrt.inspect.target import parse_mesh
    from meshrt.pipeline.container import read_file, write_file
    from meshrt.runtime import events
    from meshrt.transforms.high import leaf_paths

    axes = parse_mesh(mesh) if mesh is not None else None
    if axes is not None:
        meshrt.config.update("num_cpu_devices", max(1, int(np.prod(list(axes.values())))))
    copied = (
        "make it yours (`cp {path} mine.mexp`), or run its program without --with-executable, which compiles it here"
    )
    stored_bytes = read_file(file, copied) if with_executable else file.read_bytes()
    try:
        exported = deserialize(stored_bytes, with_executable=with_executable)
    except SavedProgramError as e:
        raise type(e)(f"{file}: {e}") from None
    if with_executable and not exported.executables:
        click.echo(f"{file} has no code, which `meshrt export --with-executable` writes", err=True)
    for stored in exported.executables:
        if with_executable and not stored.is_offered:
            click.echo(f"{file}: its code does not fit: {'; '.join(stored.differences())}", err=True)
    leaves = _arrays(inputs, argument_names(exported.in_tree), exported.in_avals)
    if axes is not None:
        devices = meshrt.make_mesh(tuple(axes.values()), tuple(axes))
        whole = meshrt.NamedSharding(devices, meshrt.P())
        there = over_mesh(exported, devices)
        known = there.mesh is not None and there.mesh.axis_sizes == devices.axis_sizes
        asked = there.in_shardings_jax(devices) if known else [None] * len(leaves)
        leaves = [meshrt.device_put(x, s or whole) for x, s in zip(leaves, asked)]
    args, kwargs = meshrt.tree_util.tree_unflatten(exported.in_tree, leaves)
    with events.count("offered", "compile") as happened:
        results = exported.call(*args, **kwargs)
    if any(stored.is_offered for stored in exported.executables):
        click.echo(f"{file}: {_said_of_code(exported.executables, happened)}", err=True)
    names = ["result" + meshrt.tree_util.keystr(p) for p in leaf_paths(exported.out_tree)]
    leaves = meshrt.tree_util.tree_leaves(results)
    found: dict[str, Any] = {n: np.asarray(r) for n, r in zip(names, leaves, strict=True)}
    if output is not None:
        data = io.BytesIO()
        np.savez(data, **found)
        write_file(output, data.getvalue())
    for name, value in found.items():
        click.echo(f"{name}: {value.dtype}[{','.join(map(str, value.shape))}]")
        if output is None:
            click.echo(np.array2string(value, threshold=20))
    return 0


def _said_of_code(executables: tuple[Any, ...], happened: Any) -> str:
    """Whether the call took some of the code that was offered to it, and if not what that is for."""
    if happened.offered:
        return "the call ran its code"
    if not happened.compile:
        return "the call took none of its code, for its program was compiled before"
    sizes = [", ".join(f"{n}={k}" for n, k in e.sizes.items()) for e in executables if e.is_offered]
    known = f" with {' or '.join(sizes)}" if all(sizes) else ""
    return f"the call was compiled, for its code is that of calls{known} whose arguments lie as they were exported"


def _arrays(path: Path | None, names: list[str], avals: Any) -> list[Any]:
    """An array for each argument, of an .npz file, by its name or its place."""
    import numpy as np  # start-up time, as above

    given: dict[str, Any] = {}
    if path is not None:
        try:
            if not zipfile.is_zipfile(path):
                raise ValueError("numpy.savez writes an archive, and this is none")
            with np.load(path, allow_pickle=False) as file:
                given = dict(file)
        except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as e:
            raise ArgumentValueError(f"{path} is no .npz file of arrays: {e}") from None
    if all(key.startswith(_UNNAMED) for key in given):
        given = {n: given[f"{_UNNAMED}{i}"] for i, n in enumerate(names) if f"{_UNNAMED}{i}" in given}
    wanted = ", ".join(f"{n}: {a.short()}" for n, a in zip(names, avals))
    if set(given) != set(names):
        raise ArgumentValueError(
            f"the function takes {wanted or 'no arguments'}, and the inputs are {', '.join(given) or 'none'}; write "
            "them with numpy.savez(path, **{name: array}), or numpy.savez(path, first, second, ...)"
        )
    return [given[n] for n in names]
