"""Trees that are saved in these tests, and what makes two of them the same."""

from __future__ import annotations

import numpy as np

import meshrt
import meshrt.numpy as jnp
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

DTYPES = (
    "bool", "int2", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16",
    "float32", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e8m0fnu", "float4_e2m1fn",
)  # fmt: skip
WIDE = ("int64", "uint64", "float64", "complex128")


def mesh_of(shape, names, types=AxisType.Auto):
    return meshrt.make_mesh(shape, names, axis_types=(types,) * len(shape))


def put(value, mesh, *spec, **how):
    return meshrt.device_put(value, NamedSharding(mesh, P(*spec), **how))


def arrays(mesh):
    """Split, replicated, uneven, empty, of no dimensions; each element type; keys; uncommitted and weakly typed."""
    whole = np.arange(48, dtype=np.float32).reshape(8, 6)
    names = (*DTYPES, *(WIDE if meshrt.config.jax_enable_x64 else ()))
    return {
        "split": put(whole, mesh, "data", "model"),
        "half": put(whole, mesh, None, "model"),
        "both": put(whole, mesh, ("model", "data")),
        "same": put(whole, mesh),
        "uneven": put(np.arange(10, dtype=np.int32), mesh, "data", uneven=True),
        "short": put(np.arange(2, dtype=np.int16), mesh, "data", uneven=True),
        "scalar": put(np.float32(2.5), mesh),
        "empty": put(np.zeros((0, 8), np.float32), mesh, None, "data"),
        "host": put(whole, mesh, "data", memory_kind="unpinned_host"),
        "one": jnp.arange(5),
        "weak": jnp.asarray(2.0),
        "keys": put(meshrt.random.split(meshrt.random.key(3), 8), mesh, "data"),
        "rbg": meshrt.random.key(3, impl="rbg"),
        "types": {name: put(jnp.arange(-2, 6).astype(name), mesh, "data") for name in names},
    }


def host_values():
    return {
        "array": np.arange(6, dtype=np.float64).reshape(2, 3)[:, ::2],
        "big": np.arange(3, dtype=">i4"),
        "bf16": np.arange(3).astype("bfloat16"),
        "zero": np.array(7, np.int64),
        "scalar": np.float64(0.1),
        "times": np.array(["2026-01-01", "NaT"], "M8[s]"),
        "texts": np.array(["a", "long text"]),
        "python": [1, -0.0, float("inf"), 0.1, 3 - 2j, True, "text \ud800", b"\0\xff", None, 10**30, (), {}],
    }


def assert_same(got, want):
    assert meshrt.tree.structure(got) == meshrt.tree.structure(want)
    for (path, a), b in zip(meshrt.tree_util.tree_leaves_with_path(got), meshrt.tree.leaves(want)):
        assert same_leaf(a, b), (meshrt.tree_util.keystr(path), a, b)


def same_leaf(a, b) -> bool:
    if isinstance(b, meshrt.Array):
        if not isinstance(a, meshrt.Array) or a.aval != b.aval or a.committed != b.committed:
            return False
        if a.sharding != b.sharding:
            return False
        return all(same_bits(x._value, y._value) for x, y in zip(a.local_parts(), b.local_parts()))
    if isinstance(b, np.ndarray | np.generic):
        return isinstance(a, np.ndarray) == isinstance(b, np.ndarray) and same_bits(a, b)
    return type(a) is type(b) and (repr(a) == repr(b))


def same_bits(a, b) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    same = a.dtype.newbyteorder("=") == b.dtype.newbyteorder("=") and a.shape == b.shape
    return same and a.tobytes() == b.astype(a.dtype).tobytes()
