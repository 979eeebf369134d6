"""vmap(sum_match=True): results that the members of a batch do not share are summed over them; JAX is the judge."""

import numpy as np
import pytest

from tests.meshrt.beside import assert_alike

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("of", [lambda x: x, lambda x: x > 2, lambda x: (x > 2) * 2, lambda x: x.astype("int8")])
@pytest.mark.parametrize("out_axes", [(None, 0), (0, None), None])
@pytest.mark.parametrize("in_axes", [0, 1])
def test_as_in_jax(of, out_axes, in_axes):
    assert_alike(
        lambda lib: lib.vmap(lambda x: (of(x), of(x).max()), in_axes=in_axes, out_axes=out_axes, sum_match=True)(
            lib.numpy.asarray(X)
        )
    )
