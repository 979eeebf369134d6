"""The tables of `meshrt inspect` and `meshrt demo` in terminals of several widths, and where there is none."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace

import pytest
from rich.console import Console

from meshrt.inspect.markdown import report_markdown
from meshrt.inspect.model import CollectiveRow, FindingRow, MemberRow, Report, ValueRow
from meshrt.inspect.render import collectives_table, console, render, shorten, values_table

GATHER = CollectiveRow(
    "all_gather", "data", 2, 4, 49152.0, 4, "/x/train_lm.py:49", "stablehlo.dot_general: reshard", 1.0
)  # fmt: skip
SCATTER = CollectiveRow(
    "reduce_scatter", "data,model", 1, 8, 7.0, None, "/x/train_lm.py:71",
    "stablehlo.dynamic_update_slice: partial sum", 1.0,
)  # fmt: skip
VALUES = [ValueRow("state['params']['position']", "f32[4,128,3,4,32]", "(-, data, -, model, -)", 4096.0, 1024.0)]
REPORT = Report("m.mlir", (("data", 4), ("model", 2)), tuple(VALUES), (), (GATHER, GATHER, SCATTER), ())


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width, highlight=False)


def lines(out: Console) -> list[str]:
    return out.file.getvalue().splitlines()


def test_a_line_of_a_file_below_this_folder_cannot_move_the_cursor():
    assert shorten(f"{os.getcwd()}/a\x1b[2K.py:3") == "a\\x1b[2K.py:3"
    assert shorten(f"{os.getcwd()}/a/b.py:3") == "a/b.py:3" and shorten("/other/b.py:3") == "b.py:3"


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_nothing_is_folded_or_cut_in_usual_terminals(width):
    out = terminal(width)
    render(REPORT, out)
    text = out.file.getvalue()
    assert max(map(len, lines(out))) <= width
    for whole in (
        "all_gather", "reduce_scatter", "data,model", "train_lm.py:71", "dot_general: reshard", "48 KiB",
        "dynamic_update_slice: partial sum", "state['params']['position']", "f32[4,128,3,4,32]",
        "(-, data, -, model, -)",
    ):  # fmt: skip
        assert whole in text, whole


def test_equal_collectives_share_a_row_with_all_their_times():
    out = terminal(110)
    out.print(collectives_table(out, "Collectives", [GATHER, GATHER, SCATTER]))
    (row,) = [line.split() for line in lines(out) if "all_gather" in line]
    assert row == ["all_gather", "data", "48", "KiB", "8", "384", "KiB", "train_lm.py:49", "dot_general:", "reshard"]
    (unknown,) = [line.split() for line in lines(out) if "reduce_scatter" in line]
    assert unknown[4] == "?"


def test_the_widest_layout_names_groups_and_the_narrowest_stacks():
    wide, narrow = terminal(160), terminal(80)
    for out in (wide, narrow):
        out.print(collectives_table(out, "Collectives", [SCATTER]))
    assert "1 of 8" in wide.file.getvalue() and "1 of 8" not in narrow.file.getvalue()
    texts = [line.split() for line in lines(narrow)]
    at = next(i for i, cells in enumerate(texts) if "reduce_scatter" in cells)
    assert texts[at][-1] == "train_lm.py:71"
    assert texts[at + 1] == ["data,model", "dynamic_update_slice:", "partial", "sum"]


def test_values_give_up_their_whole_sizes_first():
    out = terminal(100)
    out.print(values_table(out, "Arguments", VALUES))
    assert "4 KiB" in out.file.getvalue() and "1 KiB" in out.file.getvalue()
    out = terminal(88)
    out.print(values_table(out, "Arguments", VALUES))
    assert "4 KiB" not in out.file.getvalue() and "1 KiB" in out.file.getvalue()


@pytest.mark.parametrize("columns", ["80", "", "wide"])
def test_what_is_no_terminal_gets_plain_text_that_is_never_cut(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    long = ValueRow("x" * 300, "f32[8]", "replicated", 32.0, 32.0)
    out = console()
    out.print(values_table(out, "Arguments", [long]))
    text = capsys.readouterr().out
    assert text.count("x") == 300 and "\x1b[" not in text
    assert ("x" * 300 in text) == (columns != "80")  # folded where a width is asked for


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        ((), "m.mlir: a program for one device (it names no mesh)"),
        ((("data", 1),), "m.mlir: 1 device, mesh data=1"),
        ((("data", 4), ("model", 2)), "m.mlir: 8 devices, mesh data=4, model=2"),
    ],
)
def test_the_first_line_names_devices_and_mesh(mesh, text):
    out = terminal(100)
    render(Report("m.mlir", mesh, (), (), (), ()), out)
    assert lines(out)[0] == text
    assert ("there is one device" in out.file.getvalue()) == ("8 devices" not in text)


def test_a_combined_collective_lists_what_it_was_made_of():
    members = (MemberRow("/x/train_lm.py:9", "stablehlo.reduce: partial sum", 4.0),
               MemberRow("/x/train_lm.py:11", "stablehlo.add: partial sum", 3.0))  # fmt: skip
    row = replace(SCATTER, members=members)
    report = replace(REPORT, collectives=(GATHER, row))
    assert Report.from_json(json.loads(json.dumps(report.as_json()))) == report
    for width in (60, 100, 200):
        out = terminal(width)
        out.print(collectives_table(out, "Collectives", report.collectives))
        said = "\n".join(lines(out))
        assert "train_lm.py:9" in said and "train_lm.py:11" in said and "add: partial sum" in said


def test_columns_that_are_asked_for_are_kept_where_there_is_no_terminal(monkeypatch, capsys):
    """Texts as well as tables; a finding without a place or bytes says neither."""
    found = FindingRow("replicas", "this is the program of one device, which replicas run " * 3, None, 0.0)
    report = replace(REPORT, findings=(found,))
    monkeypatch.setenv("COLUMNS", "80")
    render(report, console())
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80 and "finding: this is" in text
    assert f"- :warning: {found.message}\n" in report_markdown(report)
    monkeypatch.delenv("COLUMNS")
    render(report, console())
    assert any(line.startswith("finding: ") and line.endswith(" run ") for line in capsys.readouterr().out.splitlines())
