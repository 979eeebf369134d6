"""Functions that stand for others take over their names."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

__all__ = ["STATIONS", "DebugInfo", "FunctionName", "Labels", "body_name", "take_names", "wraps"]

W = TypeVar("W")

# What functions take only from objects that have it of this class: any object may be called and have such attributes.
_CLASSES = {"__name__": str, "__qualname__": str, "__annotations__": dict, "__type_params__": tuple}

# What functions of the library have, besides jitted ones, as attributes (`meshrt.dispatch.at_once`).
STATIONS = ("trace", "lower", "eval_shape")


def take_names(wrapper: W, wrapped: Any) -> W:
    """As `functools.update_wrapper`, but what lowers the function wrapped does not lower the one around it, and an
    object whose name is no text gives none."""
    fits = lambda name: name not in _CLASSES or isinstance(getattr(wrapped, name, None), _CLASSES[name])
    functools.update_wrapper(cast(Any, wrapper), wrapped, filter(fits, functools.WRAPPER_ASSIGNMENTS))
    for name in STATIONS:
        vars(wrapper).pop(name, None)
    return wrapper


def wraps(wrapped: Any) -> Callable[[W], W]:
    """As `functools.wraps`, with `take_names`.

    >>> import meshrt.numpy as jnp
    >>> hasattr(wraps(jnp.sin)(lambda x: 2 * x), "lower")
    False
    """
    return lambda wrapper: take_names(wrapper, wrapped)


class FunctionName(str):
    """The name of a function that was traced, which knows what it was traced for (`jit`, `scan`) and where it stands
    (` at file:line`, or nothing)."""

    __slots__ = ("place", "traced_for")

    place: str
    traced_for: str

    @classmethod
    def of(cls, name: str, traced_for: str = "jit", place: str = "") -> FunctionName:
        made = cls(name)
        made.traced_for, made.place = traced_for, place
        return made


class Labels(NamedTuple):
    """What a function calls its arguments, and where its results stand in what it returns; each asked when somebody
    wants to read it. None where nothing is known."""

    args: Callable[[], Sequence[str]] | None
    results: Callable[[], Sequence[str]] | None

    def behind(self, count: int) -> Labels:
        """The same behind so many arguments without names."""
        args = self.args
        if not count or args is None:
            return self
        return Labels(lambda: [*[""] * count, *args()], self.results)

    def of_args(self) -> Labels:
        """Those of the arguments alone."""
        return Labels(self.args, None)

    def moved(self, before: Sequence[Any], after: Sequence[Any], same_results: bool) -> Labels:
        """Those of a program whose arguments were the variables `before` and are those `after` now."""
        args = self.args
        if args is not None and before != after:
            place = {v: i for i, v in enumerate(before)}
            whole, kept = args, [place.get(v) for v in after]
            args = lambda: [named[i] if i is not None else "" for named in [whole()] for i in kept]
        return Labels(args, self.results if same_results else None)


_PLACE = re.compile(r"([^ ]+)( at (.+):(\d+))?$")


class DebugInfo(NamedTuple):
    """What messages call a traced function: the transformation, the function and its line, arguments, results.

    `arg_names` has a name for each argument, an empty one where nobody gave it one. It and `result_paths` are None
    where nothing is known.
    """

    traced_for: str
    func_src_info: str
    arg_names: tuple[str, ...] | None = None
    result_paths: Any = None

    @classmethod
    def of(cls, name: FunctionName, labels: Labels | None, args: int, results: int) -> DebugInfo:
        """What is known of a program with so many arguments and results; labels of others are not its."""
        args_of, results_of = (None, None) if labels is None else labels
        names = None if args_of is None else tuple(args_of())
        paths = None if results_of is None else tuple(results_of())
        return cls(
            name.traced_for,
            f"{name}{name.place}",
            names if names is None or len(names) == args else None,
            paths if paths is None or len(paths) == results else None,
        )

    def parts(self) -> tuple[FunctionName, Labels]:
        """What a Jaxpr keeps of it."""
        name = self.func_name
        names, paths = self.arg_names, self.resolve_result_paths().result_paths
        return FunctionName.of(name, self.traced_for, self.func_src_info[len(name) :]), Labels(
            None if names is None else lambda: names, None if paths is None else lambda: paths
        )

    @property
    def func_name(self) -> str:
        """The function's name, without its line."""
        return self.func_src_info.partition(" ")[0]

    @property
    def func_filename(self) -> str | None:
        """The file that the function stands in."""
        found = _PLACE.match(self.func_src_info)
        return None if found is None else found.group(3)

    @property
    def func_lineno(self) -> int | None:
        """The line that the function begins at."""
        found = _PLACE.match(self.func_src_info)
        return None if found is None or found.group(4) is None else int(found.group(4))

    def replace_func_name(self, name: str) -> DebugInfo:
        """The same with another name of the function."""
        return self._replace(func_src_info=name + self.func_src_info[len(self.func_name) :])

    def resolve_result_paths(self) -> DebugInfo:
        """The same with the paths of results that a function in their place gives."""
        return self._replace(result_paths=tuple(self.result_paths())) if callable(self.result_paths) else self

    def with_unknown_names(self) -> DebugInfo:
        """The same without names of arguments and results."""
        return self._replace(arg_names=None, result_paths=None)

    def safe_arg_names(self, expected_count: int) -> tuple[str, ...]:
        """The names of so many arguments, empty ones where none are known. AssertionError for those of others."""
        self.assert_arg_names(expected_count)
        return ("",) * expected_count if self.arg_names is None else self.arg_names

    def safe_result_paths(self, expected_count: int) -> tuple[str, ...]:
        """The paths of so many results, as `safe_arg_names`."""
        self.assert_result_paths(expected_count)
        return ("",) * expected_count if self.result_paths is None else tuple(self.result_paths)

    def assert_arg_names(self, expected_count: int) -> None:
        """AssertionError if there are names, of another number of arguments."""
        if self.arg_names is not None and len(self.arg_names) != expected_count:
            raise AssertionError(expected_count, self)

    def assert_result_paths(self, expected_count: int) -> None:
        """AssertionError if there are paths, of another number of results."""
        if self.result_paths is not None and len(self.result_paths) != expected_count:
            raise AssertionError(expected_count, self)

    def filter_arg_names(self, keep: Sequence[bool]) -> tuple[str, ...] | None:
        """The names of the arguments that stay."""
        return None if self.arg_names is None else tuple(n for n, k in zip(self.safe_arg_names(len(keep)), keep) if k)

    def filter_result_paths(self, keep: Sequence[bool]) -> tuple[str, ...] | None:
        """The paths of the results that stay."""
        return None if self.result_paths is None else tuple(p for p, k in zip(self.result_paths, keep) if k)


def body_name(params: Mapping[str, Any]) -> str:
    """Which of its parameters is the Jaxpr that a call runs: it has JAX's name, which is not the same for all calls."""
    return "call_jaxpr" if "call_jaxpr" in params else "jaxpr"
