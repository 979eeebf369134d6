"""Halo exchange: operations that shift positions along split dimensions.

exchange      interval moves: every element travels once, by permutes
parts         what travels, and in which rounds
lazy_views    what is cut out when somebody asks for it
reach         which positions a window needs
shared_halos  one exchange for many shifted slices
"""
