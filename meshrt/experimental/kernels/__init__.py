"""Programs over references, composed: references out of arrays, scratch references, bodies on every device of a mesh.

    run_state(f)(values)      makes references of values, runs `f` on them, gives what they hold in the end
    run_scoped(f, *types)     gives `f` references that exist while it runs
    core_map(mesh)(f)         runs `f` on every device of a mesh, where it works on references that it captured
    ds(i, size)               a slice whose start may be traced
    discharge_state(jaxpr)    a program over references as one over values

See docs/refs.md.
"""

from __future__ import annotations

from meshrt.experimental.kernels.core_map import core_map
from meshrt.experimental.kernels.scopes import run_scoped, run_state
from meshrt.primitives.state_indices import Slice, ds
from meshrt.transforms.discharge import discharge_state

dslice = ds

__all__ = ["Slice", "core_map", "discharge_state", "ds", "dslice", "run_scoped", "run_state"]
