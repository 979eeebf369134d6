"""``meshrt launch`` runs before the library is loaded: the launcher needs none of it, and all ranks wait for it."""

from __future__ import annotations

import os
import sys

__all__ = ["launch_if_asked"]


def launch_if_asked() -> None:
    """Runs the launcher, and does not return, if this process is ``meshrt launch ...``; else nothing happens.

    Called as the package begins to be imported, for either way to start the program imports the package first.
    """
    if _is_launcher(sys.orig_argv, sys.argv):
        from meshrt.cli.main import main  # start-up time: of every other process

        main()


def _is_launcher(original: list[str], arguments: list[str]) -> bool:
    """Whether these are the arguments of ``python -m meshrt launch`` or ``meshrt launch``."""
    if arguments[1:2] != ["launch"]:
        return False
    if arguments[0] == "-m":  # so it stands until the module is found
        return original[-len(arguments) - 1 : -len(arguments) + 1][:2] == ["-m", "meshrt"]
    return os.path.basename(arguments[0]) in ("meshrt", "meshrt.exe") and not arguments[0].endswith(".py")
