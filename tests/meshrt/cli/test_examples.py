"""`python -m meshrt.examples`: lists, shows, copies and runs the scripts; a mistake is one line and exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshrt import examples

ROOT = Path(__file__).resolve().parents[3]


def test_without_a_name_it_lists_all_with_a_line_on_each(capsys):
    assert examples.main([]) == 0
    out = capsys.readouterr().out
    assert [name for name in examples.names() if f"\n{name} " not in f"\n{out}"] == []
    assert "by_hand/compare" not in out and all(examples.summary(name) for name in examples.names())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["trainlm"], "no example 'trainlm'; there are: train_lm"),
        (["../setup"], "no example '../setup'; there are: "),
        (["--copy"], "--copy takes one argument, got 0"),
        (["--copy", str(ROOT)], "name a folder that does not exist yet"),
        (["--show", "nothing"], "no example 'nothing'"),
        (["--shwo", "lora"], "--shwo: no such option; there are --help, --copy DIR and --show NAME"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(capsys, arguments, text):
    assert examples.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and text in err


def test_copies_are_the_scripts(tmp_path, capsys):
    assert examples.main(["--copy", str(tmp_path / "scripts")]) == 0
    assert examples.main(["--show", "lora"]) == 0
    assert capsys.readouterr().out.endswith((ROOT / "examples" / "lora.py").read_text())
    copied = {p.relative_to(tmp_path / "scripts") for p in (tmp_path / "scripts").rglob("*.py")}
    assert copied == {p.relative_to(ROOT / "examples") for p in (ROOT / "examples").rglob("*.py")}


def test_what_follows_the_name_belongs_to_the_script():
    command = [sys.executable, "-m", "meshrt.examples", "train_lm.py", "--help"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "--steps" in done.stdout, done.stderr
