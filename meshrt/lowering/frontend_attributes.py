"""Names and values at operations that compilers read: XLA's `frontend_attributes`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from propagation.quoting import quote, unquote

__all__ = ["NOT_INLINED", "with_marks"]

# XLA compiles the callee of a call with this as a function of its own.
NOT_INLINED = 'mhlo.frontend_attributes = {"inlineable" = "false"}'

_MARKS = re.compile(r'mhlo\.frontend_attributes = \{((?:"(?:[^"\\]|\\.)*"|[^"}])*)\}')
_MARK = re.compile(r'(?:"((?:[^"\\]|\\.)*)"|([\w.$-]+)) = "((?:[^"\\]|\\.)*)"')


def with_marks(attributes: str, marks: Sequence[tuple[str, str]]) -> str:
    """The discardable attributes of an operation with `marks`; what stands there already wins.

    >>> with_marks('mhlo.frontend_attributes = {"a" = "1"}', [("a", "2"), ("b", "3")])
    'mhlo.frontend_attributes = {"a" = "1", "b" = "3"}'
    """
    found = _MARKS.search(attributes)
    known = {} if found is None else {bare or unquote(k): unquote(v) for k, bare, v in _MARK.findall(found[1])}
    rows = ", ".join(f"{quote(k)} = {quote(v)}" for k, v in sorted({**dict(marks), **known}.items()))
    text = f"mhlo.frontend_attributes = {{{rows}}}"
    if found is not None:
        return attributes[: found.start()] + text + attributes[found.end() :]
    return f"{attributes}, {text}" if attributes else text
