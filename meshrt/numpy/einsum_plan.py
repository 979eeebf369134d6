"""Plans for einsum: from subscripts and shapes to a sequence of sums, transposes and dot products.

Pure Python and memoised: a plan depends on the subscripts, the shapes and the wanted path only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from meshrt.core.dimensions.expression import guessed
from meshrt.errors import MeshrtError

__all__ = ["EinsumError", "EinsumPlan", "Pair", "Reduce", "contraction_path", "parse", "plan_einsum"]

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class EinsumError(MeshrtError, ValueError):
    """Subscripts that are malformed or do not fit the operands."""


class EinsumLabelError(MeshrtError, TypeError):
    """Labels that cannot be told apart."""


# ----------------------------------------------------------------------------------------------------------
# Subscripts.


def _name(n: int) -> str:
    return _LETTERS[n] if n < len(_LETTERS) else chr(0x100 + n)


def from_sublists(args: Sequence[Any]) -> tuple[str, list[Any]]:
    """``(subscripts, operands)`` of the call form ``einsum(x, [0, 1], y, [1, 2], [0, 2])``."""
    operands, lists = list(args[: len(args) // 2 * 2 : 2]), args[1::2]
    said = [*lists, args[-1]] if len(args) % 2 else lists
    try:
        # What has no list of its own for the output comes in the order of labels.
        labels = sorted({label for labelled in said for label in labelled if label is not Ellipsis})
    except TypeError as e:
        raise EinsumLabelError(
            "einsum's lists of labels hold Ellipsis or labels that are hashable and can be ordered, such as int and "
            f"str, all of one kind. Got {list(said)}"
        ) from e
    names = {label: _name(n) for n, label in enumerate(labels)} | {Ellipsis: "..."}
    written = ["".join(names[label] for label in labelled) for labelled in said]
    text = ",".join(written[: len(lists)])
    if len(args) % 2:
        text += "->" + written[-1]
    return text, operands


def parse(subscripts: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[str], str]:
    """``(input names, output names)`` with one character per dimension, ellipses filled in. Any character that is no
    punctuation of subscripts is a label.

    Raises:
      EinsumError: the subscripts are malformed or do not fit ``shapes``.
    """
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(shapes):
        raise EinsumError(
            f"Number of einsum subscripts, {len(inputs)}, must be equal to the number of operands, {len(shapes)}: "
            f"the subscripts are {subscripts!r}"
        )
    for part in [*inputs, right]:
        bad = set(part.replace("...", "", 1)) & set(".->")
        if bad:
            raise EinsumError(
                f"einsum subscripts {subscripts!r}: {part!r} may hold labels and one '...', not {min(bad)!r}"
            )
    widths = [len(s) - len(p.replace("...", "")) if "..." in p else 0 for p, s in zip(inputs, shapes)]
    for p, s, w in zip(inputs, shapes, widths):
        if w < 0 or ("..." not in p and len(p) != len(s)):
            raise EinsumError(
                f"einsum subscripts {subscripts!r}: {p!r} does not fit an operand of {len(s)} dimensions, shape {s}"
            )
    dots = _dot_names(max(widths, default=0), set(text))
    filled = [p.replace("...", dots[len(dots) - w :]) for p, w in zip(inputs, widths)]
    if arrow:
        out = right.replace("...", dots)
    else:
        counts = "".join(p.replace("...", "") for p in inputs)
        out = dots + "".join(sorted(c for c in set(counts) if counts.count(c) == 1))
    _check_output(subscripts, filled, out)
    return filled, out


def _dot_names(n: int, used: set[str]) -> str:
    free = (c for c in itertools.chain(_LETTERS, map(chr, itertools.count(0x400))) if c not in used)
    return "".join(itertools.islice(free, n))


def _check_output(subscripts: str, inputs: list[str], out: str) -> None:
    known = set("".join(inputs))
    for c in out:
        if c not in known:
            raise EinsumError(f"Output character {c!r} did not appear in the input: einsum {subscripts!r}")
        if out.count(c) > 1:
            raise EinsumError(f"einsum subscripts {subscripts!r}: output index {c!r} appears twice")


def _sizes(subscripts: str, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The size of each label; EinsumError where operands differ in it."""
    sizes: dict[str, int] = {}
    for i, (part, shape) in enumerate(zip(names, shapes)):
        for c, n in zip(part, shape):
            if n != 1 and sizes.get(c, 1) not in (1, n):
                # The sentence of JAX, which has the two sizes the other way round, and what they are.
                raise EinsumError(
                    f"Size of label {c!r} for operand {i} ({sizes[c]}) does not match previous terms ({n}). In einsum "
                    f"{subscripts!r} of shapes {', '.join(map(str, shapes))} {c!r} has size {n} in operand {i}, and "
                    f"{sizes[c]} before"
                )
            sizes[c] = n if n != 1 else sizes.get(c, 1)
    return sizes


# ----------------------------------------------------------------------------------------------------------
# The order of contractions.

Path = tuple[tuple[int, ...], ...]


def contraction_path(inputs: Sequence[str], out: str, sizes: dict[str, int], optimize: Any = "auto") -> Path:
    """Which operands to contract, pair by pair; each result goes to the end of the list.

    ``optimize`` is True, "auto" or "optimal" (least multiplications, exactly for up to eight operands), "greedy",
    False (all pairs from the left) or an explicit path.
    """
    n = len(inputs)
    if isinstance(optimize, (list, tuple)):
        steps = [tuple(int(i) for i in s) for s in optimize if not isinstance(s, str)]
        return _checked(tuple(steps), n)
    if n <= 2:
        return (tuple(range(n)),)
    if optimize is False:
        return ((0, 1), *((0, k) for k in range(n - 2, 0, -1)))
    if optimize not in (True, "auto", "optimal", "greedy", "dp"):
        raise EinsumError(
            f"einsum: optimize={optimize!r} is not known; use True, False, 'auto', 'optimal', 'greedy' or a path"
        )
    if optimize == "greedy" or n > 8:
        return _greedy([frozenset(i) for i in inputs], frozenset(out), sizes)
    return _optimal([frozenset(i) for i in inputs], frozenset(out), sizes)


def described_path(subscripts: str, shapes: Sequence[tuple[int, ...]], optimize: Any) -> tuple[Path, str]:
    """The path of an einsum over operands of these shapes, and a line that says what it contracts."""
    inputs, out = parse(subscripts, shapes)
    sizes = {c: max(guessed(n), 1) for c, n in _sizes(subscripts, inputs, shapes).items()}
    path = contraction_path(inputs, out, sizes, optimize)
    return path, f"{','.join(inputs)}->{out}: contract {', '.join(map(str, path))}"


def _checked(path: Path, n: int) -> Path:
    left = n
    for step in path:
        if not 1 <= len(step) <= 2 or max(step) >= left or len(set(step)) != len(step):
            raise EinsumError(f"einsum: {list(path)} is not a path of pairwise contractions of {n} operands")
        left -= len(step) - 1
    if left != 1:
        raise EinsumError(f"einsum: the path {list(path)} leaves {left} operands of {n}, not one")
    return path


def _volume(names: frozenset, sizes: dict[str, int]) -> int:
    return math.prod(sizes[c] for c in names)


def _optimal(terms: list[frozenset], out: frozenset, sizes: dict[str, int]) -> Path:
    """Dynamic programming over subsets of operands (Pfeifer, Haegeman, Verstraete 2014, without pruning)."""
    n = len(terms)
    whole = (1 << n) - 1

    def kept(mask: int) -> frozenset:
        inside = frozenset().union(*(terms[i] for i in range(n) if mask >> i & 1))
        outside = out.union(*(terms[i] for i in range(n) if not mask >> i & 1))
        return inside & outside

    names = {m: kept(m) for m in range(1, whole + 1)}
    for i in range(n):
        names[1 << i] = terms[i]
    best: dict[int, tuple[int, int]] = {1 << i: (0, 0) for i in range(n)}
    for mask in sorted(range(1, whole + 1), key=int.bit_count):
        if mask in best:
            continue
        low = mask & -mask
        options = []
        sub = (mask - 1) & mask
        while sub:
            if sub & low:  # each split once
                a, b = sub, mask ^ sub
                cost = best[a][0] + best[b][0] + _volume(names[a] | names[b], sizes)
                options.append((cost, a))
            sub = (sub - 1) & mask
        best[mask] = min(options, key=lambda o: o[0])
    return _steps(whole, best, n)


def _steps(whole: int, best: dict[int, tuple[int, int]], n: int) -> Path:
    held = [1 << i for i in range(n)]
    steps: list[tuple[int, int]] = []

    def contract(mask: int) -> None:
        if mask & (mask - 1) == 0:
            return
        a = best[mask][1]
        b = mask ^ a
        contract(a)
        contract(b)
        i, j = sorted((held.index(a), held.index(b)))
        steps.append((i, j))
        del held[j], held[i]
        held.append(mask)

    contract(whole)
    return tuple(steps)


def _greedy(terms: list[frozenset], out: frozenset, sizes: dict[str, int]) -> Path:
    """Contracts, again and again, the pair that shrinks the data most."""
    terms = list(terms)
    steps = []
    while len(terms) > 1:

        def gain(pair: tuple[int, int]) -> tuple[tuple[bool, int], int]:
            i, j = pair
            rest = out.union(*(t for k, t in enumerate(terms) if k not in pair))
            both = terms[i] | terms[j]
            shrink = _volume(both & rest, sizes) - _volume(terms[i], sizes) - _volume(terms[j], sizes)
            return (not terms[i] & terms[j], shrink), _volume(both, sizes)

        i, j = min(itertools.combinations(range(len(terms)), 2), key=gain)
        rest = out.union(*(t for k, t in enumerate(terms) if k not in (i, j)))
        new = (terms[i] | terms[j]) & rest
        steps.append((i, j))
        terms = [t for k, t in enumerate(terms) if k not in (i, j)] + [new]
    return tuple(steps)


# ----------------------------------------------------------------------------------------------------------
# Steps.


class Reduce(NamedTuple):
    """What to do with one operand, in this order: keep only diagonals, sum, drop unit dimensions.

    ``diagonals`` are groups of axes that share a name: the elements off the diagonal become zero, and all axes of
    the group but the last are summed (all of them where the name is not needed any more). ``sum_axes`` counts in
    the operand as it comes; ``squeeze`` are unit dimensions, likewise.
    """

    diagonals: tuple[tuple[int, ...], ...] = ()
    sum_axes: tuple[int, ...] = ()
    squeeze: tuple[int, ...] = ()

    @property
    def trivial(self) -> bool:
        """Whether the operand stays as it is."""
        return not (self.diagonals or self.sum_axes or self.squeeze)


class Pair(NamedTuple):
    """One ``dot_general`` of operands ``lhs`` and ``rhs`` (numbers in the list of operands)."""

    lhs: int
    rhs: int
    lhs_reduce: Reduce
    rhs_reduce: Reduce
    contract: tuple[tuple[int, ...], tuple[int, ...]]
    batch: tuple[tuple[int, ...], tuple[int, ...]]
    transpose: tuple[int, ...] | None


class Single(NamedTuple):
    """One operand, reduced and transposed."""

    operand: int
    reduce: Reduce
    transpose: tuple[int, ...] | None


class EinsumPlan(NamedTuple):
    """Steps in order; each takes its operands out of the list and appends its result."""

    steps: tuple[Pair | Single, ...]
    inputs: tuple[str, ...]
    output: str


def _reduce(names: str, shape: tuple[int, ...], keep: set[str], other: dict[str, int]) -> tuple[Reduce, str, tuple]:
    """How to bring an operand to distinct names that are all in ``keep``, broadcast dimensions dropped.

    ``other`` are the sizes of the other operand: where it is larger, our dimension of size 1 is dropped, and the
    result gets the dimension from the other side.
    """
    diagonals: list[tuple[int, ...]] = []
    sums: list[int] = []
    squeeze: list[int] = []
    out: list[int] = []
    for c in dict.fromkeys(names):
        axes = tuple(i for i, n in enumerate(names) if n == c)
        if len(axes) > 1 and len({shape[a] for a in axes}) > 1:  # broadcasting inside one operand
            squeeze += [a for a in axes if shape[a] == 1]
            axes = tuple(a for a in axes if shape[a] != 1)
        if len(axes) > 1:
            diagonals.append(axes)
            sums += axes[:-1]
            axes = axes[-1:]
        (axis,) = axes
        if c not in keep:
            sums.append(axis)
        elif shape[axis] == 1 and other.get(c, 1) != 1:
            squeeze.append(axis)
        else:
            out.append(axis)
    out.sort()
    reduce = Reduce(tuple(diagonals), tuple(sorted(sums)), tuple(sorted(squeeze)))
    return reduce, "".join(names[a] for a in out), tuple(shape[a] for a in out)


def _perm(names: str, result: str) -> tuple[int, ...] | None:
    return None if names == result else tuple(names.index(c) for c in result)


def _pair(
    i: int, j: int, terms: list[tuple[str, tuple]], needed: set[str], result: str
) -> tuple[Pair, tuple[int, ...]]:
    (ln, ls), (rn, rs) = terms[i], terms[j]
    l_sizes, r_sizes = _largest(ln, ls), _largest(rn, rs)
    lhs, ln, ls = _reduce(ln, ls, needed | _live(r_sizes, l_sizes), r_sizes)
    rhs, rn, rs = _reduce(rn, rs, needed | _live(l_sizes, r_sizes), l_sizes)
    both = set(ln) & set(rn)
    contract = [c for c in sorted(both) if c not in needed]
    batch = [c for c in result if c in both]
    l_free = [c for c in ln if c not in both]
    r_free = [c for c in rn if c not in both]
    free = "".join(batch)
    order = free + "".join(l_free + r_free)
    if order != result and free + "".join(r_free + l_free) == result:
        i, j, lhs, rhs, ln, rn, ls, rs = j, i, rhs, lhs, rn, ln, rs, ls
        order = result
    dims = lambda names, cs: tuple(names.index(c) for c in cs)
    step = Pair(
        i, j, lhs, rhs, (dims(ln, contract), dims(rn, contract)), (dims(ln, batch), dims(rn, batch)),
        _perm(order, result),
    )  # fmt: skip
    sizes = dict(zip(ln, ls)) | dict(zip(rn, rs))
    return step, tuple(sizes[c] for c in result)


def _largest(names: str, shape: tuple[int, ...]) -> dict[str, int]:
    out: dict[str, int] = {}
    for c, n in zip(names, shape):
        if n != 1 or c not in out:
            out[c] = n
    return out


def _live(sizes: dict[str, int], other: dict[str, int]) -> set[str]:
    """Names that an operand keeps: those whose dimension is not broadcast against the other operand's."""
    return {c for c, n in sizes.items() if n != 1 or other.get(c, 1) == 1}


@lru_cache(maxsize=2048)
def plan_einsum(subscripts: str, shapes: tuple[tuple[int, ...], ...], optimize: Any = "auto") -> EinsumPlan:
    """The plan of ``einsum(subscripts, ...)`` over operands of these shapes; ``optimize`` must be hashable."""
    inputs, out = parse(subscripts, shapes)
    sizes = _sizes(subscripts, inputs, shapes)
    terms: list[tuple[str, tuple]] = list(zip(inputs, map(tuple, shapes)))
    steps: list[Pair | Single] = []
    path = contraction_path(inputs, out, {c: guessed(n) for c, n in sizes.items()}, optimize)
    for number, step in enumerate(path):
        last = number == len(path) - 1
        outside = set(out).union(*(n for k, (n, _) in enumerate(terms) if k not in step))
        if len(step) == 1:
            (k,) = step
            reduce, names, shape = _reduce(*terms[k], outside, {})
            result = out if last else names
            steps.append(Single(k, reduce, _perm(names, result)))
            new = (result, tuple(shape[names.index(c)] for c in result))
        else:
            i, j = step
            result = out if last else _natural(terms[i][0], terms[j][0], outside)
            pair, shape = _pair(i, j, terms, outside, result)
            steps.append(pair)
            new = (result, shape)
        terms = [t for k, t in enumerate(terms) if k not in step] + [new]
    return EinsumPlan(tuple(steps), tuple(inputs), out)


def _natural(lhs: str, rhs: str, needed: set[str]) -> str:
    """The order in which dot_general leaves the names of an intermediate result."""
    left, right = dict.fromkeys(lhs), dict.fromkeys(rhs)
    batch = [c for c in left if c in right and c in needed]
    return "".join(
        batch
        + [c for c in left if c in needed and c not in right]
        + [c for c in right if c in needed and c not in left]
    )
