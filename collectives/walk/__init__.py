"""The walk over a program's operations, which asks their families (`families`) to partition them, and what it does
across operations: value numbering, loop-invariant code motion, the look-ahead.
"""
