"""Masked lookup: tables split along the dimension that is looked up.

masked_lookup  each device looks up what falls into its rows; a sum over devices follows
indices        run-time indices in the type of positions
static_gather  indices known at compile time: strided slices in place of a lookup
"""
