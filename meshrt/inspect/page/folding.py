"""Trees of groups over the operations of a program: by layer, by Python function, by source line.

In a tree the operations have the numbers that they have in the program, and groups those after them. An operation with
a body is a group itself where the tree follows the program's structure.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from meshrt.inspect.program_rows import OperationRow, ProgramRow
from meshrt.inspect.scopes import BACKWARD, split_scope

__all__ = ["MOST_MEMBERS", "Tree", "by_function", "by_layer", "by_line"]

# Members of a group that are drawn at once; more are put into groups of neighbours. Chosen so that an unfolded group
# of boxes fits a screen.
MOST_MEMBERS = 48
NOWHERE = "no source line"
# What is neither in the forward nor in the backward pass: what leads to them, and what is made of gradients.
ARGUMENTS, BEFORE, AFTER = "arguments", "before the passes", "after the passes"


@dataclass(slots=True)
class Tree:
    """`parents` has the group of each operation and group, None for those at the top; `names` the names of groups."""

    parents: list[int | None]
    names: list[str] = field(default_factory=list)

    def group(self, parent: int | None, name: str) -> int:
        """A new group."""
        self.parents.append(parent)
        self.names.append(name)
        return len(self.parents) - 1

    def members(self) -> dict[int | None, list[int]]:
        """The members of each group in the order of the program: a group stands where its first operation does."""
        count = len(self.parents) - len(self.names)
        first: dict[int, int] = {}
        for op in range(count):
            at: int | None = op
            while at is not None and at not in first:
                first[at] = op
                at = self.parents[at]
        found: dict[int | None, list[int]] = {}
        for node in sorted(first, key=lambda n: (first[n], n)):
            found.setdefault(self.parents[node], []).append(node)
        return found


def by_layer(program: ProgramRow) -> Tree:
    """By function of the module, by the operations with bodies that they are in, and by scopes."""
    operations = program.operations
    split = [split_scope(o.scope) for o in operations]
    back = next((i for i, (side, _) in enumerate(split) if side == BACKWARD), None)
    functions = {o.function for o in operations}
    paths: list[tuple[str, ...]] = []
    for i, (op, (side, names)) in enumerate(zip(operations, split)):
        if op.within is None:
            head = (f"@{op.function}",) if len(functions) > 1 else ()
            if op.kind == "argument":
                head = (*head, ARGUMENTS)
            elif back is not None:
                head = (*head, side or (BEFORE if i < back else AFTER))
            paths.append((*head, *names))
        else:
            outer = split[op.within][1]
            paths.append(names[len(outer) :] if names[: len(outer)] == outer else names)
    return _tree(operations, paths, nested=True)


def by_function(program: ProgramRow) -> Tree:
    """By the Python functions in which the operations were written, where their source is known."""
    defined = {s.path: _Definitions(s.text) for s in program.sources}
    paths = []
    for op in program.operations:
        path, line = _place(op.where)
        found = defined.get(path)
        paths.append(_nowhere(op) if line is None else (path, *(found.around(line) if found is not None else ())))
    return _tree(program.operations, paths)


def by_line(program: ProgramRow) -> Tree:
    """By source file and line."""
    paths = []
    for op in program.operations:
        path, line = _place(op.where)
        paths.append(_nowhere(op) if line is None else (path, f"line {line}"))
    return _tree(program.operations, paths)


def _nowhere(op: OperationRow) -> tuple[str, ...]:
    return (ARGUMENTS if op.kind == "argument" else NOWHERE,)


def _place(where: str | None) -> tuple[str, int | None]:
    path, _, line = (where or "").rpartition(":")
    return path, int(line) if line.isascii() and line.isdecimal() else None


class _Definitions:
    """The functions and classes of a Python file by line; none in a file that is not Python."""

    def __init__(self, text: str):
        self._found: list[tuple[int, int, tuple[str, ...]]] = []
        try:
            self._visit(ast.parse(text), ())
        except (SyntaxError, ValueError, RecursionError):  # MLIR, or a cell with a notebook's own commands
            self._found = []
        self._known: dict[int, tuple[str, ...]] = {}

    def _visit(self, node: ast.AST, path: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            inner = path
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = (*path, child.name)
                self._found.append((child.lineno, child.end_lineno or child.lineno, inner))
            self._visit(child, inner)

    def around(self, line: int) -> tuple[str, ...]:
        """The names of what is defined around a line, the outermost first."""
        if line not in self._known:
            fitting = [path for first, last, path in self._found if first <= line <= last]
            self._known[line] = max(fitting, key=len, default=())
        return self._known[line]


def _tree(operations: Sequence[OperationRow], paths: Iterable[tuple[str, ...]], nested: bool = False) -> Tree:
    """The tree of operations with a path each, below the operation around it if `nested`. Groups of one member are
    left out, those of many are divided."""
    tree = Tree([None] * len(operations))
    made: dict[tuple[int | None, str], int] = {}
    for number, (op, path) in enumerate(zip(operations, paths)):
        at = op.within if nested else None
        for name in path:
            key = (at, name)
            if key not in made:
                made[key] = tree.group(at, name)
            at = made[key]
        tree.parents[number] = at
    return _divided(_with_members(_without_lone_groups(tree, len(operations)), len(operations)))


def _without_lone_groups(tree: Tree, count: int) -> Tree:
    """The tree with groups that are the only member of a group joined to it (`scan/body`), and the only group at the
    top left out."""
    members = tree.members()
    parents, names = tree.parents, tree.names
    for group in range(count, len(parents)):
        while len(inside := members.get(group, [])) == 1 and inside[0] >= count:
            only = inside[0]
            names[group - count] += "/" + names[only - count]
            members[group] = members.pop(only)
            for member in members[group]:
                parents[member] = group
    top = members.get(None, [])
    if len(top) == 1 and top[0] >= count:
        for member in members.pop(top[0]):
            parents[member] = None
    return tree


def _with_members(tree: Tree, count: int) -> Tree:
    """The tree without the groups that have no members."""
    kept = [g for g in sorted(m for m in tree.members() if m is not None) if g >= count]
    numbers = {g: count + i for i, g in enumerate(kept)}

    def parent(node: int) -> int | None:
        found = tree.parents[node]
        return found if found is None else numbers.get(found, found)

    return Tree([parent(n) for n in [*range(count), *kept]], [tree.names[g - count] for g in kept])


def _divided(tree: Tree) -> Tree:
    """The tree with at most `MOST_MEMBERS` members to a group: more are divided among groups of neighbours."""
    for group, members in tree.members().items():
        while len(members) > MOST_MEMBERS:
            size = min(MOST_MEMBERS, -(-len(members) // 2))
            parts = []
            for begin in range(0, len(members), size):
                part = members[begin : begin + size]
                name = f"part {begin // size + 1} of {-(-len(members) // size)}"
                parts.append(tree.group(group, name))
                for member in part:
                    tree.parents[member] = parts[-1]
            members = parts
    return tree
