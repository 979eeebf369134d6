"""Rows that call public functions in both libraries.

A row is an expression over `np` (`meshrt.numpy` or `jax.numpy`) and the operands below, which are arguments of the
traced program. "! " before it: it needs concrete operands and runs eagerly. "~1e-4 ": its tolerance.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jj
import numpy
import numpy as np

import meshrt
import meshrt.numpy as mj

from .judge import assert_same, sample

OPERANDS: dict[str, np.ndarray] = {
    "F": sample((4, 3), "float32"),
    "V": sample((5,), "float32"),
    "I": sample((4, 3), "int32", -5, 5),
    "J": sample((7,), "int32", 0, 4),
    "S": sample((3, 3), "float32", -1, 1) + 2 * np.eye(3, dtype=np.float32),
    "B": sample((2, 4, 4), "float32", -1, 1),
    "C": sample((3, 4), "complex64", -1, 1),
    "D": sample((2, 4, 4), "complex64", -1, 1),
    "E": np.zeros((0, 3), np.float32),
    "U": np.uint8([1, 255, 7, 128]),
    "T": np.array([True, False, True]),
    "N": np.float32([3, np.nan, 1, np.inf, -np.inf, 2, np.nan]),
    "H": np.float16([1, 2, 3.5]),
    "X3": sample((2, 3, 4), "float32", -1, 1),
}
LIBRARIES = ((meshrt, mj), (jax, jj))
TOLERANCE = 2e-5
# What JAX raises, most telling first: ours must derive from the same.
KINDS = (TypeError, ValueError, NotImplementedError, IndexError, OverflowError, RuntimeError)


@dataclasses.dataclass(frozen=True)
class Row:
    """An expression, the operands that it names, and how results are compared."""

    text: str
    eager: bool
    tolerance: float

    @property
    def operands(self) -> dict[str, np.ndarray]:
        names = compile(self.text, "row", "eval").co_names
        return {n: OPERANDS[n] for n in names if n in OPERANDS}

    def call(self, library: Any, values: dict[str, Any]) -> Any:
        """The expression's value; `library` is `meshrt.numpy` or `jax.numpy`."""
        return eval(self.text, {**values, "np": library, "onp": numpy})


def rows(text: str) -> Iterator[Row]:
    """The rows of a family."""
    for line in filter(None, map(str.strip, text.splitlines())):
        eager, line = line.startswith("! "), line.removeprefix("! ")
        tolerance = TOLERANCE
        if line.startswith("~"):
            given, line = line[1:].split(" ", 1)
            tolerance = float(given)
        yield Row(line, eager, tolerance)


def arrays(x: Any) -> list[Any]:
    """The arrays in a result of tuples and lists."""
    if isinstance(x, tuple | list):
        return [leaf for e in x for leaf in arrays(e)]
    return [x] if hasattr(x, "dtype") else []


def refusal(library: Any, np_library: Any, row: Row) -> Exception | None:
    """What tracing a row, or running it, raises."""
    try:
        if row.eager:
            row.call(np_library, row.operands)
        else:
            library.eval_shape(lambda values: arrays(row.call(np_library, values)), row.operands)
    except Exception as e:
        return e
    return None


def refusal_differs(row: Row, theirs: Exception, ours: Exception | None) -> str | None:
    """Why the errors of both libraries are not of one kind."""
    kind = next((k for k in KINDS if isinstance(theirs, k)), None)
    if ours is None or (kind is not None and not isinstance(ours, kind)):
        return f"{row.text}: JAX raises {type(theirs).__name__}: {str(theirs)[:200]}; ours: {ours!r}"
    return None


def differences(text: str) -> list[str]:
    """What differs between the libraries in a family: all rows that can be traced run in one program for each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong, traced = [], []
        for row in rows(text):
            theirs = refusal(jax, jj, row)
            if theirs is not None:
                wrong.append(refusal_differs(row, theirs, refusal(meshrt, mj, row)))
            elif row.eager:
                wrong.append(difference(row, *(arrays(row.call(n, row.operands)) for _, n in LIBRARIES)))
            else:
                traced.append(row)
        outs = [at_once(library, n, traced, Row.call) for library, n in LIBRARIES]
        wrong += [difference(row, *pair) for row, *pair in zip(traced, *outs)]
        return [w for w in wrong if w is not None]


def at_once(library: Any, np_library: Any, traced: list[Row], call: Callable[..., Any]) -> list[list[Any]]:
    """The results of rows, from one program."""
    program = lambda all_values: [arrays(call(r, np_library, v)) for r, v in zip(traced, all_values)]
    return library.jit(program)([row.operands for row in traced])


def difference(row: Row, ours: list[Any], theirs: list[Any], weak: bool = True) -> str | None:
    """What a result of ours has that JAX's has not, in one line."""
    try:
        assert_same(ours, theirs, row.tolerance, weak)
    except AssertionError as e:
        return f"{row.text}: {' '.join(str(e).split())[:400]}"
    return None
