"""`jax._src.tree_util`."""

from meshrt import tree_util as _tree_util
from meshrt.numpy.names import missing as _missing
from meshrt.tree_util import *  # noqa: F403

__all__ = list(_tree_util.__all__)
__getattr__ = _missing("jax._src.tree_util", __all__)
