"""Scopes of operations as people read them: layers, and whether it is the forward or the backward pass."""

from __future__ import annotations

import re

__all__ = ["BACKWARD", "FORWARD", "layer_of", "split_scope"]

FORWARD, BACKWARD = "forward", "backward"
# What differentiation writes around the names of scopes.
_WRAPPED = re.compile(r"(transpose|jvp|linearize)\((.*)\)")


def split_scope(scope: str) -> tuple[str, tuple[str, ...]]:
    """The pass and the names of a scope; the pass is "" where nothing is differentiated.

    >>> split_scope("transpose(jvp(layer0))/mlp")
    ('backward', ('layer0', 'mlp'))
    >>> split_scope("jit(step)/vmap(a/b)/")
    ('', ('jit(step)', 'vmap(a/b)'))
    """
    passes: set[str] = set()
    names = []
    for part in _parts(scope):
        while (found := _WRAPPED.fullmatch(part)) is not None:
            passes.add(found[1])
            part = found[2]
        names += [name for name in _parts(part) if name]
    return (BACKWARD if "transpose" in passes else FORWARD if passes else ""), tuple(names)


def layer_of(scope: str) -> str:
    """The layer of a scope, whichever pass it is of: `layer0/mlp`; "" outside of all."""
    return "/".join(split_scope(scope)[1])


def _parts(text: str) -> list[str]:
    """What lies between the slashes of a text, those in parentheses left alone."""
    parts, depth, begin = [], 0, 0
    for i, c in enumerate(text):
        if c == "(":
            depth += 1
        elif c == ")":
            depth -= 1
        elif c == "/" and depth <= 0:
            parts.append(text[begin:i])
            begin = i + 1
    return [*parts, text[begin:]]
