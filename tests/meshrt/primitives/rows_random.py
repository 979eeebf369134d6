"""Rows of the random family, and of structural operations on arrays of PRNG keys. Operands are key data."""

from __future__ import annotations

import numpy as np

from tests.meshrt.primitives.cases import BOOL, I8, I32, U8, U32, Case, integers, normal

CASES: list[Case] = []


def key_data(*shape: int):
    return integers(0, 1 << 32, *shape, 2, dtype=U32)


def row(name, fun, *args, **options):
    CASES.append(Case(f"{name}-key", fun, args, derivatives=0, keys=True, **options))


for _dtype in (I32, U32, I8, U8):
    _high = min(np.iinfo(_dtype).max, 1 << 31)
    row(
        f"random_seed {_dtype.name}",
        lambda lax, s: lax.random_seed(s),
        integers(np.iinfo(_dtype).min, _high, 3, dtype=_dtype),
    )
row("random_split", lambda lax, k: lax.random_split(lax.wrap(k), (3, 2)), key_data())
row("random_split keys", lambda lax, k: lax.random_split(lax.wrap(k), (2,)), key_data(2, 3))
row("random_fold_in", lambda lax, k, d: lax.random_fold_in(lax.wrap(k), d), key_data(), integers(-9, 9))
row(
    "random_fold_in keys",
    lambda lax, k, d: lax.random_fold_in(lax.wrap(k), d),
    key_data(3),
    integers(0, 9, 3, dtype=U8),
)
row("random_fold_in scalar data", lambda lax, k, d: lax.random_fold_in(lax.wrap(k), d), key_data(3), integers(0, 9))
for _width in (8, 16, 32):
    for _shape in ((), (5,), (3, 4), (2, 1, 3), (0, 3)):
        row(
            f"random_bits {_width} {_shape}",
            lambda lax, k, w=_width, s=_shape: lax.random_bits(lax.wrap(k), w, s),
            key_data(),
        )
row("random_bits keys", lambda lax, k: lax.random_bits(lax.wrap(k), 32, (4,)), key_data(2, 3))
row(
    "threefry_2x32",
    lambda lax, a, b, x: lax.threefry_2x32((a, b), x),
    integers(0, 99, dtype=U32),
    integers(0, 99, dtype=U32),
    integers(0, 1 << 32, 7, dtype=U32),
    vmap=False,
)  # JAX's own loop refuses operands of which some are mapped
row("wrap and unwrap", lambda lax, k: lax.random_unwrap(lax.wrap(k)), key_data(3))
row("random_clone", lambda lax, k: lax.random_unwrap(lax.random_clone(lax.wrap(k))), key_data(3))

# Structure: logical shapes without, buffers with the physical dimension.
row("reshape", lambda lax, k: lax.reshape(lax.wrap(k), (3, 2)), key_data(6))
row("transpose", lambda lax, k: lax.transpose(lax.wrap(k), (1, 2, 0)), key_data(2, 3, 1))
row("squeeze", lambda lax, k: lax.squeeze(lax.wrap(k), (1,)), key_data(3, 1))
row("expand_dims", lambda lax, k: lax.expand_dims(lax.wrap(k), (1,)), key_data(3))
row("broadcast", lambda lax, k: lax.broadcast(lax.wrap(k), (2,)), key_data(3))
row("slice", lambda lax, k: lax.slice(lax.wrap(k), (1, 0), (5, 2), (2, 1)), key_data(5, 3))
row("rev", lambda lax, k: lax.rev(lax.wrap(k), (0,)), key_data(3, 2))
row("split", lambda lax, k: lax.split(lax.wrap(k), (1, 2)), key_data(3))
row("concatenate", lambda lax, a, b: lax.concatenate([lax.wrap(a), lax.wrap(b)], 0), key_data(2, 2), key_data(1, 2))
row("dynamic_slice", lambda lax, k, i: lax.dynamic_slice(lax.wrap(k), (i, 1), (2, 1)), key_data(4, 2), integers(-2, 4))
row(
    "dynamic_index_in_dim",
    lambda lax, k, i: lax.dynamic_index_in_dim(lax.wrap(k), i, keepdims=False),
    key_data(4),
    integers(0, 4),
)
row(
    "dynamic_update_slice",
    lambda lax, k, u, i: lax.dynamic_update_slice(lax.wrap(k), lax.wrap(u), (i,)),
    key_data(4),
    key_data(2),
    integers(0, 4),
)
for _mode in ("clip", "fill"):
    row(
        f"gather {_mode}",
        lambda lax, k, i, m=_mode: lax.gather(
            lax.wrap(k), i, lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 2), mode=m
        ),
        key_data(4, 2),
        integers(-1, 6, 3, 1),
    )
row(
    "scatter",
    lambda lax, k, i, u: lax.scatter(
        lax.wrap(k), i, lax.wrap(u), lax.ScatterDimensionNumbers((1,), (0,), (0,)), unique_indices=True
    ),
    key_data(9, 2),
    integers(0, 9, 1, 1),
    key_data(1, 2),
)
row(
    "select_n",
    lambda lax, w, a, b: lax.select_n(w, lax.wrap(a), lax.wrap(b)),
    normal(3, dtype=BOOL),
    key_data(3),
    key_data(3),
)
row(
    "select_n scalar predicate",
    lambda lax, w, a, b: lax.select_n(w, lax.wrap(a), lax.wrap(b)),
    normal(dtype=BOOL),
    key_data(3),
    key_data(3),
)
