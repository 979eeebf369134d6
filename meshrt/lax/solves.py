"""Solutions of equations, whose derivatives follow from the equations and not from how they were solved."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt.api import jvp, linear_transpose, linearize
from meshrt.core.trace import eval_jaxpr
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray, aval_of
from meshrt.custom_derivatives import SymbolicZero, custom_jvp
from meshrt.primitives.control_checks import need_callable
from meshrt.primitives.functions import neg
from meshrt.primitives.linear_solve import LinearSolve, linear_solve_p
from meshrt.transforms.staged import Staged, stage

__all__ = ["custom_linear_solve", "custom_root"]


def _solution_tree(staged: Staged, has_aux: bool, name: str) -> Any:
    """The structure of a function's results, but for what is auxiliary."""
    if not has_aux:
        return staged.out_tree
    parts = tree_util.treedef_children(staged.out_tree)
    if len(parts) != 2:
        raise errors.ArgumentShapeError(
            f"{name}() produced a pytree with structure {staged.out_tree}, but a pytree tuple with auxiliary output "
            "was expected because has_aux was set to True. Return a pair (solution, aux)"
        )
    return parts[0]


def _structure_like(staged: Staged, tree: Any, has_aux: bool, name: str, like: str) -> None:
    found = _solution_tree(staged, has_aux, name)
    if found != tree:
        raise errors.ArgumentTypeError(
            f"{name}() output pytree structure must match {like}, got {found} and {tree}; return a value of the same "
            "structure"
        )


def _shapes_like(staged: Staged, avals: Sequence[ShapedArray], has_aux: bool, name: str) -> None:
    count = _solution_tree(staged, has_aux, name).num_leaves
    got, want = [a.shape for a in staged.out_avals[:count]], [a.shape for a in avals]
    if got != want:
        raise errors.ArgumentValueError(
            f"{name}() output shapes must match b, got {got} and {want}; they are of one space"
        )


@boundary
def custom_root(
    f: Callable[[Any], Any],
    initial_guess: Any,
    solve: Callable[[Callable[[Any], Any], Any], Any],
    tangent_solve: Callable[[Callable[[Any], Any], Any], Any],
    has_aux: bool = False,
) -> Any:
    """A root of `f`, found by `solve(f, initial_guess)`, differentiable in what `f` closes over.

    Args:
      f: from a pytree of arrays to one of the same structure and types.
      solve: returns x with f(x) = 0, and with `has_aux` a pair of that and a pytree that has no derivative.
      tangent_solve: `tangent_solve(g, y)` returns x with g(x) = y for a linear function g, the derivative of `f` at the
        root.

    Raises:
      ArgumentTypeError: a function returns something of another structure than `initial_guess`.

    >>> import meshrt
    >>> newton = lambda f, x: meshrt.lax.fori_loop(0, 20, lambda i, x: x - f(x) / meshrt.grad(f)(x), x)
    >>> sqrt = lambda a: meshrt.lax.custom_root(lambda x: x * x - a, 1.0, newton, lambda g, y: y / g(1.0))
    >>> print(round(float(meshrt.grad(sqrt)(4.0)), 5))
    0.25
    """
    leaves, tree = tree_util.tree_flatten(initial_guess)
    avals = [aval_of(x) for x in leaves]
    one, two = (tree_util.tree_structure((initial_guess,) * n) for n in (1, 2))
    step = lambda x, y: tangent_solve(linearize(f, x)[1], y)
    equation = stage(f, one, avals, kind="custom_root")
    _structure_like(equation, tree, False, "f", "initial_guess")
    solving = stage(functools.partial(solve, f), one, avals, kind="custom_root solve")
    _structure_like(solving, tree, has_aux, "solve", "initial_guess")
    tangent = stage(step, two, [*avals, *avals], kind="custom_root tangent_solve")
    _structure_like(tangent, tree, False, "tangent_solve", "x")
    programs = (equation, solving, tangent)
    first, second, third = (len(s.consts) for s in programs)
    # Rules outlive a trace, so they hold programs without what these captured of it.
    value, solution, change_of = (s.jaxpr for s in programs)

    @custom_jvp
    def root(*args: Any) -> list[Any]:
        return eval_jaxpr(solution, (), [*args[first : first + second], *args[first + second + third :]])

    @root.defjvp
    def root_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        outs = root(*primals)
        found, aux = outs[: len(leaves)], outs[len(leaves) :]
        at_root = lambda *consts: eval_jaxpr(value, (), [*consts, *found])
        _, change = jvp(at_root, tuple(primals[:first]), tuple(tangents[:first]))
        consts = primals[first + second : first + second + third]
        moved = eval_jaxpr(change_of, (), [*consts, *found, *change])
        return outs, [*map(neg, moved), *[SymbolicZero(aval_of(x).to_tangent_aval()) for x in aux]]

    outs = root(*[c for s in programs for c in s.consts], *leaves)
    return tree_util.tree_unflatten(solving.out_tree, outs)


@boundary
def custom_linear_solve(
    matvec: Callable[[Any], Any],
    b: Any,
    solve: Callable[[Callable[[Any], Any], Any], Any],
    transpose_solve: Callable[[Callable[[Any], Any], Any], Any] | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """The solution x of matvec(x) = b by `solve(matvec, b)`, differentiable in `b` and in what `matvec` closes over.

    Args:
      matvec: a linear function from a pytree of arrays to one of the same structure and shapes.
      b: the right-hand side.
      solve: returns x, and with `has_aux` a pair of that and a pytree that has no derivative. It is not differentiated.
      transpose_solve: `transpose_solve(vecmat, b)` solves the transposed system, for derivatives in reverse mode.
      symmetric: whether the system is its own transpose, so that `solve` serves for both.

    Raises:
      ArgumentTypeError: a function returns something of another structure than `b`; a derivative in reverse mode is
        asked for without `transpose_solve`.
      ArgumentValueError: ... of other shapes than `b`.

    >>> import meshrt, meshrt.numpy as mnp
    >>> a = mnp.array([[2.0, 0.0], [0.0, 4.0]])
    >>> meshrt.lax.custom_linear_solve(lambda x: a @ x, mnp.ones(2), lambda mv, b: b / mnp.diag(a))
    Array([0.5 , 0.25], dtype=float32)
    """
    need_callable(matvec, "matvec of custom_linear_solve")
    need_callable(solve, "solve of custom_linear_solve")
    if transpose_solve is None and symmetric:
        transpose_solve = solve
    leaves, tree = tree_util.tree_flatten(b)
    avals, one = [aval_of(x) for x in leaves], tree_util.tree_structure((b,))

    def staged(function: Callable[..., Any], name: str, aux: bool) -> Staged:
        made = stage(function, one, avals, kind="custom_linear_solve")
        _shapes_like(made, avals, aux, name)
        _structure_like(made, tree, aux, name, "b")
        return made

    forward = staged(matvec, "matvec", False)
    solving = staged(functools.partial(solve, matvec), "solve", has_aux)
    backward = pulling = None
    if transpose_solve is not None:
        vecmat = matvec if symmetric else lambda x: linear_transpose(matvec, b)(x)[0]
        backward = forward if symmetric else staged(vecmat, "vecmat", False)
        pulling = staged(functools.partial(transpose_solve, vecmat), "transpose_solve", has_aux)
    programs = (forward, backward, solving, pulling)
    consts = [[] if s is None else s.consts for s in programs]
    outs = linear_solve_p.bind(
        *[c for part in consts for c in part], *leaves,
        jaxprs=LinearSolve(*[None if s is None else s.jaxpr for s in programs]),
        const_lengths=LinearSolve(*map(len, consts)),
    )  # fmt: skip
    return tree_util.tree_unflatten(solving.out_tree, outs)
