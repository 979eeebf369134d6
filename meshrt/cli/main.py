"""``meshrt COMMAND``: finds the commands, and turns a user's mistake into one line and exit code 2.

Each module of this package other than this one holds one click command, exported as `command`; the command's
name is the module's, with ``-`` for ``_``. A module is imported when its command is run or its help is shown,
so starting up stays fast: heavy imports belong inside the command's function.
"""

from __future__ import annotations

import errno
import importlib
import os
import pkgutil
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import click

from meshrt._collection import leave_to_the_system
from meshrt.errors import MeshrtError, did_you_mean

USER_ERROR = 2  # exit code, as click's own for wrong usage


class Commands(click.Group):
    """A group whose commands are the modules of `package`."""

    def __init__(self, *args: Any, package: str, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._package = package

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """click's, which prints help and versions."""
        with _output_may_close():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """click's, which runs the command."""
        with _output_may_close():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, sorted."""
        path = importlib.import_module(self._package).__path__
        names = (m.name for m in pkgutil.iter_modules(path) if m.name != "main" and not m.name.startswith("_"))
        return sorted(name.replace("_", "-") for name in names)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of that name; None if there is none."""
        if name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(f"{self._package}.{name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """click's, which takes the first word; one that is no command is told the nearest ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as e:
            near = did_you_mean(args[0], self.list_commands(ctx))
            raise click.UsageError(e.message.rstrip(".") + near, e.ctx) if near else e from None


@contextmanager
def _output_may_close() -> Iterator[None]:
    """Ends the command without a word, exit code 0, once the reader of its output has seen enough, as `head` does."""
    try:
        yield
    except BrokenPipeError:
        if not _has_no_reader(sys.stdout):  # another pipe, of the command's own
            raise
        # What is still in Python's buffers goes nowhere, rather than failing once more when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(0) from None


def _has_no_reader(stream: IO[str]) -> bool:
    """Whether a stream is a pipe that nobody reads any more."""
    watched = select.poll()
    watched.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in watched.poll(0))


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        import importlib.metadata  # start-up time: to show versions only

        versions = [f"{name} {importlib.metadata.version(name)}" for name in ("meshrt", "jaxlib")]
        click.echo(f"{versions[0]} ({versions[1]}, Python {sys.version.split()[0]})")
        ctx.exit()


@click.group(cls=Commands, package="meshrt.cli", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show versions.")
def group() -> None:
    """Runs programs on a mesh of devices, and shows how they are sharded and what that costs."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The ``meshrt`` program. Leaves by SystemExit: 0, the command's own code, or 2 for what the user can put right."""
    leave_to_the_system()
    try:
        code = group.main(arguments, prog_name="meshrt", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.ctx.get_help(), err=True)
        sys.exit(USER_ERROR)
    except click.UsageError as e:
        hint = f" (see '{e.ctx.command_path} --help')" if e.ctx is not None else ""
        _fail(e.format_message() + _meaning(e) + hint)
    except click.ClickException as e:
        _fail(e.format_message())
    except MeshrtError as e:
        _fail(str(e))
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _fail(f"{e.filename or 'the output'}: {e.strerror}")
    except click.Abort:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _meaning(error: click.UsageError) -> str:
    """What an option that is missing would say."""
    option = error.param if isinstance(error, click.MissingParameter) else None
    return f" {option.help}" if isinstance(option, click.Option) and option.help else ""


def _fail(message: str) -> None:
    from propagation.quoting import printable  # start-up time: help needs none of it

    click.echo(f"meshrt: error: {printable(' '.join(message.split()))}", err=True)
    sys.exit(USER_ERROR)
