"""What tests of export share: an input, functions written and read again, types with sizes as text, forgetting."""

from __future__ import annotations

import gc

import numpy as np

import meshrt
from meshrt import export
from meshrt.runtime import compile_cache

X = np.arange(4, dtype=np.float32)


def through_bytes(fun, vjp_order=0, **options):
    """`export`, written and read again."""
    return lambda *args, **kwargs: export.deserialize(
        export.export(fun, **options)(*args, **kwargs).serialize(vjp_order=vjp_order)
    )


def spec(shape, dtype=np.float32, **options):
    shape = export.symbolic_shape(shape, **options) if isinstance(shape, str) else shape
    return meshrt.ShapeDtypeStruct(shape, dtype)


def forget():
    """As another process: what was compiled before is not known."""
    meshrt.clear_caches()
    compile_cache.clear()
    gc.collect()  # functions from files go, and what they brought along
