"""Random modules, decided by us and by the real Shardy passes inside jaxlib: `python -m propagation.fuzz --help`.

    generator                                     modules from a seed; elementary, numerics, structure and others
                                                  have the steps that grow them (growing)
    operations                                    modules of one operation, with every attribute drawn
    oracle                                        the real passes, in a child process
    compare                                       every value's sharding, ours beside theirs
    shrink                                        a failing module made small
    sweep                                         all of it together, with a table of agreement

The passes are not imported by anything else in `propagation`.
"""

from __future__ import annotations

from .compare import VERSION, Comparison, compare, differences
from .generator import generate, module
from .oracle import Oracle, run_batch
from .shrink import shrink
from .sweep import Case, Tally, shrink_case, sweep

__all__ = [
    "VERSION",
    "Case",
    "Comparison",
    "Oracle",
    "Tally",
    "compare",
    "differences",
    "generate",
    "module",
    "run_batch",
    "shrink",
    "shrink_case",
    "sweep",
]
