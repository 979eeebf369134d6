"""Programs that fit into a device's memory, where the one that sends least is estimated not to.

Two things are tried. Passes and loops keep as little as they can (`frugal`): nothing is combined or moved out of loops,
and what loops accumulate stays split. And what takes most of the memory is split over axes that it does not use
(`divisions`): propagation leaves a value whole on every device along an axis that no annotation brings to it, be it a
product of two replicated matrices. Each device then computes its part of it.

Where the program still does not fit that is a finding, not an error: compilers fuse and order as they like, and only
arguments, results and what single operations need are certain (`plan/capacity.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from propagation.model import DimSharding, TensorSharding
from propagation.program import Value, source

from .addresses import Address, addresses
from .annotations import KnownShardings
from .boundary import mesh_of
from .findings import Finding, human
from .heuristics import SHOWN_SHARE, SHOWN_VALUES
from .module import PartitionedProgram
from .options import Options
from .plan.memory import Held
from .preferences import Divided

__all__ = ["divisions", "frugal", "noted"]


def frugal(options: Options) -> Options:
    """The same options, with which programs hold as little as passes and loops can help it. What somebody asked for by
    name (collective matmuls, an order, keeping what was gathered) stays."""
    matmul, order = (asked if asked else False for asked in (options.collective_matmul, options.order))
    return replace(options, combine=False, hoist=False, collective_matmul=matmul, order=order, memory_growth=0.0)


def divisions(known: KnownShardings, made: PartitionedProgram, but: Sequence[Divided] = ()) -> list[Divided]:
    """Ways to split a value that is alive at the peak of `made`, the program that `known` led to, over one axis more:
    the largest values first, and of each first the operation that makes it and its outer dimensions. None of the values
    in `but`, which were split before without its becoming small."""
    asked = {(d.address, d.axis) for d in but}
    found: dict[tuple[str, int, str], Divided] = {}
    by_piece: dict[str, list[tuple[Address, Value]]] = {}
    for address, value in addresses(known.program)[1].items():
        if value.op is not None and not value.op.regions and value.type.is_tensor and value.type.shape:
            by_piece.setdefault(_piece(known, value), []).append((address, value))
    for held in made.memory.alive:
        if held.number is not None:
            continue  # arguments and results keep their shardings
        for address, value in by_piece.get(held.type, ()):
            for divided in _splits(known, address, value):
                if (address, divided.axis) not in asked:
                    found.setdefault((held.type, divided.dim, divided.axis), divided)
    return list(found.values())


def noted(made: PartitionedProgram) -> PartitionedProgram:
    """The program, with a finding if a device is estimated to hold more than it may use. Raises `DeviceMemoryError` if
    that is certain."""
    if made.refused is not None:
        raise made.refused
    limit = made.memory_limit
    if limit is None or not made.exceeds_memory:
        return made
    memory = made.memory
    shown = [h for h in memory.alive[:SHOWN_VALUES] if h.bytes > SHOWN_SHARE * memory.alive[0].bytes]
    message = (
        f"a device is estimated to hold {human(memory.peak)} at once and may use {human(limit)}; the largest are "
        f"{'; '.join(map(_text, shown))}. Split them over more axes by annotations, use smaller batches, compute "
        "activations again in the backward pass, donate arguments that are replaced, or allow more with `memory`"
    )
    where = next((h.where for h in shown if h.where is not None), None)
    made.findings = (*made.findings, Finding("memory", message, where, memory.peak))
    return made


def _text(held: Held) -> str:
    what = held.what if held.number is None else f"{held.what} {held.number}"
    return f"{held.type} {human(held.bytes)} of {what}{f' at {held.where}' if held.where else ''}"


def _piece(known: KnownShardings, value: Value) -> str:
    """The type of a device's part of a value."""
    sharding = known.sharding(value)
    factors = [1] * value.type.rank if sharding is None else [d.factor for d in sharding.dims]
    sizes = [str(-(-n // k)) for n, k in zip(value.type.shape, factors)]
    return f"tensor<{'x'.join([*sizes, value.type.dtype])}>"


def _splits(known: KnownShardings, address: Address, value: Value) -> Iterator[Divided]:
    """The ways to split a value over an axis of the mesh that it does not use, larger axes first."""
    sharding = known.sharding(value)
    mesh = mesh_of(known) if sharding is None else sharding.mesh
    dims = [DimSharding((), True)] * value.type.rank if sharding is None else list(sharding.dims)
    used = set() if sharding is None else {a.name for d in dims for a in d.axes} | {a.name for a in sharding.unreduced}
    for name, size in sorted(mesh.axes, key=lambda axis: -axis[1]):
        for i, (n, dim) in enumerate(zip(value.type.shape, dims)):
            if name in used or size == 1 or n % (size * dim.factor):
                continue
            told = [DimSharding((*d.axes, mesh.axis(name)) if j == i else d.axes, True) for j, d in enumerate(dims)]
            where = None if value.op is None else source(value.op)
            yield Divided(address, value.type.text, i, name, TensorSharding(mesh, told), where)
