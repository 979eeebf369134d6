"""What `jit(f).trace`, `.lower` and `.compile` give, under JAX's names; programs in files. See `meshrt.pipeline`."""

import importlib
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from meshrt.pipeline.compiled import Compiled
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.partitioned import Partitioned
from meshrt.pipeline.propagated import Propagated
from meshrt.pipeline.station import ArgInfo
from meshrt.pipeline.traced import Traced

if TYPE_CHECKING:
    from meshrt.pipeline.loading import load
    from meshrt.tree_files import register_namedtuple_serialization, register_pytree_node_serialization

__all__ = [
    "ArgInfo", "Compiled", "CompilerOptions", "Lowered", "Partitioned", "Propagated", "Traced", "Wrapped", "load",
    "register_namedtuple_serialization", "register_pytree_node_serialization",
]  # fmt: skip


# Options of XLA's compiler by name, as `.compile(compiler_options=...)` takes them.
CompilerOptions = dict[str, str | bool]

# Start-up time: programs in files are for few.
_LATE = {
    "load": "meshrt.pipeline.loading",
    "register_namedtuple_serialization": "meshrt.tree_files",
    "register_pytree_node_serialization": "meshrt.tree_files",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    found = globals()[name] = getattr(importlib.import_module(_LATE[name]), name)
    return found


@runtime_checkable
class Wrapped(Protocol):
    """A function that can be called, and staged step by step: what `meshrt.jit` gives.

    >>> isinstance(meshrt.jit(jnp.sin), meshrt.stages.Wrapped)
    True
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function, compiling it if need be."""

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Stages the function at the types of these arguments."""

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """`trace(*args, **kwargs).lower()`."""
