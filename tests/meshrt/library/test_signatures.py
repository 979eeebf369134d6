"""Public functions and methods take what JAX's take: parameters of the same names, kinds, order and defaults.

Ours may take more, by keyword and with a default.
"""

import importlib
import inspect
import re
import typing

import jax
import pytest

import meshrt

MODULES = (
    "numpy", "numpy.linalg", "numpy.fft", "lax", "lax.linalg", "nn", "nn.initializers", "random", "tree_util", "tree",
    "ops", "image", "debug", "dlpack", "flatten_util", "scipy.special", "scipy.linalg", "scipy.stats", "scipy.signal",
    "scipy.fft", "scipy.ndimage", "scipy.integrate", "scipy.interpolate", "scipy.optimize", "scipy.cluster.vq",
)  # fmt: skip
# What differs, and why.
DIFFERENT = {
    "numpy.array": "JAX warns of positional arguments, which are taken here",
    "numpy.einsum": "JAX's private keyword",
    "numpy.set_printoptions": "named here, as NumPy's are",
    "lax.random_gamma_grad": "its operands are named here",
    "scipy.stats.gaussian_kde": "a class",
    "debug.log": "options that JAX's logging does not use",
    "debug.visualize_array_sharding": "the options of the picture are collected under another name",
    "random.lognormal": "the same number, as a Python float",
}
_PRIVATE = re.compile("^_")


def parameters(function):
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    found = [p for p in found if not _PRIVATE.match(p.name)]
    # What is given by keyword has no order.
    return sorted(found, key=lambda p: p.name if p.kind is p.KEYWORD_ONLY else "")


def described(p):
    """The name, kind and default; objects of each library's own that stand for 'not given' are equal."""
    default = p.default
    if default is not p.empty and not isinstance(default, (type(None), bool, int, float, complex, str, tuple)):
        default = "an object"
    kind = None if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) else p.name
    return kind, p.kind, default


def missing(theirs, ours):
    """JAX's parameters that ours do not have in their places, and ours that a caller of JAX's would not give."""
    wanted, had = [described(p) for p in theirs], [described(p) for p in ours]
    optional = [d for d in had if d[1] is inspect.Parameter.KEYWORD_ONLY and d[2] is not inspect.Parameter.empty]
    extra = [d for d in had if d not in wanted and d not in optional]
    return [d for d in wanted if d not in had] + extra or [d for d in had if d in wanted] != wanted


@pytest.mark.parametrize("module", MODULES)
def test_functions_take_what_those_of_jax_take(module):
    theirs, ours = (importlib.import_module(f"{library}.{module}") for library in ("jax", "meshrt"))
    wrong = {}
    for name in dir(theirs):
        there = getattr(theirs, name) if not name.startswith("_") else None
        is_type = inspect.isclass(there) or typing.get_origin(there) is not None
        if there is None or is_type or f"{module}.{name}" in DIFFERENT or not hasattr(ours, name):
            continue
        wanted = parameters(there) if callable(there) else None
        if wanted is not None:
            found = parameters(getattr(ours, name))
            difference = missing(wanted, found) if found is not None else "no signature"
            if difference:
                wrong[name] = difference
    assert not wrong, "\n".join(f"{k}: {v}" for k, v in wrong.items())


def test_methods_of_arrays_take_what_those_of_jax_take():
    theirs, ours = jax.numpy.arange(3), meshrt.numpy.arange(3)
    collected = {"reshape", "transpose", "view"}  # JAX's are (*args, **kwargs), or name less than they take
    wrong = {}
    for name in dir(theirs):
        if name.startswith("_") or name in collected or not inspect.isroutine(getattr(type(theirs), name)):
            continue
        method = getattr(theirs, name)
        wanted = parameters(method)
        if wanted and not any(p.kind is p.VAR_POSITIONAL for p in wanted):
            difference = missing(wanted, parameters(getattr(ours, name)))
            if difference:
                wrong[name] = difference
    assert not wrong, "\n".join(f"{k}: {v}" for k, v in wrong.items())
