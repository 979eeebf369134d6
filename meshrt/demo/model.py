"""A byte-level transformer language model with AdamW, written against JAX's names.

`LanguageModel(meshrt, config)` is what `meshrt demo` trains. The module that provides the names is a parameter, so
the same source runs under any package that has them: tests and benchmarks compare with JAX that way.

Layers are stacked and scanned over, or kept apart and unrolled (`ModelConfig.unrolled`).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

__all__ = ["LanguageModel", "ModelConfig"]

BETA1, BETA2, EPSILON = 0.9, 0.95, 1e-8


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of the model and of its optimizer. `dtype` is that of activations; parameters are float32."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    hidden: int = 512
    context: int = 128
    batch: int = 16
    vocabulary: int = 256
    dtype: str = "float32"
    learning_rate: float = 1e-3
    warmup: int = 20
    weight_decay: float = 0.1
    clip: float = 1.0
    unrolled: bool = False


class LanguageModel:
    """The functions of a training script: `init`, `step`, and the shardings of what they take.

    Sharding is fully sharded data parallelism over the axis "data" and tensor parallelism over "model", asked for by
    one PartitionSpec per parameter and one for the activations; all else is left to propagation.
    """

    def __init__(self, frontend: ModuleType, config: ModelConfig):
        self.jax, self.jnp, self.config = frontend, frontend.numpy, config
        spec = frontend.sharding.PartitionSpec
        self.spec = spec
        self.layer_specs = {
            "attention_norm": (), "mlp_norm": (), "qkv": ("data", None, "model", None), "out": ("model", None, "data"),
            "up": ("data", "model"), "down": ("model", "data"),
        }  # fmt: skip
        self.top_specs = {"embed": spec("model", "data"), "position": spec(None, "data")}

    # -- state -----------------------------------------------------------------------------------------------

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        c = self.config
        head = c.width // c.heads
        return {
            "attention_norm": (c.width,), "mlp_norm": (c.width,), "qkv": (c.width, 3, c.heads, head),
            "out": (c.heads, head, c.width), "up": (c.width, c.hidden), "down": (c.hidden, c.width),
        }  # fmt: skip

    def init_params(self, key: Any) -> dict[str, Any]:
        """Random float32 parameters: {"embed", "position", "layers"}."""
        jax, jnp, c = self.jax, self.jnp, self.config
        shapes: dict[str, tuple[int, ...]] = {"embed": (c.vocabulary, c.width), "position": (c.context, c.width)}
        shapes |= {name: (c.layers, *shape) for name, shape in self.layer_shapes().items()}
        keys = dict(zip(shapes, jax.random.split(key, len(shapes))))
        params = {
            name: jnp.ones(shape) if name.endswith("norm") else 0.02 * jax.random.normal(keys[name], shape)
            for name, shape in shapes.items()
        }
        layers = {name: params.pop(name) for name in self.layer_shapes()}
        if c.unrolled:
            return {**params, "layers": [{name: x[i] for name, x in layers.items()} for i in range(c.layers)]}
        return {**params, "layers": layers}

    def init(self, key: Any) -> dict[str, Any]:
        """Parameters, the two moments of AdamW, and the number of steps taken."""
        params = self.init_params(key)
        zeros = self.jax.tree.map(self.jnp.zeros_like, params)
        return {"params": params, "mean": zeros, "square": zeros, "count": self.jnp.zeros((), self.jnp.int32)}

    def param_specs(self) -> dict[str, Any]:
        """A PartitionSpec per parameter."""
        lead = () if self.config.unrolled else (None,)
        layer = {n: self.spec(*lead, *entries) if entries else self.spec() for n, entries in self.layer_specs.items()}
        return {**self.top_specs, "layers": [layer] * self.config.layers if self.config.unrolled else layer}

    def state_shardings(self, mesh: Any) -> dict[str, Any]:
        """The shardings of what `init` returns, over a Mesh or an AbstractMesh."""
        named = self.jax.sharding.NamedSharding
        params = self.jax.tree.map(lambda s: named(mesh, s), self.param_specs(), is_leaf=self._is_spec)
        return {"params": params, "mean": params, "square": params, "count": named(mesh, self.spec())}

    def _is_spec(self, x: Any) -> bool:
        return isinstance(x, self.spec)

    def token_sharding(self, mesh: Any) -> Any:
        """The sharding of a batch, [batch, context + 1]."""
        return self.jax.sharding.NamedSharding(mesh, self.spec("data", None))

    def example_arguments(self, mesh: Any) -> tuple[Any, Any]:
        """The arguments of `step` as ShapeDtypeStructs over `mesh`, which may be an AbstractMesh."""
        jax, c = self.jax, self.config
        like = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
        state = jax.tree.map(like, jax.eval_shape(lambda: self.init(jax.random.key(0))), self.state_shardings(mesh))
        tokens = jax.ShapeDtypeStruct((c.batch, c.context + 1), self.jnp.int32, sharding=self.token_sharding(mesh))
        return state, tokens

    # -- the model -------------------------------------------------------------------------------------------

    def rms_norm(self, x: Any, scale: Any) -> Any:
        x32 = x.astype(self.jnp.float32)
        rms = self.jax.lax.rsqrt(self.jnp.mean(x32 * x32, axis=-1, keepdims=True) + 1e-6)
        return (x32 * rms * scale).astype(x.dtype)

    def attention(self, h: Any, layer: dict[str, Any]) -> Any:
        jnp = self.jnp
        q, k, v = jnp.moveaxis(jnp.einsum("btd,dchk->btchk", h, layer["qkv"].astype(h.dtype)), 2, 0)
        scores = jnp.einsum("bqhk,bthk->bhqt", q, k).astype(jnp.float32) / q.shape[-1] ** 0.5
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = self.jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(h.dtype)
        return jnp.einsum("bqhk,hkd->bqd", jnp.einsum("bhqt,bthk->bqhk", weights, v), layer["out"].astype(h.dtype))

    def block(self, x: Any, layer: dict[str, Any]) -> tuple[Any, None]:
        """x: [batch, time, width] -> the same after attention and MLP, as scan wants it."""
        x = x + self.attention(self.rms_norm(x, layer["attention_norm"]), layer)
        h = self.jax.nn.gelu(self.rms_norm(x, layer["mlp_norm"]) @ layer["up"].astype(x.dtype))
        return x + h @ layer["down"].astype(x.dtype), None

    def loss(self, params: dict[str, Any], tokens: Any) -> Any:
        """Mean cross-entropy, in nats per byte, of each token of [batch, time + 1] given those before it."""
        jax, jnp = self.jax, self.jnp
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        embed = params["embed"].astype(self.config.dtype)
        x = embed[inputs] + params["position"].astype(self.config.dtype)
        x = jax.lax.with_sharding_constraint(x, self.spec("data", None, None))
        if self.config.unrolled:
            for layer in params["layers"]:
                x, _ = self.block(x, layer)
        else:
            x, _ = jax.lax.scan(self.block, x, params["layers"])
        logits = jnp.einsum("btd,vd->btv", x, embed).astype(jnp.float32)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), targets[..., None], axis=-1))

    # -- training --------------------------------------------------------------------------------------------

    def step(self, state: dict[str, Any], tokens: Any) -> tuple[dict[str, Any], Any]:
        """One step of AdamW with warm-up and gradient clipping: the new state, and the loss before it."""
        jax, jnp, c = self.jax, self.jnp, self.config
        tree_map = jax.tree.map
        loss, grads = jax.value_and_grad(self.loss)(state["params"], tokens)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        grads = tree_map(lambda g: g * jnp.minimum(1.0, c.clip / (norm + 1e-6)), grads)
        count = state["count"] + 1
        mean = tree_map(lambda m, g: BETA1 * m + (1 - BETA1) * g, state["mean"], grads)
        square = tree_map(lambda s, g: BETA2 * s + (1 - BETA2) * g * g, state["square"], grads)
        rate = c.learning_rate * jnp.minimum(1.0, count / c.warmup)

        def update(p: Any, m: Any, s: Any) -> Any:
            m, s = m / (1 - BETA1**count), s / (1 - BETA2**count)
            return p - rate * (m / (jnp.sqrt(s) + EPSILON) + c.weight_decay * p)

        params = tree_map(update, state["params"], mean, square)
        specs = self.param_specs()
        keep = lambda tree: tree_map(jax.lax.with_sharding_constraint, tree, specs)
        return {"params": keep(params), "mean": keep(mean), "square": keep(square), "count": count}, loss

    def jitted_step(self) -> Any:
        """`step` as a jitted function that donates the state."""
        return self.jax.jit(self.step, donate_argnums=0)
