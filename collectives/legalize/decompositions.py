"""Operations that StableHLO and CHLO keep for convenience, decomposed into simpler ones that have rules: einsum into
reductions and dot_general, torch_index_select into gather, cross-replica-sum into all_reduce, CHLO's elementwise
operations with implicit broadcasts into broadcast_in_dim and the plain operation; and random numbers (`rng`)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir

from propagation.attributes import integer, integers, string
from propagation.graph import TensorType
from propagation.ops import PLAIN
from propagation.program import Op, Value, source

from ..errors import UnsupportedOpError
from ..ir.attributes import Dense
from ..ir.operations import attributes
from ..layout import Dims
from ..layouts.context import Context
from ..ops.annotations import same
from .expand import write_out

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


_Typed = tuple[str, TensorType]


def _tensor(value: Value) -> TensorType:
    """The type of an operand or result; of these operations all are tensors."""
    assert isinstance(value.type, TensorType)
    return value.type


class _Function:
    """The text of a function being written with the arguments of `op`; values are (name, type)."""

    def __init__(self, op: Op):
        self.op = op
        self.args: list[_Typed] = [(f"%arg{i}", _tensor(v)) for i, v in enumerate(op.operands)]
        self.lines: list[str] = []

    def add(self, line: str, type_: TensorType) -> _Typed:
        name = f"%{len(self.lines)}"
        self.lines.append(f"{name} = {line}")
        return name, type_

    def text(self, result: _Typed) -> str:
        args = ", ".join(f"{name}: {t.text}" for name, t in self.args)
        name, type_ = result
        body = "\n".join([*self.lines, f"return {name} : {type_.text}"])
        return f"func.func @main({args}) -> {type_.text} {{\n{body}\n}}"


# -- implicit broadcasts ----------------------------------------------------------------------------------------


def broadcasting(ctx: Context, op: Op) -> None:
    """`chlo.broadcast_add` and its like: operands are broadcast, by NumPy's rules or as `broadcast_dimensions` says,
    and the plain operation follows."""
    plain = PLAIN[op.name]
    result = op.results[0]
    shape = result.type.shape
    f = _Function(op)
    given = integers(op.attrs["broadcast_dimensions"]) if "broadcast_dimensions" in op.attrs else None
    operands = []
    for x, t in f.args:
        if t.shape == shape or (plain == "stablehlo.select" and t.dtype == "i1" and not t.shape):
            operands.append((x, t))
            continue
        last = tuple(range(len(shape) - len(t.shape), len(shape)))
        dims = given if given is not None and len(given) == len(t.shape) and len(t.shape) < len(shape) else last
        wide = TensorType(shape, t.dtype)
        line = f"stablehlo.broadcast_in_dim {x}, dims = {list(dims)} : ({t.text}) -> {wide.text}"
        operands.append(f.add(line, wide))
    attrs = {k: ctx.text_of(v).replace("#chlo<", "#stablehlo<") for k, v in op.attrs.items() if k in _COMPARED}
    given_attrs = "{" + ", ".join(f"{k} = {v}" for k, v in attrs.items()) + "}"
    names, types = ", ".join(x for x, _ in operands), ", ".join(t.text for _, t in operands)
    line = f'"{plain}"({names}) {given_attrs} : ({types}) -> {result.type.text}'
    write_out(ctx, op, f.text(f.add(line, _tensor(result))), {shape: ctx.want(result)})


_COMPARED = ("comparison_direction", "compare_type")


def constant_like(ctx: Context, op: Op) -> None:
    """A constant of the shape of its operand."""
    result = op.results[0]
    value = ctx.text_of(op.attrs["value"])
    parts = re.fullmatch(r"#complex\.number<:\w+ (.*), (.*)> : .*", value)
    literal = f"({parts[1]}, {parts[2]})" if parts else value.rsplit(" : ", 1)[0]
    f = _Function(op)
    line = f"stablehlo.constant dense<{literal}> : {result.type.text}"
    write_out(ctx, op, f.text(f.add(line, _tensor(result))), {})


def constant(ctx: Context, op: Op) -> None:
    """CHLO's own constant."""
    f = _Function(op)
    value = f.add(f"stablehlo.constant {ctx.text_of(op.attrs['value'])}", _tensor(op.results[0]))
    write_out(ctx, op, f.text(value), {})


# -- einsum -----------------------------------------------------------------------------------------------------


def einsum(ctx: Context, op: Op) -> None:
    """A contraction of one or two operands whose dimensions are named by letters."""
    result = op.results[0]
    config = string(op.attrs["einsum_config"]).replace(" ", "")
    inputs, arrow, output = config.partition("->")
    if not arrow:
        raise UnsupportedOpError(f"{op.name}: {config!r} does not say its result; write it behind ->", source(op))
    names = _letters(inputs.split(","), output, op)
    _check(names, config, op)
    f = _Function(op)
    sides = []
    for i, (x, letters) in enumerate(zip(f.args, names[:-1])):
        others = {*names[-1], *(c for j, n in enumerate(names[:-1]) if j != i for c in n)}
        diagonal, letters = _diagonal(f, x, letters)
        sides.append(_reduced(f, diagonal, letters, others))
    value, letters = _product(f, sides, names[-1]) if len(sides) == 2 else sides[0]
    order = [letters.index(c) for c in names[-1]]
    if order != sorted(order):
        line = f"stablehlo.transpose {value[0]}, dims = {order} : ({value[1].text}) -> {result.type.text}"
        value = f.add(line, _tensor(result))
    want = ctx.want(result)
    split = dict(zip(names[-1], want))
    product = TensorType(tuple(result.type.shape[names[-1].index(c)] for c in letters), result.type.dtype).shape
    layouts: dict[tuple[int, ...], Dims] = {product: tuple(split[c] for c in letters), result.type.shape: want}
    write_out(ctx, op, f.text(value), layouts)


def _letters(inputs: list[str], output: str, op: Op) -> list[str]:
    """The letters of the dimensions of each operand, and of the result. An ellipsis becomes unused letters, aligned at
    its end: `...ij,...jk->...ik` of ranks 4 and 3 becomes `abij,bjk->abik`."""
    free = [c for c in _LETTERS if not any(c in text for text in (*inputs, output))]
    if len(inputs) != len(op.operands):
        raise UnsupportedOpError(f"{op.name}: {len(inputs)} operands are named, of {len(op.operands)}", source(op))
    out = []
    for text, value in zip((*inputs, output), (*op.operands, op.results[0])):
        rank = len(value.type.shape)
        hidden = rank - len(text.replace("...", "")) if "..." in text else 0
        text = text.replace("...", "".join(free[:16][16 - hidden :]) if hidden else "")
        if len(text) != rank:
            raise UnsupportedOpError(f"{op.name}: {text!r} names {len(text)} of {rank} dimensions", source(op))
        out.append(text)
    return out


def _check(names: list[str], config: str, op: Op) -> None:
    """Raises unless a letter stands for dimensions of one size, and each of the result's letters is there once."""
    sizes: dict[str, int] = {}
    for letters, value in zip(names, (*op.operands, op.results[0])):
        for c, n in zip(letters, value.type.shape):
            if sizes.setdefault(c, n) != n:
                raise UnsupportedOpError(f"{op.name}: {config!r}: {c} is {sizes[c]} and {n} positions", source(op))
    for c in names[-1]:
        if names[-1].count(c) > 1 or not any(c in letters for letters in names[:-1]):
            raise UnsupportedOpError(
                f"{op.name}: {config!r}: {c} of the result must be a dimension of an operand, named once", source(op)
            )


def _diagonal(f: _Function, value: _Typed, letters: str) -> tuple[_Typed, str]:
    """The diagonal of dimensions that have the same letter (`ii->i`): all other elements are masked to zero, and one of
    the dimensions is summed over."""
    for c in dict.fromkeys(letters):
        while letters.count(c) > 1:
            x, t = value
            i = letters.index(c)
            j = letters.index(c, i + 1)
            where, mask = TensorType(t.shape, "i32"), TensorType(t.shape, "i1")
            rows, columns = [f.add(f"stablehlo.iota dim = {d} : {where.text}", where)[0] for d in (i, j)]
            same_, _ = f.add(
                f"stablehlo.compare EQ, {rows}, {columns} : ({where.text}, {where.text}) -> {mask.text}", mask
            )
            zero, _ = f.add(f"stablehlo.constant dense<{_zero(t)}> : {t.text}", t)
            kept = f.add(f"stablehlo.select {same_}, {x}, {zero} : {mask.text}, {t.text}", t)
            value, letters = _summed(f, kept, letters, [j])
    return value, letters


def _reduced(f: _Function, value: _Typed, letters: str, others: set[str]) -> tuple[_Typed, str]:
    """The sum over the dimensions whose letters neither another operand nor the result has."""
    dims = [i for i, c in enumerate(letters) if c not in others]
    return _summed(f, value, letters, dims) if dims else (value, letters)


def _summed(f: _Function, value: _Typed, letters: str, dims: list[int]) -> tuple[_Typed, str]:
    """The sum over some dimensions, and the letters of those that are left."""
    x, t = value
    scalar = TensorType((), t.dtype)
    total = TensorType(tuple(n for i, n in enumerate(t.shape) if i not in dims), t.dtype)
    zero, _ = f.add(f"stablehlo.constant dense<{_zero(t)}> : {scalar.text}", scalar)
    line = f"stablehlo.reduce({x} init: {zero}) applies stablehlo.add across dimensions = {dims} : "
    line += f"({t.text}, {scalar.text}) -> {total.text}"
    return f.add(line, total), "".join(c for i, c in enumerate(letters) if i not in dims)


def _zero(t: TensorType) -> str:
    if t.dtype.startswith("complex"):
        return "(0.0, 0.0)"
    return "false" if t.dtype == "i1" else "0" if t.dtype.startswith(("i", "ui")) else "0.0"


def _product(f: _Function, sides: Sequence[tuple[_Typed, str]], output: str) -> tuple[_Typed, str]:
    """The contraction of two operands over the letters that both have and the result has not."""
    (a, left), (b, right) = sides
    both = [c for c in left if c in right]
    batch, contracted = [c for c in both if c in output], [c for c in both if c not in output]
    letters = "".join([*batch, *(c for c in left if c not in both), *(c for c in right if c not in both)])
    sizes = dict(zip(left + right, (*a[1].shape, *b[1].shape)))
    out = TensorType(tuple(sizes[c] for c in letters), f.op.results[0].type.dtype)
    pairs = [[[side.index(c) for c in names] for side in (left, right)] for names in (batch, contracted)]
    dims = ", ".join(f"{name}_dims = {x} x {y}" for name, (x, y) in zip(("batching", "contracting"), pairs))
    line = f"stablehlo.dot_general {a[0]}, {b[0]}, {dims} : ({a[1].text}, {b[1].text}) -> {out.text}"
    return f.add(line, out), letters


# -- others -----------------------------------------------------------------------------------------------------


def torch_index_select(ctx: Context, op: Op) -> None:
    """table[b..., :, indices[b..., i], :] as a gather of whole slices along dimension `dim`, with leading batch
    dimensions b that table and indices share."""
    (table, t), (indices, i) = [(f"%arg{n}", v.type) for n, v in enumerate(op.operands)]
    result = op.results[0]
    dim, batch = integer(op.attrs["dim"]), integer(op.attrs["batch_dims"])
    dim, batch = dim % len(t.shape), batch % len(i.shape) if batch < 0 else batch
    at = range(dim, dim + len(i.shape) - batch)
    offset = [d for d in range(batch, len(result.type.shape)) if d not in at]
    sizes = [1 if d < batch or d == dim else n for d, n in enumerate(t.shape)]
    numbers = (
        f"#stablehlo.gather<offset_dims = {offset}, collapsed_slice_dims = [{dim}], "
        f"operand_batching_dims = {list(range(batch))}, start_indices_batching_dims = {list(range(batch))}, "
        f"start_index_map = [{dim}], index_vector_dim = {len(i.shape)}>"
    )
    f = _Function(op)
    line = f'"stablehlo.gather"({table}, {indices}) {{dimension_numbers = {numbers}, indices_are_sorted = false, '
    line += f"slice_sizes = array<i64: {', '.join(map(str, sizes))}>}} : ({t.text}, {i.text}) -> {result.type.text}"
    write_out(ctx, op, f.text(f.add(line, _tensor(result))), {result.type.shape: ctx.want(result)})


def cross_replica_sum(ctx: Context, op: Op) -> None:
    """A sum over replicas. A program written for partitions has one replica, so it is the operand; in a manual
    computation it is an all-reduce over its groups."""
    groups = ir.DenseIntElementsAttr(op.attrs["replica_groups"])
    shape = ir.ShapedType(groups.type).shape
    if 0 in shape or shape[1] == 1:
        same(ctx, op)
        return
    t = _tensor(op.results[0])
    scalar = TensorType((), t.dtype).text
    f = _Function(op)
    line = (
        f'"stablehlo.all_reduce"(%arg0) ({{\n^bb0(%a: {scalar}, %b: {scalar}):\n%s = stablehlo.add %a, %b : {scalar}\n'
    )
    line += f"stablehlo.return %s : {scalar}\n}}) {{replica_groups = {groups}}} : ({t.text}) -> {t.text}"
    write_out(ctx, op, f.text(f.add(line, t)), {t.shape: ctx.want(op.results[0])})


def rng(ctx: Context, op: Op) -> None:
    """Random numbers of an unspecified sequence: every device makes those of its own piece. Where several devices hold
    the same piece, one of them makes it, and an all-reduce with zeros from the others tells them."""
    result = op.results[0]
    dtype = result.type.dtype
    dims, alike = _dealt(ctx, result)
    local = ctx.piece_shape(result, dims)
    bounds = [ctx.get(v, ()) for v in op.operands[:2]]
    attrs = attributes("stablehlo.constant", Dense.of(np.array(local, np.int64), "i64"))
    size = ctx.region.op("stablehlo.constant", (), [((len(local),), "i64")], attrs)[0]
    (bits,) = ctx.region.op(
        op.name, (*bounds, size), [(local, dtype)], extra=ctx.attributes_of(op), loc=ctx.loc, effect=True
    )
    if not alike:
        ctx.bind(result, dims, bits)
        return
    me = ctx.realiser.coordinate(ctx.region, alike)
    attrs = attributes("stablehlo.compare", "EQ")
    first = ctx.region.entry("stablehlo.compare", (me, ctx.realiser.index(ctx.region, 0)), (), "i1", attrs)
    zero = ctx.realiser.zero(ctx.region, local, dtype)
    mine = ctx.emit("stablehlo.select", (ctx.realiser.splat(ctx.region, first, local), bits, zero), local, dtype)
    ctx.bind_partial(result, dims, {alike: mine}, "or" if dtype == "i1" else "add", masked=True, chosen=True)


def _dealt(ctx: Context, value: Value) -> tuple[Dims, tuple[int, ...]]:
    """(the wanted layout, split further along every axis that divides some dimension; the axes that are left, over
    which devices hold the same piece)."""
    shape, dims = value.type.shape, list(ctx.want(value))
    used = {*ctx.manual, *(a for atoms in dims for a in atoms)}
    left = []
    for a in range(len(ctx.sizes)):
        if a in used:
            continue
        fits = (d for d, n in enumerate(shape) if n % ctx.atoms.product((*dims[d], a)) == 0 and n)
        d = next(fits, None)
        if d is None:
            left.append(a)
        else:
            dims[d] = (*dims[d], a)
    return tuple(dims), tuple(left)


PARTITION = {
    **{name: broadcasting for name in PLAIN if name.startswith("chlo.broadcast_")},
    "chlo.constant": constant,
    "chlo.constant_like": constant_like,
    "stablehlo.cross-replica-sum": cross_replica_sum,
    "stablehlo.einsum": einsum,
    "stablehlo.rng": rng,
    "stablehlo.torch_index_select": torch_index_select,
    "stablehlo.unary_einsum": einsum,
}
