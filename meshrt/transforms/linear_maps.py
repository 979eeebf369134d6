"""What `vjp` and `linearize` return: functions that are pytrees, so that they enter and leave jitted functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from meshrt.core.jaxpr import Jaxpr
from meshrt.tree_util import register_pytree_node

__all__ = ["LinearMap", "Pullback"]

Run = Callable[..., Any]  # takes the residuals, then what the map is applied to


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
        program: Jaxpr | None = getattr(run, "program", None)
        if program is None:
            return run
        count = len(residuals)
        shown = program.replace(constvars=program.invars[:count], invars=program.invars[count:])
        return functools.partial(_running, shown, run)

    @property
    def args(self) -> tuple[Any, ...]:
        """The residuals."""
        return (list(self.parts()[1]),)


def _running(program: Jaxpr, run: Run, *args: Any) -> Any:
    return run(*args)


class Pullback(LinearMap):
    """What `vjp` returns: takes a cotangent of the results, gives those of the arguments."""

    __slots__ = ()

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
        return functools.partial(self._call, into=targets)


def _flatten(linear_map: LinearMap) -> tuple[tuple[Any, ...], Run]:
    run, residuals = linear_map.parts()
    return tuple(residuals), run


def _unflatten(kind: type[LinearMap], run: Run, residuals: Sequence[Any]) -> LinearMap:
    return kind(lambda *args, **options: run(residuals, *args, **options), lambda: (run, residuals))


for _kind in (LinearMap, Pullback):
    register_pytree_node(_kind, _flatten, functools.partial(_unflatten, _kind))
