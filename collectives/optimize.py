"""What is done to a finished per-device program: the passes of `passes`, in order."""

from __future__ import annotations

from .ir.program import ModuleBuilder
from .machine import Machine
from .options import Options
from .passes.combine import combine
from .passes.compilers.tpu.kernels import kernels_first
from .passes.compilers.tpu.listing import list_as_needed
from .passes.compilers.tpu.transposed import transpose_first
from .passes.dead import remove_dead, remove_dead_start
from .passes.hoist import hoist
from .passes.memory import Budget
from .passes.merge import merge
from .passes.release import release
from .passes.schedule import order
from .passes.windowed import pipeline
from .reshard.realise import Realiser

__all__ = ["optimize"]


def optimize(builder: ModuleBuilder, realiser: Realiser, machine: Machine, options: Options) -> None:
    """Runs all passes over every function."""
    functions = {f.name: f for f in builder.functions}
    for function in builder.functions:
        live = remove_dead(function)
        changed = 0
        budget = Budget(function, functions, machine, options.memory_growth)
        if options.hoist and hoist(function.region, budget):
            changed += 1 + merge(function)
        if not options.keep_gathered:
            changed += release(function, functions, machine)
        wanted = options.collective_matmul
        if wanted or (wanted is None and machine.chosen):
            changed += pipeline(function, realiser, machine, budget, bool(wanted))
        if machine.tiles:
            transpose_first(function)
        if options.combine:
            combine(function, functions, realiser, machine)
        if options.order or (options.order is None and machine.chosen):
            order(function, functions, machine, budget)
        kernels_first(function, machine)
        list_as_needed(function, machine)
        remove_dead_start(function, remove_dead(function) if changed else live)
