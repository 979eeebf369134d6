"""What `vjp` and `linearize` return: functions that are pytrees, so that they enter and leave jitted functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors
from meshrt.core.jaxpr import Jaxpr
from meshrt.core.marks import Mark
from meshrt.tree_util import register_pytree_node, tree_leaves

__all__ = ["LinearMap", "NotNeeded", "Pullback", "Run", "places_among"]


class Run:
    """What a map runs: a function of the residuals and what the map is applied to. `program` is the linear program on
    which it rests, where one is known; its first arguments are the residuals."""

    __slots__ = ("_function", "_program")

    def __init__(self, function: Callable[..., Any], program: Jaxpr | None = None):
        self._function, self._program = function, program

    def __call__(self, residuals: Sequence[Any], *args: Any, **options: Any) -> Any:
        return self._function(residuals, *args, **options)

    def program(self, count: int) -> Jaxpr | None:
        """The program, with its `count` residuals as constvars."""
        whole = self._program
        return whole and whole.replace(constvars=whole.invars[:count], invars=whole.invars[count:])


class LinearMap:
    """A linear function and the arrays that it holds, its residuals.

    As a pytree it has the residuals as leaves, and what is computed with them as structure. That half is made when it
    is asked for, by `parts`: a map that is only called runs as it was recorded (`call`). Maps that one trace made have
    equal structures.
    """

    __slots__ = ("__weakref__", "_call", "_made", "_parts", "_types")

    def __init__(
        self, call: Callable[..., Any], parts: Callable[[], tuple[Run, Sequence[Any]]],
        types: tuple[Sequence[Any], Sequence[Any]] | None = None,
    ):  # fmt: skip
        """`types` are those that it takes and gives, for people to read."""
        self._call, self._parts, self._types = call, parts, types
        self._made: tuple[Run, Sequence[Any]] | None = None

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __repr__(self) -> str:
        if self._types is None:
            return object.__repr__(self)
        takes, gives = (", ".join(a.short() for a in types) for types in self._types)
        return f"{type(self).__name__}(({takes}) -> ({gives}))"

    def parts(self) -> tuple[Run, Sequence[Any]]:
        """The function of residuals and arguments, and the residuals."""
        if self._made is None:
            self._made = self._parts()
        return self._made

    # A map is called as a `tree_util.Partial` of these two is.
    @property
    def func(self) -> Callable[..., Any]:
        """The function of residuals and arguments; `func.args[0]` is its Jaxpr where it has one (`linearize`), with
        the residuals as constvars.

        >>> import meshrt
        >>> print(meshrt.linearize(meshrt.numpy.sin, 2.0)[1].func.args[0])
        { lambda a:f32[]; b:f32[]. let c:f32[] = mul b a in (c,) }
        """
        run, residuals = self.parts()
        shown = run.program(len(residuals))
        return run if shown is None else functools.partial(_running, shown, run)

    @property
    def args(self) -> tuple[Any, ...]:
        """The residuals."""
        return (list(self.parts()[1]),)


def _running(program: Jaxpr, run: Run, *args: Any) -> Any:
    return run(*args)


class NotNeeded(Mark):
    """Stands in `args_res` for an argument that the backward pass does not read. A pytree without leaves."""

    __slots__ = ()


class Pullback(LinearMap):
    """What `vjp` returns: takes a cotangent of the results, gives those of the arguments.

    Its residuals are arguments of the function, in `args_res`, and what the function computed, in `opaque_residuals`.
    Both are lists whose elements may be replaced by equal ones, offloaded or read from elsewhere.

    >>> import meshrt
    >>> import meshrt.numpy as jnp
    >>> pull = meshrt.vjp(lambda x, y: jnp.sin(x) + 3 * y, jnp.float32(0.0), jnp.float32(2.0))[1]
    >>> pull.args_res, pull.opaque_residuals
    ([NotNeeded(), NotNeeded()], [Array(1., dtype=float32)])
    """

    __slots__ = ("_lists", "in_tree", "out_tree", "places")

    def __init__(
        self, call: Callable[..., Any], parts: Callable[[], tuple[Run, Sequence[Any]]],
        types: tuple[Sequence[Any], Sequence[Any]] | None, in_tree: Any, out_tree: Any,
        places: Callable[[Sequence[Any]], tuple[int | None, ...]],
    ):  # fmt: skip
        """`places` tells of residuals which leaves of the arguments they are, if any."""
        super().__init__(call, parts, types)
        self.in_tree, self.out_tree, self.places = in_tree, out_tree, places
        self._lists: list[Any] | None = None

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self._lists is None:
            return self._call(*args, **options)
        run, residuals = self.parts()
        return run(residuals, *args, **options)

    def parts(self) -> tuple[Run, Sequence[Any]]:
        run, residuals = super().parts()
        if self._lists is None:
            return run, residuals
        args, opaque = self._lists
        leaves, places = tree_leaves(args, is_leaf=lambda x: type(x) is NotNeeded), self.places(residuals)
        if (len(leaves), len(opaque)) != (self.in_tree.num_leaves, places.count(None)):
            raise errors.ArgumentValueError(
                f"a pullback of {self.in_tree.num_leaves} arguments with {places.count(None)} opaque residuals was "
                f"given args_res with {len(leaves)} leaves and {len(opaque)} opaque_residuals"
            )
        rest = iter(opaque)
        return run, [next(rest) if place is None else leaves[place] for place in places]

    def _sorted(self) -> list[Any]:
        if self._lists is None:
            _, residuals = self.parts()
            leaves: list[Any] = [NotNeeded()] * self.in_tree.num_leaves
            opaque = []
            for value, place in zip(residuals, self.places(residuals)):
                if place is None:
                    opaque.append(value)
                else:
                    leaves[place] = value
            args = self.in_tree.walk(lambda children, _: tuple(children), lambda x: x, leaves)
            self._lists = [list(args), opaque]
        return self._lists

    @property
    def args_res(self) -> list[Any]:
        """The arguments that the backward pass reads, `NotNeeded()` in place of others. Containers are tuples."""
        return self._sorted()[0]

    @args_res.setter
    def args_res(self, values: list[Any]) -> None:
        self._sorted()[0] = values

    @property
    def opaque_residuals(self) -> list[Any]:
        """What else the backward pass reads."""
        return self._sorted()[1]

    @opaque_residuals.setter
    def opaque_residuals(self, values: list[Any]) -> None:
        self._sorted()[1] = values

    @property
    def func(self) -> Callable[..., Any]:
        """The function of residuals and a cotangent."""
        return self.parts()[0]

    fun = func

    @property
    def jaxpr(self) -> Jaxpr | None:
        """The linear program that is transposed, with the residuals as constvars."""
        run, residuals = self.parts()
        return run.program(len(residuals))

    def with_refs(self, *targets: Any) -> Callable[[Any], Any]:
        """The pullback that delivers each cotangent to its target: adds it to a reference, and returns `GradRef()` in
        its place; returns it for `GradValue()`; drops it for `DontWant()`.

        `targets` has the structure of the arguments. For an argument that is a reference, the target is a reference
        too: before, it holds the cotangent of what the argument holds in the end, afterwards that of what it held.

        >>> import meshrt
        >>> total = meshrt.new_ref(0.0)
        >>> value, pull = meshrt.vjp(lambda x: x * x, 3.0)
        >>> pull.with_refs(total)(1.0), total[...]
        ((GradRef(),), Array(6., dtype=float32, weak_type=True))
        """
        return functools.partial(self.__call__, into=targets)


def _flatten(linear_map: LinearMap) -> tuple[tuple[Any, ...], Run]:
    run, residuals = linear_map.parts()
    return tuple(residuals), run


def _unflatten(run: Run, residuals: Sequence[Any]) -> LinearMap:
    return LinearMap(lambda *args, **options: run(residuals, *args, **options), lambda: (run, residuals))


def places_among(leaves: Sequence[Any]) -> Callable[[Sequence[Any]], tuple[int | None, ...]]:
    """Tells of residuals which of the arguments `leaves` they are.

    It refers to no argument: what nobody reads may go. Residuals were made while all arguments were there, so that none
    has the id of one that has gone.
    """
    found = {id(x): i for i, x in enumerate(leaves)}
    return lambda residuals: tuple(found.get(id(r)) for r in residuals)


def _flatten_pullback(pull: Pullback) -> tuple[tuple[Any, ...], Any]:
    run, residuals = pull.parts()
    return tuple(residuals), (run, pull.in_tree, pull.out_tree, pull.places(residuals))


def _unflatten_pullback(kept: Any, residuals: Sequence[Any]) -> Pullback:
    run, in_tree, out_tree, places = kept
    return Pullback(
        lambda *args, **options: run(residuals, *args, **options), lambda: (run, residuals), None,
        in_tree, out_tree, lambda _: places,
    )  # fmt: skip


register_pytree_node(NotNeeded, lambda _: ((), None), lambda *_: NotNeeded())
register_pytree_node(LinearMap, _flatten, _unflatten)
register_pytree_node(Pullback, _flatten_pullback, _unflatten_pullback)
