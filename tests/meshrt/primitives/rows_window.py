"""Rows of the window family: reduce_window and convolutions."""

from __future__ import annotations

import numpy as np

from tests.meshrt.primitives.cases import BF16, C64, F16, F32, I32, Case, distinct, fixed, normal, with_dtypes

CASES: list[Case] = []


def row(name, fun, *args, dtypes=None, **options):
    if dtypes is None:
        CASES.append(Case(f"{name}-float32", fun, args, **options))
    else:
        CASES.extend(with_dtypes(lambda d: Case(name, fun, args[0](d), **options), dtypes))


row(
    "reduce_window sum",
    lambda lax, x: lax.reduce_window(x, np.zeros((), x.dtype), lax.add, (2, 3), (1, 2), "SAME"),
    lambda d: (normal(4, 7, dtype=d),),
    dtypes=(F32, BF16, I32),
)
row(
    "reduce_window sum dilated",
    lambda lax, x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 2), ((1, 0), (0, 2)), (2, 1), (1, 3)),
    normal(4, 7),
)
row(
    "reduce_window max",
    lambda lax, x: lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2), (1, 2, 1), "SAME"),
    distinct(2, 5, 4),
)
row(
    "reduce_window max integer",
    lambda lax, x: lax.reduce_window(x, np.iinfo(np.int32).min, lax.max, (2,), (2,), "VALID"),
    lambda d: (normal(5, dtype=d),),
    dtypes=(I32,),
)
row("reduce_window min", lambda lax, x: lax.reduce_window(x, np.inf, lax.min, (3, 2), (2, 2), "VALID"), distinct(7, 6))
row(
    "reduce_window min uneven padding",
    lambda lax, x: lax.reduce_window(x, np.inf, lax.min, (3, 2), (2, 1), ((2, 1), (0, 1))),
    distinct(5, 4),
)
row(
    "reduce_window product",
    lambda lax, x: lax.reduce_window(x, 1.0, lax.mul, (2, 2), (1, 1), "VALID"),
    normal(4, 3),
    reverse=False,
    derivatives=1,
)
row(
    "reduce_window lambda",
    lambda lax, x: lax.reduce_window(x, 0.0, lambda a, b: lax.add(lax.mul(a, b), lax.max(a, b)), (2,), (2,), "VALID"),
    normal(6),
    reverse=False,
    derivatives=1,
)
row(
    "reduce_window pair",
    lambda lax, x, y: lax.reduce_window(
        (x, y), (-np.inf, np.int32(0)), lambda a, b: (lax.max(a[0], b[0]), lax.add(a[1], b[1])), (2,), (2,), "VALID"
    ),
    normal(6),
    normal(6, dtype=I32),
    derivatives=0,
)


def conv(name, lhs, rhs, dtypes=None, derivatives=2, **options):
    fun = lambda lax, x, k: lax.conv_general_dilated(x, k, **options)
    if dtypes is None:
        row(f"conv {name}", fun, normal(*lhs), normal(*rhs), derivatives=derivatives)
    else:
        row(
            f"conv {name}",
            fun,
            lambda d: (normal(*lhs, dtype=d), normal(*rhs, dtype=d)),
            dtypes=dtypes,
            derivatives=derivatives,
        )


conv("plain", (2, 3, 5, 4), (4, 3, 2, 2), dtypes=(F32, BF16, F16), window_strides=(1, 1), padding="VALID")
conv("strided same", (2, 2, 6), (3, 2, 3), window_strides=(2,), padding="SAME")
conv(
    "channels last",
    (2, 5, 4, 2),
    (3, 2, 2, 3),
    window_strides=(1, 2),
    padding="SAME_LOWER",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
)
conv(
    "strides in the kernel's order",
    (2, 5, 4, 2),
    (2, 3, 2, 3),
    window_strides=(1, 2),
    padding="VALID",
    dimension_numbers=("NHWC", "WHIO", "CNHW"),
)
conv("dilated", (1, 2, 6), (2, 2, 2), window_strides=(2,), padding=((1, 2),), lhs_dilation=(2,), rhs_dilation=(3,))
conv("negative padding", (1, 2, 6), (2, 2, 2), window_strides=(1,), padding=((-1, -1),))
conv("feature groups", (2, 4, 5), (6, 2, 2), window_strides=(1,), padding="VALID", feature_group_count=2)
conv(
    "depthwise",
    (2, 5, 3),
    (2, 1, 6),
    window_strides=(1,),
    padding="SAME",
    feature_group_count=3,
    dimension_numbers=("NHC", "HIO", "NHC"),
)
conv("batch groups", (4, 2, 5), (6, 2, 2), window_strides=(2,), padding=((1, 0),), batch_group_count=2)
conv("no spatial dimension", (2, 3), (4, 3), window_strides=(), padding=())
conv("no windows", (3, 2, 1), (6, 2, 2), window_strides=(1,), padding="VALID", rhs_dilation=(2,))
conv("an empty image", (1, 2, 0), (3, 2, 2), window_strides=(1,), padding=((0, 1),))
conv("complex", (1, 2, 4), (2, 2, 2), dtypes=(C64,), derivatives=1, window_strides=(1,), padding="VALID")
row(
    "conv preferred",
    lambda lax, x, k: lax.conv_general_dilated(x, k, (1,), "VALID", preferred_element_type=np.float32),
    normal(1, 2, 5, dtype=BF16),
    normal(3, 2, 2, dtype=BF16),
    derivatives=0,
)
row("conv simple", lambda lax, x, k: lax.conv(x, k, (2,), "SAME"), normal(2, 2, 5), normal(3, 2, 2), derivatives=1)
row(
    "conv_with_general_padding",
    lambda lax, x, k: lax.conv_with_general_padding(x, k, (2,), ((1, 1),), None, (2,)),
    normal(2, 2, 5),
    normal(3, 2, 2),
    derivatives=1,
)
for _name, _options in {
    "same": {"padding": "SAME"},
    "valid": {"padding": "VALID"},
    "pairs": {"padding": ((1, 2), (0, 1))},
    "consistent": {"padding": ((1, 0), (0, 1)), "use_consistent_padding": True},
    "kernel": {"padding": "SAME", "transpose_kernel": True},
    "dilated": {"padding": "SAME", "rhs_dilation": (2, 1)},
}.items():
    row(
        f"conv_transpose {_name}",
        lambda lax, x, k, o=_options: lax.conv_transpose(x, k, (2, 3), **o),
        normal(1, 3, 4, 2),
        normal(2, 3, 2, 2),
        derivatives=1,
    )


def ragged(name, lhs, rhs, sizes, numbers, **options):
    """`numbers`: (contracting, batch, ragged, group dimensions). JAX maps few of them, and along few dimensions."""
    contracting, batch, dims, groups = numbers
    row(
        f"ragged_dot {name}",
        lambda lax, x, y: lax.ragged_dot_general(
            x, y, np.asarray(sizes, np.int32), lax.RaggedDotDimensionNumbers((contracting, batch), dims, groups)
        ),
        normal(*lhs),
        normal(*rhs),
        vmap=False,
        **options,
    )


ragged("free", (5, 2), (3, 2, 4), [2, 0, 3], ((((1,), (1,))), ((), ()), [0], [0]))
ragged("free of a batch", (2, 4, 3), (2, 2, 3, 2), [[1, 3], [2, 1]], (((2,), (2,)), ((0,), (1,)), [1], [0]))
ragged("contracted", (2, 5), (5, 3), [2, 3], (((1,), (0,)), ((), ()), [1], []), trusted=False)
ragged("batched", (4, 2, 3), (4, 3, 2), [1, 3], (((2,), (1,)), ((0,), (0,)), [0], []), trusted=False)
row(
    "ragged_dot with rows left over",
    lambda lax, x, y, n: lax.ragged_dot(x, y, n),
    normal(5, 2),
    normal(2, 2, 3),
    fixed(np.array([2, 1], np.int32)),
    vmap=False,
)
for _name, _options in {
    "plain": {"window_strides": (1, 1), "padding": "VALID"},
    "channels last": {
        "window_strides": (2, 1), "padding": "SAME", "dimension_numbers": ("NHWC", "WHIO", "CNHW"),
        "rhs_dilation": (1, 2),
    },
}.items():  # fmt: skip
    row(
        f"conv_general_dilated_patches {_name}",
        lambda lax, x, o=_options: lax.conv_general_dilated_patches(x, (2, 2), **o),
        normal(2, 4, 3, 2) if "dimension_numbers" in _options else normal(2, 2, 4, 3),
        derivatives=1,
    )
row(
    "conv_general_dilated_local",
    lambda lax, x, k: lax.conv_general_dilated_local(x, k, (1, 1), "VALID", (2, 2)),
    normal(1, 2, 3, 4),
    normal(3, 8, 2, 3),
    derivatives=1,
)
row(
    "conv_general_dilated_local channels last",
    lambda lax, x, k: lax.conv_general_dilated_local(
        x, k, (1, 1), "VALID", (2, 1), dimension_numbers=("NHWC", "WHIO", "WNHC")
    ),
    normal(2, 3, 4, 2),
    normal(3, 3, 4, 3),
    derivatives=1,
)
