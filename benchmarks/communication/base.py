"""The form of a program: a function, its arguments with their shardings, and the fewest bytes known for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from collectives.kinds import kind_of

__all__ = [
    "PROGRAMS", "Array", "Out", "Workload", "all_gather", "all_reduce", "all_to_all", "constant", "eight", "integers",
    "program", "reduce_scatter", "two_by_four",
]  # fmt: skip

PROGRAMS: dict[str, Workload] = {}
MeshShape = tuple[tuple[str, int], ...]
eight: MeshShape = (("x", 8),)
two_by_four: MeshShape = (("x", 2), ("y", 4))


# Bytes that one device sends, by the best-known algorithms over n devices.


def all_reduce(operand: float, n: int = 8) -> float:
    """Of the operand's bytes."""
    return kind_of("all_reduce").sent(n, operand)


def all_gather(gathered: float, n: int = 8) -> float:
    """Of the result's bytes."""
    return kind_of("all_gather").sent(n, gathered / n)


def reduce_scatter(operand: float, n: int = 8) -> float:
    """Of the operand's bytes."""
    return kind_of("reduce_scatter").sent(n, operand)


def all_to_all(local: float, n: int = 8) -> float:
    """Of the bytes that a device holds."""
    return kind_of("all_to_all").sent(n, local)


@dataclass(frozen=True, slots=True)
class Array:
    """An argument: its shape, its sharding by dimension, and how it is filled."""

    shape: tuple[int, ...]
    spec: tuple[Any, ...] = ()
    scale: float = 1.0
    dtype: str = "float32"
    fill: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray] | None = None

    def value(self, seed: int) -> np.ndarray:
        """The same numbers for the same seed."""
        rng = np.random.default_rng(seed)
        made = rng.standard_normal(self.shape) * self.scale if self.fill is None else self.fill(rng, self.shape)
        return np.asarray(made).astype(self.dtype)


def integers(shape: tuple[int, ...], high: int, spec: tuple[Any, ...] = (), dtype: str = "int32") -> Array:
    """Random integers below `high`."""
    return Array(shape, spec, 1.0, dtype, lambda rng, s: rng.integers(0, high, s))


def constant(shape: tuple[int, ...], value: float, spec: tuple[Any, ...] = (), dtype: str = "float32") -> Array:
    """`value` everywhere."""
    return Array(shape, spec, 1.0, dtype, lambda rng, s: np.full(s, value))


class Out(tuple):
    """The sharding of a result, by dimension."""

    def __new__(cls, *spec: Any) -> Out:
        return super().__new__(cls, spec)


@dataclass(frozen=True, slots=True)
class Workload:
    """A program to partition.

    function  of the arguments; takes a keyword `at(x, *spec)`, a sharding constraint, if it has one
    args      a pytree of `Array`
    outs      a pytree of `Out` over the results; None leaves them to propagation
    best      fewest bytes per device known for static shapes, derived by hand; None where nobody has
    why       how to reach it
    bound     bytes that any strategy must send, where that is less than `best`
    """

    name: str
    mesh: MeshShape
    function: Callable
    args: tuple[Any, ...]
    outs: Any
    best: float | None
    why: str
    bound: float | None = None

    @property
    def devices(self) -> int:
        return int(np.prod([n for _, n in self.mesh]))

    def bind(self, at: Callable) -> Callable:
        """The function of its arguments alone."""
        if "at" not in inspect.signature(self.function).parameters:
            return self.function
        return lambda *args: self.function(*args, at=at)

    def values(self) -> tuple[Any, ...]:
        """NumPy arguments."""
        leaves, tree = jax.tree.flatten(self.args, is_leaf=lambda a: isinstance(a, Array))
        return jax.tree.unflatten(tree, [a.value(i) for i, a in enumerate(leaves)])

    def specs(self) -> tuple[Any, ...]:
        """PartitionSpecs of the arguments."""
        to_spec = lambda a: jax.sharding.PartitionSpec(*a.spec)
        return jax.tree.map(to_spec, self.args, is_leaf=lambda a: isinstance(a, Array))

    def out_specs(self) -> Any:
        """PartitionSpecs of the results, or None."""
        to_spec = lambda s: jax.sharding.PartitionSpec(*s)
        return None if self.outs is None else jax.tree.map(to_spec, self.outs, is_leaf=lambda s: isinstance(s, Out))


def program(
    name: str,
    mesh: MeshShape,
    args: Any,
    outs: Any,
    best: float | None = None,
    why: str = "",
    bound: float | None = None,
) -> Callable[[Callable], Callable]:
    """Registers the function that follows."""

    def register(function: Callable) -> Callable:
        assert name not in PROGRAMS, name
        PROGRAMS[name] = Workload(name, mesh, function, tuple(args), outs, best, why, bound)
        return function

    return register
