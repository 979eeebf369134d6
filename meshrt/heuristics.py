"""The thresholds of meshrt: numbers that were chosen rather than derived, under a name, with unit and origin.

They decide how long something is kept and which of two equal ways is taken, never what a program computes. Time limits
of the launcher and of distributed programs stand beside the protocols that they belong to, figures of hardware in
`configs/topologies`; those of the other packages in `propagation.heuristics` and `collectives.heuristics`.
"""

from __future__ import annotations

__all__: list[str] = []  # constants are imported by name

# Eager operations over Jaxprs (loops, branches, jitted functions) that stay compiled; the least recently used goes
# first. A function written inside another is a new one, and a new Jaxpr, on every call. Chosen, not measured.
KEPT_OVER_JAXPRS = 256

# Eager operations that stay compiled, one for each primitive and its parameters (positions of slices, exponents);
# beyond them the older half goes. Chosen, not measured.
KEPT_OPERATIONS = 4096

# Leaves of an argument structure up to which code is made for it: what the function made takes longer to compile than
# it is likely to save. Chosen, not measured; structures of 100 leaves gain a fifth of a call.
CODED_LEAVES = 4096

# Containers within containers up to which code is made for a structure: CPython's parser refuses expressions of more
# than about 100 levels of parentheses. Derived from that, with a margin.
CODED_DEPTH = 40

# Operations that are computed again for one residual of a loop; a value that needs more of them is saved. Chosen, not
# measured by itself: what transformers save follows from others in chains of up to ten.
RECOMPUTED_OPERATIONS = 16

# Unfinished executions of one device, over all the sets of devices that it belongs to. Derived: XLA's CPU client admits
# 32 and then blocks in the middle of a launch, which can deadlock programs that communicate.
UNFINISHED_PER_DEVICE = 24

# Bytes of a captured NumPy constant up to which it is written into the program; larger ones become arguments, as the
# program's text would grow with them. Chosen, not measured.
EMBEDDED_CONSTANT_BYTES = 1 << 14
