"""What passes know about the machine: how long collectives and other items take there, and what memory it has."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from propagation.attributes import DotDims
from propagation.ops import having

from .cost import item_bytes, seconds_to_send
from .heuristics import USABLE_MEMORY_SHARE
from .ir.attributes import DotNumbers
from .ir.program import Collective, LocalOp, LocalValue
from .layout import Atoms
from .network import Link
from .options import Options
from .topology import Topology

__all__ = ["Machine", "dot_dimensions", "features", "flops", "machine_of", "ref_bytes"]


_FREE = having("free")


def ref_bytes(ref: LocalValue) -> float:
    """Bytes of a value; of what is no tensor, none."""
    return 0.0 if ref.type_text is not None else math.prod(ref.shape) * item_bytes(ref.dtype)


@dataclass(frozen=True, slots=True)
class Machine:
    """A topology with the mesh's atoms laid over it.

    memory  bytes that a device may use; None when unknown
    chosen  whether somebody chose the topology; the embedded default only compares plans
    kernel_library  of which programs a compiler for CPUs hands reductions to a library (`Options.kernel_library`)
    """

    atoms: Atoms
    topology: Topology
    memory: float | None
    chosen: bool
    kernel_library: str = "always"
    _links: dict[tuple[int, ...] | None, Link] = field(default_factory=dict, repr=False)

    @property
    def overlaps(self) -> bool:
        """Whether collectives run beside computing: those of virtual CPU devices are computing."""
        return self.topology.compiler != "cpu"

    @property
    def tiles(self) -> bool:
        """Whether arrays lie in tiles of their last two dimensions, so that most changes of shape move elements."""
        return self.topology.compiler == "tpu"

    def link(self, atoms: tuple[int, ...] | None) -> Link:
        """The link of a group that differs in `atoms`."""
        found = self._links.get(atoms)
        if found is None:
            axes = () if atoms is None else self.atoms.axes(atoms)
            found = self._links[atoms] = self.topology.link(a.name for a in axes)
        return found

    def collective(self, c: Collective, bytes_sent: float | None = None) -> float:
        """Predicted time of a collective, or of one of its kind in which a device sends `bytes_sent`."""
        sent = c.bytes if bytes_sent is None else bytes_sent
        return seconds_to_send(c.kind, c.groups[1], sent, self.link(c.across))

    def copy(self, n: float) -> float:
        """Time to read and write `n` bytes."""
        return 2 * n / self.topology.memory_bandwidth

    def compute(self, item: LocalOp) -> float:
        """Predicted time of computing an item without regions: arithmetic of contractions, or the memory that it reads
        and writes."""
        if item.name in _FREE or item.collective is not None:
            return 0.0
        moved = sum(map(ref_bytes, item.operands)) + sum(map(ref_bytes, item.results))
        return max(flops(item) / self.topology.flops, moved / self.topology.memory_bandwidth)


def machine_of(atoms: Atoms, given: Topology | None, options: Options) -> Machine:
    """The machine of a topology, or of none, with what `options` say of its memory, and of the compiler of a machine of
    which nothing else is known."""
    topology = Topology(compiler=options.compiler) if given is None else given
    memory = options.memory
    if memory is None and topology.memory is not None:
        memory = int(topology.memory * USABLE_MEMORY_SHARE)
    return Machine(atoms, topology, memory, given is not None, options.kernel_library)


def dot_dimensions(item: LocalOp) -> DotDims:
    """(lhs batch, rhs batch, lhs contracting, rhs contracting) of a `dot_general`."""
    numbers = item.attribute("dot_dimension_numbers")
    assert isinstance(numbers, DotNumbers), f"{item.name} has no numbers of dimensions"
    return numbers.dims


def flops(item: LocalOp) -> float:
    """Multiplications and additions of a contraction or convolution; of other items none are counted."""
    if item.name == "stablehlo.dot_general":
        lhs = item.operands[0].shape
        return 2.0 * math.prod(item.results[0].shape) * math.prod(lhs[d] for d in dot_dimensions(item)[2])
    if item.name == "stablehlo.convolution":
        return 2.0 * math.prod(item.results[0].shape) * math.prod(item.operands[1].shape) / features(item)
    return 0.0


def features(convolution: LocalOp) -> int:
    """Output features of a convolution: each output element sums over the kernel without them, which are its largest
    common factor with the result in every layout that the dialect allows."""
    out = convolution.results[0].shape
    return max((k for k in convolution.operands[1].shape if k in out), default=1)
