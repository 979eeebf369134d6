"""What the back ends of kernels share: a walk over a kernel's Jaxpr that writes MLIR (`walk.py`), and the rules of
operations that both write alike, in the dialects arith and math (`arithmetic.py`, `conversions.py`) and scf
(`control.py`); `words.py` makes Python's numbers ones of 32 bits."""
