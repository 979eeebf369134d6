"""`unreduced` and `reduced` in the specs of shard_map: partial sums that enter and leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meshrt
from meshrt import errors, lax
from meshrt import numpy as jnp
from meshrt.sharding import AxisType, NamedSharding, P

A = np.arange(8, dtype=np.float32).reshape(2, 4)
W = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def mesh() -> Iterator[Any]:
    found = meshrt.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    with meshrt.set_mesh(found):
        yield found


def put(x: Any, *spec: Any, **sums: Any) -> Any:
    return meshrt.device_put(x, P(*spec, **sums))


@pytest.mark.parametrize("wrap", [meshrt.jit, lambda f: f], ids=["jit", "eager"])
def test_a_partial_product_leaves_and_is_summed_outside(mesh: Any, wrap: Any) -> None:
    @wrap
    @meshrt.shard_map(in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", None, unreduced={"y"}))
    def product(a: Any, w: Any) -> Any:
        return a @ w  # what varies over y is an addend over it

    a, w = put(A, "x", "y"), put(W, "y", None)
    out = product(a, w)
    assert out.sharding == NamedSharding(mesh, P("x", None, unreduced={"y"}))
    np.testing.assert_allclose(np.asarray(meshrt.reshard(out, P("x", None))), A @ W)
    da, dw = meshrt.grad(lambda a, w: meshrt.reshard(product(a, w), P("x", None)).sum(), argnums=(0, 1))(a, w)
    np.testing.assert_allclose(np.asarray(da), np.ones((2, 3)) @ W.T)
    np.testing.assert_allclose(np.asarray(dw), A.T @ np.ones((2, 3)))
    with pytest.raises(errors.UnsupportedError, match="nobody has added it up"):
        np.asarray(out)
    assert "unreduced" in repr(out)


def test_an_argument_that_is_summed_up_inside(mesh: Any) -> None:
    x = put(A, unreduced={"x"})
    assert [np.asarray(s.data).any() for s in x.addressable_shards] == [True, True, False, False]
    total = meshrt.shard_map(lambda v: lax.psum(v, "x"), in_specs=P(unreduced={"x"}), out_specs=P())
    np.testing.assert_array_equal(np.asarray(total(x)), A)
    grad = meshrt.grad(lambda v: (total(v) * A).sum())(x)
    assert grad.sharding.spec.reduced == {"x"}
    np.testing.assert_array_equal(np.asarray(grad), A)


@pytest.mark.parametrize("function", [lambda v: v * v, jnp.sin, lambda v: v.reshape(-1).sum()])
def test_the_cotangent_of_what_is_reduced_is_unreduced(mesh: Any, function: Any) -> None:
    x = put(A, reduced={"x"})
    inside = meshrt.shard_map(function, out_specs=P(reduced={"x"}))
    for step in (lambda v: inside(v).sum(), lambda v: meshrt.checkpoint(inside)(v).sum()):
        grad = meshrt.jit(meshrt.grad(step))(x)
        assert grad.sharding.spec.unreduced == {"x"}
        want = meshrt.grad(lambda v: function(v).sum())(jnp.asarray(A))
        np.testing.assert_allclose(np.asarray(meshrt.reshard(grad, P())), np.asarray(want), rtol=1e-5)


def test_what_does_not_fit_is_refused(mesh: Any) -> None:
    same = meshrt.shard_map(lambda v: v, in_specs=P(unreduced={"x"}), out_specs=P(unreduced={"x"}))
    for x in (put(A), put(A, reduced={"x"})):
        with pytest.raises(errors.ShardingError, match="in_specs"):
            same(x)
    with pytest.raises(errors.ShardingError, match="out_specs passed to shard_map"):
        meshrt.shard_map(lambda v: v, in_specs=P(), out_specs=P(unreduced={"x"}))(put(A))
    with pytest.raises(errors.ShardingError, match="out_specs passed to shard_map"):
        meshrt.shard_map(lambda v: v, out_specs=P())(put(A, reduced={"x"}))
    with pytest.raises(errors.UnsupportedError, match="axes that are made manual"):
        meshrt.shard_map(lambda v: v, out_specs=P(), axis_names={"x"})(put(A, reduced={"x"}))


def test_the_chain_follows_what_varies_by_itself(mesh: Any) -> None:
    with pytest.raises(errors.ReplicationError, match=r"axis_index at .*differs from device to device"):
        meshrt.shard_map(lambda a: a * lax.axis_index("y"), in_specs=P("x"), out_specs=P("x"))(put(A[0], "x"))
