"""What `jit(f).trace`, `.lower` and `.compile` give, under JAX's names; programs in files. See `meshrt.pipeline`."""

from typing import Any, Protocol, runtime_checkable

from meshrt.pipeline.compiled import Compiled
from meshrt.pipeline.loading import load
from meshrt.pipeline.lowered import Lowered
from meshrt.pipeline.partitioned import Partitioned
from meshrt.pipeline.propagated import Propagated
from meshrt.pipeline.station import ArgInfo
from meshrt.pipeline.traced import Traced
from meshrt.tree_files import register_namedtuple_serialization, register_pytree_node_serialization

__all__ = [
    "ArgInfo", "Compiled", "Lowered", "Partitioned", "Propagated", "Traced", "Wrapped", "load",
    "register_namedtuple_serialization", "register_pytree_node_serialization",
]  # fmt: skip


@runtime_checkable
class Wrapped(Protocol):
    """A function that can be called, and staged step by step: what `meshrt.jit` gives."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function, compiling it if need be."""

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Stages the function at the types of these arguments."""

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """`trace(*args, **kwargs).lower()`."""
