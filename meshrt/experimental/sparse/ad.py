"""What `jax.experimental.sparse.ad` has: derivatives with respect to sparse arrays."""

from meshrt.experimental.sparse.arrays import JAXSparse as JAXSparse
from meshrt.experimental.sparse.derivatives import grad as grad
from meshrt.experimental.sparse.derivatives import jacfwd as jacfwd
from meshrt.experimental.sparse.derivatives import jacobian as jacobian
from meshrt.experimental.sparse.derivatives import jacrev as jacrev
from meshrt.experimental.sparse.derivatives import value_and_grad as value_and_grad
