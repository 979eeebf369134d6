"""`jax._src.tree_util`."""

from meshrt import tree_util as _tree_util
from meshrt.numpy.names import missing as _missing
from meshrt.tree_util import *  # noqa: F403
from meshrt.tree_util import default_registry as _default

__all__ = list(_tree_util.__all__)


class _Registry:
    """The classes of nodes, for libraries that ask whether one is registered."""

    def __contains__(self, cls: type) -> bool:
        return bool(_default.is_node(cls))


_registry = _Registry()
__getattr__ = _missing("jax._src.tree_util", (*__all__, "_registry"))
