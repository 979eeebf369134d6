"""``meshrt completion``: what a shell has to read to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_MESHRT_COMPLETE"  # click's name for a program called meshrt
_EPILOG = """\b
Put it where your shell reads it:
  bash: eval "$(meshrt completion bash)"                                 in ~/.bashrc
  zsh:  eval "$(meshrt completion zsh)"                                  in ~/.zshrc
  fish: meshrt completion fish > ~/.config/fish/completions/meshrt.fish
"""


@click.command(name="completion", epilog=_EPILOG)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> int:
    """Prints the completion script of SHELL: bash, zsh or fish."""
    kind = get_completion_class(shell)
    assert kind is not None  # click has these three
    click.echo(kind(ctx.find_root().command, {}, "meshrt", _VARIABLE).source())
    return 0
