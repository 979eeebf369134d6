"""``--engine slurm``: a step of `srun` over the hosts of an allocation.

Inside an allocation the step takes its hosts. Outside, `salloc` gets an allocation for it and gives it back at the
end; ``--detach`` leaves a batch script to `sbatch` instead. Ranks find their place in the variables of the step.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from dataclasses import dataclass

from meshrt.launch.placing import options
from meshrt.launch.placing.plans import Front, Plan, Wanted, held

__all__ = ["Options", "plan"]

_LABEL = re.compile(r" *(\d+): ?")
_BLAME = re.compile(r"srun: error: (\S+: task \d+): (?:Exited with exit code (\d+)|.*)")


@dataclass(frozen=True, slots=True)
class Options:
    """partition, account, qos, gpus_per_node, cpus_per_task   of the allocation, as Slurm has them
    allocation  more options of `salloc` or `sbatch`
    step        more options of `srun`
    output      the file for what a batch job prints (``%j`` is its number)
    requeue     whether Slurm starts a batch job again after it lost a host
    python      the interpreter on the hosts
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gpus_per_node: str | None = None
    cpus_per_task: int | None = None
    allocation: tuple[str, ...] = ()
    step: tuple[str, ...] = ()
    output: str | None = None
    requeue: bool = False
    python: str = sys.executable


def plan(wanted: Wanted) -> Plan:
    """One front: srun, alone, within salloc, or in a script for sbatch."""
    chosen = options.read(Options, "slurm", wanted.options)
    inside = "SLURM_JOB_ID" in wanted.environ
    step = ("srun", *_size(wanted, inside), *_step(wanted, chosen), *wanted.work.command(chosen.python))
    if wanted.detach:
        script = _script(wanted, chosen, step if wanted.work.ranks else wanted.again)
        variables, secret = {**wanted.work.variables, **wanted.work.secrets}, frozenset(wanted.work.secrets)
        submit = ("sbatch", "--parsable")
        front = Front("slurm", submit, script.encode(), variables=variables, secret=secret, detached=True)
        return Plan("slurm", (front,))
    if not inside:
        step = ("salloc", "--quiet", *_size(wanted, False), *_allocation(wanted, chosen), *step)
    return Plan("slurm", (held("slurm", step, wanted, _LABEL, _BLAME),))


def _size(wanted: Wanted, inside: bool) -> tuple[str, ...]:
    """How many hosts and processes; within an allocation all of its hosts, if nobody said."""
    named = wanted.hosts or wanted.nodes is not None or not inside
    nodes = wanted.host_count if named else int(wanted.environ.get("SLURM_JOB_NUM_NODES", "1"))
    size = (f"--nodes={nodes}", f"--ntasks={nodes * wanted.each}", f"--ntasks-per-node={wanted.each}")
    return (*size, f"--nodelist={','.join(h.name for h in wanted.hosts)}") if wanted.hosts else size


def _step(wanted: Wanted, chosen: Options) -> tuple[str, ...]:
    """A process that fails ends the step. Ranks are told apart by labels; an agent uses all of its host."""
    each = ("--label",) if wanted.work.ranks else ("--cpu-bind=none",)
    where = (f"--chdir={wanted.work.directory}",) if wanted.work.directory else ()
    return ("--kill-on-bad-exit=1", "--export=ALL", *each, *where, *chosen.step)


def _allocation(wanted: Wanted, chosen: Options) -> tuple[str, ...]:
    given = {
        "job-name": wanted.name, "partition": chosen.partition, "account": chosen.account, "qos": chosen.qos,
        "gpus-per-node": chosen.gpus_per_node, "cpus-per-task": chosen.cpus_per_task,
        "time": math.ceil(wanted.timeout / 60) if wanted.timeout is not None else None,
    }  # fmt: skip
    return (*(f"--{name}={value}" for name, value in given.items() if value is not None), *chosen.allocation)


def _script(wanted: Wanted, chosen: Options, command: tuple[str, ...]) -> str:
    """A batch script; srun's labels stay in its output."""
    asked = [*_size(wanted, False), *_allocation(wanted, chosen)]
    asked += [f"--output={chosen.output}"] if chosen.output else []
    asked += ["--requeue" if chosen.requeue else "--no-requeue"]
    lines = [f"#SBATCH {shlex.quote(option) if ' ' in option else option}" for option in asked]
    return "\n".join(["#!/bin/sh", *lines, f"exec {shlex.join(command)}", ""])
