"""``--engine ray``: actors of a placement group in a Ray cluster, each of which holds one process.

The front is _ray_driver.py, which alone imports ray. Where Ray ends an actor, or its host, hold.py ends the process.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from dataclasses import dataclass

from meshrt.errors import ConfigError
from meshrt.launch.placing import options
from meshrt.launch.placing.plans import Front, Plan, Wanted, coordinator, handed, module_command

__all__ = ["Options", "plan"]

_LABEL = re.compile(r"(\d+): ")
_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


@dataclass(frozen=True, slots=True)
class Options:
    """address    of the cluster, as `ray.init` takes it; RAY_ADDRESS or the running one if not given
    cpus, gpus  what each process takes
    strategy    of the placement group
    wait        seconds until the group must have its place
    ray_python  an interpreter of this machine that has ray, if not this one
    python      the interpreter of the processes
    """

    address: str = "auto"
    cpus: int = 1
    gpus: int = 0
    strategy: str = "SPREAD"
    wait: int = 300
    ray_python: str = sys.executable
    python: str = sys.executable


def plan(wanted: Wanted) -> Plan:
    """One front, which drives all actors. ConfigError for `--detach`, named hosts or an unknown strategy. The plan
    lacks the package ray where it is not installed."""
    chosen = options.read(Options, "ray", wanted.options)
    if wanted.detach:
        raise ConfigError("--detach: the engine 'ray' needs its driver; submit the launcher with `ray job submit`")
    if wanted.hosts:
        raise ConfigError("the engine 'ray' finds hosts by itself: give --nodes N in place of --hosts")
    if chosen.strategy not in _STRATEGIES:
        raise ConfigError(f"option strategy = {chosen.strategy!r}: known are: {', '.join(_STRATEGIES)}")
    bundle = {name: n * wanted.each for name, n in (("CPU", chosen.cpus), ("GPU", chosen.gpus)) if n}
    address = wanted.environ.get("RAY_ADDRESS", "auto") if chosen.address == "auto" else chosen.address
    port = int(coordinator(wanted, "h").rpartition(":")[2]) if wanted.work.ranks else None
    told, shown = handed(
        wanted.work, chosen.python, grace=wanted.grace, hold=list(module_command("hold", chosen.python)),
        address=address, bundles=[bundle] * wanted.host_count, strategy=chosen.strategy, each=wanted.each,
        cpus=chosen.cpus, gpus=chosen.gpus, wait=chosen.wait, port=port,
    )  # fmt: skip
    group = f"placement_group({json.dumps([bundle] * wanted.host_count)}, strategy={chosen.strategy!r})"
    preview = f"ray.init({address!r})\n{group}\n{wanted.each} of these in each bundle:\n{shown}"
    command = module_command("_ray_driver", chosen.ray_python, here=True)
    quiet = {"RAY_USAGE_STATS_ENABLED": "0"}
    front = Front("ray", command, told, preview=preview, label=_LABEL, variables=quiet)
    missing = chosen.ray_python == sys.executable and importlib.util.find_spec("ray") is None
    needs = "the engine 'ray' needs the package ray: pip install 'ray', or -o ray_python=PYTHON that has it"
    return Plan("ray", (front,), needs if missing else None)
