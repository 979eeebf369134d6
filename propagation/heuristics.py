"""The thresholds of the package: every number that was chosen rather than derived, under a name, with its unit.

None of them changes what is decided; they bound memory and time. What input may be at most, so that reading it cannot
end the process, stands in `propagation.limits`. "Measured" is on the train step of a transformer of 12 unrolled layers
(`benchmarks/propagation.py`): 5,200 operations, 627 KB of text, propagated in 0.36 s on one core of a cloud machine.
"""

from __future__ import annotations

__all__: list[str] = []  # constants are imported by name

# Attributes whose decoded values are kept, then all are forgotten. Measured: the train step has 37 distinct ones that
# are decoded, so this holds for modules a hundred times as varied.
DECODED_ATTRIBUTES = 4096

# What is read into one MLIR context before the next module gets a new one, in bytes of text and in modules: MLIR keeps
# every attribute that a context has seen. Measured: a new context takes 5 ms, the train step a hundredth of the bytes.
CONTEXT_BYTES = 64 << 20
CONTEXT_MODULES = 1000

# Characters from which on an attribute of a written module has a name (`#a7`), and is read by MLIR once. Measured:
# writing and parsing the train step takes 69 ms with this, 73 ms without names, 66 ms where everything has one; but
# then people cannot read it.
NAMED_ATTRIBUTE_CHARACTERS = 32

# Seconds that the child may take to turn bytecode into text: for any, and for each byte more. Measured: 0.6 s for the
# train step (136 KB of bytecode), most of it the start of Python.
BYTECODE_SECONDS = 60.0
BYTECODE_SECONDS_PER_BYTE = 5.0 / (1 << 20)

# Bytes of memory that the child may allocate: for any bytecode, and for each byte of it. Measured: modules take up to
# 100 bytes, in memory and as text, for one of bytecode.
BYTECODE_MEMORY_BYTES = 2 << 30
BYTECODE_MEMORY_PER_BYTE = 200

# Shardings whose axis names are remembered while meetings of axes are searched; a train step has some hundreds.
# Chosen, not measured.
REMEMBERED_AXIS_NAMES = 4096

# Names of attributes of which it is remembered whether MLIR reads them without quotes. Chosen, not measured.
REMEMBERED_ATTRIBUTE_NAMES = 1024

# Element types that a library of kernels multiplies two to five times as fast as XLA's compiler for CPUs does itself.
# Measured on AVX-512, sizes 64 to 2048.
NARROW_TYPES = frozenset((
    "bf16", "i4", "ui4", "i8", "ui8", "f4E2M1FN", "f6E2M3FN", "f6E3M2FN", "f8E3M4", "f8E4M3", "f8E4M3B11FNUZ",
    "f8E4M3FN", "f8E4M3FNUZ", "f8E5M2", "f8E5M2FNUZ", "f8E8M0FNU",
))  # fmt: skip
