"""What `jax.experimental.sparse.api` has: making sparse arrays, and dense ones of them."""

from meshrt.experimental.sparse.arrays import BCOO as BCOO
from meshrt.experimental.sparse.arrays import JAXSparse as JAXSparse
from meshrt.experimental.sparse.compressed import BCSR as BCSR
from meshrt.experimental.sparse.compressed import COO as COO
from meshrt.experimental.sparse.compressed import CSC as CSC
from meshrt.experimental.sparse.compressed import CSR as CSR
from meshrt.experimental.sparse.dense import todense as todense
from meshrt.experimental.sparse.dense import todense_p as todense_p
from meshrt.experimental.sparse.making import empty as empty
from meshrt.experimental.sparse.making import eye as eye
