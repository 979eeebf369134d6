"""The page that is served while its program is written."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshrt.cli.main import main
from meshrt.inspect import serving
from tests.meshrt.inspect.page.programs import SCRIPT


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "written.py"
    file.write_text(
        SCRIPT.replace("import meshrt\n", "import beside\nimport meshrt\n", 1).replace(
            "tanh(x)", "tanh(x * beside.FACTOR)"
        )
    )
    (tmp_path / "beside.py").write_text("FACTOR = 2.0\n")
    return file


@contextlib.contextmanager
def served(*arguments: str):
    """The process of a server, and the address that it tells."""
    process = subprocess.Popen(
        [sys.executable, "-m", "meshrt", "inspect", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert " at http://127.0.0.1:" in line, line + process.stderr.read()
        yield process, line.split(" at ")[1].split()[0]
    finally:
        process.kill()
        process.communicate()


def status(url: str, host: str | None = None) -> int:
    request = urllib.request.Request(url, headers={} if host is None else {"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as e:
        return e.code


def test_a_page_follows_its_program(tab, script):
    with served(f"{script}:step", "--mesh", "x=4", "--serve") as (process, url):
        tab.open(url)
        tab.until("meshrt.views.length === 1")
        kinds = "(window.meshrt?.views[0]?.program.texts ?? [])"
        assert tab.run(f"{kinds}.includes('tanh')") and tab.run("document.querySelector('.banner').hidden")
        tab.run("meshrt.views[0].folding.use('line')")
        tab.run("meshrt.views[0].turn(2)")

        script.write_text(script.read_text().replace("jnp.tanh", "jnp.sin"))
        tab.until(f"{kinds}.includes('sine')")
        tab.until("meshrt.views[0].current === 2 && meshrt.views[0].folding.name === 'line'")

        script.write_text(script.read_text().replace("jnp.sin(", "jnp.sin(nothing * "))
        tab.until("!document.querySelector('.banner').hidden")
        said = tab.run("document.querySelector('.banner').textContent")
        assert f"{script}:9" in said and "'nothing' is not defined" in said
        assert tab.run(f"{kinds}.includes('sine')")  # the report before stays
        tab.shot("error")

        script.write_text(script.read_text().replace("nothing * ", ""))
        (script.parent / "beside.py").write_text("import meshrt.numpy as jnp\nFACTOR = jnp.float32(3)\n")
        tab.until("meshrt.data.serve.error === null && document.querySelector('.banner').hidden")

        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        tab.until("document.querySelector('.banner').textContent.includes('does not answer')")
        assert not [e for e in tab.errors if "ERR_" not in e]  # that the server is gone is an error to the browser
        tab.errors.clear()


def test_a_page_follows_what_it_is_compared_with(script):
    """Both sides are of one script here: the one over another mesh is not that of the start for ever."""

    def shown(url: str) -> str:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.read().decode()

    def until(says) -> None:
        end = time.monotonic() + 60
        while not says(shown(url)):
            assert time.monotonic() < end, "the page does not follow"
            time.sleep(0.1)

    with served(f"{script}:step", "--mesh", "x=4", "--against-mesh", "x=2", "--serve") as (_, url):
        until(lambda page: page.count('"tanh"') >= 2)
        script.write_text(script.read_text().replace("jnp.tanh", "jnp.sin"))
        until(lambda page: page.count('"sine"') >= 2 and '"tanh"' not in page)


def test_what_is_written_while_it_is_read_has_changed(tmp_path):
    """The report may be of the file before that, so it is made once more."""
    file = tmp_path / "compared.mlir"
    file.write_text("before")

    def read():
        file.write_text("written meanwhile")
        return SimpleNamespace(program=None)

    state = serving._State()
    serving._compare(serving.Beside(read, str(file)), state)
    assert serving._stamps(state.compared) != state.compared
    file.write_text("before")
    serving._compare(serving.Beside(lambda: SimpleNamespace(program=None), str(file)), state)
    assert serving._stamps(state.compared) == state.compared


def test_only_who_knows_the_address_is_answered(script):
    with served("--serve", f"{script}:step", "--mesh", "x=4") as (_, url):
        root, port = url.rsplit("/", 2)[0], url.split(":")[2].split("/")[0]
        assert status(url) == 200
        assert (
            status(root + "/")
            == status(root + "/wrong/")
            == status(url + "written.py")
            == status(url + "events")
            == status(url + "events?page=%C2%B2")
            == status(url + "events?page=" + "9" * 5000)
            == 404
        )
        assert status(url, "evil.example") == status(url, f"evil.example:{port}") == 404
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["Cache-Control"] == "no-store"
        with socket.socket() as other:
            other.settimeout(5)
            address = socket.gethostbyname(socket.gethostname())
            if not address.startswith("127."):
                assert other.connect_ex((address, int(port))) != 0


def test_a_program_that_is_wrong_from_the_start_is_shown_so(tab, script):
    good = script.read_text()
    script.write_text("def step(:\n")
    with served(f"{script}:step", "--mesh", "x=4", "--serve") as (_, url):
        tab.open(url)
        tab.until("document.querySelector('.banner').textContent.includes('SyntaxError')")
        script.write_text(good)
        tab.until("window.meshrt?.views.length === 1")
        assert tab.run("document.querySelector('.banner').hidden")


def refused(capsys, *arguments: str) -> str:
    """What the command says as it refuses, in one line."""
    with pytest.raises(SystemExit) as e:
        main(["inspect", *arguments])
    said = capsys.readouterr().err
    assert e.value.code == 2 and len(said.splitlines()) == 1
    return said


def test_a_port_that_is_taken_is_said_in_one_line(script, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused(capsys, f"{script}:step", "--mesh", "x=4", "--serve", str(port))
    assert f"port {port} is taken" in said


@pytest.mark.parametrize("arguments", [["--serve", "--json"], ["--serve", "--html", "x.html"], ["--serve", "99999"]])
def test_what_does_not_go_with_it(script, arguments, capsys):
    assert "--serve" in refused(capsys, f"{script}:step", "--mesh", "x=4", *arguments)


SLEEPING = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
CALLING = """import subprocess, sys
subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"])
"""


@pytest.mark.parametrize("text, depth", [(SLEEPING, 1), (CALLING, 2)], ids=["a run", "what a run started"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_no_process_is_left_behind(script, text, depth, number, signals_are_heard):
    script.write_text(text)
    with served(f"{script}:step", "--mesh", "x=4", "--serve") as (process, _):
        found = process.pid
        for _ in range(depth):
            children = Path(f"/proc/{found}/task/{found}/children")
            if not children.exists():
                pytest.skip("children are not listed here")
            end = time.monotonic() + 60
            while not (below := children.read_text().split()) and time.monotonic() < end:
                time.sleep(0.05)
            found = below[0]
        process.send_signal(number)
        assert process.wait(30) == 0
        end = time.monotonic() + 30  # an orphan is gone when whoever adopted it has looked
        while _runs(found) and time.monotonic() < end:
            time.sleep(0.05)
        assert not _runs(found)


def _runs(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
