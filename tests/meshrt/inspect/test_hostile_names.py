"""Names in a program that would steer the terminal that shows them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import collectives.__main__
import propagation.__main__
from meshrt.cli import main as cli
from meshrt.inspect.model import Report, ValueRow, element_text
from meshrt.inspect.render import render
from meshrt.pipeline.names import argument_names, output_names

# One that rings, wipes the screen, ends a line and writes from right to left: each in an axis that does not divide.
NAME = "x\x07\x1b[2J\n\u202e"
WRITTEN = "x\\07\\1B[2J\\0A\\E2\\80\\AE"
SHOWN = "x\\x07\\x1b[2J\\x0a\\u202e"
MODULE = f"""sdy.mesh @mesh = <["{WRITTEN}"=2]>
func.func @main(%x: tensor<3xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"{WRITTEN}"}}]>}}) -> tensor<3xf32> {{
  return %x : tensor<3xf32>
}}"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.mlir"
    path.write_text(MODULE)
    return str(path)


def harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_an_error_of_the_command_shows_them_escaped(program, capsys):
    with pytest.raises(SystemExit):
        cli.main(["inspect", program, "--mesh", "data=2"])
    err = capsys.readouterr().err
    assert harmless(err) and err.count("\n") == 1 and "x\\x07" in err


def test_an_error_of_the_modules_shows_them_escaped(program, capsys):
    assert collectives.__main__.main([program]) == 2
    err = capsys.readouterr().err
    assert harmless(err) and err.count("\n") == 1 and SHOWN in err
    unknown = MODULE.replace("@mesh, [", f'@"{WRITTEN}", [')
    Path(program).write_text(unknown)
    assert propagation.__main__.main([program]) == 2
    assert harmless(capsys.readouterr().err)


def test_a_name_stays_in_its_line_of_a_table():
    row = ValueRow(NAME, "f32[4]", "replicated", 16.0, 16.0)
    for width in (60, 80, 120):
        out = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width, highlight=False)
        render(Report("m.mlir", (("data", 4),), (row,), (), (), ()), out)
        text = out.file.getvalue()
        assert harmless(text) and SHOWN in text


def test_names_of_arguments_and_results_are_texts():
    """MLIR writes letters beyond ASCII, and quotes, in hexadecimal digits."""
    text = """func.func @main(%x: tensor<3xcomplex<f32>> loc("params['\u00e9']"))
    -> (tensor<3xcomplex<f32>> {jax.result_info = "result['\u00e9\\22']"}) { return %x : tensor<3xcomplex<f32>> }"""
    made = propagation.run(text)
    assert (argument_names(made), output_names(made)) == (["params['\u00e9']"], ["result['\u00e9\"']"])
    assert element_text("tensor<3xcomplex<f32>>") == "complex<f32>[3]"
