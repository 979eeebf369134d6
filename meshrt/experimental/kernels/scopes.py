"""References that exist while a function runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from meshrt import errors
from meshrt.core.references import is_ref
from meshrt.core.source import capture
from meshrt.core.trace import EVAL, current_trace
from meshrt.core.tracebacks import boundary
from meshrt.experimental.kernels.grid import current_frame
from meshrt.jit import jit
from meshrt.primitives.references import freeze, new_ref
from meshrt.primitives.state import empty_ref_p, free_ref_p
from meshrt.sharding.typed import abstract
from meshrt.transforms.arguments import fun_name
from meshrt.transforms.references import refuse_returned
from meshrt.tree_util import tree_leaves, tree_map

__all__ = ["get_global", "run_scoped", "run_state"]


# The references of the calls of run_state and run_scoped that are running: whole over any mesh, eagerly and in traces.
_scoped: ContextVar[tuple[Any, ...]] = ContextVar("scoped", default=())


@contextmanager
def _in_scope(refs: Any) -> Iterator[None]:
    token = _scoped.set((*_scoped.get(), *tree_leaves(refs)))
    try:
        yield
    finally:
        _scoped.reset(token)


def is_scoped(ref: Any) -> bool:
    """Whether a reference is one that a running call of run_state or run_scoped made."""
    return any(ref is r for r in _scoped.get())


def run_state(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function of a pytree of arrays that makes references of them, runs `f` on these, and returns what they hold.

    >>> import meshrt.numpy as jnp
    >>> def double(refs):
    ...     x, y = refs
    ...     y[...] = 2 * x[...]
    >>> run_state(double)((jnp.arange(3), jnp.zeros(3, "int32")))
    (Array([0, 1, 2], dtype=int32), Array([0, 2, 4], dtype=int32))

    Raises:
      ArgumentValueError: `f` returns something.
    """

    def run(values: Any) -> Any:
        refs = tree_map(new_ref, values)
        with _in_scope(refs):
            out = f(refs)
        if out is not None:
            raise errors.ArgumentValueError(
                f"the body of run_state must return None, but {fun_name(f)} returned {type(out).__name__}: write to a "
                "reference what is to be kept"
            )
        return tree_map(freeze, refs)

    run.__name__ = run.__qualname__ = fun_name(f)
    jitted = jit(run)

    @boundary
    @functools.wraps(f)
    def wrapped(values: Any) -> Any:
        return jitted(values) if current_trace() is EVAL else run(values)

    return wrapped


@boundary
def run_scoped(
    f: Callable[..., Any], *types: Any, collective_axes: Hashable | tuple[Hashable, ...] = (), **kw_types: Any
) -> Any:
    """What `f` returns, given references of these types, which nobody has written to yet and which end with the call.

    Args:
      f: takes a reference, or a pytree of them, per argument; it returns arrays.
      types, kw_types: pytrees of ShapeDtypeStructs, or of types in a kernel's memory (with a method `get_ref_aval`).
      collective_axes: axes along which the instances of a kernel share the references.

    >>> import meshrt, meshrt.numpy as jnp, numpy as np
    >>> def f(scratch):
    ...     scratch[...] = jnp.arange(3)
    ...     return scratch[...].sum()
    >>> run_scoped(f, meshrt.ShapeDtypeStruct((3,), np.int32))
    Array(3, dtype=int32)

    Raises:
      ArgumentValueError: `f` returns a reference.
      UnsupportedError: `collective_axes` outside of kernels.
    """
    if collective_axes != () and current_frame() is None:
        raise errors.UnsupportedError(
            f"run_scoped(collective_axes={collective_axes!r}): only the instances of a kernel share references"
        )
    args, kwargs = tree_map(_allocate, (types, kw_types))
    with _in_scope((args, kwargs)):
        out = f(*args, **kwargs)
    for leaf in tree_leaves(out):
        if is_ref(leaf):
            refuse_returned("run_scoped", fun_name(f), leaf)
    for ref in tree_leaves((args, kwargs)):
        free_ref_p.bind(ref)
    return out


def _allocate(ty: Any) -> Any:
    wanted = ty.get_ref_aval() if hasattr(ty, "get_ref_aval") else None
    if wanted is not None:
        return empty_ref_p.bind(ty=wanted.inner_aval, memory_space=wanted.memory_space)
    return empty_ref_p.bind(ty=abstract(ty), memory_space=None)


def get_global(what: Any) -> Any:
    """A reference that would live on from one call of a kernel to the next.

    >>> from meshrt.experimental.pallas import tpu as pltpu
    >>> get_global(pltpu.SemaphoreType.REGULAR)
    Traceback (most recent call last):
    ...
    meshrt.errors.UnsupportedError: ...

    Raises:
      UnsupportedError: always: no loop of array operations, nor Mosaic on TPUs, nor Triton, keeps memory between calls.
    """
    raise errors.UnsupportedError(
        f"get_global({what}) at {capture()}: no platform here keeps memory between the calls of a kernel. Make it by "
        "scratch_shapes or run_scoped, or pass a reference (meshrt.new_ref) to the kernel"
    )
