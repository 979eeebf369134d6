"""Ctrl-C while meshrt is imported, with the libraries below it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from meshrt import _interrupts


@pytest.fixture
def interrupts_are_raised():
    """Also where the tests run in the background, whose processes ignore the signal from the start."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("interrupts_are_raised")
def test_an_interrupt_waits_for_the_end_of_the_block():
    went_on = False
    with pytest.raises(KeyboardInterrupt), _interrupts.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        went_on = True
    assert went_on and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with _interrupts.deferred():
        pass


@pytest.mark.usefixtures("interrupts_are_raised")
def test_an_error_of_the_block_is_the_interrupts_context():
    with pytest.raises(KeyboardInterrupt) as caught, _interrupts.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        raise ImportError("for another reason")
    assert isinstance(caught.value.__context__, ImportError)


def test_who_handles_the_signal_goes_on_to_do_so():
    heard = []
    former = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with _interrupts.deferred():
            os.kill(os.getpid(), signal.SIGINT)
        assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, former)


def test_a_handler_that_the_block_installs_stays():
    def handler(number, frame):
        return None

    try:
        with _interrupts.deferred():
            signal.signal(signal.SIGINT, handler)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_another_thread_can_import():
    found = []

    def work():
        with _interrupts.deferred():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


# The first module of Python that NumPy's and jaxlib's C code asks for, which takes what comes of it for an error.
INTERRUPTED = """\
import os, signal, sys
class Finder:
    done = False
    def find_spec(self, name, path=None, target=None):
        if name == "numpy._core._multiarray_umath":
            sys.modules.pop("datetime", None)
        elif name == "datetime" and "numpy._core" in sys.modules and not self.done:
            self.done = True
            print("interrupted", flush=True)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
import meshrt
print("not interrupted")
"""


def test_an_import_that_is_interrupted_says_so_and_nothing_else():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("interrupted\n", -signal.SIGINT), done.stderr
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt" and "Error" not in done.stderr
