"""Passes over a finished per-device program.

Each module has one pass: a function that takes a region (or a function of the program) and the `Machine` it will run
on, and rewrites the list of its items. `collectives.optimize` runs them in order. None changes what is computed; the
collectives that a pass writes name those that they stand for, so that the plan can tell the origin of each.
"""
