"""Operations over high types whose rules are given operand by operand: `HiPrimitive`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from meshrt import errors
from meshrt.core.basic.parts import cotangent_of
from meshrt.core.high import StateCell, TypeInState, TypeWrittenTo
from meshrt.core.lojax import completed
from meshrt.core.primitive import Primitive, as_list, is_undefined
from meshrt.core.types import aval_of, in_program
from meshrt.interpreters.ad import Zero
from meshrt.transforms.batching import MappedAxis

__all__ = ["AlwaysHigh", "AxisData", "HiPrimitive"]


class AlwaysHigh(Primitive):
    """A primitive of which every application is high."""

    __slots__ = ()

    def is_high(self, *avals: Any, **params: Any) -> bool:
        return True


class HiPrimitive(Primitive):
    """An operation that takes or makes values of high types, declared by the methods of a subclass:

        abstract_eval(*types, **params)             (type of the result, set of effects); a list of types with
                                                    `multiple_results`. The type of a mutable operand comes as a
                                                    `TypeWrittenTo`: `kind.aval`, and `kind.mutable_qdd` with the state
                                                    `cur_val`, which `update(state)` replaces
        to_lojax(*values, **params)                 the result, computed from the arrays that values consist of
        jvp(primals, tangents, **params)            (result, its tangent); `Zero`s stand for zero tangents
        transpose(ct, *operands, **params)          a cotangent (or None) per operand; those that are to be given one
                                                    are `is_undefined_primal`
        batch(axis_data, values, dims, **params)    (result, where its mapped dimension stands)
        is_high(*types, **params)                   whether an application is high; always, if not given
        is_effectful(params)                        accepted: effects are those that `abstract_eval` names

    >>> class Unpack(HiPrimitive):
    ...     def abstract_eval(self, pair): return pair.part, set()
    ...     def to_lojax(self, pair): return pair.first + pair.second
    >>> unpack_p = Unpack("unpack")
    >>> unpack_p.bind(Pair(x, y))

    What is used and was not given is named in an UnsupportedError.
    """

    multiple_results = False  # type: ignore[misc]

    def __init__(self, name: str):
        kind: Any = type(self)
        rules: Any = self
        given = lambda method: getattr(kind, method, None) is not getattr(HiPrimitive, method, None)
        super().__init__(
            name,
            self._result_types,
            jvp=self._jvp_rule(rules.jvp) if given("jvp") else self._lacking("jvp", "differentiation"),
            transpose=self._transpose_rule(rules.transpose) if given("transpose") else None,
            batch=self._batch_rule(rules.batch) if given("batch") else None,
            batch_axis=True,
            effects=self._stated_effects,
            mutates=self._states_after,
            to_lojax=self.to_lojax if given("to_lojax") else self._lacking("to_lojax", "running or compiling"),
            multiple_results=kind.multiple_results,
            cache_types=False,
        )
        if given("is_high") and not _positional(kind.is_high):
            by_parameters = self.is_high
            self.__dict__["is_high"] = lambda *_, **params: by_parameters(**params)

    def is_high(self, *avals: Any, **params: Any) -> bool:
        return True

    def is_effectful(self, params: dict[str, Any]) -> bool:
        """Whether an application does more than compute a result; what it does is named by `abstract_eval`."""
        return False

    def abstract_eval(self, *avals: Any, **params: Any) -> Any:
        """The type of the result and the effects of an application."""
        self._refuse("abstract_eval", "every application")

    def _result_types(self, *avals: Any, **params: Any) -> Any:
        found = self.abstract_eval(*_shown(avals), **params)[0]
        stated = [in_program(a) for a in found] if self.multiple_results else [in_program(found)]
        lower: Any = self.to_lojax
        if getattr(lower, "__func__", lower) is not HiPrimitive.to_lojax:  # of the class, or an attribute
            compute = lambda *args: as_list(self, lower(*args, **params))
            stated = completed(stated, avals, compute, self.name)
        return stated if self.multiple_results else stated[0]

    def _stated_effects(self, *avals: Any, **params: Any) -> frozenset[Any]:
        return frozenset(self.abstract_eval(*_shown(avals), **params)[1])

    def _states_after(self, avals: Sequence[Any], params: dict[str, Any]) -> dict[int, Any]:
        shown = _shown(avals)
        self.abstract_eval(*shown, **params)
        states = {i: a.mutable_qdd for i, a in enumerate(shown) if type(a) is TypeWrittenTo}
        return {i: state.cur_val for i, state in states.items() if state.cur_val is not state.init_val}

    def _jvp_rule(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
            shown = [Zero(aval_of(p).to_tangent_aval()) if t is None else t for p, t in zip(primals, tangents)]
            outs, found = rule(tuple(primals), tuple(shown), **params)
            if self.multiple_results:
                return list(outs), [_taken(t) for t in found]
            return outs, _taken(found)

        return jvp

    def _transpose_rule(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        def transpose(ct: Any, *operands: Any, **params: Any) -> list[Any]:
            found = [_taken(t) for t in rule(ct, *operands, **params)]
            return [cotangent_of(t, x.aval.to_ct_aval()) if is_undefined(x) else t for t, x in zip(found, operands)]

        return transpose

    def _batch_rule(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        def batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> Any:
            return rule(AxisData.of(axis), args, dims, **params)

        return batch

    def _lacking(self, method: str, asker: str) -> Callable[..., NoReturn]:
        return lambda *_, **__: self._refuse(method, asker)

    def _refuse(self, method: str, asker: str) -> NoReturn:
        raise errors.UnsupportedError(
            f"{asker} requires the primitive {self.name} of type {type(self).__name__} to implement the `{method}` "
            "method, see meshrt.experimental.hijax.HiPrimitive"
        )


def _shown(avals: Sequence[Any]) -> list[Any]:
    """Types as type rules see them: those of mutable values with their states, to be changed."""
    return [TypeWrittenTo(a.aval, StateCell(a.state)) if type(a) is TypeInState else a for a in avals]


def _taken(t: Any) -> Any:
    return None if type(t) is Zero else t


def _positional(method: Callable[..., Any]) -> bool:
    """Whether `is_high` takes the operands' types beside parameters."""
    kinds = [p.kind for p in list(inspect.signature(method).parameters.values())[1:]]
    return any(k in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_OR_KEYWORD) for k in kinds)


class AxisData:
    """A mapped dimension as batching rules of JAX's form see it: `size`, `name`, and the mesh axes it is split over."""

    __slots__ = ("explicit_mesh_axis", "mapped", "name", "size", "spmd_name")

    def __init__(self, mapped: MappedAxis):
        self.mapped, self.size, self.name = mapped, mapped.size, mapped.name
        self.spmd_name = mapped.mesh_axes or None
        self.explicit_mesh_axis = None if mapped.along is None else mapped.along.spec.partitions[0]

    @classmethod
    def of(cls, mapped: MappedAxis) -> AxisData:
        """What a rule is told of an axis."""
        return cls(mapped)

    def __eq__(self, other: object) -> bool:
        return type(other) is AxisData and self.mapped == other.mapped

    def __hash__(self) -> int:
        return hash(self.mapped)
