"""JAX's own harnesses of primitives (`jax._src.internal_test_util.test_harnesses`), for its library and for ours.

A harness is a function that applies a primitive, and descriptions of its arguments. Its function finds `lax` and the
others among the globals of the module, so the module's source is executed a second time, with the names that it
imports from JAX bound to meshrt's.
"""

from __future__ import annotations

import ast
import importlib
import sys
import types
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import meshrt
import meshrt.lax
import meshrt.numpy
import meshrt.random

__all__ = ["Pair", "pairs"]

_MODULE = "jax._src.internal_test_util.test_harnesses"


class Pair(NamedTuple):
    """One harness as JAX defines it, and the same over meshrt's functions."""

    theirs: Any
    ours: Any

    @property
    def name(self) -> str:
        return str(self.theirs.fullname)

    def arguments(self, seed: int) -> list[Any]:
        """The arguments that are not static, as NumPy's arrays where they are arrays."""
        return list(self.theirs.dyn_args_maker(np.random.RandomState(seed)))


@cache
def pairs() -> list[Pair]:
    """All harnesses that JAX says it implements on CPUs."""
    theirs = importlib.import_module(_MODULE)
    ours = _with_our_library(theirs)
    found = [Pair(a, b) for a, b in zip(theirs.all_harnesses, ours.all_harnesses, strict=True)]
    return [p for p in found if p.theirs.filter("cpu")]


def _with_our_library(module: types.ModuleType) -> types.ModuleType:
    """The module's source, executed with our library under the names that it imports."""
    path = Path(str(module.__file__))
    tree = ast.parse(path.read_text())
    ours = _names()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jax"):
            node.names = [n for n in node.names if (n.asname or n.name) not in ours]
    tree.body = [n for n in tree.body if not isinstance(n, ast.ImportFrom) or n.names]
    made = types.ModuleType("tests.meshrt.lax.harnesses_over_meshrt")
    vars(made).update(ours)
    sys.modules[made.__name__] = made  # where dataclasses and named tuples of the module look for its names
    exec(compile(tree, str(path), "exec"), vars(made))
    return made


def _names() -> dict[str, Any]:
    """What the module imports from JAX and computes with."""
    lax = _Present(meshrt.lax, linalg=_Present(meshrt.lax.linalg))
    return {
        "lax": lax,
        "lax_control_flow": lax,
        "jnp": meshrt.numpy,
        "jnp_linalg": meshrt.numpy.linalg,
        "api": meshrt,
        "random": meshrt.random,
        "jax_random": meshrt.random,
        "xb": meshrt,
        "ad_util": SimpleNamespace(
            add_any_p=lax.add_p, add_jaxvals_p=lax.add_p, stop_gradient_p=SimpleNamespace(bind=lax.stop_gradient)
        ),
        "dispatch": SimpleNamespace(
            device_put_p=SimpleNamespace(bind=_device_put), ArrayCopySemantics=SimpleNamespace(REUSE_INPUT=None)
        ),
        "prng": SimpleNamespace(iota_2x32_shape_p=SimpleNamespace(bind=_counts)),
        "lax_windowed_reductions": SimpleNamespace(
            _select_and_gather_add=_select_and_gather_add, _select_and_scatter_add=_select_and_scatter_add
        ),
    }


class _Present:
    """A module of ours; what it lacks may be named, as the module does for names of groups, but not called."""

    def __init__(self, module: Any, **instead: Any):
        self._module = module
        vars(self).update(instead)

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._module, name)
        except meshrt.errors.MissingFunctionError as e:
            if name.startswith("__"):
                raise
            return _Absent(e)


class _Absent:
    """A name that is missing: raises its error when it is used."""

    def __init__(self, error: Exception):
        self._error = error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(self._error)


def _device_put(x: Any, *, devices: Any, srcs: Any, copy_semantics: Any) -> Any:
    return [meshrt.device_put(x, *devices)]


def _counts(*, shape: tuple[int, ...]) -> Any:
    """The row-major position of each element, in two words."""
    flat = np.arange(np.prod(shape, dtype=int), dtype=np.uint64).reshape(shape)
    return [(flat >> np.uint64(32)).astype(np.uint32), flat.astype(np.uint32)]


def _select_and_gather_add(
    t: Any, x: Any, prim: Any, window: Any, strides: Any, pads: Any, base: Any, spread: Any
) -> Any:
    return meshrt.lax.select_and_gather_add_p.bind(
        t, x, direction=_DIRECTIONS[prim.name], window_dimensions=tuple(window), window_strides=tuple(strides),
        padding=tuple(map(tuple, pads)), base_dilation=tuple(base), window_dilation=tuple(spread),
    )  # fmt: skip


def _select_and_scatter_add(source: Any, x: Any, prim: Any, window: Any, strides: Any, pads: Any) -> Any:
    return meshrt.lax.select_and_scatter_add_p.bind(
        source, x, direction=_DIRECTIONS[prim.name], window_dimensions=tuple(window), window_strides=tuple(strides),
        padding=tuple(map(tuple, pads)),
    )  # fmt: skip


_DIRECTIONS = {"ge": "GE", "le": "LE"}
