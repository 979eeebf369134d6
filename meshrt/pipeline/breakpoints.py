"""Stops in the middle of a program: what the functions around had in their variables, and a prompt to look at it.

A program that is traced has no values yet. What is traced in the variables of the user's frames becomes operands of a
callback, and the prompt, which runs when the program gets there, sees their values in its place.
"""

from __future__ import annotations

import cmd
import inspect
import pprint
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import IO, Any, NamedTuple

from meshrt import tree_util
from meshrt.core.source import is_internal
from meshrt.core.trace import Tracer

__all__ = ["Prompt", "Stop", "frames_of_user", "traced_in"]

# Programs may stop in several threads at once; people answer one.
_one_at_a_time = threading.Lock()


class Stop(NamedTuple):
    """A frame of the user's functions: where it is, and its variables.

    `lines` are those of the function's source, the one at `offset` being next; none, and None, where there is no file.
    """

    filename: str
    lineno: int
    lines: Sequence[str]
    offset: int | None
    variables: dict[str, Any]

    @classmethod
    def of(cls, frame: FrameType) -> Stop:
        try:
            lines, first = inspect.getsourcelines(frame)
        except OSError:
            lines, first = [], 1
        offset = frame.f_lineno - max(first, 1)
        known = [line.rstrip("\n") for line in lines] if offset < len(lines) else []
        return cls(
            frame.f_code.co_filename, frame.f_lineno, known, offset if known else None, dict(frame.f_locals)
        )  # fmt: skip


def frames_of_user(frame: FrameType | None, filter_frames: bool, num_frames: int | None) -> list[Stop]:
    """`frame` and those that called it, the innermost first; without frames of this package, if they are filtered."""
    found: list[Stop] = []
    while frame is not None and (num_frames is None or len(found) < num_frames):
        if not (filter_frames and is_internal(frame.f_code)):
            found.append(Stop.of(frame))
        frame = frame.f_back
    return found


def traced_in(stops: Sequence[Stop]) -> tuple[list[Any], Callable[[Sequence[Any]], list[Stop]]]:
    """What is traced in the variables of `stops`, and the function of values for it that gives `stops` with these."""
    named = [(i, name, *_flat(value)) for i, stop in enumerate(stops) for name, value in stop.variables.items()]
    operands = [leaf for *_, leaves, _ in named for leaf in leaves if isinstance(leaf, Tracer)]

    def with_values(values: Sequence[Any]) -> list[Stop]:
        rest = iter(values)
        variables: list[dict[str, Any]] = [{} for _ in stops]
        for i, name, leaves, tree in named:
            known = [next(rest) if isinstance(leaf, Tracer) else leaf for leaf in leaves]
            variables[i][name] = known[0] if tree is None else tree_util.tree_unflatten(tree, known)
        return [stop._replace(variables=found) for stop, found in zip(stops, variables)]

    return operands, with_values


def _flat(value: Any) -> tuple[list[Any], Any]:
    """The leaves of a variable, and its structure: None where it has no tracers, which then stays as it is."""
    try:
        leaves, tree = tree_util.tree_flatten(value)
    except (TypeError, ValueError):  # variables may hold anything, also dicts whose keys do not compare
        return [value], None
    return (leaves, tree) if any(isinstance(leaf, Tracer) for leaf in leaves) else ([value], None)


class Prompt(cmd.Cmd):
    """The prompt at a stop: commands as those of `pdb`, for looking only."""

    prompt = "(jdb) "
    intro = "Entering jdb:"

    def __init__(
        self, stops: Sequence[Stop], stdin: IO[str] | None = None, stdout: IO[str] | None = None,
        **options: Any,
    ):  # fmt: skip
        super().__init__(stdin=stdin, stdout=stdout, **options)
        self.use_rawinput = stdin is None
        self.stops, self.at = stops, 0

    def run(self) -> None:
        """Asks until the program is to go on."""
        with _one_at_a_time:
            self.cmdloop()

    def _say(self, text: str) -> None:
        self.stdout.write(text + "\n")

    def _evaluated(self, expression: str, shown: Callable[[Any], str]) -> None:
        try:
            text = shown(eval(expression, {}, dict(self.stops[self.at].variables)))
        except Exception as e:  # whatever the user's expression does is an answer
            text = "*** " + traceback.format_exception_only(e)[-1].strip()
        self._say(text)

    def _around(self, count: int = 2) -> None:
        stop = self.stops[self.at]
        self._say(f"> {stop.filename}({stop.lineno})")
        if stop.offset is None:
            return
        for i in range(max(stop.offset - count - 1, 0), min(stop.offset + count + 1, len(stop.lines))):
            self._say(("->  " if i == stop.offset else "    ") + stop.lines[i])

    def _moved(self, step: int, edge: str) -> None:
        if 0 <= self.at + step < len(self.stops):
            self.at += step
        else:
            self._say(edge)
        self._around()

    def default(self, line: str) -> None:
        """Any other line is an expression."""
        self._evaluated(line, repr)

    def do_p(self, arg: str) -> None:
        """p expression: prints its value."""
        self._evaluated(arg, repr)

    def do_pp(self, arg: str) -> None:
        """pp expression: prints its value over several lines."""
        self._evaluated(arg, pprint.pformat)

    def do_up(self, arg: str, /) -> None:
        """u(p): to the function that called this one."""
        self._moved(1, "At topmost frame.")

    def do_down(self, arg: str, /) -> None:
        """d(own): to the function that this one called."""
        self._moved(-1, "At bottommost frame.")

    def do_list(self, arg: str) -> None:
        """l(ist): the lines around."""
        self._around(5)

    def do_where(self, arg: str) -> None:
        """w(here), bt: the calls that led here, the last one at the end."""
        self._say("Traceback:")
        for stop in reversed(self.stops):
            line = "<no source>" if stop.offset is None else stop.lines[stop.offset].strip()
            self._say(f'  File "{stop.filename}", line {stop.lineno}\n    {line}')

    def do_continue(self, arg: str) -> bool:
        """c(ont(inue)): the program goes on."""
        return True

    def do_quit(self, arg: str) -> None:
        """q(uit), exit: ends Python."""
        sys.exit(0)

    do_u, do_d, do_l, do_w, do_bt = do_up, do_down, do_list, do_where, do_where
    do_c = do_cont = do_continue
    do_q = do_EOF = do_exit = do_quit
