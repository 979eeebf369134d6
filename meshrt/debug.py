"""Looking into programs while they run or are compiled: values (`print`, `callback`) and shardings.

>>> import meshrt
>>> def f(x):
...     meshrt.debug.print("x = {}", x)
...     return x + 1
>>> meshrt.jit(f)(1.0)
x = 1.0
Array(2., dtype=float32, weak_type=True)
"""

from __future__ import annotations

import copy
import logging
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.core.effects import DebugEffect, OrderedDebugEffect
from meshrt.core.source import capture
from meshrt.core.trace import EVAL, current_trace
from meshrt.core.types import aval_of
from meshrt.primitives.callback import bind_debug, pure_callback
from meshrt.primitives.identity import stop_gradient
from meshrt.primitives.inspect_sharding import inspect_sharding_p
from meshrt.sharding.drawing import visualize_sharding
from meshrt.transforms.high import opened

__all__ = [
    "DebugEffect", "OrderedDebugEffect", "breakpoint", "callback", "inspect_array_sharding", "log", "print",
    "visualize_array_sharding", "visualize_sharding",
]  # fmt: skip

_logger = logging.getLogger("meshrt.debug")


def callback(
    callback: Callable[..., Any] | None = None, *args: Any, ordered: bool = False, partitioned: bool = False,
    **kwargs: Any,
) -> Callable[..., None] | None:  # fmt: skip
    """Calls `callback(*args, **kwargs)` when the program gets there, and ignores what it returns.

    It changes as little as possible: it is kept under grad (with the values of the forward pass, and once more where a
    checkpoint computes them again; once before a loop if it sees nothing of the iteration), called for each element
    under vmap, and for whole values where operands are split over devices. `callback(ordered=True)(function, *args,
    **kwargs)` says options apart from the function's arguments.

    Args:
      callback: gets the pytrees `args` and `kwargs`, with Arrays on a CPU device as leaves; leaves that are no arrays
        as they are.
      ordered: calls happen in the order of the program, also with respect to other ordered callbacks.
      partitioned: every device calls with the piece of the operands that it holds; nothing is gathered.

    Raises:
      ArgumentTypeError: `callback` is no function.
      CallbackError: `callback` raised, when the program runs.

    >>> seen = []
    >>> meshrt.debug.callback(lambda x: seen.append(float(x)), 2.0, ordered=True)
    >>> meshrt.effects_barrier()
    >>> seen
    [2.0]
    """

    def call(callback: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if not callable(callback):
            raise errors.ArgumentTypeError(
                f"first argument to meshrt.debug.callback must be callable, but got an object of type {type(callback)}"
            )
        bind_debug(callback, args, kwargs, "debug.callback", ordered, partitioned)

    return _in_one_or_two_calls(call, "debug.callback", callback, args, kwargs)


def print(
    fmt: str | None = None, *args: Any, ordered: bool = False, partitioned: bool = False,
    skip_format_check: bool = False, _use_logging: bool = False, **kwargs: Any,
) -> Callable[..., None] | None:  # fmt: skip
    """Prints `fmt.format(*args, **kwargs)` to standard output when the program gets there.

    `print(ordered=True)(fmt, ...)` says options apart from what is formatted.

    Args:
      fmt: a format string as for `str.format`, no f-string: values are known only when the program runs. Without any
        field, the values are printed behind it.
      ordered, partitioned: see `callback`.
      skip_format_check: do not check that `fmt` has a field for each value.

    Raises:
      ArgumentValueError: a value that no field of `fmt` uses.
      IndexError, KeyError: a field that no value is for.

    >>> meshrt.debug.print("loss {:.3f} after {n} steps", 0.25, n=3)
    loss 0.250 after 3 steps
    """

    def call(fmt: str, *args: Any, **kwargs: Any) -> None:
        if not skip_format_check:
            _Checker().format(fmt, *args, **kwargs)
        record = _record(capture()) if _use_logging else None
        printer = _Printer(fmt, np.get_printoptions(), record)
        bind_debug(printer, args, kwargs, "debug.print", ordered, partitioned)

    return _in_one_or_two_calls(call, "debug.print", fmt, args, kwargs)


def log(fmt: str | None = None, *args: Any, **kwargs: Any) -> Callable[..., None] | None:
    """As `print`, but the text goes to the logger "meshrt.debug", at level INFO, with the line of this call."""
    return print(fmt, *args, _use_logging=True, **kwargs)


def inspect_array_sharding(value: Any, *, callback: Callable[[Any], Any]) -> None:
    """Calls `callback(sharding)` for each array of the pytree `value`, as soon as the sharding is known.

    That is at once for arrays. In a jitted function it is when propagation has decided (`.propagate()`, `.compile()` or
    the first call), without a compilation, and not again for calls that find the program in a cache: a NamedSharding
    over the mesh of the program, on its devices if they are known, else over its AbstractMesh. Inside `shard_map` it is
    the sharding of the shard along the axes that are free there, over a mesh whose other axes are Manual. Under vmap it
    is that of the whole value, the mapped dimension included.

    >>> meshrt.jit(lambda x: meshrt.debug.inspect_array_sharding(x @ x.T, callback=print))(x)   # doctest: +SKIP
    """
    for leaf in tree_util.tree_leaves(opened(value)):
        inspect_sharding_p.bind(leaf, callback=callback)


def visualize_array_sharding(arr: Any, **options: Any) -> None:
    """Prints which device holds which part of an array, of any rank, also in jitted functions and in `shard_map`.

    `options` are those of `visualize_sharding`; when it prints is when `inspect_array_sharding` calls back.

    >>> meshrt.debug.visualize_array_sharding(jnp.arange(4))  # doctest: +SKIP
    ┌───────┐
    │ CPU 0 │
    └───────┘
    """
    shape = aval_of(arr).shape
    inspect_array_sharding(arr, callback=lambda sharding: visualize_sharding(shape, sharding, **options))


def breakpoint(
    *, backend: str | None = None, filter_frames: bool = True, num_frames: int | None = None, ordered: bool = False,
    token: Any = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """Stops when the program gets there, and asks at a prompt what to show: variables, lines, callers.

    The prompt knows `p` and `pp` (the value of an expression), `l`, `bt`, `u`, `d`, `c` and `q`; `help` lists them. It
    stops for every member of a batch under vmap, and changes nothing otherwise, as `callback`.

    Args:
      backend: there is one kind of prompt, "cli".
      filter_frames: show frames of the user's functions only.
      num_frames: how many frames to show at most.
      ordered: see `callback`.
      token: a pytree of arrays; it stops once they are computed, and only if what is returned is used.
      kwargs: `stdin` and `stdout`, files that the prompt reads and writes.

    Returns:
      `token`.

    Raises:
      ArgumentValueError: both `ordered` and `token` are given.

    >>> meshrt.jit(lambda x: (meshrt.debug.breakpoint(), x)[1])(1.0)   # doctest: +SKIP
    """
    if token is not None and ordered:
        raise errors.ArgumentValueError(
            "`ordered` and `token` are mutually exclusive arguments of debug.breakpoint; give one of them"
        )
    # Start-up time: a prompt is for those who debug.
    from meshrt.pipeline.breakpoints import Prompt, frames_of_user, traced_in

    stops = frames_of_user(sys._getframe(1), filter_frames, num_frames)
    operands, with_values = traced_in(stops)

    def stop(*values: Any) -> None:
        Prompt(with_values(values), **kwargs).run()

    if token is not None:
        token, operands = stop_gradient((token, operands))

        def stop_behind(token: Any, *values: Any) -> Any:
            stop(*values)
            return token

        return pure_callback(stop_behind, token, token, *operands)
    if current_trace() is EVAL:
        stop()
    else:
        bind_debug(stop, tuple(operands), {}, "debug.breakpoint", ordered, False)
    return None


def _in_one_or_two_calls(
    call: Callable[..., None], api: str, first: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[..., None] | None:
    if first is not None:
        call(first, *args, **kwargs)
        return None
    if args or kwargs:
        raise errors.ArgumentTypeError(
            f"{api} received unexpected arguments in the two-call form: {args=} {kwargs=}; give them to the function "
            "that it returns"
        )
    return call


class _Checker(string.Formatter):
    """Formats nothing; complains of values without a field."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return ""

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        return ""

    def check_unused_args(self, used_args: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        unused = [a for i, a in enumerate(args) if i not in used_args]
        if unused:
            raise errors.ArgumentValueError(
                f"Unused positional arguments to `meshrt.debug.print`: {unused}. Give the format string a field {{}} "
                "for each of them"
            )
        names = [k for k in kwargs if k not in used_args]
        if names:
            raise errors.ArgumentValueError(
                f"Unused keyword arguments to `meshrt.debug.print`: {names}. You may be passing an f-string (i.e, "
                '`f"{x}"`) into `meshrt.debug.print` and instead should pass in a regular string.'
            )


class _Printer:
    """What `print` calls back."""

    __name__ = "print"

    def __init__(self, fmt: str, options: Mapping[str, Any], record: logging.LogRecord | None):
        self.fmt, self.options, self.record = fmt, dict(options), record
        self.has_fields = any(name is not None for _, name, _, _ in string.Formatter().parse(fmt))

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self.has_fields:
            with np.printoptions(**self.options):
                text = self.fmt.format(*args, **kwargs)
        else:
            text = " ".join((self.fmt.format(), *map(str, args)))
        if self.record is None:
            sys.stdout.write(text + "\n")
            return
        record = copy.copy(self.record)
        record.msg = text
        _logger.handle(record)


def _record(where: Any) -> logging.LogRecord:
    return _logger.makeRecord(_logger.name, logging.INFO, where.file, where.line, "", (), None)
