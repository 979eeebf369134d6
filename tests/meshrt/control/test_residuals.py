"""What reverse mode of a scan saves, against what JAX saves: it decides the memory of training."""

import contextlib
import io
import re

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
import pytest

import meshrt
import meshrt.ad_checkpoint
import meshrt.numpy as mnp

from .test_against_jax import jit

B, S, D, H, L = 2, 8, 12, 3, 4
rng = np.random.default_rng(0)
PARAMS = {
    "q": rng.normal(size=(L, D, D)).astype(np.float32) * 0.2,
    "k": rng.normal(size=(L, D, D)).astype(np.float32) * 0.2,
    "v": rng.normal(size=(L, D, D)).astype(np.float32) * 0.2,
    "o": rng.normal(size=(L, D, D)).astype(np.float32) * 0.2,
    "up": rng.normal(size=(L, D, 4 * D)).astype(np.float32) * 0.2,
    "down": rng.normal(size=(L, 4 * D, D)).astype(np.float32) * 0.2,
    "scale": np.ones((L, D), np.float32),
}
X = rng.normal(size=(B, S, D)).astype(np.float32)


def block(jx, np_):
    def norm(x, scale):
        return x * jx.lax.rsqrt(np_.mean(x * x, -1, keepdims=True) + 1e-6) * scale

    def layer(h, p):
        x = norm(h, p["scale"])
        q, k, v = [(x @ p[n]).reshape(B, S, H, D // H) for n in "qkv"]
        scores = np_.einsum("bshd,bthd->bhst", q, k)
        mask = np_.tril(np_.ones((S, S), bool))
        scores = np_.where(mask, scores, -1e9)
        weights = jx.nn.softmax(scores, axis=-1)
        h = h + np_.einsum("bhst,bthd->bshd", weights, v).reshape(B, S, D) @ p["o"]
        x = norm(h, p["scale"])
        return h + jx.nn.gelu(x @ p["up"]) @ p["down"], None

    return layer


def transformer(jx, np_, wrap):
    layer = wrap(jx, block(jx, np_))
    return lambda p, x: jx.lax.scan(layer, x, p)[0]


WRAPS = {
    "plain": lambda jx, f: f,
    "remat": lambda jx, f: jx.checkpoint(f, prevent_cse=False),
    "dots": lambda jx, f: jx.checkpoint(f, policy=jx.checkpoint_policies.dots_with_no_batch_dims_saveable),
    "all dots": lambda jx, f: jx.checkpoint(f, policy=jx.checkpoint_policies.dots_saveable),
}


def saved_by_jax(f, *args):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        jax.ad_checkpoint.print_saved_residuals(f, *args)
    found = []
    for line in text.getvalue().splitlines():
        dtype, dims = re.match(r"(\w+)\[([\d,]*)\]", line).groups()
        found.append((dtype, tuple(map(int, filter(None, dims.split(","))))))
    return sorted(found)


def saved(f, *args):
    found = [a.short() for a, _ in meshrt.ad_checkpoint.saved_residuals(f, *args)]
    pairs = [re.match(r"(\w+)\[([\d,]*)\]", a).groups() for a in found]
    return sorted((t, tuple(map(int, filter(None, dims.split(","))))) for t, dims in pairs)


def nbytes(residuals):
    size = {"f32": 4, "bool": 1, "i32": 4, "u32": 4, "bf16": 2}
    return sum(size[t] * int(np.prod(shape)) for t, shape in residuals)


@pytest.mark.parametrize("name", list(WRAPS))
def test_transformer(name):
    mine = saved(transformer(meshrt, mnp, WRAPS[name]), PARAMS, X)
    theirs = saved_by_jax(transformer(jax, jnp, WRAPS[name]), PARAMS, X)
    assert nbytes(mine) <= nbytes(theirs), (mine, theirs)
    loss = lambda jx, np_: lambda p, x: np_.sum(np_.sin(transformer(jx, np_, WRAPS[name])(p, x)))
    got = jit(meshrt, meshrt.grad(loss(meshrt, mnp)))(PARAMS, X)
    want = jit(jax, jax.grad(loss(jax, jnp)))(PARAMS, X)
    for key in PARAMS:
        np.testing.assert_allclose(np.asarray(got[key]), np.asarray(want[key]), rtol=2e-3, atol=2e-4)


def test_what_other_residuals_determine_is_not_saved():
    """gelu's derivative needs four functions of what it is given, a norm's needs three: all come from the operands."""
    found = saved(transformer(meshrt, mnp, WRAPS["plain"]), PARAMS, X)
    stacks = [shape for _, shape in found if shape[:1] == (L,) and shape not in {p.shape for p in PARAMS.values()}]
    assert stacks.count((L, B, S, 4 * D)) == 1
    assert stacks.count((L, B, S, D)) == 3  # the two norms' operands and the heads' results


def test_masks_and_constants_of_recomputed_values_are_not_kept_broadcast():
    """tanh(z) is computed again from h; the mask and the other branch of z are broadcast again, too."""

    def step(h, w):
        z = mnp.where(mnp.tril(mnp.ones((D, D), bool)), h, -3.0)
        return mnp.tanh(z) @ w + h * h, None

    h, ws = np.ones((B, D, D), np.float32), np.ones((L, D, D), np.float32)
    found = saved(lambda h, ws: meshrt.lax.scan(step, h, ws)[0], h, ws)
    assert ("bool", (B, D, D)) not in found
    assert found.count(("f32", (L, B, D, D))) == 1
    assert ("f32", (B, D, D)) not in found


def test_operands_of_recomputed_values_reach_the_backward_pass():
    """A value of the outer loop that only a recomputed residual of the inner loop needs."""

    def loss(jx, np_):
        def outer(c, x):
            def inner(d, w):
                return np_.tanh(d * w + np_.sin(x)) * np_.exp(c * x), None

            return jx.lax.scan(inner, c, x * np_.arange(1.0, 4.0, dtype=np_.float32))[0], None

        return lambda c, xs: jx.lax.scan(outer, c, xs)[0]

    c, xs = np.float32(0.3), np.linspace(0.1, 0.9, 4, dtype=np.float32)
    got = jit(meshrt, meshrt.grad(loss(meshrt, mnp), (0, 1)))(c, xs)
    want = jit(jax, jax.grad(loss(jax, jnp), (0, 1)))(c, xs)
    for a, b in zip(got, want):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-6)


def test_a_value_at_a_constraint_is_not_computed_again_from_another_layout():
    """exp(-h²) is constrained: computed again from h, which is laid out otherwise, it would be moved in both loops."""
    mesh = meshrt.sharding.AbstractMesh((2, 4), ("x", "y"))

    def layout(*spec):
        return meshrt.sharding.NamedSharding(mesh, meshrt.sharding.PartitionSpec(*spec))

    def loss(h, ws):
        def step(h, w):
            return mnp.tanh(meshrt.lax.with_sharding_constraint(mnp.exp(-h * h), layout(None, "y")) + h) * w, None

        out, _ = meshrt.lax.scan(step, h, ws)
        return mnp.sum(out * out)

    h = meshrt.ShapeDtypeStruct((16, 16), np.float32, sharding=layout("y", None))
    ws = meshrt.ShapeDtypeStruct((4, 16), np.float32, sharding=layout(None, None))
    plan = meshrt.jit(meshrt.grad(loss)).lower(h, ws).partition().plan
    assert plan.bytes <= 192, plan.as_text()


def test_zeros_of_branches_are_broadcast_again():
    """relu and where(.., 0) leave zeros to the backward pass as literals, not as arrays."""

    def step(h, w):
        return meshrt.nn.relu(h @ w) + mnp.where(h > 0, h * h, 0.0), None

    h, ws = np.ones((D, D), np.float32), np.ones((L, D, D), np.float32)
    assert ("f32", (D, D)) not in saved(lambda h, ws: meshrt.lax.scan(step, h, ws)[0], h, ws)
