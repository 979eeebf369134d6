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

# Calls within calls that a program is handed to a compiler with; deeper ones are written in place. XLA inlines calls on
# its stack: chains of 150 compile, chains of 200 end the process (jaxlib 0.10.2 on CPUs; measured). Exported programs
# within a program may bring as many again as `EXPORTED_CALLS` says.
NESTED_CALLS = 48
EXPORTED_CALLS = 96

# Operations that are computed again for one residual of a loop; a value that needs more of them is saved. Chosen, not
# measured by itself: what transformers save follows from others in chains of up to ten.
RECOMPUTED_OPERATIONS = 16

# Unfinished executions of one device, over all the sets of devices that it belongs to. Derived: XLA's CPU client admits
# 32 and then blocks in the middle of a launch, which can deadlock programs that communicate.
UNFINISHED_PER_DEVICE = 24

# Bytes of a captured NumPy constant up to which it is written into the program; larger ones become arguments, as the
# program's text would grow with them. Chosen, not measured.
EMBEDDED_CONSTANT_BYTES = 1 << 14

# Shapes per sharding whose division into parts is remembered. Chosen, not measured.
KEPT_SHAPES = 256

# Bytes of host values from which they are copied to CPU devices by several threads, the bytes that a thread copies at
# once, and the most threads. Measured on 2 cores: at 1 MiB handing over costs what it saves, of 64 MiB one thread needs
# 8 ms and two 4.8 ms, as fresh memory costs a page fault per page.
PARALLEL_COPY_BYTES = 4 << 20
COPIED_AT_ONCE_BYTES = 4 << 20
COPYING_THREADS = 8

# Bytes of a block of host memory from which it is kept for the next one of its size once nobody uses it, and the bytes
# that are kept so at most. Measured: 64 MiB copied to 8 CPU devices in fresh memory takes 4.8 to 8 ms, in used 2.5.
POOLED_BLOCK_BYTES = 1 << 20
POOLED_BYTES = 128 << 20

# Earlier calls of functions of one code that are remembered to say what a later one differs in, and codes. Chosen, not
# measured: a call takes about a kilobyte.
REMEMBERED_CALLS = 32
REMEMBERED_FUNCTIONS = 1024

# Interned types, and signatures of arrays of one sharding, from which those that nobody uses are dropped. Chosen: a
# type takes half a kilobyte, a signature two; sweeping 8192 types takes 3 ms, once per as many new ones.
SYMBOLIC_SIZE = 128  # what a symbolic size of a dimension is taken for where costs are compared
KEPT_TYPES = 8192
KEPT_SIGNATURES = 2048

# Sets of devices that one program stays bound to by itself, beside those that calls are ready for. Chosen.
KEPT_DEVICE_SETS = 64

# Calls that are ready to run, of several shardings, devices and settings, per trace of a function that is kept. Chosen.
CALLS_PER_TRACE = 4

# Sets of options of `jit` for one function whose caches are kept while it lives; those of the latest ones are. A
# function has one or two; more come from options that are made anew for each call.
SHARED_OPTIONS = 8

# Elements of random bits up to which a CPU's program calls the function that makes them. Of more, the array between
# the call and its users costs more than the call saves: measured on two cores, 16M normal numbers take 10 % longer
# called, 1M take 20 % less.
CALLED_RANDOM_ELEMENTS = 1 << 20

# Bytes of an array that checkpoints store, check and read as one. Measured: below a MiB handing tiles to threads shows,
# beyond 16 MiB restoring onto other splits reads much that it does not need.
CHECKPOINT_TILE_BYTES = 4 << 20

# Bytes of an array up to which a checkpoint stores it in one piece, where one process holds all of it: putting it
# together costs less than describing, checking and reading its parts. Measured: 2000 arrays of 256 bytes over 8 devices
# are saved in half the time, and restored in a third.
CHECKPOINT_WHOLE_BYTES = 64 << 10

# Threads that write or read the files of a checkpoint, at most; and bytes of arrays that are read ahead of those that
# are being placed on devices. Chosen: reading, checksums and copies leave Python alone.
CHECKPOINT_THREADS = 8
CHECKPOINT_READ_AHEAD_BYTES = 256 << 20

# Bytes up to which kernels are small: where all of a program's convolutions have small ones, XLA's CPU compiler hands
# them to YNNPACK, if every core has a device. Measured, steps on 8 devices of 2 cores: a U-Net (442 KB at most) takes a
# quarter less of the cores' time, a ResNet-50 (9.4 MB) no less, and its first step 1.5 s more.
SMALL_KERNEL_BYTES = 2**20
