"""Modules with final shardings at random on every value: what only explicit reshards can make consistent."""

from __future__ import annotations

import random

from propagation import program
from propagation.annotations import read_shardings
from propagation.model import AxisRef, DimSharding, Mesh, TensorSharding
from propagation.shardings import Shardings
from propagation.write import write

_COMPUTATIONS = ("sdy.manual_computation", "sdy.named_computation")


def annotated(text: str, seed: int) -> str:
    """The module `text` with new shardings; inside manual computations and bodies of reductions the old ones stay."""
    rng = random.Random(seed)
    p = program.read(text)
    old, new = read_shardings(p), Shardings(p)
    draw = _Pool(rng, next(iter(p.meshes.values())))
    for func in p.funcs.values():
        for arg in func.args:
            new.set(arg, draw(arg.type.rank))
        new.results[func] = [draw(t.rank) for t in func.result_types]
        for op in func.body.walk():
            kept = _is_inside(op, {"sdy.manual_computation"}) or op.name in _COMPUTATIONS
            kept = kept or _is_inside(op, None)
            for value in op.results:
                needed = op.name in ("sdy.sharding_constraint", "sdy.reshard")
                new.set(value, old.get(value) if kept else draw(value.type.rank, needed))
    return str(write(p, new))


def _is_inside(op, names: set[str] | None) -> bool:
    """Whether `op` is in a region of an operation of `names` (None: of one that is no loop, branch or computation)."""
    parent = op.parent_op
    while isinstance(parent, program.Op):
        flow = ("stablehlo.while", "stablehlo.case", "stablehlo.if", *_COMPUTATIONS)
        if parent.name in names if names is not None else parent.name not in flow:
            return True
        parent = parent.parent_op
    return False


class _Pool:
    """Draws shardings; a small number of them, so that values often agree. None: no annotation."""

    def __init__(self, rng: random.Random, mesh: Mesh):
        self.rng, self.mesh = rng, mesh
        self.drawn: dict[int, list[TensorSharding]] = {}

    def __call__(self, rank: int, needed: bool = False) -> TensorSharding | None:
        if not needed and self.rng.random() < 0.15:
            return None
        known = self.drawn.setdefault(rank, [])
        if not known or self.rng.random() < 0.45:
            known.append(self._new(rank))
            return known[-1]
        return self.rng.choice(known)

    def _new(self, rank: int) -> TensorSharding:
        rng, parts = self.rng, []
        for name, size in self.mesh.axes:
            # Halves only: parts of one axis of which neither contains the other have no common refinement.
            if size % 2 == 0 and size > 2 and rng.random() < 0.4:
                parts += [AxisRef(name, 1, 2), AxisRef(name, 2, size // 2)]
            elif size > 1:
                parts.append(self.mesh.axis(name))
        rng.shuffle(parts)
        dims: list[list[AxisRef]] = [[] for _ in range(rank)]
        for part in parts:
            if rank and rng.random() < 0.6:
                dim = rng.choice(dims)
                if not dim or dim[-1].name != part.name or dim[-1].end != part.pre:
                    dim.append(part)
        return TensorSharding(self.mesh, [DimSharding(d) for d in dims])
