"""Functions that move the arrays of a value of a high type and leave the value what it is: constraints and moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.basic.parts import has_parts_derivatives, packed, parts_of
from meshrt.core.tracer import Tracer
from meshrt.core.types import aval_of
from meshrt.transforms.custom_jvp import custom_jvp
from meshrt.transforms.high import is_high, numbered, opened, reopened, spread

__all__ = ["of_arrays", "outlined", "path_in", "said_of_arrays", "through_parts"]


def outlined(tree: Any) -> tuple[list[Any], Any, Any]:
    """The leaves of a tree, whose values of closed high types are whole, their structure, and a tree in which these
    are taken apart, whose leaves stand for the arrays."""
    tree = opened(tree)
    leaves, structure = tree_util.tree_flatten(tree)
    if not any(map(is_high, leaves)):
        return leaves, structure, tree
    return leaves, structure, numbered(reopened(structure, [aval_of(x) for x in leaves]))


def said_of_arrays(
    tree: Any, said: Any, is_leaf: Callable[[Any], bool]
) -> tuple[list[Any], Any, Iterator[tuple[Callable[[], str], Any]]]:
    """What a tree `said` (of shardings, layouts) says of each array in `tree`.

    Returns the leaves of `tree`, whose values of closed high types are whole, their structure, and for each array what
    gives its path, for messages, and what is said of it: for `of_arrays`. TreeError if `said` is no prefix.
    """
    leaves, structure, full = outlined(tree)
    given = spread(said, full, is_leaf)
    return leaves, structure, iter([(partial(path_in, full, i), s) for i, s in enumerate(given)])


def path_in(tree: Any, i: int) -> str:
    """The path of a leaf of a tree, as text."""
    return tree_util.keystr(tree_util.tree_leaves_with_path(tree)[i][0])


def of_arrays(
    move: Callable[[Any, Callable[[], str], Any], Any], value: Any, said: Iterator[tuple[Callable[[], str], Any]]
) -> Any:  # fmt: skip
    """A leaf as `said_of_arrays` gives it, each of whose arrays becomes `move(array, path, what is said of it)`."""
    if not is_high(value):
        return move(value, *next(said))
    kind: Any = aval_of(value)
    mine = list(islice(said, len(kind.lo_ty())))
    return through_parts(value, lambda arrays: [move(a, *s) for a, s in zip(arrays, mine)])


def through_parts(value: Any, move: Callable[[Sequence[Any]], Sequence[Any]]) -> Any:
    """A value of a high type with its arrays moved by `move`, which gives arrays of the same types.

    Derivatives that consist of the arrays' derivatives move likewise; others pass as they are.

    Raises:
      UnsupportedError: the value is one that programs write to.
    """
    kind: Any = aval_of(value)
    if kind.mutable:
        raise errors.UnsupportedError(
            f"a value of type {kind.str_short()} is no array, and what it holds changes: do this to what it holds "
            "(`box.get()`), and set that"
        )
    if not isinstance(value, Tracer):
        return kind.raise_val(*move(kind.lower_val(value)))
    through = lambda v: packed(kind.raise_val(*move(parts_of(v))))
    if has_parts_derivatives(kind):
        return through(value)
    moved = custom_jvp(through)
    moved.defjvp(lambda primals, tangents: (moved(*primals), tangents[0]))
    return moved(value)
