"""The few operations that transformations themselves write: zeros, sums of cotangents, moved and broadcast dimensions.

Their whole records stand here, below the transformations; the families in `meshrt/primitives` build on them.

    shapes      broadcast_in_dim, reshape, transpose, reduce_sum: closed under transposition among themselves
    kinds       which dtypes an operation takes
    pointwise   `nary`, which declares every elementwise primitive; add
    memory      memory_put: values in another memory
    varying     pvary, and psum over Manual axes: closed under transposition
"""
