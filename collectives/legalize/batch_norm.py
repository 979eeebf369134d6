"""batch_norm_training and batch_norm_grad, decomposed as the StableHLO specification defines them: sums over all
dimensions but the features', whose reduction over a split batch is an all-reduce of vectors, and pointwise
arithmetic."""

from __future__ import annotations

from collections.abc import Callable

from propagation.attributes import integer
from propagation.graph import TensorType
from propagation.program import Op

from ..layouts.context import Context
from .expand import write_out

__all__: list[str] = []


class _Text:
    """The text of a function being written, over tensors like `whole` and vectors with an element per feature.
    `names` are those of its arguments."""

    def __init__(self, whole: TensorType, feature: int, names: str):
        self.whole = whole.text
        n = whole.shape[feature]
        self.vector, self.scalar = TensorType((n,), whole.dtype).text, TensorType((), whole.dtype).text
        self.feature = feature
        self.reduced = [d for d in range(len(whole.shape)) if d != feature]
        self.count = whole.size // n if n else 0
        self.lines: list[str] = []
        self.names = names.split()

    def add(self, line: str) -> str:
        self.lines.append(f"%{len(self.lines)} = stablehlo.{line}")
        return f"%{len(self.lines) - 1}"

    def binary(self, name: str, a: str, b: str, whole: bool = True) -> str:
        return self.add(f"{name} {a}, {b} : {self.whole if whole else self.vector}")

    def number(self, value: str, whole: bool = False) -> str:
        """A vector, or a whole tensor, of one number."""
        return self.add(f"constant dense<{value}> : {self.whole if whole else self.vector}")

    def spread(self, vector: str) -> str:
        dims = f"dims = [{self.feature}]"
        return self.add(f"broadcast_in_dim {vector}, {dims} : ({self.vector}) -> {self.whole}")

    def total(self, x: str) -> str:
        zero = self.add(f"constant dense<0.0> : {self.scalar}")
        return self.add(
            f"reduce({x} init: {zero}) applies stablehlo.add across dimensions = {self.reduced} : "
            f"({self.whole}, {self.scalar}) -> {self.vector}"
        )

    def function(self, results: list[tuple[str, str]]) -> str:
        """`results` are names and types. Arguments named x and g are whole tensors, all others vectors."""
        args = ", ".join(f"%{n}: {self.whole if n in 'xg' else self.vector}" for n in self.names)
        names, types = ", ".join(n for n, _ in results), ", ".join(t for _, t in results)
        body = "\n".join([*self.lines, f"return {names} : {types}"])
        return f"func.func @main({args}) -> ({types}) {{\n{body}\n}}"


def _training(t: _Text, epsilon: str) -> list[tuple[str, str]]:
    count = t.number(f"{t.count}.0")
    mean = t.binary("divide", t.total("%x"), count, False)
    centered = t.binary("subtract", "%x", t.spread(mean))
    variance = t.binary("divide", t.total(t.binary("multiply", centered, centered)), count, False)
    above = t.binary("add", variance, t.number(epsilon), False)
    deviation = t.add(f"sqrt {above} : {t.vector}")
    normal = t.binary("divide", centered, t.spread(deviation))
    scaled = t.binary("multiply", normal, t.spread("%scale"))
    out = t.binary("add", scaled, t.spread("%offset"))
    return [(out, t.whole), (mean, t.vector), (variance, t.vector)]


def _gradient(t: _Text, epsilon: str) -> list[tuple[str, str]]:
    centered = t.binary("subtract", "%x", t.spread("%mean"))
    above = t.binary("add", "%variance", t.number(epsilon), False)
    deviation = t.add(f"sqrt {above} : {t.vector}")
    offset = t.total("%g")
    product = t.total(t.binary("multiply", "%g", centered))
    scale = t.binary("divide", product, deviation, False)
    count = t.number(f"{t.count}.0")
    each = t.binary("multiply", "%g", t.spread(count))
    slope = t.spread(t.binary("divide", product, above, False))
    rest = t.binary("subtract", each, t.spread(offset))
    rest = t.binary("subtract", rest, t.binary("multiply", centered, slope))
    factor = t.binary("divide", t.binary("divide", "%scale", deviation, False), count, False)
    return [(t.binary("multiply", rest, t.spread(factor)), t.whole), (scale, t.vector), (offset, t.vector)]


def _written_out(
    write: Callable[[_Text, str], list[tuple[str, str]]], names: str
) -> Callable[[Context, Op], None]:  # fmt: skip
    def rule(ctx: Context, op: Op) -> None:
        feature = integer(op.attrs["feature_index"])
        x = op.operands[0]
        assert isinstance(x.type, TensorType)
        text = _Text(x.type, feature, names)
        epsilon = ctx.text_of(op.attrs["epsilon"]).split(" : ")[0]
        results = write(text, epsilon)
        whole = ctx.state(x).dims or ctx.want(x)
        layouts = {x.type.shape: whole, (x.type.shape[feature],): (whole[feature],), (): ()}
        write_out(ctx, op, text.function(results), layouts)

    return rule


PARTITION = {
    "stablehlo.batch_norm_grad": _written_out(_gradient, "x scale mean variance g"),
    "stablehlo.batch_norm_training": _written_out(_training, "x scale offset"),
}
