"""Measures meshrt beside JAX of the same jaxlib: `python -m benchmarks`.

Each figure is a ratio meshrt/JAX from one run. Both packages run the same program source (`meshrt/demo/model.py`),
each in a process of its own that has the same CPU devices; samples are taken in alternating pairs.
"""
