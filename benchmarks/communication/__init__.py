"""What a partitioned program sends, holds and takes: ours beside XLA's partitioner on the same annotations.

`python -m benchmarks.communication` lowers each program once with JAX and gives the same StableHLO to both
partitioners; both results are compiled by the same CPU compiler, run on 8 virtual devices and compared with one.
"""
