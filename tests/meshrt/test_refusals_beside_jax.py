"""Calls that are mistakes: refused as by JAX, with a class of error that derives from the built-in one of JAX's."""

from __future__ import annotations

import numpy as np
import pytest

from tests.meshrt.beside import assert_alike

A = np.arange(6, dtype=np.float32).reshape(2, 3)
X = A[0]
MASKED = np.ma.masked_array(X)


def open_sharding(l):
    mesh = l.make_mesh((8,), ("a",), axis_types=(l.sharding.AxisType.Auto,))
    return l.sharding.NamedSharding(mesh, l.P(l.P.UNCONSTRAINED))


DIMENSIONS = {
    "broadcast_in_dim": lambda l: l.lax.broadcast_in_dim(A, (3, 3), (0, 0)),
    "squeeze": lambda l: l.lax.squeeze(A[None], (0, 0)),
    "squeeze from both ends": lambda l: l.lax.squeeze(A[None], (0, -3)),
    "expand_dims": lambda l: l.lax.expand_dims(A, (0, 0)),
    "transpose": lambda l: l.lax.transpose(A, (0, 0)),
    "sum": lambda l: l.numpy.sum(A, (0, 0)),
    "dot_general": lambda l: l.lax.dot_general(X, A.T, (((1,), (0,)), ((), ()))),
}
INDICES = {
    "of two dtypes": lambda l: l.lax.dynamic_slice(A, (np.int32(0), np.int8(0)), (1, 1)),
    "int and int8": lambda l: l.lax.dynamic_slice(A, (0, np.int8(0)), (1, 1)),
    "of two dtypes, traced": lambda l: l.jit(lambda i, j: l.lax.dynamic_slice(A, (i, j), (1, 1)))(
        np.int32(0), np.int8(0)
    ),
    "of two dtypes, updating": lambda l: l.lax.dynamic_update_slice(A, A[:1, :1], (np.int32(0), np.uint8(0))),
    "booleans": lambda l: l.lax.dynamic_slice(A, (True, False), (1, 1)),
    "floats": lambda l: l.lax.dynamic_slice(A, (0.0, 0.0), (1, 1)),
    "too few": lambda l: l.lax.dynamic_slice(A, (0,), (1, 1)),
    "int8 along one dimension": lambda l: l.lax.dynamic_slice_in_dim(A, np.int8(1), 1),
    "dtype of positions": lambda l: l.lax.argmax(A, 0, np.float32),
}
DERIVATIVES = {
    "jacfwd of complex": lambda l: l.jacfwd(lambda x: x**2)(1j),
    "jacfwd, holomorphic": lambda l: l.jacfwd(lambda x: x**2, holomorphic=True)(1j),
    "jacfwd of real, holomorphic": lambda l: l.jacfwd(lambda x: x**2, holomorphic=True)(1.0),
    "jacfwd of int": lambda l: l.jacfwd(lambda x: x * 1.0)(1),
    "jacrev to complex": lambda l: l.jacrev(lambda x: x * 1j)(1.0),
    "jacrev of real, holomorphic": lambda l: l.jacrev(lambda x: x**2, holomorphic=True)(1.0),
    "jacrev of int": lambda l: l.jacrev(lambda x: x * 1.0)(1),
    "hessian of complex": lambda l: l.hessian(lambda x: x**2)(1j),
    "jvp of another shape": lambda l: l.jvp(lambda x: x, (X,), (A,)),
    "jvp of another dtype": lambda l: l.jvp(lambda x: x, (X,), (X.astype(np.int32),)),
    "linearized, of another shape": lambda l: l.linearize(lambda x: x, X)[1](A),
}
MAPPED = {
    **{
        f"in_axes={axes!r}": lambda l, a=axes: l.vmap(lambda x: x, in_axes=a)(A)
        for axes in (False, True, (False,), 1.5, "a", 5, None)
    },
    "no array from a mapped function": lambda l: l.vmap(lambda x: object())(A),
    **{f"out_axes={axes!r}": lambda l, a=axes: l.vmap(lambda x: x, out_axes=a)(A) for axes in (False, 1.5, 5, None)},
}
MASKS = {
    "of numpy": lambda l: l.numpy.sin(MASKED),
    "of lax": lambda l: l.lax.sin(MASKED),
    "of jit": lambda l: l.jit(lambda x: x)(MASKED),
    "asarray": lambda l: l.numpy.asarray(MASKED),
    "device_put": lambda l: l.device_put(MASKED),
    "captured": lambda l: l.jit(lambda x: x + MASKED)(X),
    "of vmap": lambda l: l.vmap(lambda x: x)(MASKED),
    "of grad": lambda l: l.grad(lambda x: x.sum())(MASKED),
}
NUMBERS = {
    "around uint8": lambda l: l.numpy.uint8(3) + 300,
    "below uint8": lambda l: l.numpy.uint8(3) + (-1),
    "compared": lambda l: l.numpy.int8(1) < 300,
    "clipped": lambda l: l.numpy.clip(l.numpy.int8(1), 0, 300),
    "beyond int32": lambda l: l.numpy.add(np.int32(1), 2**40),
    "beyond int32, beside a float": lambda l: l.numpy.add(l.numpy.float32(1), 2**40),
    "conj of int": lambda l: l.lax.conj(A.astype(np.int32)),
    "reciprocal of int": lambda l: l.lax.reciprocal(A.astype(np.int32)),
    "negative power of int": lambda l: l.lax.integer_pow(A.astype(np.int32), -2),
    "bounds of another dtype": lambda l: l.lax.clamp(0, A, 1),
    "bounds": lambda l: l.lax.clamp(0.5, A, 1.5),
}
SHAPES = {
    "add": lambda l: l.numpy.add(A, A[:, :2]),
    "+": lambda l: l.numpy.asarray(A) + A[:, :2],
    "where": lambda l: l.numpy.where(A > 1, A, A[:, :2]),
    "clip": lambda l: l.numpy.clip(A, min=A[:, :2]),
    "dot": lambda l: l.numpy.dot(A, A),
    "matmul": lambda l: l.numpy.matmul(A, A),
    "vdot": lambda l: l.numpy.vdot(A, X),
    "tensordot": lambda l: l.numpy.tensordot(A, A, 1),
    "concatenate": lambda l: l.numpy.concatenate([A, X]),
    "lax.concatenate nothing": lambda l: l.lax.concatenate([], 0),
    "split into no parts": lambda l: l.numpy.split(A, 0),
    "split unevenly": lambda l: l.numpy.split(A, 4),
    "lax.split": lambda l: l.lax.split(A, (1, 1), 1),
    "lax.pad": lambda l: l.lax.pad(A, np.float32(0), ((0, 0, 0),)),
    "lax.pad within": lambda l: l.lax.pad(A, np.float32(0), ((0, 0, -1), (0, 0, 0))),
    "lax.top_k": lambda l: l.lax.top_k(A, 9),
    "lax.dot": lambda l: l.lax.dot(A, A),
    "lax.conv": lambda l: l.lax.conv(np.ones((1, 2, 5, 5)), np.ones((3, 1, 3, 3)), (1, 1), "SAME"),
    "eye": lambda l: l.numpy.eye(-1),
    "repeat": lambda l: l.numpy.repeat(X, -1),
    "one_hot": lambda l: l.nn.one_hot(np.array([1]), -1),
    "bitcast": lambda l: l.lax.bitcast_convert_type(np.ones(3, np.int8), np.int32),
    "split into less than none": lambda l: l.numpy.split(A, -1),
    "array_split into less than none": lambda l: l.numpy.array_split(A, -2),
    "einsum": lambda l: l.numpy.einsum("ij,jk", A, X[:2, None]),
    "einsum_path": lambda l: l.numpy.einsum_path("ij,jk", A, X[:2, None]),
    "out_shardings": lambda l: l.jit(lambda x: x, out_shardings=open_sharding(l))(np.ones(8)),
}
# What numbers a diagonal is an integer, whatever class it is of and whether or not it is traced.
NO_DIAGONALS = {
    "float": lambda l: 1.5, "NumPy float": lambda l: np.float32(1.5), "float array": lambda l: l.numpy.array(1.5),
    "NumPy array of a float": lambda l: np.array(1.0), "NumPy bool": lambda l: np.bool_(True), "text": lambda l: "1",
    "bool array": lambda l: l.numpy.array(True), "vector": lambda l: np.array([1]), "complex": lambda l: 1j,
}  # fmt: skip
NUMBERED = {
    "tri": lambda l, k: l.numpy.tri(3, k=k), "tril": lambda l, k: l.numpy.tril(A, k),
    "eye": lambda l, k: l.numpy.eye(3, k=k), "diagonal": lambda l, k: l.numpy.diagonal(A, k),
    "trace": lambda l, k: l.numpy.trace(A, k),
}  # fmt: skip
DIAGONALS = {
    **{f"{f} {n}": lambda l, f=f, n=n: NUMBERED[f](l, NO_DIAGONALS[n](l)) for f in NUMBERED for n in NO_DIAGONALS},
    **{f"{f} traced": lambda l, f=f: l.jit(lambda k: NUMBERED[f](l, k))(1.5) for f in NUMBERED},
    "triu": lambda l: l.numpy.triu(A, np.float32(1.5)),
    "triu traced": lambda l: l.jit(l.numpy.triu)(A, 1.5),
    "tri bool": lambda l: l.numpy.tri(3, k=True),
    "trace bool": lambda l: l.numpy.trace(A, True),
    "tri traced bool": lambda l: l.jit(lambda k: l.numpy.tri(3, k=k))(True),
}
KEYS = {
    "bits": lambda l: l.lax.bitcast_convert_type(l.random.key(0), np.uint32),
    "bits, traced": lambda l: l.jit(lambda k: l.lax.bitcast_convert_type(k, np.uint32))(l.random.key(0)),
    "bits of a key": lambda l: l.lax.bitcast_convert_type(np.zeros(2, np.uint32), l.random.key(0).dtype),
    "conversion": lambda l: l.lax.convert_element_type(l.random.key(0), np.uint32),
    "conversion to a key": lambda l: l.numpy.zeros(2, np.uint32).astype(l.random.key(0).dtype),
    "view as a key": lambda l: l.numpy.zeros(2, np.uint32).view(l.random.key(0).dtype),
}
CUMULATIVE = {
    f"{f} of {type(x).__name__}, axis {axis}": lambda l, f=f, x=x, axis=axis: getattr(l.numpy, f)(x, axis=axis)
    for f in ("cumsum", "cumprod", "nancumsum", "nancumprod")
    for x, axis in ((np.int32(3), 0), (np.float32(3), -1), (np.array(3.0), 0), (True, 0), (3.0, 1))
}


def generator(x):
    yield x


TRANSFORMATIONS = {
    "grad": lambda l, f: l.grad(f), "value_and_grad": lambda l, f: l.value_and_grad(f), "vmap": lambda l, f: l.vmap(f),
    "jacfwd": lambda l, f: l.jacfwd(f), "jacrev": lambda l, f: l.jacrev(f), "hessian": lambda l, f: l.hessian(f),
    "jit": lambda l, f: l.jit(f), "jvp": lambda l, f: l.jvp(f, (1.0,), (1.0,)), "vjp": lambda l, f: l.vjp(f, 1.0),
    "linearize": lambda l, f: l.linearize(f, 1.0), "make_jaxpr": lambda l, f: l.make_jaxpr(f),
    "closure_convert": lambda l, f: l.closure_convert(f, 1.0),
    "linear_transpose": lambda l, f: l.linear_transpose(f, 1.0), "eval_shape": lambda l, f: l.eval_shape(f),
}  # fmt: skip
FUNCTIONS = {
    "standardizing complex numbers": lambda l: l.nn.standardize(X + 1j),
    **{f"{name} of no function": lambda l, t=t: t(l, 0) for name, t in TRANSFORMATIONS.items()},
    **{f"{n} of a generator": lambda l, n=n: TRANSFORMATIONS[n](l, generator) for n in ("grad", "vmap", "jvp", "jit")},
    "grad of a static method": lambda l: l.grad(staticmethod(lambda x: x)),
    "a scope without a name": lambda l: l.named_scope(1),
}


def _split(l, *spec, kind="Auto"):
    mesh = l.make_mesh((4, 2), ("x", "y"), axis_types=(getattr(l.sharding.AxisType, kind),) * 2)
    return l.sharding.NamedSharding(mesh, l.P(*spec))


def _asserted(l, own, said, kind):
    """What the context says of axes counts, whatever the mesh of the constraint says."""
    with l.set_mesh(_split(l, kind="Explicit").mesh):
        x = l.device_put(np.zeros((8, 2), np.float32), l.P(*own))
        return l.jit(lambda x: l.lax.with_sharding_constraint(x, _split(l, *said, kind=kind)))(x)


def _put(l, space, x):
    with l.set_mesh(_split(l).mesh):
        inside = l.device_put(x, getattr(l.memory.Space, space))
    outside = l.device_put(x, getattr(l.memory.Space, space))
    return [(x.committed, str(x.sharding.memory_kind), x.sharding.num_devices) for x in (inside, outside)]


PLACES = {
    **{
        f"{kind} axes: {own} constrained to {said}": lambda l, a=(own, said, kind): _asserted(l, *a)
        for own in ((None, None), ("x", None), ("x", "y"))
        for said in ((), ("x",), ("x", "y"))
        for kind in ("Auto", "Explicit")
    },
    **{
        f"into {space} from {type(x)}": lambda l, a=(space, x): _put(l, *a)
        for space in ("Device", "Host")
        for x in (X, 1)
    },
    "one device for a split argument": lambda l: l.jit(
        lambda x: x, in_shardings=l.sharding.SingleDeviceSharding(l.devices()[2])
    )(l.device_put(np.zeros((8, 2)), _split(l, "y"))),
    "a struct of too few dimensions": lambda l: l.ShapeDtypeStruct((8, 2), "f4", sharding=_split(l, "x", None, "y")),
    "a struct of too few dimensions, by a spec": lambda l: l.ShapeDtypeStruct((8,), "f4", sharding=l.P("x", "y")),
    "parts in another memory": lambda l: l.make_array_from_single_device_arrays(
        (8,), _split(l, ("x", "y")).with_memory_kind("pinned_host"), [l.device_put(np.zeros(1), d) for d in l.devices()]
    ),
}

EVERYTHING = {
    f"{group}: {name}": program
    for group, programs in {
        "dimensions twice": DIMENSIONS, "indices": INDICES, "derivatives": DERIVATIVES, "vmap": MAPPED,
        "masks": MASKS, "numbers": NUMBERS, "shapes": SHAPES, "functions": FUNCTIONS,
        "diagonals": DIAGONALS, "keys": KEYS, "places": PLACES, "cumulative": CUMULATIVE,
    }.items()
    for name, program in programs.items()
}  # fmt: skip


@pytest.mark.parametrize("name", EVERYTHING)
def test_as_in_jax(name):
    assert_alike(EVERYTHING[name])
