"""What `explain_cache_misses` logs of a call that is not known: the user's line, and what differs, type by type.

Programs search these logs by the phrases that JAX uses ("TRACING CACHE MISS", "different input types", ...), so a miss
of the trace cache is told in that form; those of later caches, which JAX does not tell, as `explain_cache_miss` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

from meshrt.core.source import capture, is_internal
from meshrt.pipeline.misses import CacheMiss, Difference, layers_of

__all__ = ["logged"]

_WEAK_TYPES = "https://docs.jax.dev/en/latest/type_promotion.html#weak-types"
_TYPES = ("dtype", "shape", "weak type", "sharding spec", "varying axes")


def logged(miss: CacheMiss, fun: Callable[..., Any]) -> str | None:
    """The text for a call of `fun`; None for calls of the library's own functions, which no user can mend."""
    code = getattr(layers_of(fun)[-1], "__code__", None)
    if not miss or (code is not None and is_internal(code)):
        return None
    return "\n".join(_lines(miss, code)) if miss.layer == "trace" else str(miss)


def _lines(miss: CacheMiss, code: CodeType | None) -> Iterator[str]:
    defined = "" if code is None else f" defined at {code.co_filename}:{code.co_firstlineno}"
    yield f"TRACING CACHE MISS at {capture()}:"
    redefined = [d for d in miss.differences if d.component == "function identity"]
    if miss.earlier is None or redefined:
        yield f"  never seen function:\n    {miss.function}{defined}"
        if redefined:
            yield (
                f"  but seen another function defined on the same line, called at {miss.earlier}; maybe the function "
                "is being re-defined repeatedly, preventing caching?"
            )
            yield f"  * {redefined[0]}"
        return
    yield f"  for {miss.function}{defined}"
    yield "  all previously seen cache keys differ. For the closest previous key:"
    yield f"  (that of the call at {miss.earlier})"
    if miss.note:
        yield f"  {miss.note}"
    yield from _structure(miss.differences)
    yield from _types(miss.differences)
    yield from _context(miss.differences)


def _structure(differences: Sequence[Difference]) -> Iterator[str]:
    trees = [d for d in differences if d.component == "pytree structure"]
    if trees:
        yield "  different input pytree:"
        yield from (f"  * at {d.where}, now {d.now} and before {d.before}" for d in trees)
    static = [d for d in differences if d.component == "static argument"]
    if static:
        yield "  different input pytree, by static arguments:"
        yield from (f"  * at {d.where.removeprefix('argument ')}, now {d.now} and before {d.before}" for d in static)


def _types(differences: Sequence[Difference]) -> Iterator[str]:
    found = [d for d in differences if d.component in _TYPES]
    if not found:
        return
    yield "  different input types:"
    whole = {d.where: d.types for d in found if d.types is not None}
    for where, (before, now) in whole.items():
        old, new = before.short(), now.short()
        if before.weak_type != now.weak_type:
            old, new = f"{old}{{weak_type={before.weak_type}}}", f"{new}{{weak_type={now.weak_type}}}"
        yield f"  * at {where.removeprefix('argument ')}, now {new} and before {old}"
    yield from (f"  * {d}" for d in found if d.types is None)
    if any(d.component == "weak type" for d in found):
        yield f"  {_WEAK_TYPES} says which values have weak types"


def _context(differences: Sequence[Difference]) -> Iterator[str]:
    others = ("pytree structure", "static argument", *_TYPES)
    found = [d for d in differences if d.layer == "trace" and d.component not in others]
    if found:
        yield "  Tracing context doesn't match, e.g. due to config or context manager."
        for d in found:
            what = d.where if d.component == "setting" else f"{d.component} of {d.where}" if d.where else d.component
            yield f"  * {what} differs: now {d.now} and before {d.before}"
