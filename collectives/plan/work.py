"""Arithmetic of single operations, in multiplications and additions of a contraction that take as long, and in seconds.

Contractions do what hardware is made for. A comparison of a sort, a step of a window that slides by one, a convolution
in groups of few features and a decomposition take much longer than a multiplication there, by factors that were
measured on CPUs (`heuristics`), and for groups on TPUs too. Elementwise operations are not counted: they take as long
as memory does. Where a topology says what was measured on a device (`Topology.measured`), that is what counts.
"""

from __future__ import annotations

import math

from propagation.attributes import integer, integers

from ..cost import item_bytes
from ..heuristics import COMPARISON_WORK, GROUPED_WORK, LIBRARY_WORK, MATRIX_UNIT_LANES, WINDOW_LONGEST, WINDOW_WORK
from ..ir.attributes import Given, Integer, Integers, String
from ..ir.program import LocalOp
from ..machine import Machine, features, flops, ref_bytes

__all__ = ["is_cut_in_blocks", "is_reduced_in_blocks", "positions", "seconds", "work"]

# How the names of libraries' kernels begin, and what the compiler for TPUs expands. Those that compute eigenvalues
# or singular values take several times the other decompositions.
_LIBRARIES = ("lapack_", "cusolver_", "cuhybrid_", "cublas", "hipsolver_", "hiphybrid_", "rocsolver_")
_EXPANDED = frozenset(("Eigh", "Qr", "ProductOfElementaryHouseholderReflectors", "LuDecomposition", "Cholesky"))
_SPECTRAL = ("syev", "heev", "geev", "gees", "gesdd", "gesvd", "Eig", "eig", "Svd", "svd", "Jacobi")


# Decompositions go through a matrix column by column: the rows of `Topology.measured` with the seconds of one.
_COLUMNS = (
    ("singular", ("gesdd", "gesvd", "Svd", "svd", "Jacobi")), ("eigen", ("syev", "heev", "geev", "gees", "Eig", "eig")),
    ("cholesky", ("potrf", "Cholesky", "cholesky")), ("lu", ("getrf", "LuDecomposition")),
    ("qr", ("geqrf", "geqp3", "orgqr", "ungqr", "Qr", "Householder")),
)  # fmt: skip


def seconds(item: LocalOp, machine: Machine) -> float:
    """What the arithmetic of an item takes."""
    measured = machine.topology.measured
    wide = bool(item.operands) and item.operands[0].dtype in ("f32", "f64", "complex<f32>", "complex<f64>")
    rate = measured.get("flops_f32" if wide else "flops", measured.get("flops", machine.topology.flops))
    taken = work(item, machine.tiles) / rate
    if not measured:
        return taken
    name = item.name.removeprefix("stablehlo.")
    if name == "sort" and "comparison" in measured:
        shape = item.operands[0].shape
        return measured["comparison"] * math.prod(shape) * _stages(shape[item.number("dimension")] if shape else 1)
    if name.endswith("top_k") and "comparison" in measured:
        shape, kept = item.operands[0].shape, item.results[0].shape[-1]
        return measured["comparison"] * math.prod(shape) * math.log2(max(2, shape[-1])) * math.log2(max(2, kept))
    target = item.attribute("call_target_name")
    called = target.value if isinstance(target, String) else name
    if name == "cholesky" or _is_library(called):
        for row, parts in _COLUMNS:
            if any(part in called for part in parts):
                return max(taken, measured.get(row, 0.0) * min(item.operands[0].shape[-2:], default=0))
    return taken


def _stages(length: int) -> float:
    """Comparisons of each element in a sorting network (Batcher: "Sorting networks and their applications", 1968)."""
    depth = math.log2(max(2, length))
    return depth * (depth + 1) / 2


def work(item: LocalOp, tiles: bool) -> float:
    """Multiplications and additions of a contraction that take as long as the arithmetic of an item, whose regions
    combine elements, if it has some. With `tiles` contractions fill the lanes of a matrix unit (`Machine.tiles`)."""
    name = item.name.removeprefix("stablehlo.")
    if name == "sort":
        return _sort(item)
    if name == "reduce_window":
        steps = math.prod(min(n, WINDOW_LONGEST) for n in _numbers(item, "window_dimensions"))
        return WINDOW_WORK * steps * sum(math.prod(r.shape) for r in item.results)
    if name == "convolution":
        groups = max(*_numbers(item, "feature_group_count", 1), *_numbers(item, "batch_group_count", 1))
        return flops(item) * (_by_width(features(item) // groups, tiles) if groups > 1 else 1.0)
    if name == "fft":
        lengths = math.prod(_numbers(item, "fft_length"))
        return LIBRARY_WORK * 5 * math.prod(item.operands[0].shape) * math.log2(max(2, lengths))
    if name in ("cholesky", "triangular_solve"):
        return LIBRARY_WORK * _cubes(item)
    if name == "custom_call":
        target = item.attribute("call_target_name")
        return 0.0 if not isinstance(target, String) else _library(item, target.value)
    return flops(item)


def is_cut_in_blocks(item: LocalOp) -> bool:
    """Whether an item reduces windows that are so long that it is computed block by block."""
    return item.name == "stablehlo.reduce_window" and max(_numbers(item, "window_dimensions")) > WINDOW_LONGEST


def is_reduced_in_blocks(item: LocalOp) -> bool:
    """Whether an item reduces so many elements to one that it is computed block by block, from memory: XLA's compiler
    for CPUs does so with each array that is reduced by itself, along more than `WINDOW_LONGEST` elements of a
    dimension."""
    if item.name != "stablehlo.reduce" or len(item.operands) != 2:
        return False
    shape = item.operands[0].shape
    return any(shape[d] > WINDOW_LONGEST for d in _numbers(item, "dimensions"))


def positions(item: LocalOp) -> tuple[list[float], list[float]]:
    """Bytes of the arrays in which XLA's compilers keep where windows found the element that they select: those that
    depend on nothing (numbers for each dimension of what the windows lie over, and the sums that begin with zeros), and
    what each window selects, with that element and what is added there, in another order."""
    if item.name != "stablehlo.select_and_scatter":
        return [], []
    operand, source = item.operands[:2]
    rank, number = len(operand.shape), item_bytes("i32")
    windows = math.prod(source.shape)
    numbers = [math.prod(operand.shape) * number] * rank
    return [*numbers, ref_bytes(operand)], [*[windows * number] * rank, *[ref_bytes(source)] * 2]


def _by_width(width: int, tiles: bool) -> float:
    """How much longer a multiplication takes in groups of so many features."""
    lost = (MATRIX_UNIT_LANES / max(1, width)) ** 2 if tiles else GROUPED_WORK / max(1, width)
    return max(1.0, min(GROUPED_WORK, lost))


def _sort(item: LocalOp) -> float:
    """Each element is compared with others about log2(n) times."""
    shape = item.operands[0].shape
    length = shape[item.number("dimension")] if shape else 1
    return COMPARISON_WORK * math.prod(shape) * math.log2(max(2, length))


def _library(item: LocalOp, target: str) -> float:
    if not _is_library(target):
        return 0.0
    return LIBRARY_WORK * (10 if any(part in target for part in _SPECTRAL) else 2) * _cubes(item)


def _is_library(target: str) -> bool:
    return target.startswith(_LIBRARIES) or target in _EXPANDED


def _cubes(item: LocalOp) -> float:
    """m * n * min(m, n) of each matrix of the first operand."""
    shape = item.operands[0].shape if item.operands else ()
    return float(math.prod(shape) * min(shape[-2:])) if len(shape) >= 2 else 0.0


def _numbers(item: LocalOp, name: str, otherwise: int | None = None) -> tuple[int, ...]:
    """The numbers of an attribute, written by us or copied from the program."""
    found = item.attribute(name)
    if isinstance(found, Integer):
        return (found.value,)
    if isinstance(found, Integers):
        return found.values
    if isinstance(found, Given):
        return (integer(found.attr),) if otherwise is not None else tuple(integers(found.attr))
    return () if otherwise is None else (otherwise,)
