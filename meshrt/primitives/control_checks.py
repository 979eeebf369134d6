"""Checks that the control-flow functions share, and the functions they are given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from meshrt import errors, tree_util
from meshrt._tree_paths import TypedLeaf
from meshrt.core.basic.varying import in_order
from meshrt.core.high import told_apart
from meshrt.core.told import Told
from meshrt.core.trace import Tracer
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.control_staging import describe_difference
from meshrt.transforms.arguments import fun_name
from meshrt.transforms.high import leaf_paths
from meshrt.transforms.references import check_distinct, paths_of
from meshrt.transforms.staged import Staged, stage

__all__: list[str] = []


def need_callable(value: Any, what: str) -> None:
    if not callable(value):
        raise errors.ArgumentTypeError(f"{what} must be callable, not a value of type {type(value).__name__}")


def any_tracer(tree: Any) -> bool:
    return any(isinstance(x, Tracer) for x in tree_util.tree_leaves(tree))


class Body(NamedTuple):
    """A function to stage: `call` was made from the user's function `owner`, for `what` (`part` of it, if it has
    several). `names` gives, of the structure of the arguments, what messages call them, where `owner` takes others."""

    call: Callable[..., Any]
    owner: Callable[..., Any]
    what: str
    part: str = ""
    names: Callable[[Any], Sequence[str]] | None = None

    def stage(self, in_tree: Any, in_avals: Sequence[ShapedArray]) -> Staged:
        told = Told(self.owner, fun_name(self.owner), self.part or self.what, self.paths(in_tree))
        return stage(self.call, in_tree, in_avals, self.owner, self.what, told=told)

    def paths(self, in_tree: Any) -> Callable[[], Sequence[str]]:
        names = self.names
        return paths_of(self.owner, in_tree) if names is None else lambda: names(in_tree)

    def check_refs(self, in_tree: Any, args: Sequence[Any], captured: Sequence[Any] = ()) -> None:
        """ArgumentValueError if the function is given a reference twice, or one that it captured."""
        check_distinct(self.what, fun_name(self.owner), args, captured, self.paths(in_tree))


def _shown_output(staged: Staged) -> str:
    return str(tree_util.tree_unflatten(staged.out_tree, staged.out_avals))


def check_pair(staged: Staged, what: str) -> None:
    children = tree_util.treedef_children(staged.out_tree)
    pair = staged.out_tree.node_data()
    if pair is None or pair[0] not in (tuple, list) or len(children) != 2:
        raise errors.ArgumentTypeError(
            f"{what} body output must be a pair, got {_shown_output(staged)}. Return (carry, y), with y=None "
            "for no output"
        )


def _parameter(body: Body, position: int, otherwise: str) -> str:
    """The name of a parameter of the user's function, for key paths."""
    try:
        return list(inspect.signature(body.owner).parameters.values())[position].name
    except (ValueError, TypeError, IndexError):
        return otherwise


def _users_part(body: Body, tree: Any) -> tuple[str, int | None]:
    """(name of the user's carry, its position in the carry of structure `tree`; None if it is the whole)."""
    if body.call is body.owner:
        return _parameter(body, 0, "carry"), None
    if body.what == "fori_loop":  # beside counters of our own
        return _parameter(body, 1, "val"), len(tree_util.treedef_children(tree)) - 1
    return "carry", None


def check_carry_tree(body: Body, tree: Any, carry: Sequence[Any], out_tree: Any, out_avals: Sequence[Any]) -> None:
    """`out_avals` are the types of the body's results, the carry first."""
    if tree == out_tree:
        return
    expected: tuple[Any, Sequence[Any]] = (tree, [aval_of(c) for c in carry])
    got: tuple[Any, Sequence[Any]] = (out_tree, list(out_avals)[: out_tree.num_leaves])
    root, at = _users_part(body, tree)
    if at is not None:
        expected, got = _child(*expected, at), _child(*got, at)
    raise errors.ArgumentTypeError(
        f"{body.what} body function carry input and carry output must have the same pytree structure, but they "
        f"differ:\n\n{_tree_lines(expected, got, root)}\n\n"
        f"Make {fun_name(body.owner)} return a carry of the structure that it takes"
    )


def _tree_lines(expected: tuple[Any, Sequence[Any]], got: tuple[Any, Sequence[Any]], root: str) -> str:
    """Where a carry that goes in and the one that comes out differ in structure."""
    a, b = (tree_util.tree_unflatten(tree, [TypedLeaf(t) for t in avals]) for tree, avals in (expected, got))
    lines = [
        f"input carry {_component(root, path)} is {one} but the corresponding component of the carry output is "
        f"{other}, so {why}"
        for path, one, other, why in tree_util.equality_errors(a, b)
    ]
    return _sentences(lines or [f"input carry {root} is {expected[0]} and the output {got[0]}"])


def _component(root: str, path: Any) -> str:
    return f"component {root}{tree_util.keystr(path)}" if path else root


def _sentences(lines: Sequence[str]) -> str:
    """One sentence, or a list of several."""
    if len(lines) == 1:
        return f"The {lines[0]}."
    return ";\n".join(f"  * the {line}" for line in lines) + "."


def _child(tree: Any, avals: Sequence[Any], at: int) -> tuple[Any, Sequence[Any]]:
    """Structure and types of one child."""
    children = tree_util.treedef_children(tree)
    start = sum(c.num_leaves for c in children[:at])
    return children[at], avals[start : start + children[at].num_leaves]


def plain(aval: ShapedArray) -> str:
    return str(aval).lstrip("~")


def check_carry_types(body: Body, tree: Any, carry: Sequence[Any], out_avals: Any) -> None:
    lines, fixes = [], []
    for i, (value, out) in enumerate(zip(carry, out_avals)):
        aval = aval_of(value)
        why = describe_difference(aval, out)
        more = out.vma.difference(aval.vma)
        if why is None and not more:
            continue
        root, at = _users_part(body, tree)
        path = leaf_paths(tree)[i]
        path = path if at is None else path[1:]
        place = f"{root}{tree_util.keystr(path)}"
        if why is None:
            why = "the axes that they vary over do not match"
            fixes.append(
                f"applying `meshrt.lax.pcast(..., {in_order(more)}, to='varying')` to the initial carry value {place}"
            )
        had, has = told_apart(aval, out, shown=plain)
        lines.append(
            f"input carry {_component(root, path)} has type {had} but the corresponding output carry component has "
            f"type {has}, so {why}"
        )
    if lines:
        make = f"ake {fun_name(body.owner)} return a carry of the types that it takes"
        if len(fixes) < len(lines):
            advice = f"M{make} (convert with astype, or give an initial value of the type that it returns)"
        elif len(fixes) == 1:
            advice = f"This might be fixed by {fixes[0]}; or m{make}"
        else:
            advice = "This might be fixed by:\n  * " + ";\n  * ".join(fixes) + f"\nOr m{make}"
        raise errors.ArgumentTypeError(
            f"{body.what} body function carry input and carry output must have equal types, but they differ:\n\n"
            + _sentences(lines) + f"\n\n{advice}"
        )  # fmt: skip
