"""``meshrt launch`` runs before the library is loaded: the launcher needs none of it, and all ranks wait for it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["launch_if_asked"]


def launch_if_asked() -> None:
    """Runs the launcher, and does not return, if this process is ``meshrt launch ...``; else nothing happens.

    Called as the package begins to be imported, for either way to start the program imports the package first.
    """
    if _is_launcher(sys.orig_argv, sys.argv):
        main = _main()
        main()


def _main() -> Callable[[], None]:
    """The command line. A Ctrl-C while it is imported ends the process at once, and shows nobody where that was."""
    import signal  # start-up time: of every other process

    python_handles_it = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # who is ignored stays so
    if python_handles_it:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from meshrt.cli.main import main  # start-up time: of every other process

    if python_handles_it:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main


def _is_launcher(original: list[str], arguments: list[str]) -> bool:
    """Whether these are the arguments of ``python -m meshrt launch`` or ``meshrt launch``."""
    if arguments[1:2] != ["launch"]:
        return False
    if arguments[0] == "-m":  # so it stands until the module is found
        return original[-len(arguments) - 1 : -len(arguments) + 1][:2] == ["-m", "meshrt"]
    return os.path.basename(arguments[0]) in ("meshrt", "meshrt.exe") and not arguments[0].endswith(".py")
