"""Sparse arrays: names and signatures are those of ``jax.experimental.sparse``.

`BCOO` is computed with; `BCSR`, `COO`, `CSR` and `CSC` store matrices. All are pytrees of arrays, so that jit, vmap
over batch dimensions and derivatives take them.
"""

from meshrt.experimental.sparse import ad as ad
from meshrt.experimental.sparse import api as api
from meshrt.experimental.sparse import bcoo, bcsr, compressed, coo, csr, derivatives, making, shapes
from meshrt.experimental.sparse import linalg as linalg
from meshrt.experimental.sparse import methods as _methods  # noqa: F401  gives BCOO its methods
from meshrt.experimental.sparse import random as random
from meshrt.experimental.sparse import util as util
from meshrt.experimental.sparse.arrays import (
    BCOO,
    CuSparseEfficiencyWarning,
    JAXSparse,
    SparseEfficiencyError,
    SparseEfficiencyWarning,
)
from meshrt.experimental.sparse.bcoo import *  # noqa: F403
from meshrt.experimental.sparse.bcsr import *  # noqa: F403
from meshrt.experimental.sparse.compressed import *  # noqa: F403
from meshrt.experimental.sparse.convolution import bcoo_conv_general_dilated
from meshrt.experimental.sparse.coo import *  # noqa: F403
from meshrt.experimental.sparse.coordinates import (
    bcoo_extract,
    bcoo_fromdense,
    bcoo_sort_indices,
    bcoo_sum_duplicates,
    bcoo_todense,
    bcoo_update_layout,
)
from meshrt.experimental.sparse.csr import *  # noqa: F403
from meshrt.experimental.sparse.dense import todense, todense_p
from meshrt.experimental.sparse.derivatives import *  # noqa: F403
from meshrt.experimental.sparse.gathering import bcoo_gather
from meshrt.experimental.sparse.making import *  # noqa: F403
from meshrt.experimental.sparse.products import (
    bcoo_dot_general,
    bcoo_dot_general_sampled,
    bcoo_multiply_dense,
    bcoo_multiply_sparse,
)
from meshrt.experimental.sparse.shapes import *  # noqa: F403
from meshrt.experimental.sparse.transform import SparseTracer, sparsify
from meshrt.numpy.names import missing as _missing

__all__ = [  # noqa: PLE0604
    "BCOO", "CuSparseEfficiencyWarning", "JAXSparse", "SparseEfficiencyError", "SparseEfficiencyWarning",
    "SparseTracer",
    "bcoo_conv_general_dilated", "bcoo_dot_general", "bcoo_dot_general_sampled", "bcoo_extract", "bcoo_fromdense",
    "bcoo_gather", "bcoo_multiply_dense", "bcoo_multiply_sparse",
    "bcoo_sort_indices", "bcoo_sum_duplicates", "bcoo_todense", "bcoo_update_layout", "sparsify",
    "todense", "todense_p", *bcoo.__all__, *bcsr.__all__, *compressed.__all__, *coo.__all__, *csr.__all__,
    *derivatives.__all__, *making.__all__, *shapes.__all__,
]  # fmt: skip
__getattr__ = _missing(__name__, __all__)
