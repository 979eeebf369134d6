"""Random programs with random shardings on several meshes: equal to one device."""

from __future__ import annotations

import pytest

from .generator import random_program
from .jax_side import Case, check


@pytest.mark.parametrize("seed", range(16))
def test_random_program(seed):
    axes, build, args, specs = random_program(seed)
    check(Case(axes, build, args, specs), rtol=1e-3, above_xla=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16, 200))
def test_more_random_programs(seed):
    axes, build, args, specs = random_program(seed)
    check(Case(axes, build, args, specs), rtol=1e-3, above_xla=True)
