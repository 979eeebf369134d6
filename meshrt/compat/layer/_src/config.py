"""`jax._src.config`: settings as attributes, and as contexts."""

from meshrt import config, contexts

_CONTEXTS = frozenset(contexts.__all__)


def __getattr__(name: str) -> object:
    return getattr(contexts if name in _CONTEXTS else config, name)
