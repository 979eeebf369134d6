"""What the compiler is to read at the operation that made a value.

xla_metadata_value[marks] x  ->  x
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from meshrt import config, errors, tree_util
from meshrt.core.explicit import moved
from meshrt.core.jaxpr import Eqn
from meshrt.core.naming import take_names
from meshrt.core.primitive import Primitive
from meshrt.core.source import marked
from meshrt.lowering.context import LoweringContext
from propagation.asm import Ref

__all__: list[str] = []

Marks = tuple[tuple[str, str], ...]
Asked = tuple[tuple[str, str | None], ...]  # None takes a name away


def _lower(ctx: LoweringContext, eqn: Eqn, x: Ref) -> Ref:
    """Marks the operation that made `x`; an argument of the function or region has none."""
    items = ctx.body.items
    made = next((i for i in reversed(range(len(items))) if x in items[i][2]), None)
    if made is not None:
        ctx.mark(eqn.params["marks"], made, made + 1)
    return x


xla_metadata_value_p: Primitive = Primitive(
    "xla_metadata_value", lambda x, marks: x, lower=_lower,
    jvp=lambda primals, tangents, marks: (xla_metadata_value_p.bind(*primals, marks=marks), tangents[0]),
    transpose=lambda ct, x, marks: [ct],
    batch=lambda size, args, dims, params: (xla_metadata_value_p.bind(*args, **params), dims[0]),
    cheap=True, finite=True, sums=moved,
)  # fmt: skip


def set_xla_metadata(x: Any = None, **metadata: Any) -> Any:
    """Names and values that XLA reads at operations, its `frontend_attributes`.

    Args:
      x: a pytree of arrays: marks the operations that made them, and returns them. Without it the result is a context
        manager, and a decorator of functions: all operations traced inside are marked, also those of nested contexts.
      metadata: values are strings, numbers or bools ("true", "false"); None takes a name away that a context around
        gives.

    >>> import meshrt
    >>> from meshrt.experimental.xla_metadata import set_xla_metadata
    >>> @set_xla_metadata(stage="first")
    ... def f(x):
    ...     return meshrt.lax.sin(x)
    >>> 'stage = "first"' in meshrt.jit(f).lower(1.0).as_text()
    True
    """
    if x is None:
        return _Marking(metadata)
    marks = tuple((name, value) for name, value in _marks(metadata) if value is not None)
    return tree_util.tree_map(lambda leaf: xla_metadata_value_p.bind(leaf, marks=marks), x)


def _marks(metadata: Mapping[str, Any]) -> Asked:
    for name, value in metadata.items():
        if not isinstance(value, str | bool | int | float | None):
            raise errors.ArgumentTypeError(
                f"set_xla_metadata({name}={value!r}): values are strings, numbers, bools or None, got a "
                f"{type(value).__name__}"
            )
    return tuple((name, _text(metadata[name])) for name in sorted(metadata))


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Marking:
    """Marks what is traced inside: a context manager, and a decorator."""

    def __init__(self, metadata: Mapping[str, Any]):
        self.marks = _marks(metadata)
        self._open: list[Any] = []

    def __enter__(self) -> None:
        around: Marks = config.settings.xla_metadata or ()
        together: dict[str, str | None] = {**dict(around), **dict(self.marks)}
        marks: Marks = tuple((n, v) for n in sorted(together) if (v := together[n]) is not None)
        # A setting too, as functions that were traced without have to be traced again.
        contexts = config.override(xla_metadata=marks or None), marked(marks)
        for context in contexts:
            context.__enter__()
        self._open.append(contexts)

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._open.pop()):
            context.__exit__(*error)

    def __call__(self, function: Callable[..., Any]) -> _Marked:
        return _Marked(function, self.marks)


class _Marked:
    """A function that is called inside of the marking, and so are its methods, such as `lower` of a jitted one."""

    def __init__(self, function: Callable[..., Any], marks: Asked):
        take_names(self, function)
        self._function, self._marks = function, marks

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _Marking(dict(self._marks)):
            return self._function(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self._function, name)
        return _Marked(found, self._marks) if callable(found) else found
