"""Random programs with random shardings on several meshes: equal to one device, for no more bytes than gathering.

XLA's partitioner is no measure here: it ends the process over some of these programs.
"""

from __future__ import annotations

import jax
import pytest

from collectives.topology import Link, Topology

from .generator import random_program
from .jax_side import Case, check


def check_bounded(case: Case, **options):
    """Equal to one device; what is sent is less than what a partitioner without any rule sends, which gathers every
    operand of every operation."""
    _, sent = check(case, rtol=1e-4, above_xla=True, **options)
    most = gathered(jax.make_jaxpr(case.plain)(*case.args).jaxpr) * (1 - 1 / case.mesh.size)
    assert sent <= most, f"{sent} bytes per device, gathering every operand sends {most}"


def gathered(jaxpr, times: int = 1) -> float:
    """Bytes of all operands of all operations; loops count their trips, those of unknown length one."""
    total = 0.0
    for eqn in jaxpr.eqns:
        bodies = [eqn.params[k] for k in ("jaxpr", "call_jaxpr", "cond_jaxpr", "body_jaxpr") if k in eqn.params]
        for body in [*bodies, *eqn.params.get("branches", ())]:
            total += gathered(getattr(body, "jaxpr", body), times * eqn.params.get("length", 1))
        operands = {id(v): v.aval for v in eqn.invars if v.aval.shape}
        total += times * sum(a.size * a.dtype.itemsize for a in operands.values())
    return total


@pytest.mark.parametrize("seed", range(16))
def test_random_program(seed):
    axes, build, args, specs = random_program(seed)
    check_bounded(Case(axes, build, args, specs))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16, 200))
def test_more_random_programs(seed):
    axes, build, args, specs = random_program(seed)
    check_bounded(Case(axes, build, args, specs))


@pytest.mark.parametrize("seed", range(300, 308))
def test_random_program_with_every_pass(seed):
    axes, build, args, specs = random_program(seed)
    machine = Topology(default=Link(1e-5, 1e9), flops=1e12, memory_bandwidth=1e11)
    options = {"topology": machine, "collective_matmul": True, "order": True, "memory": 1 << 18, "memory_growth": 1.0}
    check_bounded(Case(axes, build, args, specs), **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(308, 400))
def test_more_random_programs_with_every_pass(seed):
    test_random_program_with_every_pass(seed)
