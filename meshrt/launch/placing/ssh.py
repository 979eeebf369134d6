"""``--engine ssh``: a process on each of the named hosts, by the user's ssh with the user's keys and configuration.

The far end is hold.py, which is told on its stdin what to start; nothing of the job stands on a command line. When
ssh ends, for whatever reason, hold.py ends the process and everything that it started.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass

from meshrt.errors import ConfigError
from meshrt.launch.address import split_address
from meshrt.launch.environment import AGENT_NAME
from meshrt.launch.placing import options
from meshrt.launch.placing.plans import Front, Plan, Wanted, coordinator, handed, module_command, rank_variables

__all__ = ["Options", "command", "plan"]

# A host that is cut off ends its ssh within 15 s, instead of when TCP gives up.
_WATCH = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")


@dataclass(frozen=True, slots=True)
class Options:
    """ssh          the program and its first arguments
    arguments    more arguments of ssh, before the host (``-p 2222 -i key``)
    python       the interpreter on the hosts, if not the one of this machine
    coordinator  HOST:PORT of process 0 as the other hosts reach it; the first host if not given
    """

    ssh: tuple[str, ...] = ("ssh",)
    arguments: tuple[str, ...] = ()
    python: str = sys.executable
    coordinator: str | None = None


def plan(wanted: Wanted) -> Plan:
    """One ssh for each process. ConfigError for `--detach`, and where no hosts are named."""
    chosen = options.read(Options, "ssh", wanted.options)
    if not wanted.hosts:
        raise ConfigError("the engine 'ssh' needs hosts: --hosts a,b or --hostfile FILE")
    if wanted.detach:
        raise ConfigError("--detach: the engine 'ssh' has nobody to leave the job to; run it in the background")
    places = wanted.places
    address = chosen.coordinator or coordinator(wanted, wanted.hosts[0].name.rpartition("@")[2].strip("[]"))
    split_address(address)
    fronts = []
    for rank, host in enumerate(places):
        name = str(rank) if wanted.work.ranks else host.name.strip("[]")
        more = rank_variables(address, len(places), rank) if wanted.work.ranks else {AGENT_NAME: name}
        told, shown = handed(wanted.work, chosen.python, more, grace=wanted.grace)
        fronts.append(Front(name, command(chosen, host.name, module_command("hold", chosen.python)), told, shown))
    return Plan("ssh", tuple(fronts))


def command(chosen: Options, host: str, far: tuple[str, ...]) -> tuple[str, ...]:
    """The command of this machine that runs `far` on a host."""
    return (*chosen.ssh, *_WATCH, *chosen.arguments, "--", host.strip("[]"), shlex.join(far))
