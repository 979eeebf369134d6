"""Random programs with random shardings on several meshes: equal to one device."""

from __future__ import annotations

import pytest

from collectives.topology import Link, Topology

from .generator import random_program
from .jax_side import Case, check


@pytest.mark.parametrize("seed", range(16))
def test_random_program(seed):
    axes, build, args, specs = random_program(seed)
    check(Case(axes, build, args, specs), rtol=1e-4, above_xla=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16, 200))
def test_more_random_programs(seed):
    axes, build, args, specs = random_program(seed)
    check(Case(axes, build, args, specs), rtol=1e-4, above_xla=True)


@pytest.mark.parametrize("seed", range(300, 308))
def test_random_program_with_every_pass(seed):
    axes, build, args, specs = random_program(seed)
    machine = Topology(default=Link(1e-5, 1e9), flops=1e12, memory_bandwidth=1e11)
    options = {"topology": machine, "collective_matmul": True, "order": True, "memory": 1 << 18, "memory_growth": 1.0}
    check(Case(axes, build, args, specs), rtol=1e-4, above_xla=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(308, 400))
def test_more_random_programs_with_every_pass(seed):
    test_random_program_with_every_pass(seed)
