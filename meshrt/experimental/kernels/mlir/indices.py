"""Indices as words.

Dialects extend a narrow integer by its sign bit where it becomes an address, and types of theirs have no sign: an index
of type uint8 from 128 on would become a negative one. What is known of an index is its type in the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from meshrt import tree_util
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.experimental.kernels.mlir.conversions import converted
from meshrt.experimental.kernels.mlir.walk import Walk
from meshrt.primitives.state_indices import Indexer

__all__ = ["operands_of", "places_of"]

_I32 = np.dtype(np.int32)


def operands_of(walk: Walk, eqn: Eqn, leaves: Sequence[Any]) -> Any:
    """What an operation on references got as its last operands, in its `tree`, with the indices of views as words:
    elements of a reference are fewer than those count."""
    tree, atoms = eqn.params["tree"], eqn.invars[len(eqn.invars) - len(leaves) :]
    given, types = (tree_util.tree_unflatten(tree, xs) for xs in (leaves, [a.aval for a in atoms]))
    is_indexer = lambda node: isinstance(node, Indexer)

    def words(part: Any, its_types: Any) -> Any:
        if not is_indexer(part):
            return part
        return tree_util.tree_map(lambda index, aval: _word(walk, index, aval), part, its_types)

    return tree_util.tree_map(words, given, types, is_leaf=is_indexer)


def places_of(walk: Walk, index_map: Jaxpr, operands: Sequence[Any]) -> list[ir.Value]:
    """What the index map of a block says, as words."""
    found = walk.jaxpr(index_map, operands)
    return [_word(walk, place, atom.aval) for place, atom in zip(found, index_map.outvars)]


def _word(walk: Walk, index: Any, aval: Any) -> Any:
    return converted(walk, index, aval.shape, aval.dtype, _I32) if isinstance(index, ir.Value) else index
