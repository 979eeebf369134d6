"""``meshrt doctor``: whether hosts can run a job together, and what to do where they cannot."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from meshrt.cli._launch_job import pairs

if TYPE_CHECKING:
    from meshrt.launch.doctor.diagnosis import Examined, Problem

_EPILOG = """\b
Examples:
  meshrt doctor
  meshrt doctor --hosts node1,node2,n[03-16]
  meshrt doctor --hostfile hosts -o arguments="-p 2222" --json

\b
Exit codes: 0 nothing keeps jobs from running, 1 something does, 2 wrong usage.
"""
_WIDTH = 80


@click.command(name="doctor", epilog=_EPILOG)
@click.option("--hosts", type=str, metavar="A,B", help="These hosts, by ssh. [default: this machine]")
@click.option("--hostfile", type=str, metavar="FILE", help="The hosts that a file lists, one in a line.")
@click.option(
    "-o", "--option", "options", multiple=True, metavar="K=V", callback=pairs, help="An option of the engine ssh."
)
@click.option("--timeout", type=click.FloatRange(min=1), default=60.0, metavar="S", help="For a host. [default: 60]")
@click.option("--devices/--no-devices", default=True, help="Whether devices are started, which may take long.")
@click.option("--json", "as_json", is_flag=True, help="Everything that was found, as JSON.")
def command(
    hosts: str | None, hostfile: str | None, options: dict[str, str], timeout: float, devices: bool, as_json: bool
) -> int:
    """Examines this machine, or the hosts of a job: ports, clocks, versions, devices, environment.

    Prints a row for each host, then what is wrong, with what to do about it.
    """
    # Start-up time: `meshrt --help` shows every command.
    from meshrt.errors import ConfigError
    from meshrt.launch import hostlist
    from meshrt.launch.doctor import diagnosis, visit
    from meshrt.launch.placing import ssh
    from meshrt.launch.placing.options import read

    if hosts is not None and hostfile is not None:
        raise ConfigError("--hosts and --hostfile: one of them says which hosts; leave the other one out")
    named = hostlist.parse_hosts(hosts) if hosts is not None else ()
    named = hostlist.read_hostfile(Path(hostfile)) if hostfile is not None else named
    examined = visit.examine([h.name for h in named], read(ssh.Options, "ssh", options), timeout, devices)
    problems = diagnosis.diagnose(examined)
    if as_json:
        content = {"hosts": [asdict(e) for e in examined], "problems": [asdict(p) for p in problems]}
        click.echo(json.dumps(content, indent=1))
    else:
        _print(examined, problems)
    return int(any(p.severity == "error" for p in problems))


def _print(examined: Sequence[Examined], problems: Sequence[Problem]) -> None:
    # Start-up time: as above.
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout, width=max(_WIDTH, Console().width if sys.stdout.isatty() else _WIDTH))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("host", overflow="fold", max_width=22)
    for name in ("Python", "meshrt", "jaxlib"):
        table.add_column(name, no_wrap=True)
    table.add_column("devices", overflow="fold", min_width=7)
    for name in ("cores", "memory", "clock"):
        table.add_column(name, justify="right", no_wrap=True)
    for host in examined:
        table.add_row(*_row(host))
    console.print(table)
    for problem in problems:
        line = f"{problem.host}: {problem.severity}: {problem.what}\n  → {problem.todo}"
        console.print(line, markup=False, highlight=False, soft_wrap=False)
    if not problems:
        console.print("nothing is wrong")


def _row(host: Examined) -> list[str]:
    if not host.facts:
        return [host.host, *["-"] * 7]
    packages, memory = host.fact("packages") or {}, host.fact("memory")
    devices = " ".join(f"{n} {kind}" for kind, n in (host.fact("devices") or {}).items()) or "-"
    return [
        host.host, str(host.fact("python")), packages.get("meshrt") or "-", packages.get("jaxlib") or "-", devices,
        str(host.fact("cores") or "-"), f"{memory['all'] / 2**30:.0f} GiB" if memory else "-",
        "-" if host.clock is None else _seconds(host.clock),
    ]  # fmt: skip


def _seconds(value: float) -> str:
    return f"{value:+.1f} s" if abs(value) >= 1 else f"{round(1000 * value, 1) + 0.0:+.1f} ms"
