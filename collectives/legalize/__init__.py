"""Operations that are partitioned as others: dynamic forms as static ones, composites and CHLO operations as what they
stand for.
"""
