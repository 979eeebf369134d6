"""Mutable values of high types (boxes) at calls of compiled programs: contents go in, contents come out.

What a function closes over is known once it has been traced. Its calls then have these values as one more keyword
argument, and the trace finds them in place of what the function names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.high import is_high_value
from meshrt.core.types import aval_of
from meshrt.transforms.high import leaf_paths

__all__ = ["CLOSED_OVER", "ClosesOver", "Writes", "check_aliases", "finished"]

# No parameter of a function is called so.
CLOSED_OVER = "closed over"


class ClosesOver(Exception):
    """Raised by tracing for whoever drives it: the function closes over mutable values that are not arguments yet."""

    def __init__(self, values: Sequence[Any]):
        super().__init__("a function closes over mutable values")
        self.values = tuple(values)


class Writes:
    """What a program gives: the result of the function, and the contents of the mutable arguments it writes to.

    `finals` has for each of these its position among the mutable arguments and its type in the end.
    """

    __slots__ = ("contents", "finals", "result")

    def __init__(self, result: Any, contents: Iterable[Sequence[Any]], finals: tuple[tuple[int, Any], ...]):
        self.result, self.contents, self.finals = result, tuple(contents), finals


tree_util.register_pytree_node(
    Writes, lambda w: ((w.result, w.contents), w.finals), lambda finals, parts: Writes(parts[0], parts[1], finals)
)


def result_of(whole: Any) -> Any:
    """The structure of what a function returned, of that of what its program gives."""
    node = whole.node_data()
    return whole.children()[0] if node is not None and node[0] is Writes else whole


def mutable_leaves(arguments: Any) -> list[Any]:
    """The mutable values among the leaves of `arguments`, in their order."""
    return [x for x in tree_util.tree_leaves(arguments) if is_high_value(x) and aval_of(x).mutable]


def finished(result: Any, arguments: Any) -> Any:
    """The result of a call, whose writes are carried out in its `arguments`."""
    if type(result) is not Writes:
        return result
    values = mutable_leaves(arguments)
    for (i, final), arrays in zip(result.finals, result.contents):
        final.aval.update_from_loval(final.state, values[i], *arrays)
    return result.result


def check_aliases(arguments: Any, name: str) -> None:
    """Refuses a mutable value that is two arguments of a call, one of them perhaps because the function names it.

    Raises:
      ArgumentValueError: naming both places.
    """
    seen: dict[int, int] = {}
    for i, x in enumerate(tree_util.tree_leaves(arguments)):
        if is_high_value(x) and aval_of(x).mutable and seen.setdefault(id(x), i) != i:
            paths = leaf_paths(tree_util.tree_structure(arguments))
            first, second = (_place(paths[k]) for k in (seen[id(x)], i))
            raise errors.ArgumentValueError(
                f"{name} was given one mutable value of type {aval_of(x).short()} twice, as {first} and as "
                f"{second}: a program would not see that what is written to one is in the other. Pass it once"
            )


def _place(path: Any) -> str:
    if getattr(path[1], "key", None) == CLOSED_OVER:
        return "a value that the function closes over"
    return ("args" if path[0].idx == 0 else "kwargs") + tree_util.keystr(tuple(path[1:]))
