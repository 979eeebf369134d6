"""A few lines of each library with meshrt in JAX's place, in a process where JAX has not been imported."""

import importlib.metadata
import os
import subprocess
import sys
import textwrap

import pytest

from tests.libraries import document

PROGRAMS = {
    "optax": """
        import optax
        from optax import losses

        params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
        x, labels = jnp.linspace(-1, 1, 12).reshape(4, 3), jnp.array([0, 0, 1, 1])
        schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 20)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
        loss = lambda p: losses.softmax_cross_entropy_with_integer_labels(x @ p["w"] + p["b"], labels).mean()

        @jax.jit
        def step(params, state):
            value, gradients = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, value

        state, values = optimizer.init(params), []
        for _ in range(20):
            params, state, value = step(params, state)
            values.append(float(value))
        assert values[-1] < 0.9 * values[0], values
        """,
    "chex": """
        import chex

        @chex.dataclass
        class State:
            x: chex.Array
            step: int

        @chex.chexify
        @jax.jit
        def f(state):
            chex.assert_shape(state.x, (3,))
            chex.assert_tree_all_finite(state.x)
            return jax.tree.map(lambda v: v + 1, state)

        out = f(State(x=jnp.zeros(3), step=1))
        assert out.step == 2 and out.x.sum() == 3
        try:
            f(State(x=jnp.array([1.0, jnp.nan, 2.0]), step=1))
            chex.block_until_chexify_assertions_complete()
        except Exception as e:
            assert "assert_tree_all_finite" in str(e), e
        else:
            raise AssertionError("a NaN was not found")
        chex.assert_trees_all_close({"a": jnp.ones(2)}, {"a": jnp.ones(2)})
        """,
    "einops": """
        import numpy as np
        from einops import einsum, pack, rearrange, reduce, repeat

        x = jnp.arange(24.0).reshape(2, 3, 4)
        assert rearrange(x, "b h w -> (b h) w").shape == (6, 4)
        np.testing.assert_allclose(jax.jit(lambda x: reduce(x, "b h w -> h", "mean"))(x), np.mean(x, (0, 2)))
        assert jax.grad(lambda x: repeat(x, "b h w -> b h w c", c=5).sum())(x).max() == 5
        assert einsum(x, x, "b h w, b k w -> b h k").shape == (2, 3, 3)
        assert pack([x, x], "b * w")[0].shape == (2, 6, 4) and isinstance(rearrange(x, "b h w -> w h b"), jax.Array)
        """,
    "jaxtyping": """
        from jaxtyping import Array, Float, Int, Key, PyTree, Shaped

        x = jnp.ones((3, 4))
        assert isinstance(x, Float[Array, "3 4"]) and not isinstance(x, Float[Array, "4 3"])
        assert not isinstance(x, Int[Array, "..."]) and isinstance(x, Shaped[Array, "a b"])
        assert isinstance(jax.random.key(0), Key[Array, ""])
        assert isinstance({"a": x, "b": [x]}, PyTree[Float[Array, "3 4"]])
        assert not isinstance({"a": 1}, PyTree[Float[Array, "3 4"]])
        seen = []
        jax.jit(lambda v: seen.append(isinstance(v, Float[Array, "3 4"])) or v)(x)
        assert seen == [True]
        """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_library_runs(name):
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed (the extra `libraries`)")
    program = "import meshrt.compat.installed, jax, jax.numpy as jnp\n" + textwrap.dedent(PROGRAMS[name])
    program += "\nimport meshrt\nassert jnp is __import__('sys').modules['meshrt.numpy'] and jax.jit is meshrt.jit\n"
    environ = {**os.environ, "MESHRT_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_is_that_of_the_results():
    assert document.PAGE.read_text() == document.page(), "run python -m tests.libraries --page-only"
