"""Evaluating at once, in the midst of tracing, what does not depend on traced values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from meshrt.core.trace import EVAL, Trace, Tracer, context, set_trace

if TYPE_CHECKING:
    from meshrt.core.primitive import Primitive

__all__ = ["ensure_compile_time_eval"]


class EagerTrace(Trace):
    """Evaluates operations on known values; `parent` processes those on traced ones, and on axes by name.

    `evaluating` is told before; `meshrt.sharding`, which stands above the core, sets it.
    """

    __slots__ = ("parent", "requires_low")

    evaluating: ClassVar[Callable[[], None]]

    def __init__(self, parent: Trace):
        self.parent, self.requires_low = parent, parent.requires_low

    def process_primitive(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        named = primitive.names is not None and primitive.names(params)
        trace = self.parent if named or any(isinstance(a, Tracer) for a in args) else EVAL
        if trace is EVAL:
            EagerTrace.evaluating()
        with set_trace(trace):
            return primitive.bind_in(trace, args, params)


@contextmanager
def ensure_compile_time_eval() -> Iterator[None]:
    """Has operations on known values run at once inside the block, also while a function is traced.

    Their results are values that Python may branch on; in the traced program they are constants.

    >>> @meshrt.jit
    ... def f(x):
    ...     with meshrt.ensure_compile_time_eval():
    ...         rising = jnp.sin(3.0) > 0
    ...     return jnp.sin(x) if rising else jnp.cos(x)

    Raises (in the block):
      ConcretizationError: the value of something is asked for that depends on traced values.
    """
    with set_trace(EagerTrace(context.trace)):
        yield
