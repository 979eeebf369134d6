"""Python's numbers as words.

Where 64-bit types are enabled a Python number in a program is weakly typed as one of 64 bits: the counter of a loop, an
index that is computed from it. Hardware that has no such elements computes them in 32 bits, as it does where 64-bit
types are not enabled. What a program itself asks to be of 64 bits is not weakly typed, and stays so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.core.jaxpr import Eqn, Jaxpr, Literal, Var
from meshrt.core.types import ShapedArray
from meshrt.primitives.conversion import convert_element_type_p

__all__ = ["in_words"]

_WORDS = {np.dtype(np.int64): np.dtype(np.int32), np.dtype(np.float64): np.dtype(np.float32)}
_LEAST, _MOST = np.iinfo(np.int32).min, np.iinfo(np.int32).max


def in_words(jaxpr: Jaxpr) -> Jaxpr:
    """The program with weakly typed numbers of 32 bits, itself if it has no wider ones."""
    made = _Narrowed().program(jaxpr)
    return made if made is not None else jaxpr


def _word(aval: Any) -> Any:
    """The type as one of words; None if it stays."""
    if type(aval) is ShapedArray and aval.weak_type and aval.dtype in _WORDS:
        return aval.update(dtype=_WORDS[aval.dtype])
    return None


class _Narrowed:
    """One program on the way; those inside of its equations are on ways of their own."""

    def __init__(self) -> None:
        self.changed = False
        self.known: dict[Var, Var] = {}

    def program(self, jaxpr: Jaxpr) -> Jaxpr | None:
        """The changed program; None if nothing changes."""
        ins = [self.defined(v) for v in (*jaxpr.constvars, *jaxpr.invars)]
        eqns = [self.equation(e) for e in jaxpr.eqns]
        outs = [self.read(a) for a in jaxpr.outvars]
        if not self.changed:
            return None
        count = len(jaxpr.constvars)
        return Jaxpr(ins[:count], ins[count:], outs, eqns, jaxpr.effects, is_high=jaxpr.is_high, name=jaxpr.name)

    def defined(self, v: Var) -> Var:
        word = _word(v.aval)
        if word is not None:
            self.changed = True
            self.known[v] = Var(word)
        return self.known.get(v, v)

    def read(self, atom: Any) -> Any:
        if type(atom) is not Literal:
            return self.known.get(atom, atom)
        word = _word(atom.aval)
        if word is None or (word.dtype == np.int32 and not _LEAST <= atom.val <= _MOST):
            return atom
        self.changed = True
        return Literal(atom.val, word)

    def equation(self, eqn: Eqn) -> Eqn:
        ins, outs = [self.read(a) for a in eqn.invars], [self.defined(v) for v in eqn.outvars]
        params = {name: self.parameter(value) for name, value in eqn.params.items()}
        if eqn.primitive is convert_element_type_p:
            params["new_dtype"] = outs[0].aval.dtype
        return eqn.replace(ins, outs, params)

    def parameter(self, value: Any) -> Any:
        if isinstance(value, tuple) and value and all(isinstance(v, Jaxpr) for v in value):
            return tuple(map(self.parameter, value))
        if not isinstance(value, Jaxpr):
            return value
        made = _Narrowed().program(value)
        self.changed |= made is not None
        return value if made is None else made
