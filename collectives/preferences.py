"""What another propagation of a program is told: which axes come first or later, what stays whole, what is gathered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from propagation.attributes import symbol
from propagation.model import DimSharding, Mesh, TensorSharding
from propagation.program import Program, Use, Value
from propagation.shardings import Shardings

from .addresses import Address, addresses
from .equal_parts import Parted
from .replicated_chains import Whole

__all__ = ["Divided", "Gathered", "Kept", "Preference", "handed_in"]


@dataclass(frozen=True, slots=True)
class Kept:
    """A reshape that cuts a split dimension in two, of which a loop walks through the first: that one stays whole, and
    the second has the axes `dim`.

    address  where its result stands in every reading of the module
    result   its result's type, `at` the first of the two dimensions, `where` its source line
    """

    address: Address
    result: str
    at: int
    dim: DimSharding
    mesh: Mesh
    where: str | None

    def sharding(self, rank: int) -> TensorSharding:
        dims = [DimSharding((), True)] * rank
        dims[self.at], dims[self.at + 1] = DimSharding(()), DimSharding(self.dim.axes, True)
        return TensorSharding(self.mesh, dims)


@dataclass(frozen=True, slots=True)
class Gathered:
    """An argument that is used whole along the dimensions that `sharding` closes."""

    number: int
    sharding: TensorSharding

    def annotate(self, program: Program, shardings: Shardings) -> None:
        todo, shape = [program.main.args[self.number]], program.main.args[self.number].type.shape
        while todo:
            for use in todo.pop().uses:
                inner = handed_in(program, use)
                todo += inner
                results = use.op.results if not inner else [use.op.results[use.number]] if use.op.regions else ()
                for r in results:
                    if r.type.is_tensor and r.type.shape == shape and shardings.get(r) is None:
                        shardings.set(r, self.sharding)


@dataclass(frozen=True, slots=True)
class Divided:
    """The result of an operation that is split over one axis more, so that devices hold less of it.

    address  where it stands in every reading of the module
    type     its type, `dim` the dimension that is split further, over `axis`; `where` its source line
    sharding   what it is told
    """

    address: Address
    type: str
    dim: int
    axis: str
    sharding: TensorSharding
    where: str | None

    def __str__(self) -> str:
        return f"{self.type.removeprefix('tensor')} at {self.where or '?'} split over {self.axis} along {self.dim}"

    def value(self, values: Mapping[Address, Value]) -> Value | None:
        """The result in another reading of the module, which has these values; None if that has another one there."""
        value = values.get(self.address)
        return value if value is not None and value.type.text == self.type else None

    def annotate(self, values: Mapping[Address, Value], shardings: Shardings) -> None:
        value = self.value(values)
        if value is not None and shardings.get(value) is None:
            shardings.set(value, self.sharding)


@dataclass(frozen=True, slots=True)
class Preference:
    """What another propagation is told.

    first   per axis that several classes want, a place at the boundary that the class which gets it first has
    waits   dimensions of arguments, and of results of @main, whose axes come after those: (number, dimension)
    kept    reshapes that leave a dimension whole
    gathered   arguments that are gathered before they are used
    whole   chains of operations that every device computes; with no source lines, what `last` brings with it
    last    per axis that several classes want, a place at the boundary that the class which gets it last has
    parted  dimensions of equal parts that are two
    divided results of operations that are split over more axes
    """

    first: tuple[tuple[str, str], ...] = ()
    waits: frozenset[tuple[int, int]] = frozenset()
    results_wait: frozenset[tuple[int, int]] = frozenset()
    kept: tuple[Kept, ...] = ()
    gathered: tuple[Gathered, ...] = ()
    whole: tuple[Whole, ...] = ()
    last: tuple[tuple[str, str], ...] = ()
    parted: tuple[Parted, ...] = ()
    divided: tuple[Divided, ...] = ()

    def __str__(self) -> str:
        reshapes = [f"dimension {k.at} of the reshape at {k.where or '?'} whole" for k in self.kept]
        arguments = [f"argument {g.number} gathered before it is used" for g in self.gathered]
        first = [f"{axis} first to {place}" for axis, place in self.first]
        last = [f"{axis} last to {place}" for axis, place in self.last]
        wholes = [str(whole) for whole in self.whole if whole.where]
        return "; ".join([*first, *last, *reshapes, *arguments, *wholes, *map(str, (*self.parted, *self.divided))])

    def beside(self, other: Preference) -> Preference:
        """Both."""
        return Preference(
            (*other.first, *self.first), self.waits | other.waits, self.results_wait | other.results_wait,
            (*other.kept, *self.kept), (*other.gathered, *self.gathered), (*other.whole, *self.whole),
            (*other.last, *self.last), (*other.parted, *self.parted), (*other.divided, *self.divided),
        )  # fmt: skip

    def gathers(self, program: Program) -> dict[Value, TensorSharding]:
        """What is gathered before it is used, in the program as it was propagated again."""
        found = {program.main.args[g.number]: g.sharding for g in self.gathered}
        for whole in self.whole:
            found.update(whole.gathered(program))
        return found

    def divides(self, program: Program) -> frozenset[Value]:
        """What is made in no larger pieces than it is wanted in, in the program as it was propagated again."""
        values = addresses(program)[1] if self.divided else {}
        return frozenset([value for divided in self.divided if (value := divided.value(values)) is not None])

    def annotate(self, program: Program, shardings: Shardings) -> None:
        """Sets priorities and shardings, before anything is propagated."""
        main = program.main
        for i, arg in enumerate(main.args):
            shardings.set(arg, _waiting(shardings.get(arg), {d for number, d in self.waits if number == i}))
        declared = shardings.results[main]
        for i, said in enumerate(declared):
            declared[i] = _waiting(said, {d for number, d in self.results_wait if number == i})
        values = addresses(program)[1] if self.kept or self.divided else {}
        for gathered in self.gathered:
            gathered.annotate(program, shardings)
        for whole in self.whole:
            whole.annotate(program, shardings)
        for kept in self.kept:
            result = values.get(kept.address)
            if result is not None and result.type.text == kept.result and shardings.get(result) is None:
                shardings.set(result, kept.sharding(result.type.rank))
        for divided in self.divided:  # before operations are rewritten: addresses are those of the module as it came
            divided.annotate(values, shardings)
        for parted in self.parted:
            parted.rewrite(program, shardings)


def handed_in(program: Program, use: Use) -> list[Value]:
    """What stands for a used value in the function that is called with it, or in the loop that hands it on unchanged;
    nothing where it is used otherwise."""
    op = use.op
    if op.name == "func.call":
        callee = program.funcs.get(symbol(op.attrs["callee"]))
        return [] if callee is None else [callee.args[use.number]]
    if op.name != "stablehlo.while":
        return []
    condition, body = op.regions
    if body.terminator.operands[use.number] is not body.args[use.number]:
        return []
    return [condition.args[use.number], body.args[use.number]]


def _waiting(sharding: TensorSharding | None, dims: set[int]) -> TensorSharding | None:
    if sharding is None or not dims:
        return sharding
    return sharding.with_dims(
        [DimSharding(d.axes, d.is_open, 1) if i in dims and d.axes else d for i, d in enumerate(sharding.dims)]
    )
