"""Rules of the kernels of linear algebra, by the names of their custom calls: LAPACK's, and those of CUDA and ROCm
devices.

A kernel works on one matrix after another. All its operands and results start with the same batch dimensions, as many
as the largest operand has beside its matrix (or vector); these pass through, matrices are whole. Right-hand sides are
independent of one another, too.

    lapack_sgetrf_ffi of f32[16, 4, 4]: ([i, j, k])->([i, l, m], [i, n], [i]), all but i need replication

Shardy has no rules for them: without the attribute that JAX writes onto each call, batches come out whole there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from ..graph import Op
from ..model import OpRule
from .builder import NEED_REPLICATION, RuleBuilder
from .options import RuleOptions

__all__ = ["KERNELS", "kernel_rule", "solves_from_left"]


class Kernel(NamedTuple):
    """What is known of a kernel beside its types.

    rank    of the largest operand without its batch: 2 for matrices, 1 for vectors
    sides   the operand that holds right-hand sides; what becomes of it is the result of that place, or the only one
    side    whether they are columns (True) or rows, of a call; None if that is not known
    """

    rank: int = 2
    sides: int | None = None
    side: Callable[[Op], bool | None] | None = None


def solves_from_left(op: Op) -> bool | None:
    """Whether the matrix stands on the left of the right-hand sides, by a call's settings; None if they do not say."""
    config = str(op.attrs.get("mhlo.backend_config", op.attrs.get("backend_config", "")))
    letter = re.search(r"\bside = (\d+)", config)
    if letter is not None:
        return chr(int(letter[1])) == "L"
    flag = re.search(r"\bleft(?: = (true|false))?\b", config)
    return None if flag is None else flag[1] != "false"


_MATRICES = Kernel()
_ROUTINES = {
    **dict.fromkeys(
        ("gees", "geev", "gehrd", "geqp3", "geqrf", "gesdd", "gesvd", "getrf", "heevd", "hetrd", "orgqr", "potrf",
         "syevd", "sytrd", "ungqr"), _MATRICES),
    "gtsv": Kernel(sides=3, side=lambda op: True),
    **dict.fromkeys(("ormqr", "unmqr"), Kernel(sides=2, side=solves_from_left)),
    "trsm": Kernel(sides=1, side=solves_from_left),
}  # fmt: skip
_SOLVERS = (
    "geev", "geqrf", "gesdd", "gesvd", "gesvdj", "gesvdp", "getrf", "orgqr", "ormqr", "potrf", "syevd", "syrk", "sytrd",
)  # fmt: skip

KERNELS: dict[str, Kernel] = {
    **{f"lapack_{letter}{name}_ffi": kernel for name, kernel in _ROUTINES.items() for letter in "sdcz"},
    **{f"{device}solver_{name}_ffi": _ROUTINES.get(name, _MATRICES) for name in _SOLVERS for device in ("cu", "hip")},
    **{f"{device}hybrid_{name}": _MATRICES for name in ("eig_real", "eig_comp", "geqp3") for device in ("cu", "hip")},
    **{f"{device}sparse_gtsv2_ffi": _ROUTINES["gtsv"] for device in ("cu", "hip")},
    **{f"{device}_lu_pivots_to_permutation": Kernel(rank=1) for device in ("cu", "hip")},
    **dict.fromkeys(
        ("tridiagonal_solve_perturbed_ffi", "cu_tridiagonal_solve_perturbed", "hip_tridiagonal_solve_perturbed"),
        _ROUTINES["gtsv"],
    ),
}


def kernel_rule(op: Op, options: RuleOptions, kernel: Kernel) -> OpRule | None:
    """The rule of a call of `kernel`."""
    if options.faults:
        return None
    shapes = [v.type.shape for v in (*op.operands, *op.results)]
    count = len(op.operands)
    batch = max(map(len, shapes[:count])) - kernel.rank
    builder = RuleBuilder.of(op)
    for dim in range(batch):
        builder.add_everywhere(dim, max(shapes, key=len)[dim])
    free = _right_hand_sides(op, kernel, batch, shapes, builder)
    for i, shape in enumerate(shapes):
        for dim in range(min(batch, len(shape)) if shape else 0, len(shape)):
            if (i, dim) not in free:
                only = [dim if i == j else None for j in range(len(shapes))]
                builder.add(only[:count], only[count:], shape[dim], NEED_REPLICATION)
    return builder.build()


def _right_hand_sides(
    op: Op, kernel: Kernel, batch: int, shapes: list[tuple[int, ...]], builder: RuleBuilder
) -> set[tuple[int, int]]:
    """Adds the factor of the right-hand sides; returns the dimensions (of a tensor, which one) that it stands at."""
    if kernel.sides is None or kernel.side is None:
        return set()
    from_left = kernel.side(op)
    if from_left is None:
        return set()
    count, dim = len(op.operands), batch + (1 if from_left else 0)
    place = count + (kernel.sides if len(shapes) > count + 1 else 0)
    dims = [dim if i in (kernel.sides, place) else None for i in range(len(shapes))]
    builder.add(dims[:count], dims[count:], shapes[kernel.sides][dim])
    return {(kernel.sides, dim), (place, dim)}
