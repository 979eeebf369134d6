"""A function of a Python file as a program to inspect: `FILE.py:FUNCTION` over an AbstractMesh.

Protocol: FUNCTION is what `meshrt.jit` returned, and the file has a function `example_arguments(mesh)` (another name
with `--arguments`) that returns FUNCTION's positional arguments as arrays or ShapeDtypeStructs with shardings over
`mesh`, which is an AbstractMesh. Importing the file must not train:
scripts guard `main()` by `if __name__ == "__main__"`.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from meshrt import config
from meshrt.errors import InspectError
from meshrt.sharding import AbstractMesh, AxisType, use_abstract_mesh

__all__ = ["lower_target", "parse_mesh", "split_target"]


def parse_mesh(text: str) -> dict[str, int]:
    """`data=4,model=2` as {"data": 4, "model": 2}."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, sign, size = part.strip().partition("=")
        if not sign or not name.isidentifier() or not size.strip().isdigit() or int(size) < 1:
            raise InspectError(f"mesh {text!r}: expected axes with their sizes, such as data=4,model=2")
        if name in axes:
            raise InspectError(f"mesh {text!r}: the axis {name!r} stands twice; give each axis once")
        axes[name] = int(size)
    return axes


def split_target(target: str) -> tuple[Path, str] | None:
    """(file, function) of `FILE.py:FUNCTION`; None if the target is not of that form."""
    path, colon, name = target.rpartition(":")
    if not colon or not path.endswith(".py") or not name.isidentifier():
        return None
    return Path(path), name


def lower_target(
    path: Path, name: str, mesh: dict[str, int], hook: str = "example_arguments", platform: str = "cpu"
) -> Any:
    """The `Lowered` of a function of a file over an AbstractMesh. InspectError says what the file lacks."""
    config.update("platforms", "cpu")  # a look at a program must not occupy an accelerator
    module = _import(path)
    function, arguments = _attribute(module, path, name), _attribute(module, path, hook)
    if not hasattr(function, "trace"):
        raise InspectError(f"{path}: {name} is not a jitted function; decorate it with meshrt.jit")
    abstract = AbstractMesh(tuple(mesh.values()), tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))
    example = _call(path, hook, lambda: arguments(abstract))
    args = tuple(example) if isinstance(example, tuple | list) else (example,)
    with use_abstract_mesh(abstract):
        return _call(path, name, lambda: function.trace(*args).lower(lowering_platforms=(platform,)))


def _attribute(module: ModuleType, path: Path, name: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        functions = [
            n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__
        ]
        raise InspectError(f"{path} has no {name}; it has {', '.join(functions[:12]) or 'no functions'}")
    return found


def _import(path: Path) -> ModuleType:
    if not path.is_file():
        raise InspectError(f"{path}: {'is not a file' if path.exists() else 'no such file'}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # there is a loader for .py
    load = spec.loader.exec_module
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as running the script would
    _call(path, "import", lambda: load(module))
    return module


def _call(path: Path, what: str, function: Callable[[], Any]) -> Any:
    """Runs the user's code; what it raises becomes one line that names its place in `path`."""
    try:
        return function()
    except InspectError:
        raise
    except SystemExit as e:
        raise InspectError(
            f"{path}: the file ends the program when it is imported (exit code {e.code}); guard main() "
            'by if __name__ == "__main__"'
        ) from None
    except Exception as e:
        frames = [f for f in traceback.extract_tb(e.__traceback__) if Path(f.filename).name == path.name]
        line = e.lineno if isinstance(e, SyntaxError) else frames[-1].lineno if frames else None
        where = f"{path}:{line}" if line else f"{path} ({what})"
        raise InspectError(f"{where}: {type(e).__name__}: {e}") from e
