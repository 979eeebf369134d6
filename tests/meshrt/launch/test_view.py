"""The live view of a job: what it says, and that it stays out of the way of what ranks print."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace

from rich.console import Console as Terminal

from meshrt.launch import wire
from meshrt.launch.metrics import Board
from meshrt.launch.model import Phase, Policy, State
from meshrt.launch.output import Console
from meshrt.launch.view import View, summary, table

STATE = State(Policy(3), Phase.RUNNING, live=frozenset({0, 1, 2}), joining=frozenset({1}), meshed=frozenset({0}))


def told_board(state=STATE, silences=dict):
    now = [0.0]
    board = Board(lambda: now[0], silences)
    board.show(state)
    for step in (10, 20, 30):
        board.note(0, wire.Progress(step, 10_000 * step, 3 << 30))
        now[0] += 2
    return board, now


def drawn(board, width=100):
    terminal = Terminal(file=io.StringIO(), width=width)
    terminal.print(table(board, width))
    return terminal.file.getvalue()


def test_a_job_in_a_line_and_in_a_table():
    board, _ = told_board()
    assert summary(board) == "running, 3 ranks, step 30, 5 steps/s, 50k tokens/s"
    text = drawn(board)
    assert all(len(line) <= 80 for line in text.splitlines())
    rows = [line.split() for line in text.splitlines()[2:]]
    assert rows[0] == ["0", "running", "30", "5", "50k", "3Gi", "2", "s", "ago"]
    assert [row[:2] for row in rows[1:]] == [["1", "joining"], ["2", "starting"]]


def test_of_many_ranks_those_that_are_behind_are_listed():
    policy = Policy(10, nodes=(2, 2))
    everybody = frozenset(range(20))
    state = State(policy, Phase.RUNNING, hosts=("a", "b"), chosen=("a", "b"), live=everybody, meshed=everybody)
    board, _ = told_board(state, lambda: {"b": 7.0, "a": 0.1})
    for rank in range(1, 20):
        board.note(rank, wire.Progress(3 if rank == 17 else 40 + rank))
    text = drawn(board)
    assert re.search(r"^ *17 +b +running +3 ", text, re.MULTILINE) and "8 more ranks are further" in text
    assert "b silent for 7 s" in text and "a silent" not in text
    board.show(replace(state, generation=1))
    assert summary(board) == "running, 20 ranks, 1 restart"


def test_without_a_terminal_it_is_a_line_now_and_then():
    board, now = told_board()
    lines: list[str] = []
    view = View(board, io.StringIO(), lambda: now[0], lines.append)
    for _ in range(8):
        view.turn()
        now[0] += 4
    view.hide()
    assert lines == ["meshrt launch: running, 3 ranks, step 30, 5 steps/s, 50k tokens/s"] * 2


def test_on_a_terminal_lines_stay_whole_above_the_table(tmp_path):
    script = tmp_path / "work.py"
    script.write_text(
        "import time, meshrt\n"
        "for i in range(12):\n    meshrt.distributed.progress(i, 100 * i)\n    print(f'line {i} ends', flush=True)\n"
        "    time.sleep(0.1)\n"
    )
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(
        [sys.executable, "-m", "meshrt", "launch", "--view", str(script)], stdin=theirs, stdout=theirs, stderr=theirs,
        env=environ, close_fds=True,
    )  # fmt: skip
    os.close(theirs)
    found = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        found += data
    os.close(ours)
    assert process.wait(60) == 0
    text = found.decode()
    assert [int(n) for n in re.findall(r"line (\d+) ends\r\n", text)] == list(range(12))
    assert "steps/s" in text and "\x1b[?25h" in text  # a table was drawn; the cursor is shown again


def test_lines_of_several_threads_come_one_after_another_and_never_into_what_is_drawn():
    happened = []

    class Slow(io.BytesIO):
        def write(self, data):
            happened.append("begun")
            time.sleep(0.05)
            happened.append("written")
            return super().write(data)

    console = Console(io.BytesIO(), Slow())
    console.before_writing = lambda: happened.append("hidden")
    threads = [threading.Thread(target=console.say, args=("a stranger came",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert happened == ["hidden", "begun", "written"] * 3
