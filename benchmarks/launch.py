"""``make bench-launch``: how long people wait for `meshrt launch`, beside figures of torchrun on such a machine.

python -m benchmarks.launch [--runs N] [--json FILE]

All times are seconds from the command, medians of the runs with the smallest and the largest. torchrun's are those of
torch 2.15 (gloo, --standalone) on 2 cores; it is measured in the same run where it is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import fleet

LINE = "import time\nprint('AT', time.time(), flush=True)\n"
REDUCE = """
import meshrt.distributed
meshrt.distributed.initialize()
import meshrt as jax, meshrt.numpy as jnp, numpy as np, time
s = jax.NamedSharding(jax.make_mesh((jax.device_count(),), ("d",)), jax.P("d"))
x = jax.make_array_from_callback((jax.device_count(), 1024), s, lambda i: np.ones((1, 1024), np.float32))
total = jax.jit(lambda x: x.sum(0))
total(x).block_until_ready()
print('AT', time.time(), flush=True)
"""
# Rank 1 raises; the other says when it heard of it.
RAISE = (
    REDUCE
    + """
import os
if jax.process_index() == 1:
    time.sleep(0.3)
    print('RAISED', time.time(), flush=True)
    raise ValueError('x')
try:
    while True: total(x).block_until_ready()
except jax.errors.PeerLost:
    print('TOLD', time.time(), flush=True)
"""
)
# Each rank says which process is its agent.
HOSTS = """
import os, time
print('AGENT', os.environ['MESHRT_PROCESS_ID'], os.getppid(), flush=True)
time.sleep(60)
"""
TORCH_LINE = LINE
TORCHRUN = {"first line": 1.32, "all-reduce 2": 2.82, "all-reduce 4": 4.37, "all-reduce 8": 8.69}  # published, medians


def _run(command: list[str], script: str, folder: Path) -> tuple[float, str]:
    path = folder / "script.py"
    path.write_text(script)
    root = str(Path(__file__).parents[1])
    environ = {**os.environ, "PYTHONPATH": root}
    environ.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # installed packages have their bytecode, so a checkout may write its own
    started = time.time()
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, env=environ, timeout=120, check=False)
    return started, done.stdout


def _marks(text: str, word: str) -> list[float]:
    return [float(line.split()[-1]) for line in text.splitlines() if f"{word} " in line]


def _latest(nproc: int, script: str, folder: Path) -> float:
    """Seconds from the command to the last rank's mark."""
    command = [sys.executable, "-m", "meshrt", "launch", "--nproc", str(nproc), "--devices-per-process", "1"]
    started, text = _run(command, script, folder)
    return max(_marks(text, "AT")) - started


def _told(folder: Path) -> float:
    command = [sys.executable, "-m", "meshrt", "launch", "--nproc", "2", "--devices-per-process", "1"]
    _, text = _run(command, RAISE, folder)
    return _marks(text, "TOLD")[0] - _marks(text, "RAISED")[0]


def _host_named(folder: Path) -> float:
    """Seconds from a host's stop to the line that names it: its agent and its rank are stopped."""
    path = folder / "script.py"
    path.write_text(HOSTS)
    job = subprocess.Popen(
        [sys.executable, "-m", "meshrt", "launch", "--nodes", "2", str(path)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert job.stdout is not None and job.stderr is not None  # as asked for
    agents = dict(next(job.stdout).split()[-2:] for _ in range(2))
    os.kill(int(agents["1"]), signal.SIGSTOP)
    stopped = time.monotonic()
    next(line for line in job.stderr if "nothing was heard of host" in line)
    named = time.monotonic() - stopped
    os.kill(int(agents["1"]), signal.SIGKILL)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    return named


def _torchrun(folder: Path) -> float:
    started, text = _run(["torchrun", "--standalone", "--nproc-per-node", "1"], TORCH_LINE, folder)
    return max(_marks(text, "AT")) - started


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--agents", type=int, default=10_000, help="simulated ones of one coordinator; 0 for none")
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = {
            "first line": lambda: _latest(1, LINE, folder),
            **{f"all-reduce {n}": lambda n=n: _latest(n, REDUCE, folder) for n in (2, 4, 8)},
            "raise to the peer told": lambda: _told(folder),
            "stopped host to named": lambda: _host_named(folder),
        }
        if shutil.which("torchrun"):
            figures["torchrun: first line"] = lambda: _torchrun(folder)
        for _ in range(options.runs):  # alternating: what else the machine does falls on all of them
            for figure, measure in figures.items():
                found.setdefault(figure, []).append(measure())
    for figure, values in found.items():
        beside = f"   torchrun {TORCHRUN[figure]:.2f}" if figure in TORCHRUN else ""
        print(f"{figure:24} {statistics.median(values):6.2f} s ({min(values):.2f}-{max(values):.2f}){beside}")
    if options.agents:
        agents = fleet.measure(options.agents, 15.0)
        print(
            f"{options.agents} agents: all in after {agents['join s']:.1f} s, of which the coordinator computes "
            f"{agents['join CPU s']:.1f} s; then {agents['cores']:.2f} cores; {agents['MB']:.0f} MB; "
            f"{agents['lost']:.0f} lost"
        )
        found["fleet"] = list(agents.values())
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
