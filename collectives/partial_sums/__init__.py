"""Sums whose reduction over devices is still to be taken.

deferred_reduction  operations that are linear are applied to the parts
common_factors      sums that are multiples of each other are reduced once
unreduced           arguments and results that the program declares unreduced
"""
