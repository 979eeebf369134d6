"""Halo exchange: operations that shift positions along split dimensions.

exchange      interval moves: every element travels once, by permutes
reach         which positions a window needs
shared_halos  one exchange for many shifted slices
"""
