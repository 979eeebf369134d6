"""Random StableHLO modules with random annotations.

`module(seed)` is deterministic. Operations are drawn from the steps of `elementary`, `numerics`, `structure` and
`others`, each of which grows the module (`growing.Generator`) by one operation.
"""

from __future__ import annotations

from . import elementary, numerics, others, structure
from .growing import Generator, Step

__all__ = ["generate", "module", "steps"]


def steps() -> tuple[list[Step], list[Step]]:
    """All steps: plain operations, and those with structure, effects or `sdy` semantics (which need `features`)."""
    return elementary.STEPS + numerics.STEPS, 2 * structure.STEPS + others.STEPS


def module(seed: int, count: int | None = None, features: bool = True) -> str:
    """The module of a seed; without `features` a single function of plain operations and plain axes."""
    return generate(seed, count, features)[0]


def generate(seed: int, count: int | None = None, features: bool = True) -> tuple[str, frozenset[str]]:
    """`module`, and the features that appear in it."""
    generator = Generator(seed, *steps(), features)
    text = generator.module(count if count is not None else generator.rng.choice([3, 6, 10, 16]))
    return text, frozenset(generator.used)
