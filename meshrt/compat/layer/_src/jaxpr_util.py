"""`jax._src.jaxpr_util`: counts of what programs consist of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from meshrt.extend.core import jaxprs_in_params
from meshrt.numpy.names import missing as _missing

__all__ = [
    "all_eqns", "collect_eqns", "eqns_using_var", "histogram", "primitives", "primitives_by_shape",
    "primitives_by_source", "source_locations",
]  # fmt: skip


def all_eqns(jaxpr: Any, revisit_inner_jaxprs: bool = True) -> Iterator[tuple[Any, Any]]:
    """(program, equation) for all equations of a program and of those inside it."""
    seen: set[int] = set()

    def walk(program: Any) -> Iterator[tuple[Any, Any]]:
        for eqn in program.eqns:
            yield program, eqn
        for eqn in program.eqns:
            for inner in jaxprs_in_params(eqn.params):
                if revisit_inner_jaxprs or id(inner) not in seen:
                    seen.add(id(inner))
                    yield from walk(inner)

    return walk(jaxpr)


def collect_eqns(jaxpr: Any, key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """The equations by `key(equation)`."""
    found: dict[Any, list[Any]] = {}
    for _, eqn in all_eqns(jaxpr):
        found.setdefault(key(eqn), []).append(eqn)
    return found


def histogram(jaxpr: Any, key: Callable[[Any], Any], key_fmt: Callable[[Any], Any] = lambda k: k) -> dict[Any, int]:
    """How many equations there are by `key(equation)`."""
    return dict(Counter(key_fmt(key(eqn)) for _, eqn in all_eqns(jaxpr)))


def primitives(jaxpr: Any) -> dict[str, int]:
    """How many equations there are by primitive."""
    return histogram(jaxpr, lambda eqn: eqn.primitive.name)


def primitives_by_source(jaxpr: Any) -> dict[str, int]:
    """How many equations there are by primitive and line."""
    return histogram(jaxpr, lambda eqn: (eqn.primitive.name, str(eqn.source)), " @ ".join)


def primitives_by_shape(jaxpr: Any) -> dict[str, int]:
    """How many equations there are by primitive and types of results."""

    def shown(eqn: Any) -> str:
        return f"{eqn.primitive.name} :: {', '.join(v.aval.str_short() for v in eqn.outvars) or '()'}"

    return histogram(jaxpr, shown)


def source_locations(jaxpr: Any) -> dict[str, int]:
    """How many equations there are by line."""
    return histogram(jaxpr, lambda eqn: str(eqn.source))


def eqns_using_var(jaxpr: Any, invar: Any) -> Iterator[Any]:
    """The equations that read a variable."""
    return (eqn for _, eqn in all_eqns(jaxpr) if any(v is invar for v in eqn.invars))


__getattr__ = _missing("jax._src.jaxpr_util", __all__)
