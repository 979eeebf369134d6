"""The thresholds of the package: every number that was chosen rather than derived, under a name, with its unit.

Each comment says what the number bounds, and after it where it comes from:

* "measured:" what was run, and what it showed;
* "chosen, not measured" where it only has to be of the right order of magnitude, or nobody has measured it yet.

None of them changes what a program computes; they decide which of several right programs is written, and how long the
partitioner looks for it. Names say the unit where the number has one: `_BYTES`, `_SHARE` (a part of 1), `_DEVICES`.
The file has a section per room: the reshard planner, the program being built, the passes, `partition/`.
"""

from __future__ import annotations

__all__: list[str] = []  # constants are imported by name

# -- meshes -------------------------------------------------------------------------------------------------------

# Devices of a mesh. The text of a collective names each device in `replica_groups` (8 bytes, two hexadecimal digits
# each), and every distinct grouping is in the program once: 16 MiB of text per grouping at this size.
# Derived from that text; larger meshes are a typed error.
MAX_DEVICES = 1 << 20

# -- the reshard planner: search.py, planner.py, pieces.py, boxes.py, tiles.py ----------------------------------------
# "measured" here: bytes of the plans of the 98 programs of `benchmarks/communication`, without a topology.

# Bytes that one collective, or one message of exact pieces, counts as besides those that it sends wherever bytes are
# estimated before anything is written (plans of a reshard, candidates, the look-ahead), where no topology was chosen.
# It decides between ways of about equal bytes. With a topology it is latency x bandwidth, if that is more.
# Measured: 0 and 64 give the same plans but for two of 132 programs, which send up to 0.8 % more in fewer collectives
# or as many; with 256 a loop of `tests/collectives/test_lookahead.py` sends 2.7 times as much, in 18 in place of 9.
STEP_BYTES = 16.0

# The share of it that counts in candidates and the look-ahead with a topology: moves are counted there more than once
# that several users will share. Measured on 132 programs for v5e:2x4, whose latency is worth 45 KiB, predicted time:
# with 1 it is 0.997 of that without latency in the mean, 0.6 to 1.44; with 1/4 0.999, 0.83 to 1.07; with 1/16 1.000.
ESTIMATED_STEP_SHARE = 1 / 4

# The same where what was written is counted: drafts of loops, whole alternatives, interval moves.
# Measured on eight virtual CPU devices: an all-reduce, all-gather, all-to-all or permute of 64 B takes as long as one
# of 16 KiB (250 us under load), one of 256 KiB two or three times as long, so latency is worth some 100 KiB. Chosen far
# below that, since bytes are what a plan promises. It is enough for one all-gather in place of eight permutes of 256 B
# in a loop over ravelled values (an ODE's adjoint); 132 programs send the same with 0.
MESSAGE_BYTES = 256.0

# States (layouts reached) that one A* search looks at before it starts over with a heavier bound, or gives up.
# Chosen; measured: 200 and 20000 give the same plans.
SEARCH_STATES = 2000

# What the lower bound is multiplied by, search after search: 1 is exact A*; where that sees too many states, weighted
# A* (Pohl 1970) finds a plan of at most this many times the cheapest one's cost.
# Chosen, not measured.
SEARCH_WEIGHTS = (1, 1.5, 4)

# Bytes by which two costs may differ and count as equal: sums of the same fractions of bytes in another order.
# Derived: float64 rounds sums below 4 GiB by less.
EQUAL_COST_BYTES = 1e-6

# Atoms of a reshard up to which it is searched again with every run of atoms taken apart. The number of layouts grows
# with the factorial of the atoms. Chosen; measured: 0 and 20 give the same plans.
FINE_ATOMS = 7

# The share of a plan's cost that one may have, to be taken instead, which scatters sums over axes that the target does
# not have (and gathers them again): such plans have more steps. Chosen; measured: 0.8 and 1 give the same plans.
SCATTER_ELSEWHERE_SHARE = 0.95

# Chains of boundaries with which a program is partitioned whose sub-axes overlap, before the one that sends least is
# taken. Measured on 43 random programs for 6 devices: with 1, 11 send more than with XLA's partitioner, with 2, 6 do.
OVERLAPPING_CHAINS = 4

# Bytes of a sum of chosen elements from which on each device adds up one part, and parts are gathered: words are turned
# into numbers in the parts. Measured on 8 CPU devices: 16 MiB take half as long, 256 KiB about as long.
CHOSEN_IN_PARTS_BYTES = 1 << 20

# Plans remembered per mesh shape over the life of the process. Chosen, not measured: a transformer asks for some
# hundreds.
REMEMBERED_PLANS = 1 << 14

# Devices that differ in the atoms of either layout, up to which exact pieces are planned: the matching of senders to
# receivers grows with their square. Chosen; measured: without exact pieces, two programs of pure reshards ("swap two
# axes", "two moves at once") send 1.5 times as much.
EXACT_DEVICES = 256

# Permutes of one exact exchange; beyond them latencies cost more than the saved bytes. Chosen; measured: 4 gives the
# same plans.
EXACT_ROUNDS = 16

# Boxes that a device's piece of the target may be cut into, as a multiple of EXACT_ROUNDS: most are at home already.
# Chosen, not measured.
BOXES_PER_ROUND = 4

# Permutes of one exact exchange where only it keeps to the bound on memory: beyond them the program grows more than it
# gains. Chosen, not measured.
EXACT_ROUNDS_FOR_MEMORY = 64

# Boxes of an exchange of uneven pieces up to which other ways to cut them are tried too. Chosen, not measured.
RECUT_BOXES = 256

# Boxes of such an exchange over all devices; beyond them planning takes seconds, and latencies more than the bytes.
# Chosen, not measured.
EXCHANGED_BOXES = 1 << 16

# Pairs of (device, part of the source) that are looked at to find those boxes, as a multiple of EXCHANGED_BOXES.
# Chosen, not measured.
PAIRS_PER_BOX = 16

# -- the program being built: ir, reshard/realise*.py, plan/capacity.py ----------------------------------------------

# Elements up to which a value that is larger than all that it is made of (a broadcast, an iota) is computed outside of
# a loop and carried in, rather than computed again inside, where it becomes part of what uses it.
# Chosen, not measured.
LOOP_CAPTURE_ELEMENTS = 1024

# Bytes of an operand up to which a reduction that the runtime lacks is one all-gather and local sums, rather than an
# all-to-all and an all-gather, which send less in two steps. Chosen, not measured.
GATHERED_REDUCTION_BYTES = 256

# Slots of a device's piece, and boxes that may lie in them, up to which what arrives in an exact exchange is chosen
# slot by slot, and joined, on TPUs; beyond them boxes are written one after the other. Chosen, not measured.
FILLED_SLOTS = 8
FILLED_BOXES = 16

# Values that the error for a program which does not fit names, the largest first, and the share of the largest below
# which one is not worth naming. Chosen, not measured.
SHOWN_VALUES = 3
SHOWN_SHARE = 0.01

# -- passes: machine.py, memory.py -----------------------------------------------------------------------------------

# The share of a device's memory that programs get; compilers and runtimes take the rest. Chosen, not measured.
USABLE_MEMORY_SHARE = 0.92

# The share of its estimated memory by which passes may raise a program's where a device's memory is unknown: the
# default of the option `memory_growth`. Chosen, not measured.
MEMORY_GROWTH_SHARE = 0.25

# Bytes by which they may raise it in any case, and whole alternatives as far as they send less. Chosen, not measured.
MEMORY_GROWTH_BYTES = float(1 << 20)

# -- passes: combine.py ------------------------------------------------------------------------------------------------

# A collective is small, and may be combined, if it takes at most this many times its latency. Chosen, not measured:
# at 2 latency is half of its time.
SMALL_LATENCIES = 2

# Latencies' worth of bytes in one combined message, so that a first member does not wait long for a last.
# Chosen, not measured.
COMBINED_LATENCIES = 16.0

# The share of the latency saved that copying members side by side may cost. Chosen, not measured.
PACKING_LATENCY_SHARE = 0.5

# The share of a region's estimated memory by which waiting for each other may raise it, and that of arguments and
# results by which packed copies may raise a program's. Chosen, not measured.
COMBINED_GROWTH_SHARE = 0.01

# Bytes of the largest member laid side by side where no topology was chosen, or arrays lie in tiles (TPU).
# Measured: on eight virtual CPU devices, where a rendezvous takes 20 to 100 us, copies of this size cost much less than
# that, while combining members of 128 KiB made programs slower.
PACKED_BYTES = 1 << 15

# Bytes that are laid side by side whatever else a program needs, if the copies have room there. Chosen, not measured.
PACKED_ALWAYS_BYTES = 1 << 12

# The share of what a program needs that may be laid side by side besides. Chosen, not measured.
PACKED_NEED_SHARE = 1 / 4096

# -- passes: windowed.py, schedule.py, release.py --------------------------------------------------------------------

# Devices of a ring of a collective matmul, each of which is a copy of the contraction in the program.
# Chosen, not measured.
RING_DEVICES = 32

# The share of the time of collective and contraction one after the other that a collective matmul may be predicted to
# take. Chosen, not measured.
RING_TIME_SHARE = 0.95

# Values that a contraction's result may become by renaming dimensions before it is reduce-scattered, itself included,
# for both to be pipelined. Chosen, not measured.
RING_RENAMED = 4

# The share of the simulated time as it was that another order may take. Chosen, not measured.
ORDER_TIME_SHARE = 0.999

# How many values are gathered again at most until a program fits. Chosen, not measured.
RELEASED_VALUES = 64

# -- partition/: prices of choices -------------------------------------------------------------------------------
# "measured" in this and the next sections: bytes of the plans of the 98 programs of `benchmarks/communication`, without
# a topology, with other values. It says how much depends on a number, not that it is the best one.

# What bringing a result later to the layout that propagation chose counts as, as a share of its bytes: its users may be
# content with the layout that it was made in. Chosen; measured: 0.8 and 1 give the same plans.
RESHARD_LATER_SHARE = 0.9

# What resharding an operand counts as, as a share of its bytes, where later operations use the operand too: they may
# share what is moved. Chosen; measured: 1 gives the same plans; 0.7 changes "three-way parallel layers" by -3% as it
# stands, and by +3% where the backward pass recomputes.
RESHARD_SHARED_SHARE = 0.85

# The share of the cost of the best choice among those that leave axes at dimensions where some tensor has them, that
# one may have which brings an axis to a dimension where none has it (an all-to-all and back), to be taken instead.
# Chosen; measured: 0.6 and 0.95 give the same plans.
ELSEWHERE_SHARE = 0.8

# Assignments of axes to factors of one operation that are priced. Chosen; measured: 60 and 6000 give the same plans.
ASSIGNMENTS = 600

# Steps along uses that the look-ahead follows to price a layout, and uses of one value up to which it follows them.
# Measured: 4 and 16 steps give the same plans, 2 steps 13% more bytes for the patches of a vision transformer. With one
# or two uses these patches send 0.63 and 0.5 times as much (the one program that changes); 8 uses change nothing.
LOOKAHEAD_STEPS = 8
LOOKAHEAD_USES = 3

# What the border of a window counts as, as a share of its bytes, where the window of a pooling slides over the same
# operand: one halo may serve both. Chosen; measured: 0.9 and 1 give the same plans.
SHARED_HALO_SHARE = 0.5

# Pointwise operations that are looked at together to find where slices are computed on. Chosen: stencils have dozens.
ALIGNED_OPERATIONS = 256

# -- partition/: what is computed again, or later ----------------------------------------------------------------

# The share of a value's bytes that its sources may have to be remembered for recomputing it in another layout.
# Chosen; measured: 1/16 gives the same plans, 3/4 1% less for a mixture of experts.
RECOMPUTED_SOURCE_SHARE = 1 / 4

# The share of the bytes of moving a value that moving its sources may send for the value to be recomputed.
# Chosen; measured: 1/4 and 0.9 give the same plans.
RECOMPUTED_SENT_SHARE = 0.5

# Values on the way from a value to its sources that are priced. Chosen; measured: 4 and 100 give the same plans.
RECOMPUTED_STEPS = 24

# Operations that an unreduced sum is followed through to see whether deferring its reduction may save anything.
# Measured: with 4 a batch norm over a sharded batch sends 15% more; 64 changes nothing.
DEFERRED_STEPS = 16

# Factors of a product that are looked at to find sums which are multiples of each other, and sums behind one that may
# be. Chosen; measured: 6 and 64 give the same plans.
PRODUCT_FACTORS = 16

# Slices of one concatenation that each join their own part of its operands, rather than cut it out of a whole one.
# Measured: with 1, Maxwell's equations send 13 times as much, the gradient of volume rendering twice as much; 16
# changes nothing.
JOINED_SLICES = 4

# Permutes up to which an interval move stays one of permutes, whatever one all-gather in their place would take: the
# borders of a piece are two. Chosen, not measured.
HALO_MESSAGES = 2

# Slices up to which each fetches its own halo where one exchange for all would send as much; with more of them, one is
# preferred, which takes fewer messages. Measured: 1 changes one stencil by 0.1%, 20 nothing.
SEPARATE_HALOS = 5

# Convolutions that one contraction over a split spatial dimension (the gradient of a kernel) is cut into, so that no
# padding of a piece is multiplied by an infinity (`contraction_cuts.py`); beyond them the operand is gathered.
# Chosen, not measured.
CONTRACTION_PARTS = 4

# -- whole alternatives: alternatives.py ------------------------------------------------------------------------------

# The share of the bytes of all tensors with a contested dimension that must be split otherwise for a second propagation
# to be tried. Measured on 124 programs of `benchmarks/communication`: with 1/4 two fewer are tried for nothing, but the
# smallest train step of `tests/collectives/test_alternatives.py`, which gains, is not tried either.
CONTESTED_SHARE = 1 / 16

# Values that are split over one axis more, one after the other, for a program to fit into a device's memory: each is
# another propagation and partition. Chosen, not measured.
DIVISIONS = 8

# The share of the first program's bytes (of its time, with a topology) that the second may send to be taken instead.
# Measured on the same: seconds send 0.27 to 0.85 times as much, or as much, or more; with 1 rounding would decide.
ALTERNATIVE_SHARE = 0.98

# How often a second propagation is expected to send the partial sums that it leaves along the class which it prefers:
# what is reduced and scattered over devices was or will be gathered again (weights and their gradients, activations and
# theirs). It is tried only where that is less than the first sends over the axis. Measured on the same: those that are
# taken send 0.16 to 0.36 of that; with 1 one more is tried for nothing.
SCATTERED_AND_GATHERED = 2

# Operations that are looked at for chains which every device may compute, as a multiple of those of the program: each
# that sends something may start one. Bounds the time of the search: with 8 it took 0.58 s of the 1.5 s in which a step
# of 48 unrolled layers is partitioned (measured).
CONE_OPERATIONS = 2

# Parts of equal size that one dimension may hold to be made a dimension of their own, and values of which one rewriting
# of a program makes such a dimension. Chosen, not measured: queries, keys and values are three, gates four, heads that
# share keys eight; a stencil's neighbours, of which each is a part of one element, are not meant.
MOST_PARTS = 16
PARTED_VALUES = 1 << 10

# -- partition/: loops and functions -----------------------------------------------------------------------------

# Operations of a callee up to which it is written out at every call; longer ones become functions.
# Measured: with 5, a mixture of experts sends 2.9 times as much (layouts do not pass calls); 400 changes nothing.
INLINED_OPERATIONS = 40

# Drafts of a loop before the layouts and deferred sums that it carries are final.
# Chosen; measured: 2 and 6 give the same plans.
LOOP_WRITES = 3

# Other layouts of what a loop carries that it is drafted in. Chosen; measured: 0, 1 and 16 give the same plans; the
# recurrent networks of `tests/collectives/test_carries.py` need them.
LOOP_TRIALS = 4

# Operations written for such drafts in any program, and in larger ones as a share of theirs.
# Chosen, not measured: bounds the time of partitioning.
TRIAL_OPERATIONS = 200
TRIAL_SHARE = 1 / 4

# The share of a loop's bytes that another layout may send, and of what a device holds of its carried values that it may
# make it hold, to be taken instead. Chosen; measured: 0.8 and 1, and 1 and 4, give the same plans.
TRIAL_SENT_SHARE = 0.98
TRIAL_MEMORY_SHARE = 1.25

# -- partition/: analyses of values ------------------------------------------------------------------------------
# These bound the time of an analysis: beyond them nothing is known. Chosen, not measured.

# Operations that a value is followed back through: what an index tensor holds, whether a value is finite.
ANALYSIS_STEPS = 16
COUNTING_STEPS = 12

# Elements of the largest constant that is looked into for an arithmetic progression.
PROGRESSION_ELEMENTS = 1 << 16

# Values that a masked lookup is followed to on the way to its readers.
LOOKUP_READERS = 512

# Values and calls that are looked at to see over which axes a value differs between devices.
VARYING_VALUES = 4096

# Positions of associative scans that are recognised in slices, and nodes of their combining functions.
SCAN_SHORTEST, SCAN_LONGEST = 8, 1 << 20
SCAN_NODES = 256

# -- partition/: arrays in tiles (TPU) ---------------------------------------------------------------------------

# Elements of a row of a tile: the minor dimension of an array is padded to a multiple of it. Hardware's figure.
TILE_ROW_ELEMENTS = 128

# Elements that columnsort deals at a time where arrays lie in tiles: a tile's row, or the parts of a row that are still
# worth a longer way through memory. Chosen, not measured.
COLUMNSORT_HANDS = (128, 64, 32, 16)

# -- memory ------------------------------------------------------------------------------------------------------

# Results, from the smallest that is large enough, in whose memory a temporary is looked for a place. Programs of
# 100,000 operations are looked through in seconds. Measured: of the communication programs as many are
# near the compiler's figure as with all of them.
ROOMS_TRIED = 32

# Values that are computed within one elementwise operation and looked through for a buffer that its result may take:
# compilers do not fuse without bound either. Chosen, not measured.
FUSED_VALUES = 64

# How often XLA computes a value within one operation that reads it, before it writes it instead. Derived from its
# source (`kAllowedCodeDuplication`).
EMITTED_AGAIN = 15

# All-reduces that one is tried to be combined with, the latest ones. Chosen, not measured.
COMBINED_TRIED = 8

# Elements of an array that XLA's compiler for CPUs gives a kernel of a library of its own to reduce. That compiler's
# figure; measured: of the reductions in the communication programs none of 2048 elements has one, each of 4096 has.
KERNEL_ELEMENTS = 4096

# -- predicted times ---------------------------------------------------------------------------------------------

# Multiplications and additions of a contraction that take as long as one comparison of a sort, one step of a
# window, one multiplication of a matrix decomposition or Fourier transform. Measured on CPUs: 7 ns a comparison where
# a contraction does 50 in a nanosecond, 30 us for 8 x 1024 windows, 3 ms for 8 matrices of 64 x 64 (QR, LU,
# eigenvectors, two solutions).
COMPARISON_WORK = 300.0
WINDOW_WORK = 16.0
LIBRARY_WORK = 5.0

# The same of one multiplication of a convolution in groups of one feature; wider groups take less, on TPUs as far as
# their features fill the lanes of a matrix unit. Measured: on CPUs groups of 1, 8, 32 and 128 of 256 features take 150,
# 9, 3 and 4 times as long as no groups; the compiler for v5e says 119, 127, 7 and 2 of 1, 8, 64 and 256 of 512.
GROUPED_WORK = 100.0
MATRIX_UNIT_LANES = 128

# Steps of a dimension of a window that count: XLA cuts longer windows, as of running sums, into blocks of 16 and
# windows over these. Chosen: a block and the window over blocks.
WINDOW_LONGEST = 32
