"""Values whose derivatives are of another kind than their arrays, in `shard_map`: beside the program without it."""

import functools
from dataclasses import dataclass

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import P, lax
from meshrt.experimental import hijax
from meshrt.experimental.hijax.quantized import (
    QMapping,
    QSpec,
    dequantize,
    quantize,
    quantized_matmul,
    transposed,
)
from meshrt.sharding import AxisType

W = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)


def mesh_of(kind=AxisType.Auto):
    return meshrt.make_mesh((2, 2), ("a", "b"), axis_types=(kind,) * 2)


def squares(x, q):
    return (quantized_matmul(x, q) ** 2).sum()


def rows_of_x(body, **settings):
    """`body` of a part of X's rows and the whole quantized matrix, summed over devices."""
    total = lambda x, q: lax.psum(body(x, q), "a")
    mapped = meshrt.shard_map(total, mesh=mesh_of(), in_specs=(P("a"), QSpec()), out_specs=P(), **settings)
    return lambda q: mapped(X, q)


@pytest.mark.parametrize("spec", [QSpec("a"), QSpec(None, "b"), QSpec("a", "b"), QSpec(), [P("a"), P("a")], P()])
@pytest.mark.parametrize("quantize_outside", [False, True])
def test_a_gradient_in_a_quantized_matrix_that_is_split(spec, quantize_outside):
    rows, columns = (
        (spec.rows, spec.columns) if isinstance(spec, QSpec) else ("a" if isinstance(spec, list) else None, None)
    )

    def body(x, q):
        y = quantized_matmul(x, q)
        return lax.psum(y, rows) if rows else y

    mapped = meshrt.shard_map(body, mesh=mesh_of(), in_specs=(P(None, rows), spec), out_specs=P(None, columns))
    of_q = lambda q: (mapped(X, q) ** 2).sum()
    q = quantize(W)
    f, plain, at = of_q, lambda q: squares(X, q), q
    if quantize_outside:
        f, plain, at = (lambda w: of_q(quantize(w))), (lambda w: squares(X, quantize(w))), W
    wanted = meshrt.grad(plain)(at)
    for g in (meshrt.grad(f), meshrt.jit(meshrt.grad(f)), meshrt.grad(meshrt.jit(f))):
        close(g(at), wanted)
    close(meshrt.jvp(f, (at,), (W,))[1], (wanted * W).sum())


def test_a_quantized_result_of_a_region_has_its_derivative():
    mapped = meshrt.shard_map(quantize, mesh=mesh_of(), in_specs=P("a"), out_specs=QSpec("a"))
    whole = meshrt.shard_map(lambda w: quantize(jnp.sin(w)), mesh=mesh_of(), in_specs=P(), out_specs=QSpec("a"))
    close(meshrt.grad(lambda w: squares(X, mapped(w)))(W), meshrt.grad(lambda w: squares(X, quantize(w)))(W))
    twice = lambda w: quantize(jnp.sin(jnp.concatenate([w, w])))
    close(
        meshrt.grad(lambda w: squares(np.tile(X, 2), whole(w)))(W),
        meshrt.grad(lambda w: squares(np.tile(X, 2), twice(w)))(W),
    )


def test_cotangents_of_one_value_of_several_devices_are_added_up_once():
    """One use on what differs between devices, another on what does not: the sum belongs to the first one alone."""

    def body(x, x0, w):
        q = quantize(jnp.sin(w))
        return lax.psum(squares(x, q), "a") + (quantized_matmul(x0, q) ** 3).sum()

    mapped = meshrt.shard_map(body, mesh=mesh_of(), in_specs=(P("a"), P(), P()), out_specs=P())
    plain = lambda w: squares(X, quantize(jnp.sin(w))) + (quantized_matmul(X, quantize(jnp.sin(w))) ** 3).sum()
    close(meshrt.grad(lambda w: mapped(X, X, w))(W), meshrt.grad(plain)(W))


def in_branch(x, q):
    """Devices choose the branch by themselves, and close over the value or are given it."""
    first = lax.axis_index("a") == 0
    given = lax.cond(first, lambda q: squares(x, q), lambda q: 0.5 * squares(x, q), q)
    return given + lax.cond(first, lambda: 0 * x.sum(), lambda: 0.5 * squares(x, q))


def twice(f, zero):
    """`f`, as half of the sum that a loop makes which carries the value."""
    body = lambda c, _: ((c[0] + f(c[1]), c[1]), None)
    return lambda q: lax.scan(body, (zero, q), None, length=2)[0][0] / 2


keep = meshrt.checkpoint_policies.everything_saveable
AROUND = {
    "checkpoint inside": rows_of_x(meshrt.checkpoint(squares)),
    "checkpoint around": meshrt.checkpoint(rows_of_x(squares)),
    "all saved": meshrt.checkpoint(rows_of_x(lambda x, q: squares(x, transposed(transposed(q)))), policy=keep),
    "scan around": twice(rows_of_x(squares), 0.0),
    "scan inside": rows_of_x(lambda x, q: twice(lambda q: squares(x, q), 0 * x[0, 0])(q)),
    "cond around": lambda q: lax.cond(X[0, 0] < 9, rows_of_x(squares), lambda q: 0.0, q),
    "branches of devices": rows_of_x(in_branch),
    "jit inside": rows_of_x(meshrt.jit(squares)),
    "barrier": rows_of_x(lambda x, q: squares(*lax.optimization_barrier((x, q)))),
    "unchecked": rows_of_x(squares, check_vma=False),
}


@pytest.mark.parametrize("name", AROUND)
def test_a_region_under_and_over_other_transformations(name):
    f, q = AROUND[name], quantize(W)
    wanted = meshrt.grad(lambda q: squares(X, q))(q)
    close(meshrt.grad(f)(q), wanted)
    close(meshrt.jit(meshrt.grad(f))(q), wanted)


def test_vmap_of_a_region_over_quantized_matrices():
    f, stack = rows_of_x(squares), quantize(jnp.stack([W, 2 * W]))
    mapped = functools.partial(meshrt.vmap, in_axes=(QMapping(),), axis_size=2)
    wanted = jnp.stack([meshrt.grad(lambda q: squares(X, q))(quantize(k * W)) for k in (1, 2)])
    close(mapped(f)(stack), [squares(X, quantize(W)), squares(X, quantize(2 * W))])
    close(mapped(meshrt.grad(f))(stack), wanted)
    close(meshrt.grad(lambda q: mapped(f)(q).sum())(stack), wanted)


@pytest.mark.parametrize("settings", [{"in_specs": (P(None, "a"), QSpec("a")), "reshard_inputs": True}, {}])
def test_over_explicit_axes(settings):
    mesh = mesh_of(AxisType.Explicit)
    body = lambda x, q: (lax.psum(quantized_matmul(x, q), "a") ** 2).sum()
    wanted = meshrt.grad(lambda q: squares(X, q))(quantize(W))
    place = lambda x, *spec: meshrt.device_put(x, meshrt.NamedSharding(mesh, P(*spec)))
    x, q = X, quantize(W)
    if not settings:
        x, q = place(X, None, "a"), hijax.quantized.QArray(place(q.values, "a", None), place(q.scales, "a"))
    with meshrt.set_mesh(mesh):
        mapped = meshrt.shard_map(body, out_specs=P(), **settings)
        close(meshrt.jit(meshrt.grad(lambda q: mapped(x, q)))(q), wanted)


@dataclass(frozen=True, eq=False)
class Halves:
    values: object


@dataclass(frozen=True)
class HalvesType(hijax.HiType):
    """float16 whose derivatives are float32. It is made of a shape, so it says nothing of devices itself."""

    shape: tuple

    def lo_ty(self):
        return [hijax.ShapedArray(self.shape, np.dtype(np.float16))]

    def lower_val(self, value):
        return [value.values]

    def raise_val(self, values):
        return Halves(values)

    def to_tangent_aval(self):
        return hijax.ShapedArray(self.shape, np.dtype(np.float32))


@dataclass(frozen=True)
class HalvesSpec(hijax.HiPspec):
    dim: object

    def to_lo(self):
        return (P(self.dim),)


hijax.register_hitype(Halves, lambda h: HalvesType(tuple(h.values.shape)))


class Single(hijax.VJPHiPrimitive):
    def __init__(self, kind):
        self.in_avals, self.out_aval, self.params = (kind,), kind.to_tangent_aval(), {}
        super().__init__()

    def expand(self, value):
        return value.values.astype(jnp.float32)

    def vjp_fwd(self, nonzeros, value):
        return self(value), None

    def vjp_bwd_retval(self, residuals, ct):
        return (ct,)


def single(value):
    return Single(meshrt.typeof(value))(value)


class Half(hijax.VJPHiPrimitive):
    def __init__(self, x):
        self.in_avals, self.out_aval, self.params = (x,), HalvesType(x.shape), {}
        super().__init__()

    def expand(self, x):
        return Halves(x.astype(jnp.float16))

    def vjp_fwd(self, nonzeros, x):
        return self(x), None

    def vjp_bwd_retval(self, residuals, ct):
        return (ct,)


def test_types_that_say_nothing_of_devices_have_it_said_for_them():
    """What varies, what does not, one use of each kind: cotangents are added up where they are of several devices."""
    half = lambda x: Half(meshrt.typeof(x))(x)
    x = jnp.arange(4.0)

    def body(part, whole):
        h, g = half(jnp.sin(part)), half(whole)
        assert type(meshrt.typeof(g)) is HalvesType and isinstance(meshrt.typeof(h), HalvesType)
        assert meshrt.typeof(h) != meshrt.typeof(g) == HalvesType(whole.shape)
        once = lax.psum((single(h) * single(g)[:2]).sum(), "a")
        return once + (single(g) ** 3).sum()

    mapped = meshrt.shard_map(body, mesh=mesh_of(), in_specs=(P("a"), P()), out_specs=P())
    plain = lambda part, whole: (
        sum((single(half(jnp.sin(part)))[k : k + 2] * single(half(whole))[:2]).sum() for k in (0, 2))
        + (single(half(whole)) ** 3).sum()
    )
    for got, wanted in zip(meshrt.grad(mapped, (0, 1))(x, x), meshrt.grad(plain, (0, 1))(x, x)):
        close(got, wanted)


def test_what_is_said_where_a_spec_says_too_little():
    value = Halves(jnp.arange(4, dtype=jnp.float16))
    total = lambda h: lax.psum(single(h).sum(), "a")
    mapped = lambda spec: meshrt.shard_map(total, mesh=mesh_of(), in_specs=spec, out_specs=P())
    assert mapped(HalvesSpec("a"))(value) == 6
    with pytest.raises(meshrt.errors.ArgumentTypeError, match="`to_tangent_spec` must give a PartitionSpec"):
        meshrt.grad(mapped(HalvesSpec("a")))(value)
    with pytest.raises(meshrt.errors.UnsupportedError, match="to implement the `tangent_spec` method"):
        meshrt.grad(mapped([P("a")]))(value)
    HalvesSpec.to_tangent_spec = lambda self: P(self.dim)
    close(meshrt.grad(mapped(HalvesSpec("a")))(value), np.ones(4))


def test_identities_take_values_of_high_types():
    q = quantize(W)
    f = lambda q: squares(X, lax.stop_gradient(q)) + dequantize(lax.optimization_barrier(q)).sum()
    close(meshrt.grad(f)(q), np.ones((4, 6)))
    close(dequantize(meshrt.jit(lambda q: lax.optimization_barrier((q, X)))(q)[0]), dequantize(q))


FLOWS = {  # of what differs between devices, and of what does not
    "branches": lambda v, u: lax.cond(u[0, 0] > 0, lambda: quantize(u * u), lambda: quantize(v * v)),
    "a carry that comes to vary": lambda v, u: lax.scan(
        lambda q, _: (quantize(dequantize(q) * v), None), quantize(u), None, length=2
    )[0],
    "a reference": lambda v, u: (lambda r: (r.__setitem__(..., quantize(2 * u)), quantize(dequantize(r[...]) * v))[1])(
        meshrt.new_ref(quantize(v))
    ),
    "a carry that varies at first": lambda v, u: lax.fori_loop(0, 2, lambda _, q: quantize(2 * u), quantize(v)),
}


@pytest.mark.parametrize("name", FLOWS)
def test_branches_and_loops_over_values_that_come_to_vary(name):
    """As arrays that branches give, and carries too, they are made to vary; two devices are two calls."""
    square = lambda v, u: (dequantize(FLOWS[name](v, u)) ** 2).sum()
    mesh = mesh_of()
    mapped = meshrt.shard_map(
        lambda v, u: lax.psum(square(v, u), "a"), mesh=mesh, in_specs=(P("a"), P()), out_specs=P()
    )
    both = np.concatenate([W, 2 * W])
    plain = lambda v, u: square(v[:4], u) + square(v[4:], u)
    for got, wanted in zip(meshrt.grad(mapped, (0, 1))(both, W), meshrt.grad(plain, (0, 1))(both, W)):
        close(got, wanted)


@pytest.mark.parametrize("spec", [QSpec("a"), P()])
def test_errors_name_arguments_beside_values_that_stay_whole(spec):
    """Operands count a value of a high type once, specs count each of its arrays."""

    def raised(body, *specs):
        mapped = meshrt.shard_map(body, mesh=mesh_of(), in_specs=specs, out_specs=P())
        with pytest.raises(meshrt.errors.ReplicationError) as e:
            mapped(*[X if s == P("a") else quantize(W) for s in specs])
        return str(e.value)

    assert "args[1], which enters with P('a',)" in raised(lambda q, x: x * 2, spec, P("a"))
    assert "args[2], which enters with P('a',)" in raised(lambda q, r, x: x * 2, spec, spec, P("a"))
