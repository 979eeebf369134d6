"""Where in the user's program an equation comes from.

Capturing must be cheap (it happens once per equation): the nearest frame outside this package is found by walking
up and asking a dictionary of code objects; the line number is computed only when somebody asks for it.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import CodeType, FrameType
from typing import Any, NamedTuple

from meshrt.core.naming import wraps

__all__ = [
    "EqnContext", "Source", "called", "capture", "exclude", "include", "is_internal", "is_replaying", "marked",
    "named_scope", "own_scope", "path_of", "replayed", "source_at", "transformed", "transposed", "user_stacklevel",
]  # fmt: skip

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Code that belongs to the system although it stands outside the package directory.
_SYSTEM_PREFIXES = (
    _ROOT,
    os.path.dirname(threading.__file__) + os.sep + "contextlib.py",
    os.path.dirname(threading.__file__) + os.sep + "functools.py",
)
# The demo's program is a user's program although it stands inside.
_PROGRAMS = _ROOT + "demo" + os.sep
_internal: dict[CodeType, bool] = {}
# Callers that are kept of an annotation. Chosen: helpers that call helpers are a few deep; recursion has no end.
_CALLERS = 8
# Files and folders of libraries that count as parts of the system.
_excluded: tuple[str, ...] = ()


class Source(NamedTuple):
    """One place in the user's program, and what was said around it.

    `scope` is the path of `named_scope`s and transformations, `a/vmap(b)/c`: one that is under way wraps the next name,
    or nothing yet, `a/vmap()`. A Jaxpr's paths begin with itself. `compute` what `compute_on` named, `marks` are what
    compilers are to read at operations from there (`marked`). `callers` are the frames that called this one, the
    nearest first, where they were asked for (`called`).
    """

    code: CodeType | None
    lasti: int
    scope: str = ""
    compute: str = ""
    marks: tuple[tuple[str, str], ...] = ()
    callers: tuple[Source, ...] = ()

    @property
    def name_stack(self) -> str:
        """`scope`, under JAX's name."""
        return self.scope

    @property
    def file(self) -> str:
        return self.code.co_filename if self.code is not None else "<unknown>"

    @property
    def function(self) -> str:
        return self.code.co_qualname if self.code is not None else "<unknown>"

    @property
    def line(self) -> int:
        if self.code is None:
            return 0
        line = self.code.co_firstlineno
        for start, end, number in self.code.co_lines():
            if start <= self.lasti < end and number is not None:
                return number
        return line

    @property
    def with_column(self) -> str:
        """`file:line:column (function)`: where in the line the expression begins. Empty if nothing is known."""
        if self.code is None:
            return ""
        place = next(itertools.islice(self.code.co_positions(), max(self.lasti, 0) // 2, None), (0, 0, 0, 0))
        column = (self.lasti >= 0 and place[2]) or 0
        return f"{self.file}:{self.line}:{column} ({self.function})"

    def __str__(self) -> str:
        if self.code is None:
            return "<unknown>"
        return f"{self.file}:{self.line} ({self.function})"


UNKNOWN = Source(None, 0)


def source_at(text: str | None, near: Iterable[Source]) -> Source | None:
    """The source that a text `file:line` names. Functions that sources `near` stand in are asked for the line, so that
    its function is known too. None for a text that names no line."""
    file, _, number = (text or "").rpartition(":")
    if not file or not number.isdecimal():
        return None
    line = int(number)
    for code in {s.code for s in near if s.code is not None and s.file == file}:
        for start, _, here in code.co_lines():
            if here == line:
                return Source(code, start)
    there = compile("", file, "exec").replace(co_firstlineno=line, co_name="<unknown>", co_qualname="<unknown>")
    return Source(there, -1)


class _State(threading.local):
    replay: Source | None = None
    # The path that `Source.scope` has, and what it is made of: one that is complete, and transformations after it.
    scope: str = ""
    made_of: tuple[str, tuple[str, ...]] = ("", ())
    compute: str = ""
    marks: tuple[tuple[str, str], ...] = ()


_state = _State()


def is_internal(code: CodeType) -> bool:
    """Whether code belongs to the system and not to the user's program."""
    found = _internal.get(code)
    return _is_internal(code) if found is None else found


def _is_internal(code: CodeType) -> bool:
    name = code.co_filename
    internal = (
        (name.startswith(_SYSTEM_PREFIXES) and not name.startswith(_PROGRAMS))
        or name.startswith(("<frozen", "<meshrt"))
        or name.startswith(_excluded)
    )
    _internal[code] = internal
    return internal


def exclude(path: str) -> None:
    """Counts the code in a file or folder as part of the system: a library's own frames, which users need not see."""
    global _excluded
    _excluded = (*_excluded, path)
    _internal.clear()


def include(path: str) -> None:
    """Takes an `exclude` of the same path back. ValueError if there was none."""
    global _excluded
    paths = list(_excluded)
    paths.remove(path)
    _excluded = tuple(paths)
    _internal.clear()


def capture() -> Source:
    """The user's frame that is executing now; inside `replayed`, the source given there."""
    if _state.replay is not None:
        return _state.replay
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        internal = _internal.get(code)
        if internal is None:
            internal = _is_internal(code)
        if not internal:
            return Source(code, frame.f_lasti, _state.scope, _state.compute, _state.marks)
        frame = frame.f_back
    return UNKNOWN


def called(where: Source) -> Source:
    """`where`, which was just captured, with the user's frames that called it. A helper that annotates what it is given
    stands at one line for all who call it: of what annotates they are kept, for other equations that would cost too
    much. Frames beyond one of the system, which began a trace there, say nothing of the place in that trace."""
    if _state.replay is not None or where.code is None:
        return where
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_internal(frame.f_code):
        frame = frame.f_back
    callers: list[Source] = []
    while frame is not None and len(callers) < _CALLERS:
        frame = frame.f_back
        if frame is None or is_internal(frame.f_code):
            break
        callers.append(Source(frame.f_code, frame.f_lasti))
    return where._replace(callers=tuple(callers))


def user_stacklevel() -> int:
    """The `stacklevel` with which the caller's `warnings.warn` names the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None:
        internal = _internal.get(frame.f_code)
        if not (_is_internal(frame.f_code) if internal is None else internal):
            break
        level, frame = level + 1, frame.f_back
    return level


class replayed:
    """Attributes everything traced inside to `source` (the backward pass names the line of the forward one)."""

    __slots__ = ("_saved", "source")

    def __init__(self, source: Source | None):
        self.source = source

    def __enter__(self) -> None:
        self._saved = _state.replay
        if self.source is not None:
            _state.replay = self.source

    def __exit__(self, *_: object) -> None:
        _state.replay = self._saved


def set_replay(source: Source | None) -> Source | None:
    """Sets the replayed source without a context manager (hot loops); returns the previous one to restore."""
    previous = _state.replay
    _state.replay = source
    return previous


def named_scope(name: str) -> AbstractContextManager[str]:
    """Adds `name` to the scope of every equation traced inside (jax.named_scope).

    Raises:
      TypeError: `name` is no string.

    >>> meshrt.jit(lambda x: x + 1).lower(1).as_text().count("add")
    1
    >>> step = meshrt.jit(meshrt.named_scope("layer")(lambda x: x + 1))
    """
    if not isinstance(name, str):
        raise TypeError(f"named_scope name argument must be a string, got {name!r} of type {type(name).__name__}")
    return _named_scope(name)


@contextmanager
def _named_scope(name: str) -> Iterator[str]:
    state = _state
    saved = state.made_of, state.scope
    path = _below(*state.made_of, name)
    state.made_of, state.scope = (path, ()), path
    try:
        yield name
    finally:
        state.made_of, state.scope = saved


class transformed:
    """Inside a `with`, the scope of equations says that they are what a transformation, "vmap", makes of a function."""

    __slots__ = ("_saved", "kind")

    def __init__(self, kind: str):
        self.kind = kind

    def __enter__(self) -> None:
        state = _state
        made_of = state.made_of
        self._saved = made_of, state.scope
        state.made_of, state.scope = _within(made_of, self.kind)

    def __exit__(self, *_: object) -> None:
        state = _state
        state.made_of, state.scope = self._saved


class own_scope:
    """Inside a `with`, scopes begin anew: what is traced is a Jaxpr of its own, which may be used in several places."""

    __slots__ = ("_saved",)

    def __enter__(self) -> None:
        state = _state
        self._saved = state.made_of, state.scope
        state.made_of, state.scope = ("", ()), ""

    def __exit__(self, *_: object) -> None:
        state = _state
        state.made_of, state.scope = self._saved


@functools.lru_cache(maxsize=4096)
def _within(made_of: tuple[str, tuple[str, ...]], kind: str) -> tuple[tuple[str, tuple[str, ...]], str]:
    """A path within one more transformation, taken apart and as text."""
    path, around = made_of[0], (*made_of[1], kind)
    return (path, around), _below(path, around, "")


def _below(path: str, around: tuple[str, ...], name: str) -> str:
    for kind in reversed(around):
        name = f"{kind}({name})"
    return f"{path}/{name}" if path else name


def transposed(where: Source) -> Source:
    """The place of what transposition makes of a linear equation at `where`: `jvp(a)` becomes `transpose(jvp(a))`."""
    code, lasti, scope, compute, marks, callers = where
    return Source(code, lasti, _transposed(scope), compute, marks, callers) if "jvp(" in scope else where


@functools.lru_cache(maxsize=4096)
def _transposed(scope: str) -> str:
    start = scope.rindex("jvp(")
    if scope.endswith("transpose(", 0, start):
        return scope
    end, depth = start + len("jvp("), 1
    while depth and end < len(scope):
        depth += {"(": 1, ")": -1}.get(scope[end], 0)
        end += 1
    return f"{scope[:start]}transpose({scope[start:end]}){scope[end:]}"


def path_of(path: str, scope: str, name: str, is_call: bool = False) -> str:
    """The path of an equation in a program around which `path` is. The name of a call is what transformations that
    are under way wrap: `vmap(jit(f))`."""
    at = scope.rfind("()") if is_call else -1
    if at >= 0 and not scope[at + 2 :].strip(")"):
        scope, name = f"{scope[: at + 1]}{name}{scope[at + 1 :]}", ""
    return "/".join(filter(None, (path, scope, name)))


class computed_on:
    """Inside a `with`, equations say that `kind` of processor is to compute them ("": the usual one)."""

    __slots__ = ("_saved", "kind")

    def __init__(self, kind: str):
        self.kind = kind

    def __enter__(self) -> None:
        self._saved = _state.compute
        _state.compute = self.kind

    def __exit__(self, *_: object) -> None:
        _state.compute = self._saved


class EqnContext(NamedTuple):
    """What was said around an equation beside its line: who computes it, and what compilers are to read there."""

    compute_type: str | None
    xla_metadata: dict[str, str] | None

    @property
    def manager(self) -> AbstractContextManager[None]:
        """Inside a `with`, the same is said of what is traced. For one `with`."""
        return _said_again(self)


@contextmanager
def _said_again(said: EqnContext) -> Iterator[None]:
    with computed_on(said.compute_type or ""), marked(tuple((said.xla_metadata or {}).items())):
        yield


def is_replaying() -> bool:
    """Whether equations of a program are run again, each under the line that it was recorded with."""
    return _state.replay is not None


def replayed_compute() -> str | None:
    """What the equations being replayed say of who computes them; None where none are."""
    return None if _state.replay is None else _state.replay.compute


@contextmanager
def marked(marks: tuple[tuple[str, str], ...]) -> Iterator[None]:
    """Every equation traced inside bears these marks, names and values, and no others."""
    saved = _state.marks
    _state.marks = marks
    try:
        yield
    finally:
        _state.marks = saved


def named_call(fun: Callable[..., Any], *, name: str | None = None) -> Callable[..., Any]:
    """`fun` with its equations in the scope `name` (by default its own name), as `jax.named_call`.

    >>> meshrt.named_call(lambda x: x + 1, name="increment")(1)
    2
    """
    label = name if name is not None else getattr(fun, "__name__", type(fun).__name__)

    @wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        with named_scope(label):
            return fun(*args, **kwargs)

    return call
