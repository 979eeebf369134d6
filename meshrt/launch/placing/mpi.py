"""``--engine mpi``: one `mpirun`, of Open MPI or MPICH, over its own hosts or those that are named.

Ranks find their place in the variables of the MPI. It starts processes and ends them together; nothing of meshrt speaks
MPI.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

from meshrt.errors import ConfigError
from meshrt.launch.placing import options
from meshrt.launch.placing.plans import Plan, Wanted, held

__all__ = ["Options", "plan"]

_OPEN_MPI_LABEL = re.compile(r"\[\d+,(\d+)\]<[a-z]+>:")
_MPICH_LABEL = re.compile(r"\[(\d+)\] ")
_ASKING_S = 20.0


@dataclass(frozen=True, slots=True)
class Options:
    """mpirun     the program
    flavour    ``openmpi`` or ``mpich`` (Intel MPI too), if `mpirun --version` is not to be asked
    arguments  more arguments of mpirun (``--mca btl_tcp_if_include eth0``)
    python     the interpreter on the hosts
    """

    mpirun: str = "mpirun"
    flavour: str | None = None
    arguments: tuple[str, ...] = ()
    python: str = sys.executable


def plan(wanted: Wanted) -> Plan:
    """One front: mpirun. ConfigError for `--detach`, and where the flavour is not given and mpirun does not tell. The
    plan lacks an mpirun that is not found."""
    chosen = options.read(Options, "mpi", wanted.options)
    if wanted.detach:
        raise ConfigError("--detach: the engine 'mpi' has nobody to leave the job to; run it in the background")
    lacks = None
    if shutil.which(chosen.mpirun) is None:
        lacks = f"the engine 'mpi' needs {chosen.mpirun}, which is not on the PATH; -o mpirun=... names another one"
    if lacks is not None and chosen.flavour is None:
        raise ConfigError(f"{lacks}. With -o flavour=openmpi or mpich, --dry-run shows what it would be given")
    flavour = chosen.flavour or _flavour(chosen.mpirun)
    if flavour not in _FLAVOURS:
        raise ConfigError(f"option flavour = {flavour!r}: known are: {', '.join(_FLAVOURS)}")
    arguments, label = _FLAVOURS[flavour](wanted)
    command = (chosen.mpirun, *arguments, *chosen.arguments, *wanted.work.command(chosen.python))
    return Plan("mpi", (held("mpirun", command, wanted, label),), lacks)


def _open_mpi(wanted: Wanted) -> tuple[tuple[str, ...], re.Pattern[str]]:
    """Variables are passed on by name, their values stay in mpirun's environment."""
    names = [*wanted.work.variables, *wanted.work.secrets]
    where = ("--host", ",".join(f"{h.name}:{wanted.each}" for h in wanted.hosts)) if wanted.hosts else ()
    size = ("-n", str(wanted.count), *(("--map-by", f"ppr:{wanted.each}:node") if _spread(wanted) else ()))
    folder = ("--wdir", wanted.work.directory) if wanted.work.directory else ()
    tags = ("--tag-output",) if wanted.work.ranks else ()
    exported = [word for name in names for word in ("-x", name)]
    return (*where, *size, "--bind-to", "none", *tags, *folder, *exported), _OPEN_MPI_LABEL


def _mpich(wanted: Wanted) -> tuple[tuple[str, ...], re.Pattern[str]]:
    names = [*wanted.work.variables, *wanted.work.secrets]
    where = ("-hosts", ",".join(h.name for h in wanted.hosts)) if wanted.hosts else ()
    size = ("-n", str(wanted.count), *(("-ppn", str(wanted.each)) if _spread(wanted) else ()))
    folder = ("-wdir", wanted.work.directory) if wanted.work.directory else ()
    tags = ("-prepend-rank",) if wanted.work.ranks else ()
    exported = ("-genvlist", ",".join(names)) if names else ()
    return (*where, *size, *tags, *folder, *exported), _MPICH_LABEL


def _spread(wanted: Wanted) -> bool:
    """Whether it was said how many processes a host gets; else they go where MPI puts them."""
    return bool(wanted.hosts) or wanted.nodes is not None


_FLAVOURS = {"openmpi": _open_mpi, "mpich": _mpich}


def _flavour(mpirun: str) -> str:
    try:
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=_ASKING_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ConfigError(f"{mpirun} --version does not answer: {e}; -o flavour=openmpi or mpich says it") from None
    text = done.stdout + done.stderr
    if any(name in text for name in ("Open MPI", "OpenRTE", "PRRTE")):
        return "openmpi"
    if "HYDRA" in text or "Intel(R) MPI" in text:
        return "mpich"
    said = " ".join(text.split())[:80]
    raise ConfigError(f"{mpirun} is neither Open MPI nor MPICH: {said!r}; -o flavour=openmpi or mpich says it")
