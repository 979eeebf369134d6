"""The live view of a job, ``meshrt launch --view``: what its hosts and ranks are at, below what they print.

On a terminal a table is drawn behind the last line and taken away before the next one is written. Elsewhere the job's
figures become a line every ten seconds, so that a log of the terminal stays one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from rich.console import Console as Terminal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from meshrt.launch.metrics import Board, RankFigures

__all__ = ["View"]

# Seconds between pictures. Chosen: a step's figures are read, not watched; a line is for somebody who comes back later.
_REDRAW_S, _LINE_S = 0.5, 10.0
# Ranks that a table lists. Chosen: with the lines around it fits a terminal of 24 lines.
_RANKS = 12


class View:
    """Draws what a board knows.

    Args:
      board: of the job; the same thread writes it.
      stream: the launcher's own stderr.
      clock: seconds.
      say: writes a line among those of the job, where there is no terminal.
    """

    def __init__(self, board: Board, stream: TextIO, clock: Callable[[], float], say: Callable[[str], None]):
        self._board, self._clock, self._say = board, clock, say
        self._terminal = Terminal(file=stream)
        is_drawn = self._terminal.is_terminal and not self._terminal.is_dumb_terminal
        self._period = _REDRAW_S if is_drawn else _LINE_S
        self._live: Live | None = None
        if is_drawn:
            self._live = Live(
                console=self._terminal, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
        self.due = clock() + (0.0 if is_drawn else self._period)

    def hide(self) -> None:
        """Takes the table away: something else is about to be written."""
        if self._live is not None and self._live.is_started:
            self._live.stop()

    def turn(self) -> None:
        """Draws if it is time to."""
        now = self._clock()
        if now < self.due:
            return
        self.due = now + self._period
        if self._live is None:
            self._say(f"meshrt launch: {summary(self._board)}")
            return
        self._live.update(table(self._board, self._terminal.width))
        self._live.start()
        self._live.refresh()


def summary(board: Board) -> str:
    """The job in a line: `running, 4 ranks, step 120, 3.1 steps/s, 25.4k tokens/s`."""
    ranks = board.ranks()
    parts = [board.phase, f"{len(ranks)} rank{'s' * (len(ranks) != 1)}"]
    if board.restarts:
        parts.append(f"{board.restarts} restart{'s' * (board.restarts != 1)}")
    told = [r for r in ranks if r.step is not None]
    if told:
        behind = min(told, key=lambda r: r.step or 0)
        parts.append(f"step {behind.step}")
        if behind.steps_per_second is not None:
            parts.append(f"{behind.steps_per_second:.3g} steps/s")
        tokens = [r.tokens_per_second for r in told if r.tokens_per_second is not None]
        if tokens:
            parts.append(f"{_short(sum(tokens))} tokens/s")
    return ", ".join(parts)


def table(board: Board, width: int) -> Table:
    """Hosts and ranks; of many ranks those that are furthest behind."""
    ranks = board.ranks()
    shown = sorted(sorted(ranks, key=_progress)[:_RANKS], key=lambda r: r.rank)
    with_hosts = any(r.host is not None for r in ranks)
    out = Table(title=Text(summary(board)), title_justify="left", box=None, width=min(width, 80), pad_edge=False)
    columns = ["rank", *(["host"] if with_hosts else []), "state", "step", "steps/s", "tokens/s", "memory", "told"]
    for name in columns:
        out.add_column(
            name, justify="left" if name in ("host", "state") else "right", overflow="ellipsis", no_wrap=True
        )
    for r in shown:
        out.add_row(
            str(r.rank), *([Text(r.host or "")] if with_hosts else []), r.state, "" if r.step is None else str(r.step),
            "" if r.steps_per_second is None else f"{r.steps_per_second:.3g}", _short(r.tokens_per_second),
            _short(r.memory, 1024), "" if r.age is None else f"{r.age:.0f} s ago",
        )  # fmt: skip
    notes = []
    if len(shown) < len(ranks):
        notes.append(f"{len(ranks) - len(shown)} more ranks are further")
    notes += [f"{host} silent for {silent:.0f} s" for host, silent in sorted(board.silences().items()) if silent > 3]
    out.caption = Text("; ".join(notes)) if notes else None
    out.caption_justify = "left"
    return out


def _progress(figures: RankFigures) -> tuple[int, int]:
    return (-1 if figures.step is None else figures.step, figures.rank)


def _short(number: float | None, base: int = 1000) -> str:
    """`25.4k`, or of bytes `1.2Gi`."""
    if number is None:
        return ""
    units = ("", "k", "M", "G", "T") if base == 1000 else ("", "Ki", "Mi", "Gi", "Ti")
    step = 0
    while number >= base and step < len(units) - 1:
        number, step = number / base, step + 1
    return f"{number:.4g}{units[step]}" if step else f"{number:.3g}"
