"""Sizes that are known when a program is called: from the texts in which they stand to StableHLO's dynamic operations.

Lowering rules write types and attributes with sizes as they find them, symbolic ones as text:

    %3 = "stablehlo.broadcast_in_dim"(%2) <{broadcast_dimensions = array<i64: 0>}> : ... -> tensor<{2*a}x4xf32>

Where a module has such sizes, this pass goes over what was recorded and computes them from the variables, which every
function that needs some takes as arguments:

    %3 = "stablehlo.dynamic_broadcast_in_dim"(%2, %sizes) <{...}> : ... -> tensor<?x4xf32>

All other modules pass by it. The platform, of which a module may have several, is a variable like a size.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from meshrt import errors
from meshrt.core.basic import sizes as _sizes  # noqa: F401  (the primitive that writes `meshrt.size`)
from meshrt.core.dimensions.expression import Dim
from meshrt.core.dimensions.grammar import parse_shape
from meshrt.core.dimensions.scope import SymbolicScope
from meshrt.lowering.size_writer import SizeWriter
from propagation.asm import Body, FunctionWriter, Item, ModuleWriter, Ref
from propagation.sdy_text import texts_per_value

__all__ = ["PLATFORM_INDEX", "GlobalConstants", "with_global_constants"]

PLATFORM_INDEX = "_platform_index"

_SIZES = re.compile(r"tensor<((?:(?:\{[^}]*\}|\d+)x)*)")
_SIZE = re.compile(r"(\{[^}]*\}|\d+)x")
_SYMBOLIC = re.compile(r"\{[^}]*\}")
_ARRAY = re.compile(r"(\w+) = array<i64(?:: ([^>]*))?>")
_PAIRS = re.compile(r"(\w+) = dense<\[\[(.*?)\]\]> : tensor<\d+x2xi64>")
_COUNT = re.compile(r"k = ([^:]+) : i64")
_LAYOUTS = re.compile(r"(operand_layouts = \[(?:[^\]]|\](?=>))*)(\])")
# What calls a function, for which sizes are arguments before the others.
_CALLS = ("func.call", "stablehlo.composite")
# How the results of an operation are split.
_SHARDING = re.compile(r'sdy\.sharding = (#sdy\.sharding_per_value<\[(?:"(?:[^"\\]|\\.)*"|[^"])*?\]>)(?=, \w|$)')
# A file and a line in a location.
_LINE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')
# The mesh in the shardings of a region's values.
_MESH = re.compile(r'<(@(?:"(?:[^"\\]|\\.)*"|[\w.$-]+)), \[')
_CALLEE = re.compile(r"(?:callee|decomposition) = @([\w.$-]+)")


def plain(kind: str) -> str:
    """A type with `?` for sizes that are not known."""
    return _SYMBOLIC.sub("?", kind) if "{" in kind else kind


class GlobalConstants:
    """The variables of a module: the platform's index if it has several platforms, then dimension variables by name.

    `scope` is that of the sizes, `integer` the element type (`i32` or `i64`) of sizes.
    """

    def __init__(self, variables: Sequence[str], scope: SymbolicScope | None, integer: str, several_platforms: bool):
        self.names = (*((PLATFORM_INDEX,) if several_platforms else ()), *sorted(variables))
        self.scope, self.integer = scope if scope is not None else SymbolicScope(), integer
        self._read: dict[str, tuple[Any, ...]] = {}

    def type_of(self, name: str) -> str:
        return "tensor<i32>" if name == PLATFORM_INDEX else f"tensor<{self.integer}>"

    def attributes(self) -> list[str]:
        """The attributes of the arguments that hold them."""
        return [f'jax.global_constant = "{name}"' for name in self.names]

    def read(self, text: str) -> tuple[Any, ...]:
        """The sizes in a text that `str` made of them."""
        found = self._read.get(text)
        if found is None:
            found = self._read[text] = parse_shape(text, repr(text), self.scope, None)
        return found

    def sizes(self, kind: str) -> tuple[Any, ...]:
        """The sizes of a tensor type."""
        matched = _SIZES.match(kind)
        if matched is None:
            raise errors.InternalError(f"{kind} has no sizes")
        return self.read(", ".join([s.strip("{}") for s in _SIZE.findall(matched[1])]))


# ---------------------------------------------------------------------------------------------------------------------
# The pass


def with_global_constants(writer: ModuleWriter, constants: GlobalConstants) -> None:
    """Rewrites, in place, what lowering recorded: `@main` and the functions that need some get all `constants` as
    leading arguments."""
    needing = _needing(writer)
    for function in list(writer.functions):
        if function.public or function.name in needing:
            _Rewriter(writer, function, constants, needing).run()


def _bodies(items: Sequence[Item]) -> list[Body]:
    found = []
    for item in items:
        for body in item[4]:
            found += [body, *_bodies(body.items)]
    return found


def _needing(writer: ModuleWriter) -> set[str]:
    """The private functions in which a symbolic size stands, or that call such a function."""
    found: set[str] = set()
    calls: dict[str, set[str]] = {}
    for function in writer.functions:
        items = [i for body in (function, *_bodies(function.items)) for i in body.items]
        kinds = [a.type for body in (function, *_bodies(function.items)) for a in body.args]
        calls[function.name] = {m[1] for i in items for m in _CALLEE.finditer(i[3])}
        if any("{" in k for k in kinds) or any(_is_symbolic(i) for i in items):
            found.add(function.name)
    while True:
        more = {name for name, called in calls.items() if name not in found and called & found}
        if not more:
            return found
        found |= more


def _is_symbolic(item: Item) -> bool:
    name, operands, results, attrs = item[:4]
    if name == "chlo.top_k":
        attrs = attrs.replace("k = ", "k = array<i64: ").replace(" :", "> :")
    return name == "meshrt.size" or any("{" in r.type for r in (*operands, *results)) or bool(_symbolic_arrays(attrs))


def _symbolic_arrays(attrs: str) -> list[str]:
    """The names of the attributes in which symbolic sizes stand."""
    arrays = [m[1] for m in _ARRAY.finditer(attrs) if m[2] and _has_names(m[2])]
    return arrays + [m[1] for m in _PAIRS.finditer(attrs) if _has_names(m[2])]


def _has_names(text: str) -> bool:
    return any(c.isalpha() for c in text)


class _Passed(dict[str, Ref]):
    """The variables in a region that sees no value of outside: those that it asks for become its arguments."""

    def __init__(self, fresh: Callable[[], str], constants: GlobalConstants):
        super().__init__()
        self.fresh, self.constants = fresh, constants

    def __missing__(self, name: str) -> Ref:
        if name not in self.constants.names:
            raise KeyError(name)
        found = self[name] = Ref(self.fresh(), self.constants.type_of(name))
        return found


class _Rewriter:
    """Rewrites one function."""

    def __init__(self, writer: ModuleWriter, function: FunctionWriter, constants: GlobalConstants, needing: set[str]):
        self.writer, self.function, self.constants, self.needing = writer, function, constants, needing
        self.globals = [Ref(function.fresh(), constants.type_of(name)) for name in constants.names]
        self.head = function.body([])
        self.sizes = SizeWriter(self.head, dict(zip(constants.names, self.globals)), constants.integer)
        self.known: dict[str, Ref] = {}
        # The body and, of the operation that is being rewritten, the regions and what is to be said beside.
        self.at_hand: Body = function
        self.regions: Sequence[Body] = ()
        self.discardable = ""

    def run(self) -> None:
        function = self.function
        self.body(function)
        function.items[:0] = self.head.items
        function.args[:0] = self.globals
        function.arg_attrs[:0] = self.constants.attributes()
        function.result_types = [plain(t) for t in function.result_types]

    def body(self, body: Body) -> None:
        body.args = [self.plain_ref(a) for a in body.args]
        items, body.items = body.items, []
        for item in items:
            if item[0] == "sdy.manual_computation":
                item = self.isolated(item)
            else:
                for inner in item[4]:
                    self.body(inner)
            self.at_hand = body
            self.item(body, item)

    def isolated(self, item: Item) -> Item:
        """An operation whose region sees no value of outside: the variables that are needed in it are its first
        operands, of which all devices have the same."""
        name, operands, results, attrs, (body,), loc, discardable = item
        outside = self.head, self.sizes
        passed = _Passed(self.function.fresh, self.constants)
        self.head = body.body([])
        self.sizes = SizeWriter(self.head, passed, self.constants.integer)
        self.body(body)
        body.items[:0] = self.head.items
        body.args[:0] = passed.values()
        self.head, self.sizes = outside
        if passed:
            mesh = _MESH.search(attrs)
            if mesh is None:
                raise errors.InternalError(f"a region of devices without arguments and results: {attrs}")
            whole = ", ".join([f"<{mesh[1]}, []>"] * len(passed))
            between = "" if "in_shardings = #sdy.sharding_per_value<[]>" in attrs else ", "
            attrs = attrs.replace("per_value<[", f"per_value<[{whole}{between}", 1)
            operands = (*(self.sizes.values[n] for n in passed), *operands)
        return (name, operands, results, attrs, (body,), loc, discardable)

    def plain_ref(self, ref: Ref) -> Ref:
        if "{" not in ref.type:
            return self.known.get(ref.name, ref)
        found = self.known.get(ref.name)
        if found is None:
            found = self.known[ref.name] = Ref(ref.name, plain(ref.type))
        return found

    def item(self, body: Body, item: Item) -> None:
        name, old_operands, old_results, attrs, regions, loc, discardable = item
        operands = [self.plain_ref(r) for r in old_operands]
        results = tuple([self.plain_ref(r) for r in old_results])
        if name == "meshrt.size":
            body.items.append(self.global_value(attrs, results, loc))
            return
        if name in _CALLS and (m := _CALLEE.search(attrs)) is not None and m[1] in self.needing:
            operands = [*(self.sizes.values[n] for n in self.constants.names), *operands]
        arrays = _symbolic_arrays(attrs)
        rule = _RULES.get(name)
        self.regions, self.discardable = regions, ""
        if rule is not None and (arrays or any("{" in r.type for r in old_results)):
            written = rule(self, operands, old_operands, old_results, attrs)
            if written is not None:
                name, operands, attrs = written
                arrays, regions = [], self.regions
                if "@stablehlo.dynamic_" in attrs or '"stablehlo.dynamic_' in attrs:
                    self.dynamic(body, (name, operands, results, attrs, regions, loc, discardable))
                    return
                discardable = ", ".join(filter(None, (discardable, self.discardable)))
        if arrays:
            self.refuse(name, attrs, loc)
        body.items.append((name, operands, results, attrs, regions, loc, discardable))

    def dynamic(self, body: Body, item: Item) -> None:
        """A custom call that stands for an operation of StableHLO: who knows it takes no other attributes, so how
        each of its results is split stands behind it."""
        name, operands, results, attrs, regions, loc, discardable = item
        shardings = _SHARDING.search(discardable)
        if shardings is None:
            rest = ", ".join(filter(None, (discardable, self.discardable)))
            body.items.append((name, operands, results, attrs, regions, loc, rest))
            return
        rest = ", ".join(filter(None, (_SHARDING.sub("", discardable).strip(", "), self.discardable)))
        body.items.append((name, operands, results, attrs, regions, loc, rest))
        for result, text in zip(results, texts_per_value(shardings[1]), strict=True):
            # What follows uses the constrained value.
            split = self.known[result.name] = Ref(self.function.fresh(), result.type)
            attribute = f"sharding = #sdy.sharding{text}"
            body.items.append(("sdy.sharding_constraint", [result], (split,), attribute, (), loc, ""))

    def refuse(self, name: str, attrs: str, loc: str) -> NoReturn:
        """UnsupportedError for an operation that has symbolic sizes among its attributes."""
        sizes = [
            f"{m[1]} is ({m[2]})" for m in (*_ARRAY.finditer(attrs), *_PAIRS.finditer(attrs)) if _has_names(m[2] or "")
        ]
        place = _LINE.search(self.writer.locations.get(loc, ""))
        raise errors.UnsupportedError(
            f"{name} at {f'{place[1]}:{place[2]}' if place else 'an unknown line'} is exported with numbers only, and "
            f"its {', '.join(sizes)}: give these dimensions numbers"
        )

    def global_value(self, attrs: str, results: tuple[Ref, ...], loc: str) -> Item:
        text = attrs.partition('"')[2].rpartition('"')[0]
        if text == PLATFORM_INDEX:
            value = self.sizes.values[text]
        else:
            dims = self.constants.read(text)
            is_scalar = _SIZE.search(results[0].type) is None
            value = self.sizes.size(dims[0]) if is_scalar else self.sizes.vector(dims)
        return ("stablehlo.convert", [value], results, "", (), loc, "")

    # -- what rules need -----------------------------------------------------------------------------------------------

    def shape(self, ref: Ref) -> Ref:
        """The sizes of a value, as a vector."""
        return self.sizes.vector(self.constants.sizes(ref.type))

    def vector64(self, dims: Sequence[Dim]) -> Ref:
        """Sizes as a vector of 64-bit integers."""
        found = self.sizes.vector(dims)
        wide = f"tensor<{len(dims)}xi64>"
        return found if found.type == wide else self.head.op("stablehlo.convert", [found], [wide])

    def outlined(self, name: str) -> str:
        """The symbol of a new function that is the region of the operation being written."""
        taken = {f.name for f in self.writer.functions}
        symbol = next(s for s in (f"{name}_{i}" for i in itertools.count()) if s not in taken)
        (region,) = self.regions
        made = self.writer.function(symbol, [])
        made.args, made.arg_attrs = region.args, [""] * len(region.args)
        *before, last = region.items
        made.items = [*before, ("func.return", *last[1:])]
        made.result_types, made.result_attrs = [r.type for r in last[1]], [""] * len(last[1])
        self.regions = ()
        return symbol

    def array(self, attrs: str, name: str) -> tuple[Any, ...]:
        """The sizes in an attribute."""
        text = next((m[2] for m in _ARRAY.finditer(attrs) if m[1] == name), "")
        return self.constants.read(text or "")


Written = tuple[str, list[Ref], str] | None
Rule = Callable[[_Rewriter, list[Ref], Sequence[Ref], Sequence[Ref], str], Written]


def _constant(rw: _Rewriter, operands: list[Ref], old: Sequence[Ref], results: Sequence[Ref], attrs: str) -> Written:
    kind = results[0].type
    scalar = _SIZES.sub("tensor<", kind)
    value = rw.head.op("stablehlo.constant", (), [scalar], attrs.replace(kind, scalar))
    return "stablehlo.dynamic_broadcast_in_dim", [value, rw.shape(results[0])], "broadcast_dimensions = array<i64>"


def _with_shape(name: str) -> Rule:
    def rule(rw: _Rewriter, operands: list[Ref], old: Sequence[Ref], results: Sequence[Ref], attrs: str) -> Written:
        return name, [*operands, rw.shape(results[0])], attrs

    return rule


def _slice(rw: _Rewriter, operands: list[Ref], old: Sequence[Ref], results: Sequence[Ref], attrs: str) -> Written:
    if not _symbolic_arrays(attrs):
        return None
    vectors = [rw.sizes.vector(rw.array(attrs, n)) for n in ("start_indices", "limit_indices", "strides")]
    return "stablehlo.real_dynamic_slice", [*operands, *vectors], ""


def _pad(rw: _Rewriter, operands: list[Ref], old: Sequence[Ref], results: Sequence[Ref], attrs: str) -> Written:
    if not _symbolic_arrays(attrs):
        return None
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    return "stablehlo.dynamic_pad", [*operands, *[rw.sizes.vector(rw.array(attrs, n)) for n in names]], ""


def _dynamic_slice(
    rw: _Rewriter, operands: list[Ref], old: Sequence[Ref], results: Sequence[Ref], attrs: str
) -> Written:
    """Starts are clamped, and the rest is a slice with computed bounds."""
    if not _symbolic_arrays(attrs):
        return None
    body, integer = rw.at_hand, rw.constants.integer
    sizes, whole = rw.array(attrs, "slice_sizes"), rw.constants.sizes(old[0].type)
    one, vector = f"tensor<1x{integer}>", f"tensor<{len(sizes)}x{integer}>"
    scalars = [body.op("stablehlo.convert", [s], [f"tensor<{integer}>"]) for s in operands[1:]]
    parts = [body.op("stablehlo.reshape", [s], [one]) for s in scalars]
    starts = parts[0] if len(parts) == 1 else body.op(
        "stablehlo.concatenate", parts, [vector], "dimension = 0 : i64"
    )  # fmt: skip
    zeros, most = rw.sizes.vector([0] * len(sizes)), rw.sizes.vector([n - m for n, m in zip(whole, sizes)])
    starts = body.op("stablehlo.clamp", [zeros, starts, most], [vector])
    limits = body.op("stablehlo.add", [starts, rw.sizes.vector(sizes)], [vector])
    strides = rw.sizes.vector([1] * len(sizes))
    return "stablehlo.real_dynamic_slice", [operands[0], starts, limits, strides], ""


def _gather(rw: _Rewriter, operands: list[Ref], old: Sequence[Ref], results: Sequence[Ref], attrs: str) -> Written:
    if not _symbolic_arrays(attrs):
        return None
    sizes = rw.sizes.vector(rw.array(attrs, "slice_sizes"))
    return "stablehlo.dynamic_gather", [*operands, sizes], _dropped(attrs, "slice_sizes")


def _dropped(attrs: str, name: str) -> str:
    """Attributes without one of integers."""
    pattern = re.compile(rf"(?:, )?{name} = (?:array<i64(?:: [^>]*)?>|dense<\[\[.*?\]\]> : tensor<\d+x2xi64>)")
    return pattern.sub("", attrs).removeprefix(", ")


def _convolution(rw: _Rewriter, operands: list[Ref], old: Sequence[Ref], results: Sequence[Ref], attrs: str) -> Written:
    found = next((m for m in _PAIRS.finditer(attrs) if m[1] == "padding" and _has_names(m[2])), None)
    if found is None:
        return None
    rows = [rw.constants.read(row) for row in found[2].split("], [")]
    flat = rw.sizes.vector([n for row in rows for n in row])
    pairs = rw.head.op("stablehlo.reshape", [flat], [f"tensor<{len(rows)}x2x{rw.constants.integer}>"])
    return "stablehlo.dynamic_conv", [*operands, pairs], _dropped(attrs, "padding")


def _reduce_window(
    rw: _Rewriter, operands: list[Ref], old: Sequence[Ref], results: Sequence[Ref], attrs: str
) -> Written:
    """A custom call with the sizes as operands, and the computation in a function of its own."""
    if not _symbolic_arrays(attrs):
        return None
    names = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    vectors = [rw.vector64(rw.array(attrs, n)) for n in names]
    rows = [rw.constants.read(row) for m in _PAIRS.finditer(attrs) for row in m[2].split("], [")]
    flat = rw.vector64([n for row in rows for n in row])
    pads = rw.head.op("stablehlo.reshape", [flat], [f"tensor<{len(rows)}x2xi64>"])
    reducer = rw.outlined("reducer")
    return "stablehlo.custom_call", [*operands, *vectors, pads], (
        f'api_version = 1 : i32, backend_config = "", call_target_name = "stablehlo.dynamic_reduce_window", '
        f"called_computations = [@{reducer}]"
    )  # fmt: skip


def _top_k(rw: _Rewriter, operands: list[Ref], old: Sequence[Ref], results: Sequence[Ref], attrs: str) -> Written:
    found = _COUNT.search(attrs)
    if found is None or not _has_names(found[1]):
        return None
    k = rw.sizes.size(rw.constants.read(found[1])[0])
    return (
        "stablehlo.custom_call",
        [*operands, k],
        ('api_version = 1 : i32, backend_config = "", call_target_name = "stablehlo.dynamic_top_k"'),
    )


def _custom_call(rw: _Rewriter, operands: list[Ref], old: Sequence[Ref], results: Sequence[Ref], attrs: str) -> Written:
    """Shapes of results are operands behind the others, which go where they are known."""
    shapes = [rw.shape(r) for r in results]
    places = ", ".join(str(len(operands) + i) for i in range(len(shapes)))
    more = ", ".join(["dense<0> : tensor<1xindex>"] * len(shapes))
    attrs = _LAYOUTS.sub(lambda m: f"{m[1]}, {more}{m[2]}" if m[1][-1] != "[" else f"{m[1]}{more}{m[2]}", attrs)
    rw.discardable = f"indices_of_shape_operands = dense<[{places}]> : tensor<{len(shapes)}xi64>"
    return "stablehlo.custom_call", [*operands, *shapes], attrs


def _random_bits(rw: _Rewriter, operands: list[Ref], old: Sequence[Ref], results: Sequence[Ref], attrs: str) -> Written:
    rw.discardable = attrs
    attrs = 'api_version = 1 : i32, backend_config = "", call_target_name = "stablehlo.dynamic_rng_bit_generator"'
    return "stablehlo.custom_call", [*operands, rw.shape(results[1])], attrs


_RULES: dict[str, Rule] = {
    "chlo.top_k": _top_k,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.rng_bit_generator": _random_bits,
    "stablehlo.constant": _constant,
    "stablehlo.broadcast_in_dim": _with_shape("stablehlo.dynamic_broadcast_in_dim"),
    "stablehlo.reshape": _with_shape("stablehlo.dynamic_reshape"),
    "stablehlo.iota": _with_shape("stablehlo.dynamic_iota"),
    "stablehlo.slice": _slice,
    "stablehlo.pad": _pad,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.gather": _gather,
    "stablehlo.convolution": _convolution,
}
