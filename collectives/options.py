"""How to partition."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """How to partition.

    allow_full_gather  whether an operation that cannot stay sharded may gather its operand (recorded as a finding);
                       if False that is a `FullGatherError`
    optimize           whether the passes run over the result; without them the program is as it was built
    combine            whether small collectives over the same devices become one
    hoist              whether collectives whose operands no iteration changes leave their loops
    collective_matmul  whether contractions are pipelined with the all-gather before or the reduce-scatter after them:
                       None where the cost model of the topology says that it pays (never without a topology), True
                       wherever it can be done
    memory_growth      share of its estimated memory by which passes may raise a program's, where a device's memory is
                       unknown
    """

    allow_full_gather: bool = True
    optimize: bool = True
    combine: bool = True
    hoist: bool = True
    collective_matmul: bool | None = None
    memory_growth: float = 0.25
