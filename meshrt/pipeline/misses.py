"""Why a call of a jitted function is not one that is known: what differs from the most alike earlier call.

Every call that needs something new leaves a `Call` behind: what decided about it, and the user's line. Calls that are
known leave nothing and cost nothing. Earlier calls are kept by the function's code, so that a function that is made and
jitted again and again (`jit(lambda ...)` within a loop) meets its earlier selves.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from meshrt import tree_util
from meshrt._tree_paths import structure_differences
from meshrt.config import FIELDS
from meshrt.core.source import Source, capture
from meshrt.core.types import ShapedArray
from meshrt.heuristics import REMEMBERED_CALLS, REMEMBERED_FUNCTIONS
from meshrt.pipeline.options import JitOptions
from meshrt.pipeline.static_arguments import Static, bound
from meshrt.sharding.mesh import AbstractMesh
from meshrt.transforms.arguments import argument_paths
from meshrt.transforms.high import keys_of

__all__ = ["LAYERS", "NOWHERE", "CacheMiss", "Call", "Difference", "History", "call_of", "explained", "layers_of"]

# What a miss costs, the dearest first: all that follows is done as well.
LAYERS = ("trace", "lower", "compile", "load", "dispatch")
_WORK = {
    "trace": "traced, lowered, partitioned and compiled",
    "lower": "lowered, partitioned and compiled",
    "compile": "partitioned and compiled",
    "load": "loaded onto other devices",
    "dispatch": "looked up once",
}


# Where an array lies: the platforms and numbers of devices, and the spec by which they have it.
Place = tuple[tuple[tuple[str, int], ...], Any]


class Call(NamedTuple):
    """What decides which trace, program and devices a call needs. It holds no array.

    Static arguments and structures may be large objects of the user's; they are None once the function is gone, or its
    caches were cleared.
    """

    function: weakref.ref[Any]
    captured: tuple[tuple[str, Any], ...]
    tree: Any
    static: Static | None
    avals: tuple[ShapedArray, ...]
    trace_settings: tuple[Any, ...]
    compile_settings: tuple[Any, ...]
    mesh: AbstractMesh | None
    shardings: tuple[Any, ...]
    devices: tuple[tuple[str, int], ...] | None
    places: tuple[tuple[Place | None, bool], ...]  # of each argument, None off devices, and whether it is committed
    source: Source
    asked: bool = True  # whether its trace depends on the mesh
    within: AbstractMesh | None = None  # the mesh in context


class Difference(NamedTuple):
    """One component that is not as it was: of `layer`'s key, at `where` (an argument's path, a setting's name).

    `types` are those of the argument before and now, where its type differs.
    """

    layer: str
    component: str
    where: str
    before: str
    now: str
    types: tuple[ShapedArray, ShapedArray] | None = None

    def __str__(self) -> str:
        at = f" of {self.where}" if self.where else ""
        return f"{self.component}{at}: was {self.before}, now {self.now}"


class CacheMiss(NamedTuple):
    """What a call needs that no earlier call has left behind.

    layer        what must be done, "trace", "lower", "compile", "load" or "dispatch", and all that follows; None for a
                 call that is known
    differences  from the most alike earlier call
    earlier      the line of that call, None if there was none
    """

    function: str
    layer: str | None
    differences: tuple[Difference, ...] = ()
    earlier: str | None = None
    note: str = ""

    @property
    def components(self) -> tuple[str, ...]:
        """What differs, in words: "dtype", "shape", "static argument", ..."""
        return tuple(dict.fromkeys(d.component for d in self.differences))

    def __bool__(self) -> bool:
        return self.layer is not None

    def __str__(self) -> str:
        if self.layer is None:
            return f"{self.function}: this call is known; nothing is traced or compiled for it"
        lines = [f"{self.function} must be {_WORK[self.layer]} ({self.layer} cache)"]
        if self.earlier is not None:
            lines.append(f"  the most alike earlier call was at {self.earlier}")
        lines += [f"  * {d}" for d in self.differences]
        if self.note:
            lines.append(f"  {self.note}")
        return "\n".join(lines)


class History:
    """The latest calls of the functions of one code that needed something new."""

    __slots__ = ("__weakref__", "calls")

    def __init__(self) -> None:
        self.calls: deque[Call] = deque(maxlen=REMEMBERED_CALLS)

    def forget_values(self, function: Any = None) -> None:
        """Lets go of static arguments and structures: of calls of `function`, and of functions that are gone."""
        # No name of this module is used: functions may go after those names have, at the end of the process.
        for i, call in enumerate(tuple(self.calls)):
            owner = call.function()
            if call.tree is not None and (owner is None or owner is function):
                # Another thread may have added a call, which moves the others by one: then they go the next time. The
                # deque never gets shorter.
                if self.calls[i] is call:
                    self.calls[i] = call._replace(tree=None, static=None)

    @staticmethod
    def of(fun: Any) -> History:
        """That of the function's code, and of those of the functions around it that transform it (all gradients have
        one code); of its own for what has no code (a callable object, a built-in)."""
        code = tuple(getattr(f, "__code__", None) for f in layers_of(fun))
        if code[-1] is None:
            return History()
        with _lock:
            found = _by_code.get(code)
            if found is None:
                found = _by_code[code] = History()
                while len(_by_code) > REMEMBERED_FUNCTIONS:
                    _by_code.popitem(last=False)
            else:
                _by_code.move_to_end(code)
        return found


_lock = threading.Lock()
_by_code: OrderedDict[Any, History] = OrderedDict()
# Of functions that wrap each other; one that wraps itself has no end.
_DEEPEST = 32
NOWHERE = None, False  # the place of what is no array
_PLAIN = (int, float, complex, bool, type(None))


def call_of(
    function: Any, history: History, fun: Callable[..., Any], tree: Any, static: Static,
    avals: tuple[ShapedArray, ...], settings: tuple[tuple[Any, ...], tuple[Any, ...]], mesh: AbstractMesh | None,
    shardings: Sequence[Any] = (), devices: Sequence[Any] | None = None,
    places: Sequence[tuple[Any, bool]] = (),
) -> Call:  # fmt: skip
    """What decides about a call of `fun`, whose caches `function` owns, a `Driver`.

    `settings` are the values of those that tracing reads, and of those that only compiling does; `places` are the
    shardings of arguments, None off devices, and whether they are committed.
    """
    where = None if devices is None else _numbers(devices)
    found = {id(s): None if s is None else (_numbers(s.device_assignment), getattr(s, "spec", None)) for s, _ in places}
    return Call(
        weakref.ref(function, _forgetting(history)), _captured(fun), tree, static, avals, *settings, mesh,
        tuple(shardings), where, tuple([(found[id(s)], c) for s, c in places]), capture(),
    )  # fmt: skip


def _numbers(devices: Iterable[Any]) -> tuple[tuple[str, int], ...]:
    return tuple([(d.platform, d.id) for d in devices])


def _forgetting(history: History) -> Callable[[Any], None]:
    """What is called when a function goes; it does not keep the history."""
    weak = weakref.ref(history)

    def gone(_: Any) -> None:
        kept = weak()
        if kept is not None:
            kept.forget_values()

    return gone


def layers_of(fun: Any) -> list[Any]:
    """A function and what it wraps, the user's own last."""
    found = [fun]
    while hasattr(found[-1], "__wrapped__") and len(found) < _DEEPEST:
        found.append(found[-1].__wrapped__)
    return found


def _captured(fun: Any) -> tuple[tuple[str, Any], ...]:
    """The names of what a function captures, with something to tell values apart by that keeps none alive."""
    fun = layers_of(fun)[-1]
    code, cells = getattr(fun, "__code__", None), getattr(fun, "__closure__", None)
    if code is None or not cells:
        return ()
    return tuple((name, _mark(cell)) for name, cell in zip(code.co_freevars, cells))


def _mark(cell: Any) -> Any:
    try:
        value = cell.cell_contents
    except ValueError:  # not assigned yet
        return None
    if type(value) in _PLAIN:
        return value
    return type(value).__name__, hash(value) if type(value) in (str, bytes) else id(value)


# ----------------------------------------------------------------------------------------------------------
# Comparing.


def explained(
    name: str, layer: str | None, call: Call, fun: Callable[..., Any], history: Iterable[Call], cleared: str = ""
) -> CacheMiss:
    """Why `call` needs `layer`, by the earlier call that differs in least. `cleared` says how equal calls are lost."""
    if layer is None:
        return CacheMiss(name, None, (), None)
    best: tuple[int, list[Difference], Call] | None = None
    candidates = list(history)
    own = [c for c in candidates if c.function() is call.function()]
    for earlier in reversed(own or candidates):
        found = list(_differences(earlier, call, fun))
        weight = sum(len(LAYERS) - LAYERS.index(d.layer) for d in found)
        if best is None or weight < best[0]:
            best = weight, found, earlier
    if best is None:
        return CacheMiss(name, layer, (), None, "no function of this code was called before")
    _, found, earlier = best
    if not found:
        return CacheMiss(name, layer, (), str(earlier.source), cleared)
    return CacheMiss(name, layer, tuple(found), str(earlier.source))


def _differences(earlier: Call, now: Call, fun: Callable[..., Any]) -> Iterator[Difference]:
    if earlier.function() is not now.function():
        yield from _other_function(earlier, now, fun)
    if earlier.static is not None and now.static is not None:
        yield from _static(earlier.static, now.static)
    yield from _settings("trace", earlier.trace_settings, now.trace_settings)
    is_traced = earlier.asked or (None not in (earlier.within, now.within) and earlier.within is not now.within)
    yield from _meshes("trace" if is_traced else "lower", earlier.mesh, now.mesh)
    if earlier.tree is None and len(earlier.avals) != len(now.avals):
        old, new = (f"{len(c.avals)} arrays" for c in (earlier, now))
        yield Difference("trace", "pytree structure", "the arguments", old, new)
    elif earlier.tree is not None and earlier.tree != now.tree:
        yield from _trees(earlier, now)
    else:
        assert now.static is not None, "a call that is being made has all its values"
        yield from _arguments(earlier, now, argument_paths(bound(fun, now.static), now.tree))
    yield from _settings("compile", earlier.compile_settings, now.compile_settings)
    onto_mesh = (earlier.mesh is None) is not (now.mesh is None)  # which is said, and has other devices
    if earlier.devices != now.devices and None not in (earlier.devices, now.devices) and not onto_mesh:
        yield Difference("load", "devices", "", _devices(earlier.devices), _devices(now.devices))


def _other_function(earlier: Call, now: Call, fun: Any) -> Iterator[Difference]:
    before, after = earlier.function(), now.function()
    if before is not None and after is not None and before.fun is fun:
        yield Difference("lower", "jit options", "", *_options(before.options, after.options))
        return
    code = getattr(layers_of(fun)[-1], "__code__", None)
    at = "" if code is None else f" at {code.co_filename}:{code.co_firstlineno}"
    before = dict(earlier.captured)
    other = [n for n, mark in now.captured if n not in before or before[n] != mark]
    captured = f", which captures other values of {', '.join(other)}" if other else ""
    yield Difference(
        "trace", "function identity", "", f"another function object made by the same code{at}",
        f"a new one{captured}: make and jit it once, outside of what is repeated",
    )  # fmt: skip


def _options(before: JitOptions, now: JitOptions) -> tuple[str, str]:
    """How two jits of one function differ. Those whose options cannot be hashed are told apart by identity."""
    spelled = [[f"{name}={value!r}" for name, value in zip(o._fields, o)] for o in (before, now)]
    differ = [pair for pair in zip(*spelled) if pair[0] != pair[1]]
    if not differ:
        return "another jit of the function", "a new one: make it once, outside of what is repeated"
    old, new = (", ".join(texts) for texts in zip(*differ))
    return old, new


def _static(before: Static, now: Static) -> Iterator[Difference]:
    old, new = ({**dict(s.positions), **dict(s.keywords)} for s in (before, now))
    for where in dict.fromkeys([*old, *new]):
        a, b = old.get(where), new.get(where)
        if a != b:
            spelled = f"argument {where}" if isinstance(where, int) else f"argument {where!r}"
            yield Difference("trace", "static argument", spelled, _short(a), _short(b))


def _short(value: Any) -> str:
    if value is None:
        return "not given"
    text = f"{value!r} ({type(value.value).__name__})"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _settings(cache: str, before: tuple[Any, ...], now: tuple[Any, ...]) -> Iterator[Difference]:
    if before != now:
        names = [f.name for f in FIELDS.values() if f.cache == cache]
        for name, a, b in zip(names, before, now):
            if a != b or type(a) is not type(b):
                yield Difference(cache, "setting", name, repr(a), repr(b))


def _meshes(layer: str, before: AbstractMesh | None, now: AbstractMesh | None) -> Iterator[Difference]:
    if before is now:
        return
    if before is None or now is None:
        yield Difference(layer, "mesh", "", str(before or "no mesh"), str(now or "no mesh"))
        return
    for component, attribute in (
        ("mesh axes", "axis_names"),
        ("mesh shape", "axis_sizes"),
        ("axis type", "axis_types"),
    ):
        a, b = getattr(before, attribute), getattr(now, attribute)
        if a != b:
            old, new = (str(tuple(t.name for t in x) if component == "axis type" else x) for x in (a, b))
            yield Difference(layer, component, "the mesh", old, new)


def _trees(earlier: Call, now: Call) -> Iterator[Difference]:
    found = list(structure_differences(earlier.tree, now.tree, keys_of))
    for path, a, b, _ in found:
        head = "args" if path and path[0].idx == 0 else "kwargs"
        where = head + tree_util.keystr(tuple(path[1:])) if path else "the arguments"
        yield Difference("trace", "pytree structure", where, str(a), str(b))
    if not found:
        yield Difference("trace", "pytree structure", "the arguments", str(earlier.tree), str(now.tree))


def _arguments(earlier: Call, now: Call, paths: Sequence[str]) -> Iterator[Difference]:
    same_mesh = earlier.mesh is now.mesh  # else the mesh is what differs
    for i, (a, b) in enumerate(zip(earlier.avals, now.avals)):
        where = f"argument {paths[i]}"
        if a is not b:
            yield from _types(where, a, b, same_mesh)
        s, t = (c.shardings[i] if i < len(c.shardings) else None for c in (earlier, now))
        if same_mesh and s != t and a.shape == b.shape and a.explicit == b.explicit:
            yield Difference("lower", "sharding spec", where, _spec(s), _spec(t))
        (old, c), (new, d) = (call.places[i] if i < len(call.places) else NOWHERE for call in (earlier, now))
        if s != t or not same_mesh:
            continue
        if c != d:
            yield Difference("dispatch", "committed", where, str(c), str(d))
        elif old != new and a is b and earlier.devices == now.devices:  # else these are what differs
            yield Difference("dispatch", "place", where, _place(old), _place(new))


def _types(where: str, a: ShapedArray, b: ShapedArray, same_mesh: bool) -> Iterator[Difference]:
    for component, attribute in (("dtype", "dtype"), ("shape", "shape"), ("weak type", "weak_type")):
        before, now = getattr(a, attribute), getattr(b, attribute)
        if before != now:
            yield Difference("trace", component, where, str(before), str(now), (a, b))
    if same_mesh and a.explicit != b.explicit and a.shape == b.shape:
        yield Difference("trace", "sharding spec", where, str(a), str(b), (a, b))
    if a.vma != b.vma:
        yield Difference("trace", "varying axes", where, str(sorted(a.vma)), str(sorted(b.vma)), (a, b))


def _spec(sharding: Any) -> str:
    return "no sharding" if sharding is None else str(getattr(sharding, "spec", sharding))


def _place(place: Place | None) -> str:
    if place is None:
        return "no device"
    devices, spec = place
    return _devices(devices) if spec is None else f"{_devices(devices)} by {spec}"


def _devices(places: Sequence[tuple[str, int]] | None) -> str:
    if not places:
        return "none"
    return f"{places[0][0]} {[i for _, i in places]}"
