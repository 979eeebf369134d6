"""``meshrt doctor``: what every host of a job is like, and what is wrong with it.

`exam.py` runs on each host and prints facts, `visit.py` brings it there and measures the clock, `diagnosis.py` says
what follows from the facts, without looking at anything itself.
"""
