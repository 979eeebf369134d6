"""Partial sums over Manual axes: what types say, values and derivatives, judged by JAX."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import meshrt
from meshrt import errors, lax
from tests.meshrt.primitives.test_collective_regions import OURS, THEIRS, assert_close


def partial(B, x):
    return B.lax.pcast(x, "x", to="unreduced")


def copies(B):
    return B.lax.pcast(B.np.arange(2.0), "x", to="reduced")


# name -> body of (library, x: f32[2]{V:x}) on a 4x2 mesh
STEPS = {
    "unreduced": lambda B, x: partial(B, x),
    "reduced": lambda B, x: copies(B),
    "sum of partial sums": lambda B, x: partial(B, x) + partial(B, x),
    "partial sum times copies": lambda B, x: partial(B, x) * copies(B),
    "partial sum times a function of copies": lambda B, x: B.np.exp(copies(B)) * partial(B, x),
    "sum over a dimension": lambda B, x: partial(B, x).sum(keepdims=True),
    "reshape": lambda B, x: partial(B, x).reshape(2, 1),
    "broadcast": lambda B, x: B.np.broadcast_to(partial(B, x), (3, 2)),
    "slice": lambda B, x: partial(B, x)[:1],
    "concatenate": lambda B, x: B.np.concatenate([partial(B, x), partial(B, x)]),
    "convert": lambda B, x: partial(B, x).astype(B.np.float16),
    "copies beside what varies": lambda B, x: copies(B) * x,
    "psum_scatter": lambda B, x: B.lax.psum_scatter(partial(B, B.np.concatenate([x, x])), "x", tiled=True),
    "psum_scatter of one dimension less": lambda B, x: B.lax.psum_scatter(
        partial(B, B.np.stack([x, x, x, 2 * x], 1)), "x", scatter_dimension=1
    ),
    "all_gather": lambda B, x: B.lax.all_gather(x, "x", to="reduced", axis=1),
    "psum": lambda B, x: B.lax.psum(partial(B, x), "x"),
}
REFUSED = {
    "sin of a partial sum": lambda B, x: B.np.sin(partial(B, x)),
    "product of partial sums": lambda B, x: partial(B, x) * partial(B, x),
    "partial sum beside what varies": lambda B, x: partial(B, x) + x,
    "partial sum and one": lambda B, x: partial(B, x) + 1.0,
    "copies beside one value": lambda B, x: copies(B) * B.np.ones(2),
    "partial sum in a matrix product": lambda B, x: partial(B, x) @ B.np.ones(2),
    "unreduced from what is the same": lambda B, x: B.lax.pcast(B.np.ones(2), "x", to="unreduced"),
    "varying twice": lambda B, x: B.lax.pcast(x, "x", to="varying"),
    "reduced from what varies": lambda B, x: B.lax.pcast(x, "x", to="reduced"),
    "partly varying": lambda B, x: B.lax.pcast(x, ("x", "y"), to="varying"),
    "a state that there is not": lambda B, x: B.lax.pcast(x, "x", to="elsewhere"),
    "partly unreduced": lambda B, x: B.lax.psum(partial(B, x), ("x", "y")),
    "in groups": lambda B, x: B.lax.all_gather(x, "x", to="reduced", axis_index_groups=[[0, 1], [2, 3]]),
}


def states(B, x):
    """(varying, unreduced, reduced) axes of a type."""
    aval = B.top.typeof(x)
    if B.top is jax:
        return [sorted(s) for s in (aval.mat.varying, aval.mat.unreduced, aval.mat.reduced)]
    spec = aval.explicit.spec if aval.explicit is not None else meshrt.P()
    return [sorted(s) for s in (aval.vma, spec.unreduced, spec.reduced)]


def run(B, steps, x):
    """Types and, made one value again, results."""
    seen = []

    def body(x):
        out = []
        for step in steps.values():
            y = step(B, x)
            seen.append(states(B, y))
            _, unreduced, reduced = seen[-1]
            y = B.lax.psum(y, tuple(unreduced)) if unreduced else y
            y = B.lax.pcast(y, tuple(reduced), to="varying") if reduced else y
            out.append(B.lax.psum(y, "x") if "x" in B.varying(y) else y)
        return out

    P = B.top.P
    mapped = B.top.shard_map(body, mesh=B.mesh((4, 2)), in_specs=P("x"), out_specs=P())
    return seen, B.top.jit(mapped)(x)


def test_types_and_values():
    x = np.arange(8, dtype=np.float32)
    (our_types, ours), (their_types, theirs) = run(OURS, STEPS, x), run(THEIRS, STEPS, x)
    for name, a, b in zip(STEPS, our_types, their_types):
        assert a == b, name
    for name, a, b in zip(STEPS, ours, theirs, strict=True):
        assert_close(a, b, name)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    x = np.arange(8, dtype=np.float32)
    with pytest.raises(Exception) as theirs:  # which is the question
        run(THEIRS, {name: REFUSED[name]}, x)
    with pytest.raises(errors.MeshrtError) as ours:
        run(OURS, {name: REFUSED[name]}, x)
    if isinstance(theirs.value, NotImplementedError | ValueError):
        assert isinstance(ours.value, NotImplementedError | ValueError)
    else:  # an error of its own, which derives from Exception
        assert type(theirs.value).__name__ == type(ours.value).__name__ == "ShardingTypeError"


def test_types_are_printed():
    seen = []

    def body(x):
        seen.extend(map(str, (meshrt.typeof(partial(OURS, x)), meshrt.typeof(copies(OURS)))))
        return x

    P = meshrt.P
    meshrt.make_jaxpr(meshrt.shard_map(body, mesh=OURS.mesh((4, 2)), in_specs=P("x"), out_specs=P("x")))(np.ones(8))
    assert seen == ["float32[2]{U:x}", "float32[2]{R:x}"]


def test_weights_gathered_as_copies():
    """The cotangents of gathered weights stay partial sums until they are scattered: no all_reduce stands between."""
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((8, 6)).astype(np.float32), rng.standard_normal((4, 8)).astype(np.float32)

    def loss(B, to):
        P = B.top.P

        def body(w, x):
            whole = B.lax.all_gather(w, "x", tiled=True, to=to)
            y = B.np.tanh(x @ (B.lax.pcast(whole, "x", to="varying") if to != "varying" else whole))
            return (y * B.np.sin(whole).sum()).sum(keepdims=True)

        mapped = B.top.shard_map(body, mesh=B.mesh((4,)), in_specs=(P("x"), P("x")), out_specs=P("x", None))
        return lambda w: mapped(w, x).sum()

    # JAX cannot keep what is reduced for the backward pass on meshes of Auto axes.
    want = jax.jit(jax.grad(loss(THEIRS, "varying")))(w)
    for to in ("varying", "invarying", "reduced"):
        assert_close(meshrt.jit(meshrt.grad(loss(OURS, to)))(w), want, to)
    text = str(meshrt.make_jaxpr(meshrt.grad(loss(OURS, "reduced")))(w))
    assert "unreduced_reduce_scatter[" in text and "psum" not in text


def test_casts_say_nothing_where_nothing_is_checked():
    P = meshrt.P
    body = lambda x: lax.psum(lax.pcast(lax.all_gather(x, "x", to="reduced"), "x", to="varying"), "x")
    run = meshrt.shard_map(body, mesh=OURS.mesh((4,)), in_specs=P("x"), out_specs=P(), check_vma=False)
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(meshrt.jit(run)(x), 4 * x.reshape(4, 2))
