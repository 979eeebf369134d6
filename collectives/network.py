"""How chips are wired, and what a group of devices gets from that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .errors import TopologyError

__all__ = ["Digit", "Link", "Network"]


@dataclass(frozen=True, slots=True)
class Link:
    """What one device gets from the network.

    latency    seconds per step
    bandwidth  bytes per second that it sends in a ring collective
    exchange   the same in an all-to-all, where pieces travel far (None: as `bandwidth`)
    shift      the same in a permute, which uses one direction of one link (None: as `bandwidth`)
    rounds     steps of a ring collective (None: the logarithm of the group's size, as on a switch)

    Raises `TopologyError` for a latency below 0, a rate that is not above 0, and what is no number.

    >>> import collectives
    >>> collectives.Topology(axes={"data": collectives.Link(latency=1e-5, bandwidth=6.25e9)}).link(["data"]).bandwidth
    6250000000.0
    """

    latency: float = 1e-6
    bandwidth: float = 4.5e10
    exchange: float | None = None
    shift: float | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        rates = [self.bandwidth, *[r for r in (self.exchange, self.shift) if r is not None]]
        numbers = [self.latency, *rates, self.rounds or 0]
        if any(isinstance(v, bool) or not isinstance(v, int | float) for v in numbers):
            raise TopologyError(f"latency, bandwidths and rounds of a link are numbers, got {self}")
        if not 0 <= self.latency < math.inf or not all(0 < r < math.inf for r in rates):
            raise TopologyError(f"a link needs latency >= 0 and bandwidth > 0, got {self}")


@dataclass(frozen=True, slots=True)
class Digit:
    """A part of a physical dimension: `size` positions `stride` apart."""

    dim: int
    stride: int
    size: int


@dataclass(frozen=True, slots=True)
class Network:
    """How chips are wired.

    kind       "torus" (a grid whose long dimensions close to rings) or "switch" (everybody reaches everybody)
    limits     the largest shape, one size per dimension
    wrap       a torus dimension of a multiple of this many chips closes to a ring; 0: none does
    wrap_all   whether that needs every dimension to be such a multiple
    latency    seconds per hop
    bandwidth  bytes per second, one way: of one link of a torus, of a device's port to a switch
    between    what one device gets from the network between such hosts (of TPUs: slices); None where nothing is known

    A shape has a size for each of the `limits`; one more, the last, is the number of hosts.

    Raises `TopologyError` for another kind, limits that are not positive sizes, and what `Link` does not take.

    >>> import collectives
    >>> network = collectives.Network("torus", (16, 16), latency=1e-6, bandwidth=4.5e10, wrap=16)
    >>> network.closes((16, 4), 0), network.closes((16, 4), 1)
    (True, False)
    """

    kind: str
    limits: tuple[int, ...]
    latency: float
    bandwidth: float
    wrap: int = 0
    wrap_all: bool = False
    between: Link | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("torus", "switch"):
            raise TopologyError(f"a network is a 'torus' or a 'switch', got {self.kind!r}")
        if not self.limits or any(type(n) is not int or n < 1 for n in self.limits):
            raise TopologyError(f"limits of a network are positive sizes, got {list(self.limits)}")
        if type(self.wrap) is not int or self.wrap < 0 or type(self.wrap_all) is not bool:
            found = f"{self.wrap!r}, {self.wrap_all!r}"
            raise TopologyError(f"wrap of a network is a size, 0 or more, and wrap_all true or false, got {found}")
        Link(self.latency, self.bandwidth)  # checks them

    def closes(self, shape: tuple[int, ...], dim: int) -> bool:
        """Whether a dimension of this shape is a ring."""
        if self.kind != "torus" or not self.wrap:
            return False
        fits = [n % self.wrap == 0 for n in shape]
        return all(fits) if self.wrap_all else fits[dim]

    def hosts(self, shape: tuple[int, ...]) -> int:
        """How many hosts a shape has."""
        return shape[-1] if len(shape) > len(self.limits) else 1

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises `TopologyError` for a shape that this hardware is not made in."""
        most, written = ("x".join(map(str, sizes)) for sizes in (self.limits, shape))
        rank = len(self.limits)
        if len(shape) != rank and (self.between is None or len(shape) != rank + 1):
            more = "" if self.between is None else f", and of several hosts x their number, as in {name}:{most}x2"
            raise TopologyError(f"{name} has no shape {written}; write a shape of up to {most}{more}")
        if any(n > m for n, m in zip(sorted(shape[:rank]), sorted(self.limits))):
            more = "" if self.between is None else f"; use several hosts, as in {name}:{most}x2"
            raise TopologyError(f"{name} is made up to {most}, not {written}{more}")

    def shape_for(self, devices: int) -> tuple[int, ...] | None:
        """The most nearly square shape of as many devices, on one host if that is made; None if none is."""
        return next(self.shapes_for(devices), None)

    def shapes_for(self, devices: int) -> Iterator[tuple[int, ...]]:
        """The shapes of as many devices, the one on fewest hosts first: the most nearly square one of each size of
        hosts. Hosts are alike, and need not be full: 12 devices are 2 hosts with 6 of their 8, or 3 with 4.

        >>> network = Network("switch", (8,), latency=1e-6, bandwidth=4.5e10, between=Link())
        >>> list(network.shapes_for(12))
        [(6, 2), (4, 3), (3, 4), (2, 6), (1, 12)]
        """
        most = math.prod(self.limits) if self.between is not None else devices
        for each in range(min(most, devices), 0, -1):
            shape = None if devices % each else _shape_within(each, self.limits)
            if shape is not None:
                yield shape if each == devices else (*shape, devices // each)
            if self.between is None:
                return

    def link(self, shape: tuple[int, ...], digits: Iterable[Digit]) -> Link:
        """What a group gets whose members differ in these digits of their positions.

        Rings over several dimensions share the work, so their bandwidths add up. An all-to-all is bound by what
        crosses the middle of its longest dimension. Groups that lie `stride` apart in one dimension share its links.
        What goes between hosts is shared by the members of a group on one host, each of which has a port there.
        """
        rank, places = len(self.limits), list(digits)
        inside = [d for d in places if d.dim < rank]
        link = self._inside(shape[:rank], inside)
        hosts = math.prod(d.size for d in places if d.dim == rank)
        if hosts == 1 or self.between is None:
            return link
        members = math.prod(d.size for d in inside)
        return _joined(link, self.between, members, hosts)

    def _inside(self, shape: tuple[int, ...], digits: Iterable[Digit]) -> Link:
        """What a group on one host gets."""
        if self.kind == "switch":
            return Link(self.latency, self.bandwidth)
        bandwidth, rounds, exchange, widest = 0.0, 0, math.inf, 1
        by_dim: dict[int, list[Digit]] = {}
        for d in digits:
            by_dim.setdefault(d.dim, []).append(d)
        for dim, parts in by_dim.items():
            length, stride = math.prod(p.size for p in parts), min(p.stride for p in parts)
            if length == 1:
                continue
            ring = length == shape[dim] and self.closes(shape, dim)
            way = self.bandwidth * (2 if ring else 1) / stride
            bandwidth += way
            exchange = min(exchange, 4 * way / length)
            rounds += stride * (length // 2 if ring else length - 1)
            widest = max(widest, stride)
        if not bandwidth:
            return Link(self.latency, self.bandwidth)
        return Link(self.latency, bandwidth, min(exchange, bandwidth), self.bandwidth / widest, rounds)


def _joined(inside: Link, between: Link, members: int, hosts: int) -> Link:
    """What groups of `members` devices on each of several hosts get, of a link on a host and one that leaves it."""
    if members == 1:
        return between
    everybody = members * hosts
    latency = max(inside.latency, between.latency)
    exchange = between.bandwidth * (everybody - 1) / (everybody - members)  # so much of it goes to other hosts
    rounds = None if inside.rounds is None else inside.rounds + math.ceil(math.log2(hosts))
    return replace(
        inside,
        latency=latency,
        bandwidth=min(inside.bandwidth, between.bandwidth * members),
        exchange=min(inside.exchange or inside.bandwidth, exchange),
        shift=min(inside.shift or inside.bandwidth, between.bandwidth),
        rounds=rounds,
    )


def _shape_within(devices: int, limits: tuple[int, ...]) -> tuple[int, ...] | None:
    """The most nearly square shape within `limits` of as many devices."""
    if len(limits) == 1:
        return (devices,) if devices <= limits[0] else None
    root = round(devices ** (1 / len(limits)))
    for first in sorted((n for n in range(1, min(limits[0], devices) + 1) if devices % n == 0),
                        key=lambda n: (abs(n - root), n)):  # fmt: skip
        rest = _shape_within(devices // first, limits[1:])
        if rest is not None:
            return (first, *rest)
    return None
