"""What a program sends, as the partitioner's plan has it before anything is compiled, and how long a step takes."""

import collections
import os
import time

os.environ.setdefault("MESHRT_NUM_CPU_DEVICES", "8")

import meshrt as jax


def sent(function, *args):
    """Bytes that each device sends, and how often each kind of collective runs."""
    plan = jax.jit(function).lower(*args).partition().plan
    runs = collections.Counter()
    for entry in plan:
        runs[entry.kind] += entry.times or 1
    return plan.bytes, dict(runs)


def milliseconds(function, *args, repeats=5):
    """The shortest of some calls."""
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*args))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def report(title, **programs):
    """Prints a line for each program, given as (function, arguments)."""
    print(title)
    for name, (function, args) in programs.items():
        count, runs = sent(function, *args)
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(runs.items())) or "nothing"
        size, ms = f"{count:,.0f} B", f"{milliseconds(function, *args):.2f} ms"
        print(f"  {name.replace('_', ' '):12} {size:>14} sent per device {ms:>12}   {kinds}")
