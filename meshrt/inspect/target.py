"""A function of a Python file as a program to inspect: `FILE.py:FUNCTION` or `FILE.py:CLASS.METHOD` over a mesh.

Protocol: the file has a function `example_arguments(mesh)` (another name with `--factory`) that returns FUNCTION's
arguments as arrays or ShapeDtypeStructs with shardings over `mesh`, which is an AbstractMesh: a tuple of them, one
alone, or what `inspect.signature(FUNCTION).bind(...)` gives where some are named. Instead of a function it may be these
arguments themselves; or `--args` writes them (`written_arguments.py`). FUNCTION is what `jit` returned, of
meshrt or of jax, or a plain function (jax's if its file uses jax and nothing of meshrt), or a factory's product
(`step = make_step()`). A method is that of an
object that CLASS() makes, unless it is static or CLASS is an object itself (`FILE.py:model.step` of one that the file
makes). A file in a package may import relatively.
Importing it must not train: scripts guard `main()` by `if __name__ == "__main__"`. What it prints goes to standard
error.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from meshrt import config
from meshrt.errors import InspectError, TargetError
from meshrt.inspect.annotations import Annotations, argument_axes
from meshrt.inspect.written_arguments import WrittenArguments
from meshrt.jit import jit
from meshrt.pipeline.traced import TraceRecord
from meshrt.runtime import backend
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, use_abstract_mesh
from meshrt.tree_util import tree_flatten, tree_map, tree_unflatten

__all__ = ["ForeignText", "Hook", "lower_target", "parse_mesh", "parse_sizes", "split_target", "stage_target"]


Hook = str | WrittenArguments  # what the file calls the arguments' factory, or the arguments


class ForeignText(str):
    """The StableHLO of a function that is jax's own: jax has lowered it, in the process of the user's script."""


def parse_mesh(text: str) -> dict[str, int]:
    """`data=4,model=2` as {"data": 4, "model": 2}.

    Raises:
      InspectError: it is not of that form, or names an axis twice.

    >>> parse_mesh("data=4,model=2")
    {'data': 4, 'model': 2}
    """
    return _numbers(text, "mesh", "axis", "axes with their sizes, such as data=4,model=2")


def parse_sizes(text: str) -> dict[str, int]:
    """`b=8,c=2`, numbers for symbolic sizes, as {"b": 8, "c": 2}. InspectError as `parse_mesh`.

    >>> parse_sizes("b=8,c=2")
    {'b': 8, 'c': 2}
    """
    return _numbers(text, "sizes", "size", "symbolic sizes with their numbers, such as b=8,c=2")


_SIZE = re.compile(r"[0-9]{1,18}")


def _numbers(text: str, what: str, one: str, expected: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        name, sign, number = part.strip().partition("=")
        if not sign or not name.isidentifier() or not _SIZE.fullmatch(number.strip()) or int(number) < 1:
            raise InspectError(f"{what} {text!r}: expected {expected}")
        if name in found:
            raise InspectError(f"{what} {text!r}: the {one} {name!r} stands twice; give each {one} once")
        found[name] = int(number)
    return found


def split_target(target: str) -> tuple[Path, str] | None:
    """(file, function) of `FILE.py:FUNCTION` or `FILE.py:CLASS.METHOD`; None if the target is not of that form."""
    path, colon, name = target.rpartition(":")
    if not colon or not path.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        return None
    return Path(path), name


def require_file(path: Path) -> None:
    """TargetError: there is no such file."""
    if not path.is_file():
        raise TargetError(f"{path}: {'is not a file' if path.exists() else 'no such file'}")


def lower_target(
    path: Path,
    name: str,
    mesh: dict[str, int],
    hook: Hook = "example_arguments",
    platform: str = "cpu",
    annotations: Annotations | None = None,
) -> Any:
    """The `Lowered` of a function of a file over an AbstractMesh, or of one of jax's a `ForeignText`. `annotations` say
    how arguments of ours are sharded instead. InspectError says what the file lacks."""
    lower = lambda function, args, kwargs: function.trace(*args, **kwargs).lower(lowering_platforms=(platform,))
    foreign = lambda function, arguments: _lower_with_jax(path, name, hook, function, arguments, mesh, platform)
    return stage_target(path, name, mesh, hook, lower, foreign, annotations)


def stage_target(
    path: Path,
    name: str,
    mesh: dict[str, int],
    hook: Hook,
    stage: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
    foreign: Callable[[Any, Callable[[Any], Any]], Any],
    annotations: Annotations | None = None,
) -> Any:
    """What `stage(function, args, kwargs)` makes of a function of a file over an AbstractMesh.

    What it makes tells its `mesh`; if it has none, it is made again with arguments that lie whole on each device. One
    of jax's functions goes to `foreign(function, arguments)`. InspectError says what the file lacks; TargetError,
    its subclass, that `name` is no function there.
    """
    if not backend.is_created():  # else it is occupied already
        config.update("platforms", "cpu")  # a look at a program must not occupy an accelerator
    with _printing_to_stderr(), _alone(path):
        module = _import(path)
        (function, owner), arguments = _function(module, path, name), _factory(module, path, hook)
        if not callable(function):
            raise TargetError(f"{path}: {name} is {type(function).__name__!r}, not a function")
        if _is_of_jax(function, module):
            return foreign(function, arguments)
        if not hasattr(function, "trace"):
            function = jit(function)
        abstract = AbstractMesh(tuple(mesh.values()), tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))
        if isinstance(hook, WrittenArguments):
            args, kwargs = hook.made(mesh, lambda *of: _struct(abstract, *of))
        else:
            args, kwargs = _bound(_call(path, hook, lambda: arguments(abstract)))
        with use_abstract_mesh(abstract):
            made = _of_method(path, name, owner, lambda: stage(function, args, kwargs))
            if annotations is not None:
                args, kwargs = _annotated((args, kwargs), annotations, made.record, abstract)
                made = _call(path, name, lambda: stage(function, args, kwargs))
            if abstract.size > 1 and made.mesh is None:
                # Nothing in the program names the mesh: it runs on all of it, everywhere the same.
                args, kwargs = _replicated((args, kwargs), abstract)
                made = _call(path, name, lambda: stage(function, args, kwargs))
    return made


@contextlib.contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """What a script prints, from Python or from libraries below it, goes to standard error; the report is output."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # there is no standard output
        yield
        return
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """A script reads a command line of its own, without arguments, rather than this command's."""
    kept = sys.argv
    sys.argv = [str(path)]
    try:
        yield
    finally:
        sys.argv = kept


def _bound(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(positional, named) arguments of what an example is."""
    if isinstance(example, inspect.BoundArguments):
        return example.args, dict(example.kwargs)
    return (tuple(example) if isinstance(example, tuple | list) else (example,)), {}


def _replicated(arguments: Any, mesh: AbstractMesh) -> Any:
    """Arguments whole on each device of a mesh, those that are arrays or stand for arrays."""
    whole = NamedSharding(mesh, PartitionSpec())
    place = lambda x: ShapeDtypeStruct(x.shape, x.dtype, sharding=whole) if hasattr(x, "shape") else x
    return tree_map(place, arguments)


def _annotated(arguments: Any, annotations: Annotations, record: TraceRecord, mesh: AbstractMesh) -> Any:
    """Arguments with the shardings that annotations give those whose names fit."""
    leaves, tree = tree_flatten(arguments)
    arrays = [i for i, x in enumerate(leaves) if hasattr(x, "shape")]
    paths = record.arg_paths()
    if len(arrays) != len(paths):
        raise InspectError(
            f"{annotations.source}: {record.fun_name} has arguments that are no arrays; annotate the others in Python"
        )
    axes = argument_axes(
        annotations, paths, [leaves[i].shape for i in arrays], {str(name): size for name, size in mesh.shape_tuple}
    )
    for i, found in zip(arrays, axes):
        if found is not None:
            spec = PartitionSpec(*(d or None for d in found))
            leaves[i] = ShapeDtypeStruct(leaves[i].shape, leaves[i].dtype, sharding=NamedSharding(mesh, spec))
    return tree_unflatten(tree, leaves)


def _is_of_jax(function: Any, module: ModuleType) -> bool:
    """Whether something was jitted by jax, or is a plain function of a file that uses jax and nothing of ours."""
    inner = getattr(function, "__func__", function)  # of a method
    if type(inner).__module__.partition(".")[0] in _JAX:
        return True
    if hasattr(inner, "trace"):
        return False
    seen = getattr(inspect.unwrap(inner), "__globals__", vars(module)).values()
    rooms = {room for value in seen for room in _rooms(value)}
    return "meshrt" not in rooms and not rooms.isdisjoint(_JAX)


_JAX = ("jax", "jaxlib")  # jax's jitted functions are objects of jaxlib


def _rooms(value: Any) -> tuple[str, ...]:
    """The package that a value is, or those that it and its type come from."""
    if isinstance(value, ModuleType):
        return (value.__name__.partition(".")[0],)
    places = [type(value).__module__]
    if callable(value) and isinstance(getattr(value, "__module__", None), str):
        places.append(value.__module__)
    return tuple(place.partition(".")[0] for place in places)


def _lower_with_jax(
    path: Path,
    name: str,
    hook: Hook,
    function: Any,
    arguments: Callable[[Any], Any],
    mesh: dict[str, int],
    platform: str,
) -> ForeignText:
    jax = sys.modules["jax"]  # the script imported it
    kinds = (jax.sharding.AxisType.Auto,) * len(mesh)
    if math.prod(mesh.values()) <= _MOST_DEVICES:
        with contextlib.suppress(RuntimeError):  # the script has used devices already
            jax.config.update("jax_platforms", "cpu")
            jax.config.update("jax_num_cpu_devices", math.prod(mesh.values()))
    if not hasattr(function, "trace"):
        function = jax.jit(function)

    def over(devices: Any) -> str:
        """The module over a mesh, abstract or of devices."""
        named = lambda axes: jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec(*(a or None for a in axes)))
        array = lambda shape, dtype, axes: jax.ShapeDtypeStruct(shape, dtype, sharding=named(axes))
        if isinstance(hook, WrittenArguments):
            args, kwargs = hook.made(mesh, array)
        else:
            args, kwargs = _bound(_call(path, hook, lambda: arguments(devices)))
        called = function
        if inspect.ismethod(function):  # jax's jitted functions hand out their attributes unbound
            called, args = function.__func__, (function.__self__, *args)
        lower = lambda: called.trace(*args, **kwargs).lower(lowering_platforms=(platform,)).as_text(debug_info=True)
        with jax.sharding.use_abstract_mesh(abstract):
            text: str = lower()
            if abstract.size > 1 and "sdy.mesh @" not in text and "mhlo.sharding" not in text:
                # Nothing in the program names the mesh: it runs on all of it, everywhere the same.
                place = lambda x: array(x.shape, x.dtype, ()) if hasattr(x, "shape") else x
                args, kwargs = jax.tree.map(place, (args, kwargs))
                text = lower()
        return text

    abstract = jax.sharding.AbstractMesh(tuple(mesh.values()), tuple(mesh), axis_types=kinds)

    def lowered() -> str:
        try:
            return over(abstract)
        except ValueError as e:
            if "AbstractMesh cannot be used" not in str(e):  # so jax says that callbacks want devices
                raise
        return over(_devices(jax, f"{path}:{name}", mesh, kinds))

    return ForeignText(_of_method(path, name, getattr(function, "__self__", None), lowered))


# The largest mesh of jax's own devices. Chosen: each of them takes memory and threads.
_MOST_DEVICES = 1024


def _devices(jax: Any, name: str, mesh: dict[str, int], kinds: tuple[Any, ...]) -> Any:
    """A mesh of virtual CPU devices of jax's. InspectError if there are not as many."""
    count, found = math.prod(mesh.values()), jax.devices("cpu")
    if len(found) < count:
        raise InspectError(
            f"{name} calls Python back, which jax lowers over devices only, and has {len(found)} of {count}; give a "
            f"mesh of at most {_MOST_DEVICES} devices, and leave devices alone while the file is imported"
        )
    return jax.sharding.Mesh(np.array(found[:count]).reshape(tuple(mesh.values())), tuple(mesh), axis_types=kinds)


def _struct(
    mesh: AbstractMesh, shape: tuple[int, ...], dtype: np.dtype, axes: tuple[tuple[str, ...], ...]
) -> ShapeDtypeStruct:
    """What stands for an array of `--args`; nothing is said of one that names no axis."""
    if not any(axes):
        return ShapeDtypeStruct(shape, dtype)
    return ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*(a or None for a in axes))))


def _factory(module: ModuleType, path: Path, hook: Hook) -> Callable[[Any], Any]:
    """What gives the arguments over a mesh: a function of the module that takes it or nothing, or a value of it."""
    if isinstance(hook, WrittenArguments):
        return lambda mesh: None  # they are written
    found = getattr(module, hook, None)
    if found is None:
        raise TargetError(
            f"{path} has no {hook}; write a function {hook}(mesh) that returns the arguments, name another one with "
            "--factory, or write the arguments with --args 'f32[8,128]'"
        )
    if not callable(found):
        return lambda mesh: found
    try:
        takes_mesh = bool(inspect.signature(found).parameters)
    except ValueError:  # it does not tell
        takes_mesh = True
    return found if takes_mesh else lambda mesh: found()


def _function(module: ModuleType, path: Path, name: str) -> tuple[Any, Any]:
    """A function of a module, or the method of an object that its class makes, and that object."""
    first, *rest = name.split(".")
    found, owner = _attribute(module, path, first), None
    for part in rest:
        if inspect.isclass(found) and not isinstance(
            inspect.getattr_static(found, part, None), staticmethod | classmethod
        ):
            found = _instance(path, found, part)
        if not hasattr(found, part):
            raise TargetError(f"{path}: {first} has no {part}")
        owner, found = found, getattr(found, part)
    return found, owner


def _instance(path: Path, made: type, method: str) -> Any:
    """An object of a class, for one of its methods."""
    try:
        inspect.signature(made).bind()
    except TypeError as e:
        raise TargetError(
            f"{path}: {made.__name__}.{method} needs an object, and {made.__name__}() lacks arguments ({e}); make one "
            f"in the file, model = {made.__name__}(...), and name {path}:model.{method}"
        ) from None
    except ValueError:  # its arguments are not known: making one tells
        pass
    return _call(path, f"{made.__name__}()", made)


def _of_method(path: Path, name: str, owner: Any, stage: Callable[[], Any]) -> Any:
    """What staging gives; where it fails over `owner`, whose method is jitted, the error says what is to be done."""
    try:
        return _call(path, name, stage)
    except InspectError as e:
        if not isinstance(e.__cause__, TypeError) or owner is None or repr(type(owner)) not in str(e.__cause__):
            raise
        kind = type(owner).__name__
        raise InspectError(
            f"{path}: {name} is jitted, and its argument self is of {kind}, which is no pytree, so that calling it "
            f"fails as well; jit it with static_argnums=0, or register {kind} as a pytree"
        ) from e


def _attribute(module: ModuleType, path: Path, name: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        functions = [
            n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__
        ]
        raise TargetError(f"{path} has no {name}; it has {', '.join(functions[:12]) or 'no functions'}")
    return found


def _import(path: Path) -> ModuleType:
    """The module of a file, under its full name if it lies in a package, as running `python -m` would import it."""
    require_file(path)
    folder, names = path.resolve().parent, [path.stem]
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    name = ".".join(names)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # there is a loader for .py
    load = spec.loader.exec_module
    module = importlib.util.module_from_spec(spec)
    if len(names) > 1:
        _call(path, "import", lambda: importlib.import_module(".".join(names[:-1])), TargetError)
    sys.modules[name] = module
    _call(path, "import", lambda: load(module), TargetError)
    return module


def _call(path: Path, what: str, function: Callable[[], Any], kind: type[InspectError] = InspectError) -> Any:
    """Runs the user's code; what it raises becomes one line, of a `kind`, that names its place in `path`."""
    try:
        return function()
    except InspectError:
        raise
    except SystemExit as e:
        when = "when it is imported" if what == "import" else f"in {what}"
        raise TargetError(
            f"{_place(path, what, e)}: the file ends the program {when} (exit code {e.code}); guard main() "
            'by if __name__ == "__main__"'
        ) from None
    except Exception as e:
        raise kind(f"{_place(path, what, e)}: {type(e).__name__}: {e}") from e


def _place(path: Path, what: str, error: BaseException) -> str:
    """The last line of `path` on the way to an error; what was asked for, if it has none."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == path.name]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
    return f"{path}:{line}" if line else f"{path} ({what})"
