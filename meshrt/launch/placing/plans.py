"""What is to run on which hosts, and the plan that an engine makes of it: plain values.

    Wanted(work, hosts=..., nodes=2, per_host=1, ...)   what the user asked for
      → engine.plan(wanted) →
    Plan(fronts=(Front("a", ("ssh", "a", ...), ...), Front("b", ...)))   commands of this machine

A *front* is a process of this machine that stands for processes elsewhere: it prints what they print, ends when they
end, with their exit code, and takes them with it when it is told to stop.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshrt.errors import ConfigError
from meshrt.launch import environment
from meshrt.launch.address import join_address
from meshrt.launch.engines.protocol import Handed, Task
from meshrt.launch.hostlist import Host

__all__ = [
    "HIDDEN", "Front", "FrontSpec", "Plan", "Wanted", "Work", "coordinator", "described", "handed", "module_command",
    "rank_variables",
]  # fmt: skip

_PORTS = range(61440, 65536)  # below the ports that systems give to connections
_BOOTSTRAP = Path(__file__).parents[1] / "bootstrap.py"
_FAR_S = 5.0  # beyond the grace, for what a scheduler does to end processes
HIDDEN = "********"  # in the place of a secret, wherever people read


@dataclass(frozen=True, slots=True)
class Work:
    """What each process is: the `arguments` of a Python interpreter, the variables it gets on its host, and the
    directory it starts in.

    `secrets` are variables too, which stand on no command line and are not shown. Where an engine's processes find
    their rank and their coordinator in no variable of its own, they are told by ``MESHRT_`` variables if they are
    `ranks`; processes that are not (agents) join by themselves.
    """

    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    directory: str | None = None
    ranks: bool = True

    def command(self, python: str) -> tuple[str, ...]:
        """What to run. A rank of this interpreter is started by bootstrap.py, which has it print in whole lines: what
        is read in pieces, `mpirun` and `srun` label in pieces."""
        if not self.ranks or python != sys.executable:
            return (python, *self.arguments)
        module = self.arguments[0] == "-m"
        target = self.arguments[1:] if module else self.arguments
        return (python, str(_BOOTSTRAP), "0", "module" if module else "script", *target)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to place where.

    `hosts` are named hosts; without them the engine finds `nodes` of its own. `per_host` processes run on each.
    `environ` are the variables of the launcher, `again` its own command line without what asked for a detached job,
    for engines that start the launcher itself elsewhere.
    """

    name: str
    work: Work
    hosts: tuple[Host, ...] = ()
    nodes: int | None = None
    per_host: int = 1
    max_restarts: int = 0
    timeout: float | None = None
    grace: float = 5.0
    detach: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    again: tuple[str, ...] = ()

    @property
    def host_count(self) -> int:
        """How many hosts; ConfigError where nothing says so."""
        if self.hosts and self.nodes is not None and self.nodes != len(self.hosts):
            raise ConfigError(f"--nodes {self.nodes}, but --hosts names {len(self.hosts)}: leave one of them out")
        return len(self.hosts) or self.nodes or 1

    @property
    def places(self) -> tuple[Host, ...]:
        """The named hosts, each as often as it gets a process: agents one, ranks as many as its slots or `per_host`."""
        ranks = self.work.ranks
        return tuple(h for h in self.hosts for _ in range((h.slots or self.per_host) if ranks else 1))

    @property
    def each(self) -> int:
        """How many processes each host gets. ConfigError where the list of hosts gives them different numbers."""
        numbers = {host.slots or self.per_host for host in self.hosts} or {self.per_host}
        if self.work.ranks and len(numbers) > 1:
            raise ConfigError(
                "the hosts get different numbers of processes, which this engine cannot do: leave the numbers behind "
                "the hosts out, and give --nproc"
            )
        return numbers.pop() if self.work.ranks else 1

    @property
    def count(self) -> int:
        """How many processes."""
        return len(self.places) or self.host_count * self.each


@dataclass(frozen=True, slots=True)
class Front:
    """A command of this machine, for people by its `name`.

    stdin     what it reads; unless it is `detached`, the end of the pipe asks it to stop. None: it gets signals.
    shown     what people see of `stdin`
    preview   what people see of all of it, where the command is only a way to submit something
    label     finds the rank in each line that it prints (group 1); None: all of its lines are of `name`
    blame     finds in its own words on stderr who failed first (group 1), and with which code (group 2), where its own
              exit code does not say so
    variables for itself, beside the launcher's; those in `secret` are not shown
    detached  it ends at once and its processes stay: it only submits them
    """

    name: str
    command: tuple[str, ...]
    stdin: bytes | None = None
    shown: str | None = None
    preview: str | None = None
    label: re.Pattern[str] | None = None
    blame: re.Pattern[str] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    secret: frozenset[str] = frozenset()
    detached: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The fronts to start together; one that fails ends the job, and so the others.

    `lacks` says what this machine has not that starting them needs: a plan can be looked at all the same.
    """

    engine: str
    fronts: tuple[Front, ...]
    lacks: str | None = None


@dataclass(frozen=True, slots=True)
class FrontSpec:
    """A front as something that the local engine starts."""

    number: int
    front: Front

    @property
    def task(self) -> Task:
        return Task(0, self.number)

    @property
    def target(self) -> tuple[str, ...]:
        """The arguments of bootstrap.py behind the launcher's process id."""
        return ("program", *self.front.command)

    @property
    def stdin(self) -> Handed | None:
        data = self.front.stdin
        return None if data is None else Handed(data, stays=not self.front.detached)

    def environment(self, base: Mapping[str, str], channel: int | None) -> dict[str, str]:
        """The launcher's variables and its own. It has no channel: messages are for processes of this machine."""
        return {**base, **self.front.variables}


def described(plan: Plan) -> str:
    """The plan as a shell would be told, secrets left out."""
    return "\n".join(f"# {front.name}\n{front.preview or _shell_text(front)}" for front in plan.fronts)


def _shell_text(front: Front) -> str:
    variables = [
        f"{name}={HIDDEN if name in front.secret else shlex.quote(value)}" for name, value in front.variables.items()
    ]
    command = " ".join([*variables, shlex.join(front.command)])
    shown = front.shown if front.shown is not None else (front.stdin or b"").decode()
    return f"{command} <<'END'\n{shown.rstrip()}\nEND" if shown else command


# --- what several engines do alike.


def coordinator(wanted: Wanted, host: str) -> str:
    """The address of process 0 on `host` where nobody chose one: a port by the job's name."""
    return join_address(host, _PORTS[zlib.crc32(wanted.name.encode()) % len(_PORTS)])


def rank_variables(address: str, count: int, rank: int) -> dict[str, str]:
    """What `meshrt.distributed.initialize` reads in the process of a rank."""
    return {
        environment.COORDINATOR_ADDRESS: address,
        environment.NUM_PROCESSES: str(count),
        environment.PROCESS_ID: str(rank),
    }


def handed(work: Work, python: str, more: Mapping[str, str] | None = None, **fields: Any) -> tuple[bytes, str]:
    """The line that hold.py reads to start a process of `work`, and as people see it."""
    told = {
        "command": work.command(python), "directory": work.directory,
        "variables": {**work.variables, **(more or {})}, **fields,
    }  # fmt: skip
    line = json.dumps({**told, "variables": {**told["variables"], **work.secrets}})
    hidden = {**told["variables"], **dict.fromkeys(work.secrets, HIDDEN)}
    return line.encode() + b"\n", json.dumps({**told, "variables": hidden})


def held(
    name: str, command: tuple[str, ...], wanted: Wanted, label: re.Pattern[str] | None = None,
    blame: re.Pattern[str] | None = None,
) -> Front:  # fmt: skip
    """A front for a command of this machine that passes its variables on, such as `srun`. hold.py holds it, so that
    it gets time to end what it has started also where the launcher was killed."""
    variables, secret = wanted.work.variables, wanted.work.secrets
    told = {"command": command, "directory": None, "grace": wanted.grace + _FAR_S}
    line = json.dumps({**told, "variables": {**variables, **secret}}).encode() + b"\n"
    shown = [*(f"{n}={shlex.quote(v)}" for n, v in variables.items()), *(f"{n}={HIDDEN}" for n in secret)]
    preview = " ".join([*shown, shlex.join(command)])
    labels = label if wanted.work.ranks else None
    return Front(name, module_command("hold"), line, preview=preview, label=labels, blame=blame)


def module_command(name: str, python: str = sys.executable, *, here: bool = False) -> tuple[str, ...]:
    """The command of a module of this room that runs alone: by its path where the interpreter is this one, or is of
    this machine (`here`), so that nothing of the library is imported."""
    if here or python == sys.executable:
        # -P: the files beside it are no modules to import
        return (python, "-P", str(Path(__file__).parent / f"{name}.py"))
    return (python, "-m", f"{__package__}.{name}")
