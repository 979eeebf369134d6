"""The reader of compiled HLO, on programs whose communication is known."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from meshrt import errors
from meshrt.inspect.hlo import _groups, axes_of_groups, collectives, sent_bytes

AXES = (("data", 4), ("model", 2))


@pytest.fixture(scope="module")
def jax_mesh():
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def compiled(mesh, body, spec, out_spec, shape=(64, 32)):
    x = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
    mapped = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=out_spec, check_vma=False)
    return jax.jit(mapped).lower(x).compile().as_text()


LOCAL = 64 // 4 * 32 * 4  # bytes of a shard over "data"


@pytest.mark.parametrize(
    "kind, body, out, want",
    [
        ("all_gather", lambda x: lax.all_gather(x, "data", tiled=True), P(), 3 * LOCAL),
        ("all_reduce", lambda x: lax.psum(x, "data"), P(), 2 * 3 / 4 * LOCAL),
        ("reduce_scatter", lambda x: lax.psum_scatter(x, "data", tiled=True), P("data"), 3 / 4 * LOCAL),
        ("all_to_all", lambda x: lax.all_to_all(x, "data", 1, 0, tiled=True), P(None, "data"), 3 / 4 * LOCAL),
        ("collective_permute", lambda x: lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)]), P("data"),
        LOCAL),
    ],
)  # fmt: skip
def test_bytes_of_each_kind(jax_mesh, kind, body, out, want):
    (found,) = collectives(compiled(jax_mesh, body, P("data"), out), 8)
    assert (found.kind, found.bytes, found.times) == (kind, want, 1)
    assert axes_of_groups(found.groups, AXES) == "data"


def test_collectives_in_loops_count_their_trips(jax_mesh):
    def body(x):
        return lax.fori_loop(0, 5, lambda _, c: jnp.sin(lax.psum(c, "model")), x)

    (found,) = collectives(compiled(jax_mesh, body, P("data"), P("data")), 8)
    assert found.times == 5 and axes_of_groups(found.groups, AXES) == "model"
    assert sent_bytes([found]) == 5 * 2 * 1 / 2 * LOCAL


def test_groups_in_every_spelling():
    assert _groups("{{0,2},{1,3}}", 4) == ((0, 2), (1, 3))
    assert _groups("{}", 3) == ((0, 1, 2),)
    assert _groups("[2,4]<=[4,2]T(1,0)", 8) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert _groups("mesh['a'=4,'b'=2] {'b'}", 8) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert _groups("mesh['a'=8] {'a':(2)2}", 8) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert _groups("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", 8) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert _groups("mesh['a'=2,'b'=2], device_ids=(3,2,1,0) {'a'}", 4) == ((3, 1), (2, 0))


def test_text_that_is_not_hlo_is_refused():
    with pytest.raises(errors.ArgumentValueError, match="no ENTRY"):
        collectives("module {}", 8)
    with pytest.raises(errors.ArgumentValueError, match="replica groups"):
        _groups("something else", 8)
