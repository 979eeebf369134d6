"""Associative scans along split dimensions: recognised in trees of slices (`recognition`), and written on two levels
(`associative_scan`).
"""
