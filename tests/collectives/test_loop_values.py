"""What a loop makes again inside is not kept for it as large as it is."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from .jax_side import Case, check


def test_broadcasts_and_positions_are_not_taken_into_loops():
    """The same distances before a loop and in it: only sums over them are kept."""
    rows, data = 32, 200

    def build(constrain):
        def f(x, y):
            def energy(x):
                mask = jnp.arange(rows)[:, None] != jnp.arange(data)[None] % rows
                return jnp.sum(jnp.where(mask[..., None], x[:, None] - y[None], 0.0) ** 2, (1, 2))

            return lax.fori_loop(0, 3, lambda _, x: x + 1e-3 * jnp.tanh(energy(x))[:, None], x + energy(x)[:, None])

        return f

    rng = np.random.default_rng(0)
    args = tuple(rng.standard_normal((n, 8)).astype(np.float32) for n in (rows, data))
    result, _ = check(Case({"a": 4}, build, args, (P("a", None), P()), P("a", None)))
    text = result.as_text()
    while_op = next(line for line in text.splitlines() if '"stablehlo.while"' in line)
    taken = text.split(while_op)[1].split("^bb0")[2]  # the body: what it names from outside is carried by compilers
    made_outside = {
        line.split(" = ")[0] for line in text.split(while_op)[0].splitlines() if f"{rows // 4}x{data}" in line
    }
    named = {word.strip("(),") for word in taken.replace("(", " ").split() if word.startswith("%")}
    assert made_outside and not made_outside & named


def test_what_is_the_same_in_every_turn_is_sent_once():
    """A weight that is transposed in the loop: it moves once, instead of products in every turn."""

    def build(constrain):
        def step(h, x):
            h = constrain(h - jnp.mean(h, -1, keepdims=True) + x @ w_of["w"].T, "y", None)
            return h, jnp.sum(h, axis=0)

        w_of = {}

        def f(xs, w, h):
            w_of["w"] = w
            return lax.scan(step, h, xs)

        return f

    rng = np.random.default_rng(0)
    args = tuple(rng.standard_normal(shape).astype(np.float32) for shape in ((5, 8, 48), (48, 48), (8, 48)))
    specs = (P(None, "y", "x"), P(None, ("y", "x")), P("y", None))
    result, _ = check(Case({"x": 3, "y": 2}, build, args, specs))
    weights = [e for e in result.plan if "dot_general" in e.cause and e.kind != "all_reduce"]
    assert weights and all(e.times == 1 for e in weights), result.plan.as_text()
