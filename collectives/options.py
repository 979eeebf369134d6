"""How to partition."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .errors import OptionError
from .heuristics import MEMORY_GROWTH_SHARE

__all__ = ["COMPILERS", "Options"]

# Those of which something is known, and any other.
COMPILERS = ("cpu", "cuda", "rocm", "tpu", "other")
KERNEL_LIBRARY = ("always", "narrow", "never")


@dataclass(frozen=True, slots=True)
class Options:
    """How to partition.

    allow_full_gather  whether an operation that cannot stay sharded may gather its operand (recorded as a finding);
                       if False that is a `FullGatherError`
    distribute         whether sums over split dimensions are rewritten by the distributive law where that saves
                       communication: None where what is infinite or NaN stays what it is (factors that are known to be
                       finite, or sums whose kind each device tells in a byte); True also with other factors: where one
                       is infinite, or a divisor zero, what is not finite may come out as another value that is not
                       (inf for NaN). Finite values are equal up to rounding, unless a sum before its factor passes
                       the largest number of its type
    gather_custom_calls  whether sharded operands of custom calls that nothing is known of are gathered; if False they
                       are an `UnsupportedOpError`
    uneven_boundary    whether arguments and results of @main may be split over axes that do not divide them: devices
                       then take and return pieces of ceil(size / parts), and what lies behind a dimension's end is
                       never read; if False that is an `UnsupportedShardingError`
    reorder            whether values, where two of their dimensions want one axis, are laid out as propagation in XLA's
                       order decides it (`reordered.py`); arguments and results stay as they are. If False every value
                       starts from the sharding that was handed in
    compare            whether whole programs in other layouts are made beside the one that was propagated, and the
                       cheapest is taken; if False none is, which takes half as long
    repeat             whether every device may compute the same where operands would be gathered over and over, and the
                       arithmetic takes less time than the bytes that are saved (`replicated_chains.py`): on a topology,
                       or without one on a TPU v5e. Virtual CPU devices share cores, so they are slower by it
    unreduced_results  whether results of @main that are declared unreduced leave as addends, one on each device along
                       those axes, for the caller to add up; if False they are an `UnreducedResultError`
    optimize           whether the passes run over the result; without them the program is as it was built
    combine            whether small collectives over the same devices become one
    hoist              whether collectives whose operands no iteration changes leave their loops
    collective_matmul  whether contractions are pipelined with the all-gather before or the reduce-scatter after them:
                       None where the cost model of the topology says that it pays (never without a topology), True
                       wherever it can be done
    order              whether items are put in an order in which messages travel while others are computed: None where
                       a topology was chosen whose network works by itself
    keep_gathered      whether what was gathered once is kept for later users even where the program would then not fit
                       in memory; if False it is gathered again there
    memory             bytes that a device may use; None: what the topology says, less what compilers need themselves
    memory_growth      share of its estimated memory by which passes may raise a program's, where a device's memory is
                       unknown; with 0 nothing is held for users that come later, either
    compiler           the compiler that the program is for, where no topology says: "cpu", "cuda", "rocm", "tpu" or
                       "other", for which nothing is done that only one of them needs; None: it may be any of them, so
                       that this is done as for CPUs
    kernel_library     whether XLA's compiler for CPUs will hand reductions to a library of kernels, which estimates of
                       memory follow: "always", as it does by itself, "never", or for programs with "narrow" types only

    Raises `OptionError` for a value that an option cannot have.

    >>> import collectives
    >>> collectives.Options(allow_full_gather=False).combine
    True
    """

    allow_full_gather: bool = True
    gather_custom_calls: bool = False
    unreduced_results: bool = False
    uneven_boundary: bool = False
    distribute: bool | None = None
    reorder: bool = True
    compare: bool = True
    repeat: bool = True
    optimize: bool = True
    combine: bool = True
    hoist: bool = True
    collective_matmul: bool | None = None
    order: bool | None = None
    keep_gathered: bool = False
    memory: int | None = None
    memory_growth: float = MEMORY_GROWTH_SHARE
    compiler: str | None = None
    kernel_library: str = "always"

    @staticmethod
    def of(options: Mapping[str, Any]) -> Options:
        """The options of these names. Raises `OptionError` for a name that none has."""
        known = [f.name for f in fields(Options)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
                raise OptionError(f"there is no option {name}; {hint}")
        return Options(**options)

    def __post_init__(self) -> None:
        switches = (
            "allow_full_gather",
            "gather_custom_calls",
            "reorder",
            "compare",
            "repeat",
            "optimize",
            "combine",
            "hoist",
            "keep_gathered",
            "unreduced_results",
            "uneven_boundary",
        )
        for name in (*switches, "distribute", "collective_matmul", "order"):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (value is None and name not in switches):
                raise OptionError(f"option {name} is True or False{'' if name in switches else ', or None'}: {value!r}")
        if self.memory is not None and (type(self.memory) is not int or self.memory < 1):
            raise OptionError(f"option memory is a positive number of bytes, or None: {self.memory!r}")
        growth = self.memory_growth
        if isinstance(growth, bool) or not isinstance(growth, int | float) or not 0 <= growth < math.inf:
            raise OptionError(f"option memory_growth is a share of a program's memory, 0 or more: {growth!r}")
        if self.kernel_library not in KERNEL_LIBRARY:
            known = ", ".join(KERNEL_LIBRARY)
            raise OptionError(f"option kernel_library is one of {known}: {self.kernel_library!r}")
        if self.compiler is not None and self.compiler not in COMPILERS:
            near = difflib.get_close_matches(str(self.compiler), COMPILERS, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise OptionError(f"option compiler is one of {', '.join(COMPILERS)}, or None: {self.compiler!r}{hint}")
