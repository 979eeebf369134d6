"""In which order and direction operations are propagated: operation priorities and user priorities.

Operation priorities: five rounds, each of which allows all that the earlier ones allowed. First operations that only
pass values through, then everything along pass-through factors, then every factor, broadcasts last. User priorities
(`p0`, `p1`, ... on dimensions) wrap this: shardings of a lower priority are held back until those above have spread.
"""

from __future__ import annotations

from .factors import BACKWARD, BOTH, FORWARD, NONE
from .model import DimSharding, FactorType, OpRule, TensorSharding
from .ops import PLAIN, POINTWISE
from .program import Op
from .rules.custom import target_of

__all__ = [
    "ALL", "ELEMENTWISE", "ROUNDS", "adds_unit_dimensions", "direction", "directions", "is_elementwise", "kind_of",
    "later_direction", "restore_priority", "split_priorities",
]  # fmt: skip

ROUNDS = 5

# A direction for the factors that do not pass through, and one for those that do.
Mode = tuple[int, int]
ALL: Mode = (BOTH, BOTH)
_NOTHING: Mode = (NONE, NONE)

# What Shardy counts as elementwise: the pointwise operations except some of CHLO, and those of CHLO that broadcast
# their operands.
_UNKNOWN = {f"chlo.{name}" for name in ("_asin_acos_kernel", "mulhi", "next_after", "polygamma", "zeta")}
_BROADCASTING = {name for name in PLAIN if name.startswith("chlo.broadcast_")} - {"chlo.broadcast_select"}
ELEMENTWISE = (POINTWISE - _UNKNOWN) | _BROADCASTING | {
    "sdy.propagation_barrier", "sdy.sharding_constraint", "sdy.reshard"
}  # fmt: skip
_PASSING = ELEMENTWISE | {"stablehlo.reshape", "stablehlo.transpose", "sdy.data_flow_edge"}
_DYNAMIC = {"stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"}
_MOVES = {"MoveToDevice", "MoveToHost"}


def is_elementwise(op: Op) -> bool:
    """Whether the strategies treat the operation as pointwise."""
    name = op.name
    if name in ELEMENTWISE:
        return True
    return name == "stablehlo.bitcast_convert" and op.operands[0].type.shape == op.results[0].type.shape


def adds_unit_dimensions(op: Op) -> bool:
    """Whether a broadcast does no more than add dimensions of size one (or nothing at all)."""
    if op.name != "stablehlo.broadcast_in_dim":
        return False
    before, after = op.operands[0].type, op.results[0].type
    return bool(before.shape) and before.size == after.size


def kind_of(op: Op, as_xla: bool = False) -> str:
    """The kind of an operation, which decides when and in which direction it is visited. `as_xla`: in XLA's own run of
    Shardy, before which broadcasts that only add dimensions of size one become reshapes."""
    name = op.name
    if as_xla and adds_unit_dimensions(op):
        return "passing"
    if name in _PASSING or is_elementwise(op):
        return "passing"
    if name == "stablehlo.custom_call":
        return "passing" if target_of(op) in _MOVES else "other"
    if name in _DYNAMIC:
        return "dynamic"
    return "broadcast" if name == "stablehlo.broadcast_in_dim" else "other"


_AFTER_FIRST: dict[str, tuple[Mode, ...]] = {
    "passing": (ALL, ALL, ALL, ALL),
    "edge": (ALL, ALL, ALL, ALL),
    "dynamic": ((FORWARD, FORWARD), (FORWARD, BOTH), ALL, ALL),
    "broadcast": (_NOTHING, (NONE, BACKWARD), (BACKWARD, BACKWARD), ALL),
    "other": (_NOTHING, (NONE, BOTH), ALL, ALL),
}


def later_direction(kind: str, round: int) -> Mode:
    """The directions of operations of `kind` in `round` (1 to 4)."""
    return _AFTER_FIRST[kind][round - 1]


def direction(op: Op, round: int, kind: str | None = None) -> Mode:
    """The directions of `op` in `round` (0 to 4), as (factors that do not pass through, pass-through factors)."""
    kind = kind or kind_of(op)
    if round:
        return later_direction(kind, round)
    if kind in ("other", "broadcast") or not _is_single_use(op):
        return _NOTHING
    return (FORWARD, FORWARD) if kind == "dynamic" else ALL


def _is_single_use(op: Op) -> bool:
    return all(len(v.uses) == 1 for v in op.operands if v.type.shape)


def directions(rule: OpRule, mode: Mode) -> tuple[int, ...]:
    """`mode` per factor of a rule; blocked factors get none."""
    other, passing = mode
    out = [passing if t == FactorType.PASS_THROUGH else other for t in rule.types]
    for f in rule.blocked:
        out[f] = NONE
    return tuple(out)


def split_priorities(sharding: TensorSharding) -> tuple[TensorSharding, tuple[int, ...]]:
    """The sharding of round 0, in which axes of dimensions with a priority above 0 are held back as replicated, and
    the priorities held back."""
    held: set[int] = set()
    dims, replicated = [], list(sharding.replicated)
    for dim in sharding.dims:
        if dim.priority:
            held.add(dim.priority)
            replicated += dim.axes
            dims.append(DimSharding())
        else:
            dims.append(DimSharding(dim.axes, dim.is_open))
    mesh = sharding.mesh
    replicated.sort(key=mesh.sort_key)
    return TensorSharding(mesh, dims, replicated, sharding.unreduced, sharding.reduction), tuple(sorted(held))


def restore_priority(current: TensorSharding, original: TensorSharding, priority: int) -> TensorSharding:
    """`current` with the dimensions that `original` gives `priority` put back."""
    dims = list(current.dims)
    replicated = list(current.replicated)
    for i, dim in enumerate(original.dims):
        if dim.priority == priority:
            dims[i] = DimSharding(dim.axes, dim.is_open)
            replicated = [a for a in replicated if a not in dim.axes]
    return TensorSharding(current.mesh, dims, replicated, current.unreduced, current.reduction)
