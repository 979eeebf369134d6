"""Deciding how an operation is done: families say in which ways it can be, the cheapest way is taken, and noted.

candidate  one way to do an operation: layouts, what it sends by itself, how it is written
choosing   the cheapest of the candidates, by what is known now and what the look-ahead expects
factors    the ways that splitting loops (factors) gives, which are many: weighed together
"""
