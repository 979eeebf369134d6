"""The operations of `jax._src.lax_reference` and the tables of `lax_test_util`, beside JAX's functions and tables."""

import itertools

import jax
import numpy as np
import pytest
from jax._src import core as jax_core
from jax._src.internal_test_util import lax_test_util as judge

from meshrt.compat.layer._src import core as our_core
from meshrt.compat.layer._src import lax_reference
from meshrt.compat.layer._src.internal_test_util import lax_test_util

RECORDS = lax_test_util.lax_ops()


def _name(record):
    return f"{record.op}-{'-'.join(np.dtype(d).name for d in record.dtypes)}"


@pytest.mark.parametrize("record", RECORDS, ids=map(_name, RECORDS))
def test_elementwise(record):
    for dtype in {np.dtype(d).kind: d for d in record.dtypes}.values():  # one of each kind
        rng = record.rng_factory(np.random.RandomState(0))
        operands = [rng((3, 4), dtype) for _ in range(record.nargs)]
        want = getattr(jax.lax, record.op)(*operands)
        got = np.asarray(getattr(lax_reference, record.op)(*operands))
        assert got.dtype == want.dtype or record.op in ("abs", "real", "imag")
        tol = 0.02 if want.dtype.itemsize < 4 and want.dtype.kind not in "iub" else 2e-4
        np.testing.assert_allclose(
            got.astype(want.dtype).astype(np.complex128), np.asarray(want).astype(np.complex128), tol, tol
        )


def test_the_tables_are_jaxs():
    def shown(record):
        return tuple(
            getattr(f, "__name__", repr(f)) if not isinstance(f, list) else [d.__name__ for d in f] for f in record
        )

    for name in ("lax_ops", "lax_out_dtype_ops", "lax_reduce_ops", "lax_named_reduce_ops"):
        ours, theirs = getattr(lax_test_util, name)(), getattr(judge, name)()
        assert list(map(shown, ours)) == list(map(shown, theirs))
    shapes = (2, 3), (4,)
    assert list(lax_test_util.all_bdims(*shapes)) == list(judge.all_bdims(*shapes))
    assert lax_test_util.add_bdim(7, 1, (2, 3)) == judge.add_bdim(7, 1, (2, 3))


X, W = np.arange(2 * 3 * 7 * 6.0, dtype=np.float32).reshape(2, 3, 7, 6), np.ones((4, 3, 3, 2), np.float32)
KEYS = np.array([[3, 1, 2], [1, 3, 3]], np.int32)
CALLS = [
    ("conv", (X, W, (2, 1), "SAME")),
    ("conv_with_general_padding", (X, W, (1, 2), [(1, 0), (2, 1)], (2, 1), (1, 2))),
    ("conv_general_dilated", (X, W, (1, 1), "VALID", (1, 1), (1, 1), ("NCHW", "OIHW", "NHWC"))),
    ("pad", (X[0, 0], np.float32(9), [(1, -2, 1), (-3, 4, 2)])),
    ("slice", (X[0, 0], (1, 0), (6, 5), (2, 3))),
    ("dynamic_slice", (X[0, 0], (6, -1), (2, 3))),
    ("dynamic_update_slice", (X[0, 0], W[0, 0], (6, 1))),
    ("broadcast", (KEYS, (4, 1))),
    ("broadcast_in_dim", (KEYS, (2, 5, 3), (0, 2))),
    ("reshape", (KEYS, (6,), (1, 0))),
    ("rev", (KEYS, (0, 1))),
    ("concatenate", ([KEYS, KEYS], 1)),
    ("select", (KEYS > 1, KEYS, -KEYS)),
    ("sort_key_val", (KEYS, -KEYS, 1)),
    ("top_k", (KEYS, 2)),
    ("dot_general", (X, X, (((3,), (3,)), ((0,), (0,))))),
    ("ragged_dot", (X[0, 0], np.ones((2, 6, 4), np.float32), np.array([3, 2], np.int32))),
    ("clamp", (1, KEYS, 2)),
    ("bitcast_convert_type", (X, np.int32)),
    ("population_count", (KEYS,)),
]


@pytest.mark.parametrize("name, args", CALLS, ids=[name for name, _ in CALLS])
def test_others(name, args):
    want, got = getattr(jax.lax, name)(*args), getattr(lax_reference, name)(*args)
    for w, g in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        assert np.shape(w) == np.shape(g)
        np.testing.assert_allclose(np.asarray(w), g, 1e-5)


@pytest.mark.parametrize("padding, stride", [*itertools.product(["SAME", "VALID", "SAME_LOWER"], [1, 2])])
def test_windows(padding, stride):
    args = (X, -np.inf, (1, 1, 3, 2), (1, 1, stride, 1), padding)
    want = jax.lax.reduce_window(args[0], args[1], jax.lax.max, *args[2:])
    got = lax_reference.reduce_window(args[0], args[1], np.maximum, *args[2:], None)
    np.testing.assert_array_equal(np.asarray(want), got)
    np.testing.assert_allclose(lax_reference.reduce(X, 0, np.add, (1, 3)), X.sum((1, 3)), 1e-5)
    assert lax_reference.padtype_to_pads((7,), (3,), (stride,), padding) == jax.lax.padtype_to_pads(
        (7,), (3,), (stride,), padding
    )


EDGES = np.float32([0.5, -0.5, 1.5, 2.5, 0.49999997, 8388609.0, -8388609.0, np.inf, np.nan])


def test_halves_and_quotients_that_do_not_fit():
    away = jax.lax.RoundingMethod.AWAY_FROM_ZERO
    np.testing.assert_array_equal(lax_reference.round(EDGES), jax.lax.round(EDGES, away))
    for dtype in (np.int8, np.int32):
        operands = np.array([np.iinfo(dtype).min, 7, -7], dtype), np.array([-1, -2, 2], dtype)
        np.testing.assert_array_equal(lax_reference.div(*operands), jax.lax.div(*operands))


def test_sizes_that_do_not_divide_are_refused():
    for core in (jax_core, our_core):
        with pytest.raises(core.InconclusiveDimensionOperation, match="Cannot divide evenly the sizes of shapes"):
            core.divide_shape_sizes((5,), (2,))
