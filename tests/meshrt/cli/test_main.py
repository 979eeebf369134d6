"""The command line: finding commands, versions, and errors of one line with exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

from meshrt.cli import main as cli
from meshrt.errors import ConfigError


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        cli.main(list(arguments))
    out, err = capsys.readouterr()
    return caught.value.code, out, err


def test_version(capsys):
    code, out, _ = run(capsys, "--version")
    assert code == 0 and out.startswith("meshrt 0.") and "jaxlib 0." in out


def test_help_lists_the_modules(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0 and "launch" in out and "main" not in out.split("Commands:")[1].split()


def test_no_command_shows_the_help_and_fails(capsys):
    code, _, err = run(capsys)
    assert code == 2 and "Usage: meshrt" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["lunch"], "No such command 'lunch'; did you mean launch?"),
        (["none-like-it"], "No such command 'none-like-it'. (see"),
        (["plan", "x.py:f"], "Missing option '--topology'. The hardware, as in"),
        (["--wrong"], "No such option"),
        (["launch"], "Missing argument 'TARGET'"),
        (["launch", "--nproc", "x", "s.py"], "'x' is not a valid integer"),
        (["launch", "--nproc", "0", "s.py"], "nproc = 0: expected a whole number from 1"),
        (["launch", "--timeout", "-3", "s.py"], "timeout = -3.0: expected a time in seconds"),
        (
            ["launch", "--engine", "cloud", __file__],
            "engine = 'cloud': there is no such engine; known are: kubernetes, local",
        ),
        (["launch", "missing.py"], "missing.py: no such script. To run a module, write -m before its name."),
        (["launch", "."], ". is a folder; name the script in it"),
        (["launch", "stop2.py"], "stop2.py: no such script. To run a module, write -m before its name."),
        (["launch", "stauts"], "stauts: no such script. Did you mean `meshrt launch status`?"),
        (["launch", "--nproc", "2", "logs"], "logs: no such script. Did you mean `meshrt launch logs`?"),
        (["launch", "--env", "novalue", "s.py"], "'novalue': expected NAME=VALUE"),
        (["launch", "--env", "A-B=1", "s.py"], "'A-B' is not the name of an environment variable"),
        (["launch", "--nnodes", "2", "s.py"], "--nnodes: meshrt launch is run once for all hosts"),
        (["launch", "--config", "nope", "s.py"], "no launch configuration 'nope'"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(capsys, arguments, text):
    code, out, err = run(capsys, *arguments)
    assert code == 2 and out == ""
    assert err.startswith("meshrt: error: ") and err.count("\n") == 1 and text in err


def test_a_log_directory_that_cannot_be_made(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    script = tmp_path / "s.py"
    script.write_text("")
    code, _, err = run(capsys, "launch", "--log-dir", str(tmp_path / "file" / "x"), str(script))
    assert code == 2 and "cannot make the directory" in err


def test_errors_of_meshrt_inside_a_command_are_one_line(capsys, monkeypatch):
    def fail(*_args, **_kwargs):
        raise ConfigError("first line\nsecond line")

    monkeypatch.setattr(cli.group, "main", fail)
    assert run(capsys)[::2] == (2, "meshrt: error: first line second line\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device")
def test_output_that_finds_no_room_is_one_line():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "meshrt", "inspect", "--schema"]
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr == "meshrt: error: the output: No space left on device\n"


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "--schema"], ["inspect", "-"]])
def test_output_that_nobody_reads_ends_the_command_in_silence(arguments):
    module = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "meshrt", *arguments]
    done = subprocess.run(command, check=False, stdout=writer, stderr=subprocess.PIPE, text=True, input=module)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pipe_of_the_command_s_own_that_breaks_is_no_end_of_output(monkeypatch):
    @click.command("leaky")
    def command():
        raise BrokenPipeError

    monkeypatch.setattr(cli.group, "get_command", lambda ctx, name: command)
    with pytest.raises(BrokenPipeError):
        cli.group.invoke(cli.group.make_context("meshrt", ["leaky"]))


def test_commands_are_found_by_their_module(tmp_path, monkeypatch):
    package = tmp_path / "toolbox"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "two_words.py").write_text("import click\ncommand = click.Command('two-words', help='Hi.')\n")
    (package / "_private.py").write_text("raise RuntimeError\n")
    monkeypatch.syspath_prepend(tmp_path)
    group = cli.Commands("x", package="toolbox")
    assert group.list_commands(None) == ["two-words"]
    assert group.get_command(None, "two-words").help == "Hi."
    assert group.get_command(None, "_private") is None


def test_python_dash_m_is_the_program():
    done = subprocess.run([sys.executable, "-m", "meshrt", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("meshrt 0.")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(capsys, shell):
    with pytest.raises(SystemExit) as ended:
        cli.main(["completion", shell])
    assert ended.value.code == 0 and f"_MESHRT_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_completions_are_the_commands_and_their_options():
    complete = lambda words, at: subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'meshrt'; from meshrt.cli.main import main; main()"],
        env={**os.environ, "_MESHRT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)},
        capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    assert complete("meshrt doc", 1) == ["plain,doctor"]
    assert "plain,--engine" in complete("meshrt launch --en", 2)
