"""einsum with lists of labels, which may be anything that can be hashed and ordered."""

import jax.numpy as jnp
import numpy as np
import pytest

import meshrt.numpy as mnp

X, Y = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(3, 4)
CALLS = [
    (X, ["b", "a"], Y, ["a", "c"]),
    (X, ["query", "d"], Y, ["d", "key"], ["key", "query"]),
    (X, [5, 3], Y, [3, 1]),
    (X, ["z", "y"]),
    (X, [100, 200], Y, [200, 60000]),
    (X, [("a", 1), ("b", 2)], [("b", 2)]),
    (X, [..., 0], Y, [0, 1], [..., 1]),
    (Y[:, :3], [0, 0]),
]


@pytest.mark.parametrize("call", CALLS)
def test_labels_are_ordered_as_they_compare(call):
    np.testing.assert_array_equal(mnp.einsum(*call), jnp.einsum(*call))


@pytest.mark.parametrize("labels", [[0, "a"], [[1], [2]]])
def test_labels_that_do_not_compare_are_refused(labels):
    for einsum in (jnp.einsum, mnp.einsum):
        with pytest.raises(TypeError, match="Ellipsis"):
            einsum(X, labels)
