"""Which items XLA's compiler for CPUs hands to a library of kernels, together with their neighbours.

Sums and largest elements of large arrays are computed by a kernel of their own. It takes what it reads from memory,
so that elementwise operations before it are written first, unless the kernel has them too and nobody else reads them;
and what follows it, as long as it has one reader: a softmax is one kernel up to its exponential. Read in the compiler's
source (its rewriter for libraries and what the library supports), and true of each of the 200 reductions in the
programs of the communication benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from propagation.heuristics import NARROW_TYPES

from ..heuristics import KERNEL_ELEMENTS
from ..ir.program import LocalFunction, LocalOp, LocalValue
from ..ir.walker import walk
from ..machine import dot_dimensions
from .copies import reordered
from .fusible import name_of

__all__ = ["has_kernels", "kernels"]

_named = lambda *names: frozenset(f"stablehlo.{n}" for n in names)
_ELEMENTWISE = _named(
    "abs", "add", "ceil", "convert", "divide", "exponential", "exponential_minus_one", "floor", "log",
    "log_plus_one", "logistic", "maximum", "minimum", "multiply", "negate", "power", "round_nearest_even", "rsqrt",
    "sign", "sqrt", "subtract", "tanh",
) | {"chlo.square"}  # fmt: skip
_MOVING = _named("broadcast_in_dim", "reshape", "constant")
_REDUCERS = {
    "stablehlo.add": frozenset(["f32", "f64"]),
    "stablehlo.maximum": frozenset(["f32", "f64", "bf16", "f16"]),
    "stablehlo.minimum": frozenset(["f32", "f64", "bf16", "f16"]),
}
_TYPES = frozenset(["f32", "f64", "bf16"])


def has_kernels(functions: Iterable[LocalFunction], library: str) -> bool:
    """Whether the compiler uses the library for a program: "always", "never", or where it has "narrow" types."""
    if library != "narrow":
        return library == "always"
    regions = (inner for function in functions for inner in walk(function.region))
    values = (v for region in regions for v in (*region.args, *(r for item in region.items for r in item.results)))
    return any(v.dtype in NARROW_TYPES for v in values)


def kernels(
    items: Sequence[LocalOp], readers: Mapping[LocalValue, Sequence[int]], returned: Callable[[LocalValue], bool]
) -> dict[LocalOp, LocalOp]:
    """The reduction in whose kernel each item is that is in one.

    Args:
      items: of a region.
      readers: per value the positions of the items that read it.
      returned: whether a value leaves the region otherwise than by an item that ends it.
    """
    found: dict[LocalOp, LocalOp] = {}
    for item in reversed(items):
        if item not in found and _is_reduction(item):
            _grow(item, items, readers, returned, found)
    return found


def _grow(
    centre: LocalOp,
    items: Sequence[LocalOp],
    readers: Mapping[LocalValue, Sequence[int]],
    returned: Callable[[LocalValue], bool],
    found: dict[LocalOp, LocalOp],
) -> None:
    """Adds what is computed in the kernel of a reduction to `found`."""
    found[centre] = centre
    inside, end = [centre], centre
    read_here = lambda v: not returned(v) and all(found.get(items[i]) is centre for i in readers.get(v, ()))
    while True:
        before = len(inside)
        todo = list(inside)
        while todo:  # towards the operands
            for value in todo.pop().operands:
                maker = value.item
                if maker is not None and maker not in found and _is_taken(maker) and read_here(value):
                    found[maker] = centre
                    inside.append(maker)
                    todo.append(maker)
        for item in _following(end, items, readers, returned, found):
            end = item
            found[end] = centre
            inside.append(end)
        if len(inside) == before:
            return


def _following(
    end: LocalOp,
    items: Sequence[LocalOp],
    readers: Mapping[LocalValue, Sequence[int]],
    returned: Callable[[LocalValue], bool],
    found: Mapping[LocalOp, LocalOp],
) -> list[LocalOp]:
    """What a kernel that ends with an item has behind it, one reader after the other, up to the last that computes. A
    value that is spread out only to divide by it stays outside: its reciprocal is taken first."""
    chain: list[LocalOp] = []
    computed = 0
    while not returned(end.results[0]) and len(after := readers.get(end.results[0], ())) == 1:
        reader = items[after[0]]
        if reader in found or not _is_taken(reader):
            break
        if reader.name == "stablehlo.divide" and reader.operands[1] is end.results[0]:
            break
        chain.append(reader)
        end = reader
        if reader.name not in _MOVING:
            computed = len(chain)
    return chain[:computed]


def _is_large(item: LocalOp) -> bool:
    return any(math.prod(value.shape) >= KERNEL_ELEMENTS for value in (*item.operands, *item.results))


def _is_left_out(item: LocalOp) -> bool:
    """Whether an item is a maximum with minus infinity, which stands behind the maximum of a softmax."""
    return item.name == "stablehlo.maximum" and any(map(_is_least, item.operands))


def _is_least(value: LocalValue) -> bool:
    maker = value.item
    while maker is not None and maker.name == "stablehlo.broadcast_in_dim":
        maker = maker.operands[0].item
    if maker is None or maker.name != "stablehlo.constant":
        return False
    found = maker.attribute("value")
    return found is not None and found.text.startswith(("dense<0xFF800000>", "dense<0xFFF0000000000000>", "dense<-inf"))


def _is_reduction(item: LocalOp) -> bool:
    """Whether an item is a sum, or takes a largest or smallest element, of one array that is large enough."""
    if item.name != "stablehlo.reduce" or len(item.operands) != 2 or not _is_large(item):
        return False
    combining = item.regions[0].items
    return len(combining) == 2 and item.operands[0].dtype in _REDUCERS.get(combining[0].name, ())


def _is_taken(item: LocalOp) -> bool:
    """Whether the library has an item that stands beside a reduction."""
    if item.collective is not None or len(item.results) != 1 or item.results[0].dtype not in _TYPES:
        return False
    if any(value.dtype not in _TYPES for value in item.operands):
        return False
    if item.name in _MOVING or _is_reduction(item):
        return True
    if name_of(item) in _ELEMENTWISE:
        return _is_large(item) or _is_left_out(item)
    if item.name != "stablehlo.dot_general":
        return False
    lhs = item.operands[0]
    if any(lhs.shape[d] == 1 for d in dot_dimensions(item)[0]):
        return False  # the compiler drops such a dimension, and copies the product into its shape
    return lhs in reordered(item) or tuple(dot_dimensions(item)[2]) == (len(lhs.shape) - 1,)
