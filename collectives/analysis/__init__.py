"""What is known of the program being partitioned, before anything is written for it.

constants, value_ranges, reducers, monoids   numbers: what values are, how large they get, what reductions compute
progressions                                 indices known at compile time, as strided slices
device_groups, divergence                    manual computations: who talks, and where devices may differ
bodies                                       functions and regions: what is inlined
"""
