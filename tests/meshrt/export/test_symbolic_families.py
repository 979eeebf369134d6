"""Functions on arrays of symbolic sizes, several exported as one program, at several sizes against direct calls."""

from __future__ import annotations

import importlib
import warnings
import zlib

import numpy as np
import pytest

import meshrt
from meshrt import export
from tests.meshrt.export.symbolic_families import FAMILIES, values

CONSTRAINTS = ["b >= 4", "c >= 2", "n >= 2"]
SIZES = ({"b": 4, "c": 2, "n": 2}, {"b": 7, "c": 5, "n": 4})
TOGETHER = 12  # functions of one program

CASES = [
    (family, module, " ".join(names.split()[first : first + TOGETHER]))
    for family, (_, modules) in FAMILIES.items()
    for module, names in modules.items()
    for first in range(0, len(names.split()), TOGETHER)
]


def results(module, names):
    functions = {name: getattr(importlib.import_module(f"meshrt.{module}"), name) for name in names.split()}
    return lambda *args: {name: f(*args) for name, f in functions.items()}


def arguments(family, sizes, rng):
    scope = export.SymbolicScope(CONSTRAINTS)
    specs, args = [], []
    for text, kind in FAMILIES[family][0]:
        shape = export.symbolic_shape(text, scope=scope)
        args.append(values(tuple(int(n.evaluate(sizes)) if export.is_symbolic_dim(n) else n for n in shape), kind, rng))
        specs.append(meshrt.ShapeDtypeStruct(shape, args[-1].dtype))
    return specs, args


@pytest.mark.sweep(8)
@pytest.mark.parametrize(("family", "module", "names"), CASES, ids=lambda v: v[:40])
def test_families(family, module, names):
    rng = np.random.default_rng(zlib.crc32(names.encode()))
    fun = meshrt.jit(results(module, names))
    exported = export.export(fun)(*arguments(family, SIZES[0], rng)[0])
    exported = export.deserialize(exported.serialize())
    for sizes in SIZES:
        _, args = arguments(family, sizes, rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            found, expected = exported.call(*args), fun(*args)
        for name in names.split():
            a, b = (meshrt.tree.leaves(r[name]) for r in (found, expected))
            for x, y in zip(a, b, strict=True):
                assert (x.shape, x.dtype) == (y.shape, y.dtype), (name, sizes)
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4, err_msg=f"{name} at {sizes}")
