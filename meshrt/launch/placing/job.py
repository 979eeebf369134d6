"""A job that an engine places on other hosts: from what the user asked for to a plan, and its run.

Where there are agents, the launcher is the coordinator of a job on several hosts (hosts/), and the engine places an
agent on each: failures are named across hosts, jobs start again, shrink and grow. Without, the engine starts the ranks,
which find each other by themselves.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from meshrt.errors import ConfigError, counted
from meshrt.launch import environment, hostlist, placing
from meshrt.launch.address import join_address, split_address
from meshrt.launch.hostlist import Host
from meshrt.launch.membership.frames import new_secret
from meshrt.launch.output import Console
from meshrt.launch.placing import plans, runner
from meshrt.launch.placing.plans import Plan, Wanted, Work
from meshrt.launch.settings import Settings
from meshrt.launch.shell import Job

__all__ = ["has_agents", "plan", "run", "run_agents"]

_ELSEWHERE = "192.0.2.1"  # an address that no host has: the way to it is the way to the others
_ANY_PORT = 9


def has_agents(settings: Settings) -> bool:
    """Whether agents start the ranks of a placed job, or the engine does itself."""
    return settings.agents and bool(getattr(placing.module(settings.engine), "HAS_AGENTS", True))


# --- ranks.


def plan(job: Job, *, detach: bool = False, environ: Mapping[str, str] | None = None) -> Plan:
    """What would be started where the engine starts the ranks. ConfigError where it cannot do what is asked."""
    environ = os.environ if environ is None else environ
    settings = job.settings
    least, most = settings.nodes or (None, None)
    if least != most:
        raise ConfigError(f"nodes = {least}:{most}: without agents so many start at once; give one number")
    if settings.max_restarts and settings.engine != "kubernetes":
        raise ConfigError(f"max_restarts = {settings.max_restarts}: without agents ranks are started once")
    for name, without in (
        ("bind", "none"),
        ("metrics_port", None),
        ("view", False),
        ("elastic", False),
        ("profile", None),
    ):
        if getattr(settings, name) != without:
            raise ConfigError(f"{name} = {getattr(settings, name)!r}: without agents the launcher cannot do this")
    return _plan(job, _ranks(job, environ), environ, detach)


def run(job: Job, *, dry_run: bool = False, detach: bool = False, console: Console | None = None) -> int:
    """Has the engine start the ranks, and stays until they have ended; the exit code.

    With `dry_run` what would be submitted is printed, and nothing else happens. With `detach` the job is left to the
    engine's queue.
    """
    made, settings, console = plan(job, detach=detach), job.settings, console or Console()
    if dry_run:
        return _show(made, console)
    log_dir = Path(settings.log_dir) if settings.log_dir is not None else None
    return runner.run(
        _able(made), os.environ, console=console, grace=settings.grace, timeout=settings.timeout, log_dir=log_dir,
        verbose=settings.verbose,
    )  # fmt: skip


def _ranks(job: Job, environ: Mapping[str, str]) -> Work:
    """Each process is a rank: the script itself, which finds its place by `meshrt.distributed.initialize()`."""
    command = (*(("-m",) if job.target[0] == "module" else ()), job.target[1], *job.arguments)
    variables = environment.runtime_defaults(environ, job.settings.devices_per_process) | dict(job.settings.env)
    return Work(command, variables, {environment.SECRET: _secret(environ)}, os.getcwd())


# --- agents.


def run_agents(
    job: Job, *, dry_run: bool = False, detach: bool = False, again: tuple[str, ...] = (),
    console: Console | None = None,
) -> int:  # fmt: skip
    """Runs the job's coordinator here, and has the engine place an agent on each host; the exit code.

    `again` are the arguments of `python -m meshrt` that run the same job without `detach`.
    """
    from meshrt.launch.hosts import coordinator  # optional wheel: jobs without agents need no gRPC
    from meshrt.launch.hosts.security import Trust, read_secret  # optional wheel: as above
    from meshrt.launch.placing.agents import Agents  # optional wheel: as above

    console, environ, settings = console or Console(), os.environ, job.settings
    secret, hosts = read_secret(environ) or new_secret(), _hosts(settings)
    if settings.nodes is None:
        found = len(hosts) or int(environ.get("SLURM_JOB_NUM_NODES", "1"))
        job = Job(replace(settings, nodes=(found, found)), job.target, job.arguments, job.environ)

    def planned(address: str) -> Plan:
        work = Work(
            ("-m", "meshrt", "launch", "agent", "--coordinator", address, "--quiet"),
            secrets={environment.SECRET: secret}, directory=os.getcwd(), ranks=False,
        )  # fmt: skip
        return _plan(job, work, environ, detach, (sys.executable, "-m", "meshrt", *again))

    if dry_run:
        made = planned(_address_to_show(settings.listen, hosts, environ))
        console.write("stdout", "", [_what_agents_do(job).encode()])
        return _show(made, console)

    def placed(address: str) -> Plan:
        return _able(planned(address))

    listen = settings.listen or join_address(_own_address(hosts, environ), 0)
    if detach:
        return runner.run(placed(listen), environ, console=console)
    agents = Agents(placed, environ, console)
    code = coordinator.run(job, coordinator.Options(listen, Trust(secret)), console, agents.place)
    if code and agents.exhausted and agents.failed is not None:
        return agents.failed.status.shell_code or 1
    return code


def _what_agents_do(job: Job) -> str:
    """What the commands of agents do not show: they hear it from the launcher."""
    words = shlex.join((*(("-m",) if job.target[0] == "module" else ()), job.target[1], *job.arguments))
    return (
        f"# an agent on each host, which this launcher tells to start {counted(job.settings.nproc, 'rank')} of {words}"
    )


def _address_to_show(listen: str | None, hosts: tuple[Host, ...], environ: Mapping[str, str]) -> str:
    """Where agents will find the coordinator, with words in place of what only shows when it runs. What a job would do
    can be seen also where its hosts are not known."""
    try:
        host, port = split_address(listen) if listen else (_own_address(hosts, environ), 0)
    except ConfigError:
        if listen:
            raise
        return "HOST:PORT"
    return join_address(host, port) if port else f"{join_address(host, 0)[:-1]}PORT"


def _own_address(hosts: tuple[Host, ...], environ: Mapping[str, str]) -> str:
    """The address of this host that the others reach: the one on the way to the first of them."""
    from meshrt.launch.hosts.agent import address_towards  # optional wheel: jobs without agents need no gRPC

    names = [host.name.rpartition("@")[2].strip("[]") for host in hosts]
    if not names and "SLURM_JOB_NODELIST" in environ:
        names = [n for n in hostlist.expand_hosts(environ["SLURM_JOB_NODELIST"]) if n != environ.get("SLURMD_NODENAME")]
        if not names:
            return "127.0.0.1"
    try:
        return address_towards(names[0] if names else _ELSEWHERE, _ANY_PORT)
    except OSError as e:
        if not names:  # this machine is on no network
            return "127.0.0.1"
        raise ConfigError(
            f"the way to {names[0]} is not known ({e.strerror or e}): --listen HOST:0 says where hosts find this one"
        ) from None


# --- both.


def _plan(job: Job, work: Work, environ: Mapping[str, str], detach: bool, again: tuple[str, ...] = ()) -> Plan:
    settings = job.settings
    most = settings.nodes[1] if settings.nodes is not None else None
    wanted = Wanted(
        _name(job.target[1]), work, _hosts(settings), most, settings.nproc, settings.max_restarts, settings.timeout,
        settings.grace, detach, settings.options, environ, again,
    )  # fmt: skip
    made: Plan = placing.module(settings.engine).plan(wanted)
    return made


def _able(made: Plan) -> Plan:
    """The plan, if this machine can start it; ConfigError says what it lacks."""
    if made.lacks is not None:
        raise ConfigError(made.lacks)
    return made


def _show(made: Plan, console: Console) -> int:
    console.write("stdout", "", plans.described(made).encode().splitlines())
    return 0


def _secret(environ: Mapping[str, str]) -> str:
    return environ.get(environment.SECRET) or new_secret()


def _hosts(settings: Settings) -> tuple[Host, ...]:
    if settings.hosts is not None:
        return hostlist.parse_hosts(settings.hosts)
    return hostlist.read_hostfile(Path(settings.hostfile)) if settings.hostfile is not None else ()


def _name(target: str) -> str:
    """Names the job for people and for queues; no two are the same."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", Path(target).stem).strip("-") or "job"
    return f"meshrt-{stem}-{secrets.token_hex(3)}"
