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
    # A small GPT, its weights split over "model" and its batch over "data"; the losses are JAX's for the same program.
    "flax": """
        import flax.linen as nn, numpy as np, optax
        from jax.sharding import NamedSharding, PartitionSpec as P

        jax.config.update("jax_num_cpu_devices", 8)
        mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
        split = lambda x: jax.device_put(x, NamedSharding(mesh, P(*[None] * (x.ndim - 1), "model")))

        class Block(nn.Module):
            @nn.compact
            def __call__(self, x):
                h = nn.LayerNorm()(x)
                x += nn.MultiHeadDotProductAttention(num_heads=2)(h, h, mask=nn.make_causal_mask(x[..., 0]))
                return x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))

        class GPT(nn.Module):
            @nn.compact
            def __call__(self, tokens):
                x = nn.Embed(16, 16)(tokens) + self.param("pos", nn.initializers.normal(0.02), (8, 16))
                for _ in range(2):
                    x = Block()(x)
                return nn.Dense(16)(nn.LayerNorm()(x))

        model, optimizer = GPT(), optax.adam(1e-2)
        tokens = jax.device_put(np.arange(64).reshape(8, 8) * 7 % 16, NamedSharding(mesh, P("data")))
        params = jax.tree.map(split, model.init(jax.random.key(0), jnp.zeros((1, 8), int)))
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels
        loss = lambda p, t: cross_entropy(model.apply(p, t)[:, :-1], t[:, 1:]).mean()

        @jax.jit
        def step(params, state, tokens):
            value, gradients = jax.value_and_grad(loss)(params, tokens)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, value

        state, values = jax.jit(optimizer.init)(params), []
        for _ in range(3):
            params, state, value = step(params, state, tokens)
            values.append(float(value))
        np.testing.assert_allclose(values, [3.3427117, 2.5753231, 2.1624010], rtol=1e-4)
        """,
    "equinox": """
        import equinox as eqx, equinox.internal as eqxi, numpy as np

        x, model = jnp.arange(3.0), eqx.nn.MLP(3, 2, 8, 2, key=jax.random.PRNGKey(0))
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4)
        close(eqx.filter_jit(model)(x), [-0.13609532, -0.2464535])
        value, gradients = eqx.filter_value_and_grad(lambda m: m(x).sum())(model)
        close([value, jax.tree.leaves(gradients)[0].sum()], [-0.3825488, -0.6381823])
        square = lambda c: (c[0] + 1, c[1] * 2 * c[1])
        power = lambda x: eqxi.while_loop(lambda c: c[0] < 5, square, (0, x), max_steps=16, kind="bounded")[1].sum()
        close(jax.grad(power)(x * 0.1), [0.0, 6.8719540e-21, 1.4757409e-11])
        try:
            eqx.filter_jit(lambda x: eqx.error_if(x, x > 1, "oh no"))(2.0)
        except RuntimeError as e:
            assert "oh no" in str(e)
        else:
            raise AssertionError("not raised")
        aside = eqxi.noinline(lambda x: jnp.sin(x) * 2)  # its lowering rule calls Python
        close(jax.jit(aside)(1.0), 2 * np.sin(1.0))
        close(jax.jit(jax.grad(lambda x: aside(x)))(1.0), 2 * np.cos(1.0))
        """,
    "diffrax": """
        import diffrax, numpy as np

        decay, control = diffrax.ODETerm(lambda t, y, k: -k * y), diffrax.PIDController(rtol=1e-5, atol=1e-6)

        def end(k):
            solved = diffrax.diffeqsolve(
                decay, diffrax.Tsit5(), 0.0, 1.0, 0.1, jnp.array(2.0), args=k, stepsize_controller=control
            )
            return solved.ys[0]

        value, slope = jax.jit(jax.value_and_grad(end))(0.7)
        np.testing.assert_allclose([value, slope], [2 * np.exp(-0.7), -2 * np.exp(-0.7)], rtol=1e-4)
        """,
    "numpyro": """
        import numpy as np, numpyro, numpyro.distributions as dist
        from numpyro.infer import MCMC, NUTS

        def model(data):
            mean, deviation = numpyro.sample("mean", dist.Normal(0, 10)), numpyro.sample("dev", dist.HalfNormal(5))
            numpyro.sample("data", dist.Normal(mean, deviation), obs=data)

        data = np.random.RandomState(0).normal(3, 1, 100)
        chain = MCMC(NUTS(model), num_warmup=100, num_samples=100, progress_bar=False)
        chain.run(jax.random.PRNGKey(0), data)
        assert abs(chain.get_samples()["mean"].mean() - data.mean()) < 0.1
        """,
    "blackjax": """
        import blackjax, numpy as np

        log_density = lambda x: -0.5 * jnp.sum((x - 1.0) ** 2)
        hmc = blackjax.hmc(log_density, step_size=0.5, inverse_mass_matrix=jnp.ones(2), num_integration_steps=5)

        def step(state, key):
            state, _ = hmc.step(key, state)
            return state, state.position

        keys = jax.random.split(jax.random.key(0), 400)
        positions = jax.jit(lambda state, keys: jax.lax.scan(step, state, keys)[1])(hmc.init(jnp.zeros(2)), keys)
        np.testing.assert_allclose(positions.mean(0), 1, atol=0.2)
        """,
    "orbax-checkpoint": """
        import numpy as np, orbax.checkpoint, tempfile
        from jax.sharding import NamedSharding, PartitionSpec as P

        jax.config.update("jax_num_cpu_devices", 8)
        mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("a", "b"))
        tree = {"w": jax.device_put(np.arange(64.0, dtype="f4").reshape(8, 8), NamedSharding(mesh, P("a", "b")))}
        tree["step"] = jnp.int32(3)
        with tempfile.TemporaryDirectory() as folder, orbax.checkpoint.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder + "/saved", tree)
            checkpointer.wait_until_finished()
            other = lambda x: NamedSharding(mesh, P("b") if x.ndim else P())
            wanted = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=other(x)), tree)
            found = checkpointer.restore(folder + "/saved", wanted)
        np.testing.assert_array_equal(found["w"], tree["w"])
        assert found["w"].sharding.spec == P("b") and found["step"] == 3
        """,
    "penzai": """
        from penzai import pz
        import treescope

        x = pz.nx.wrap(jnp.arange(6.0).reshape(2, 3)).tag("a", "b")
        doubled = jax.jit(lambda x: (x.untag("b") * 2).tag("b"))(x)
        assert doubled.named_shape == {"a": 2, "b": 3}
        key = jax.random.key(0)
        layer = pz.nn.Affine.from_config(name="l", init_base_rng=key, input_axes={"b": 3}, output_axes={"o": 4})
        assert layer(x).named_shape == {"a": 2, "o": 4}
        assert "Array" in treescope.render_to_text(jnp.ones(3))
        """,
    "dm-haiku": """
        import haiku as hk

        net = hk.transform(lambda x: hk.nets.MLP([8, 2])(x))
        params = net.init(jax.random.PRNGKey(0), jnp.ones((1, 3)))
        gradients = jax.jit(jax.grad(lambda p: net.apply(p, None, jnp.ones((4, 3))).sum()))(params)
        assert jax.tree.structure(gradients) == jax.tree.structure(params)
        """,
    "distrax": """
        import distrax, numpy as np

        normal = distrax.MultivariateNormalDiag(jnp.zeros(2), jnp.ones(2))
        assert normal.log_prob(normal.sample(seed=jax.random.PRNGKey(0), sample_shape=(5,))).shape == (5,)
        bijector = distrax.as_bijector(jnp.tanh)  # it inverts the Jaxpr
        np.testing.assert_allclose(bijector.inverse(jnp.tanh(0.3)), 0.3, rtol=1e-5)
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
