"""The first thing that runs in a worker's process: ties it to the launcher, then runs the user's script as __main__.

Run by path, ``python bootstrap.py LAUNCHER_PID script|module|program TARGET [ARGUMENT ...]`` (a process id of 0: there
is no launcher on this machine), with the standard library only: the script decides when, and whether, meshrt is
imported. Compared with ``python script.py`` the worker dies with the launcher, however that ends (Linux), and an
exception that ends the script is told to the launcher before the interpreter begins to shut down, which may take long
in a distributed program.

Imports that most workers do not need stand in the functions that do: what is imported here, each worker waits for.
"""

from __future__ import annotations

import _thread
import io
import json
import os
import sys
import types

FD_VARIABLE = "MESHRT_LAUNCH_FD"
_PR_SET_PDEATHSIG = 1
_SIGKILL = 9
_CONFIGURATION_ERROR = 78  # with it nothing is started again
# What the launcher is told of an exception: lines, characters of a line, and of all of them. It ignores messages of
# more than 256 KB, and a character may take six bytes of one.
_LINES, _LINE, _TEXT = 300, 2000, 30_000
_MESSAGE = 8000
# Before what a rank says of its failure on stderr, where its output is all that the launcher hears of it.
FAILED = "meshrt launch: this rank failed: "
_WORDS = 500

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, NoReturn


_sending = _thread.allocate_lock()  # threads tell things at once, and a long line is written in pieces


def _one_at_a_time() -> _thread.LockType:
    """The lock of this process's pipe: this file runs as a script and is a module of meshrt, too."""
    module = sys.modules.get("meshrt.launch.bootstrap")
    return _sending if module is None else module._sending


def send(**fields: object) -> bool:
    """Tells the launcher; False when there is none. A launcher that is gone is no error: it is about to kill us."""
    number, _, owner = os.environ.get(FD_VARIABLE, "").partition(":")
    if not number or owner not in ("", str(os.getpid())):  # a child of a worker inherits the variable, not the pipe
        return False
    data = json.dumps(fields).encode() + b"\n"
    try:
        with _one_at_a_time():
            while data:
                data = data[os.write(int(number), data) :]
    except BrokenPipeError:
        return False
    return True


def _own_the_pipe() -> None:
    """Keeps the pipe to the launcher from the processes that this one starts."""
    number = os.environ.get(FD_VARIABLE)
    if number is not None:
        os.set_inheritable(int(number), False)
        os.environ[FD_VARIABLE] = f"{number}:{os.getpid()}"


def send_exception(error: BaseException) -> bool:
    """Tells the launcher of the exception that ends this process."""
    import traceback  # start-up time: most workers never raise

    lines = "".join(traceback.format_exception(error)).splitlines()
    try:
        message = str(error)
    except Exception:
        message = "<the exception's text cannot be made>"
    return send(
        kind="raised", type=type(error).__qualname__[:200], message=message[:_MESSAGE], traceback=_shortened(lines)
    )  # fmt: skip


def _shortened(lines: list[str]) -> list[str]:
    """The lines with the ends of long ones left out, and of many long ones those in the middle."""
    lines = [line if len(line) <= _LINE else f"{line[:_LINE]} ... ({len(line)} characters)" for line in lines[-_LINES:]]
    left_out = 0
    while len(lines) > 1 and sum(map(len, lines)) > _TEXT:
        del lines[len(lines) // 2]
        left_out += 1
    if left_out:
        lines.insert(len(lines) // 2 + 1, f"... {left_out} lines left out")
    return lines


def die_with(launcher: int) -> None:
    """Has the kernel kill this process when the launcher ends, also by SIGKILL (Linux; elsewhere the reaper does)."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes  # start-up time: this runs before the script, in every worker

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != launcher:  # it ended before the call above
        os._exit(1)


def _bind() -> None:
    """Keeps to the cores that the launcher gave this process."""
    told = os.environ.pop("MESHRT_BIND", None)
    if told is None:
        return
    import runpy  # start-up time: for bound processes only

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "binding.py")
    try:
        runpy.run_path(path)["bind"](told)
    except (AttributeError, OSError, ValueError) as e:
        sys.exit(f"meshrt launch: --bind cannot be done here: {e}")


def _await_request_to_leave() -> None:
    """Keeps the signal of parting.py, if it comes before the script asks for it."""
    if "MESHRT_ELASTIC" not in os.environ:
        return
    import runpy  # start-up time: for jobs whose ranks come and go only

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "parting.py")
    runpy.run_path(path)["await_request"]()


def _say_failure(words: str) -> None:
    """Tells a launcher that hears of this rank by its output alone, and whoever reads that without one. Before what the
    interpreter prints, since hooks of the script may end the process."""
    if sys.stderr is None:
        return
    try:
        print(FAILED + words.partition("\n")[0][:_WORDS], file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return  # nobody reads it


def _as_words(error: BaseException) -> str:
    """Type and message, as the last line of a traceback has them."""
    try:
        text = str(error).strip()
    except Exception:
        text = "<the exception's text cannot be made>"
    return f"{type(error).__qualname__}: {text}" if text else type(error).__qualname__


def _print_lines() -> None:
    """Has each line written at once: a launcher that puts labels before what it reads may read it in pieces."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def run(kind: str, target: str, arguments: list[str]) -> None:
    """Runs the script or module as ``python target`` or ``python -m target`` would, or becomes the program."""
    if kind == "program":  # the kernel's promise of `die_with` goes over to it
        import signal  # start-up time: the interpreter ignores a signal that programs expect

        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        try:
            os.execvp(target, [target, *arguments])
        except OSError as e:
            sys.exit(f"{target}: {e.strerror}")
    sys.argv = [target, *arguments]
    if kind == "module":
        import runpy  # start-up time: for modules only

        sys.path[0] = os.getcwd()
        _check_module(target)
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.abspath(target))
    with _opened(target) as file:
        code = compile(file.read(), target, "exec", dont_inherit=True)
    # A module of its own, which stays __main__ to the end: threads and pickles of the script need it after it
    # returns.
    module = types.ModuleType("__main__")
    module.__file__ = target
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _opened(script: str) -> IO[bytes]:
    """The script, which the launcher's host has, to read. Without it the process ends, and is not started again."""
    try:
        return io.open_code(script)
    except OSError as e:
        why = f"{script}: {e.strerror} on this host (processes start in {os.getcwd()}); all hosts need the script"
        _end_unstarted(type(e).__name__, why)


def _check_module(name: str) -> None:
    """The same for a module. What goes wrong in the packages around it, which are imported, is their own error."""
    import importlib.util  # start-up time: for modules only, and runpy needs it

    try:
        found = importlib.util.find_spec(name)
        if found is not None and found.submodule_search_locations is not None:  # a package, of which this is run
            name = f"{name}.__main__"
            found = importlib.util.find_spec(name)
    except ModuleNotFoundError as e:
        if not f"{name}.".startswith(f"{e.name}."):
            raise
        found = None
    if found is None:
        why = f"there is no module {name} for {sys.executable} on this host (processes start in {os.getcwd()})"
        _end_unstarted("ModuleNotFoundError", f"{why}; a script is given without -m")


def _end_unstarted(kind: str, why: str) -> NoReturn:
    print(f"meshrt launch: {why}", file=sys.stderr, flush=True)
    send(kind="raised", type=kind, message=why, traceback=[])
    sys.exit(_CONFIGURATION_ERROR)


def _note_failure(code: int) -> None:
    """Tells meshrt.distributed, if the script used it, that this process leaves by failure and waits for nobody."""
    distributed = sys.modules.get("meshrt.distributed")
    if distributed is not None and code != 0:
        distributed.note_failure(code)


def _end_by_exception(error: BaseException) -> None:
    """Ends the process as the interpreter would, with the traceback of the script's own frames."""
    frames, ours = error.__traceback__, (__file__, "<frozen runpy>", "<frozen importlib.util>")
    while frames is not None and frames.tb_frame.f_code.co_filename in ours:
        frames = frames.tb_next
    error.__traceback__ = frames
    if not send_exception(error):
        _say_failure(_as_words(error))
    _note_failure(1)
    sys.excepthook(type(error), error, frames)
    if isinstance(error, KeyboardInterrupt):
        import signal  # start-up time: at the end of an interrupted worker only

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(1)


def _main() -> None:
    launcher, kind, target, *arguments = sys.argv[1:]
    if int(launcher):  # 0: whoever reads the process's output ends it too
        die_with(int(launcher))
    else:
        _print_lines()
    _own_the_pipe()
    _bind()
    _await_request_to_leave()
    try:
        run(kind, target, arguments)
    except SystemExit as e:
        if isinstance(e.code, str):
            told = send(kind="raised", type="SystemExit", message=e.code[:_MESSAGE], traceback=[])
            if not told:
                _say_failure(_as_words(e))
        elif e.code and not int(launcher):
            _say_failure(f"exit code {e.code}")
        _note_failure(e.code if isinstance(e.code, int) else int(e.code is not None))
        raise
    except BaseException as e:
        _end_by_exception(e)


if __name__ == "__main__":
    _main()
