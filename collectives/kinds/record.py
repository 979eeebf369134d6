"""What is to be known of a kind of collective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["CollectiveKind"]


@dataclass(frozen=True, slots=True)
class CollectiveKind:
    """A kind of communication within groups of devices.

    In a group of n devices each has an operand. What each gets is told by `splits`, `joins`, `reduces` and `uniform`;
    shapes of one device's operand and result for n = 4:

    kind            splits  joins  reduces  uniform  operand  result
    all_gather      -       dim 0  no       yes      [2, 6]   [8, 6]
    reduce_scatter  dim 0   -      yes      no       [8, 6]   [2, 6]
    all_to_all      dim 0   dim 1  no       no       [8, 6]   [2, 24]
    all_reduce      -       -      yes      yes      [8, 6]   [8, 6]

    name         as the plan tells it: `all_gather`
    hlo          its name in compiled programs: `all-gather`; asynchronous `all-gather-start` and `all-gather-done`
    sent         (n, bytes of a device's operand) -> bytes that the busiest device sends
    pattern      what the messages look like, which decides the figures of a link that hold for them: a "ring" around
                 the group, an "exchange" of every device with every other, a "shift" from each device to one other
    phases       how often a ring goes around: twice for a sum that all devices get
    op           its StableHLO operation; None where StableHLO has none, and compilers make it of something else
    primitive    the primitive of JAX that becomes this; None if there is none
    transpose    the kind that carries cotangents back; None where that takes more than one collective
    splits       the attribute that names the dimension which is cut into a part for each device of the group
    joins        the attribute that names the dimension along which what arrives from the devices is put together
    counts       the attribute that repeats the size of the groups, if it has one
    reduces      whether what arrives is combined by the function in its region; else elements arrive as they were
    uniform      whether all devices of a group get the same result
    pairs        whether it is told who sends to whom (`source_target_pairs`), not who talks (`replica_groups`)
    everyone     whether each device of the program must be in a group
    lists_operands  whether the type of its asynchronous start lists operands beside results
    abreast      the compilers ("tpu", "cuda", "cpu") whose programs do several at once, each on its own buffer
    merged_by    the compilers that make one of several by themselves
    """

    name: str
    hlo: str
    sent: Callable[[int, float], float]
    pattern: Literal["ring", "exchange", "shift"]
    op: str | None
    phases: int = 1
    primitive: str | None = None
    transpose: str | None = None
    splits: str | None = None
    joins: str | None = None
    counts: str | None = None
    reduces: bool = False
    uniform: bool = False
    pairs: bool = False
    everyone: bool = True
    lists_operands: bool = False
    abreast: frozenset[str] = frozenset()
    merged_by: frozenset[str] = frozenset()

    @property
    def gathers(self) -> bool:
        """Whether its result is a group's operands put together, n times as large as each of them."""
        return self.joins is not None and self.splits is None

    @property
    def scatters(self) -> bool:
        """Whether its result is a part of what a group holds, a n-th as large as an operand."""
        return self.splits is not None and self.joins is None

    @property
    def sums(self) -> bool:
        """Whether it combines the elements at each position by themselves, and all devices get all of them."""
        return self.reduces and self.uniform and self.splits is None and self.joins is None

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The attributes that name dimensions along which it moves elements; along others it does the same to each."""
        return tuple([name for name in (self.splits, self.joins) if name is not None])

    @property
    def groups_attribute(self) -> str:
        """The attribute that says who talks to whom."""
        return "source_target_pairs" if self.pairs else "replica_groups"

    def result_size(self, n: int, size: int, is_split: bool, is_joined: bool) -> int:
        """What becomes of a dimension of `size` in groups of `n`, if it is the one cut, or joined, or both."""
        return (size // n if is_split else size) * (n if is_joined else 1)

    def operand_bytes(self, n: int, result: float) -> float:
        """Bytes of a device's operand by those of its result."""
        return result / n if self.gathers else result * n if self.scatters else result
