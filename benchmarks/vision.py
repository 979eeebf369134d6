"""Training steps of networks for pictures, written once against JAX's names: a ResNet-50, a ViT and a U-Net.

Pictures are f32[batch, size, size, 3], split over the mesh's one axis; parameters are whole on every device.
(He et al.: "Deep Residual Learning", 2016; Dosovitskiy et al.: "An Image is Worth 16x16 Words", 2021; Ronneberger et
al.: "U-Net", 2015.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["MODELS", "Vision"]

RATE, MOMENTUM, CLASSES = 0.01, 0.9, 100
LAYOUT = ("NHWC", "HWIO", "NHWC")


@dataclass(frozen=True)
class Model:
    """A network, `apply(layers, pictures)` where `layers` draws or reads parameters; and its pictures."""

    apply: Callable[[Layers, Any], Any]
    batch: int
    size: int  # pixels of a side


@dataclass
class Layers:
    """The layers that the networks are made of. Parameters are a list, in the order in which layers ask for them;
    without one they are drawn.
    """

    jax: ModuleType
    given: list[Any] | None
    asked: int = 0
    drawn: list[Any] = field(default_factory=list)

    def parameter(self, *shape: int, fan: int = 0) -> Any:
        """The next parameter: of ones or zeros (fan 1 or 0), or normal with the variance for `fan` inputs."""
        if self.given is not None:
            self.asked += 1
            return self.given[self.asked - 1]
        rng = np.random.default_rng(len(self.drawn))
        value = rng.standard_normal(shape) * (2 / fan) ** 0.5 if fan > 1 else np.full(shape, float(fan))
        self.drawn.append(value.astype(np.float32))
        return self.drawn[-1]

    def dense(self, x: Any, features: int) -> Any:
        return x @ self.parameter(x.shape[-1], features, fan=2 * x.shape[-1]) + self.parameter(features)

    def conv(self, x: Any, features: int, kernel: int, stride: int = 1) -> Any:
        shape = (kernel, kernel, x.shape[-1], features)
        w = self.parameter(*shape, fan=kernel * kernel * x.shape[-1])
        return self.jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=LAYOUT)

    def batch_norm(self, x: Any) -> Any:
        return self._norm(x, (0, 1, 2))

    def layer_norm(self, x: Any) -> Any:
        return self._norm(x, (-1,))

    def _norm(self, x: Any, axes: tuple[int, ...]) -> Any:
        mean = x.mean(axes, keepdims=True)
        x = (x - mean) * self.jax.lax.rsqrt(self.jax.numpy.square(x - mean).mean(axes, keepdims=True) + 1e-5)
        return x * self.parameter(x.shape[-1], fan=1) + self.parameter(x.shape[-1])


def resnet50(layers: Layers, x: Any) -> Any:
    """-> logits f32[batch, CLASSES]."""
    jax = layers.jax
    relu, norm = jax.nn.relu, layers.batch_norm
    x = relu(norm(layers.conv(x, 64, 7, 2)))
    x = jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for stage, blocks in enumerate((3, 4, 6, 3)):
        features = 64 * 2**stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            h = relu(norm(layers.conv(x, features, 1)))
            h = relu(norm(layers.conv(h, features, 3, stride)))
            h = norm(layers.conv(h, 4 * features, 1))
            x = relu(h + (x if block else norm(layers.conv(x, 4 * features, 1, stride))))
    return layers.dense(x.mean((1, 2)), CLASSES)


def vit(layers: Layers, x: Any, patch: int = 8, width: int = 192, heads: int = 3, depth: int = 6) -> Any:
    """-> logits f32[batch, CLASSES]."""
    jax, jnp = layers.jax, layers.jax.numpy
    x = layers.conv(x, width, patch, patch).reshape(x.shape[0], -1, width)
    x = x + layers.parameter(x.shape[1], width)
    for _ in range(depth):
        h = layers.layer_norm(x)
        q, k, v = (layers.dense(h, width).reshape(*h.shape[:2], heads, -1) for _ in range(3))
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5)
        x = x + layers.dense(jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape), width)
        x = x + layers.dense(jax.nn.gelu(layers.dense(layers.layer_norm(x), 4 * width)), width)
    return layers.dense(layers.layer_norm(x).mean(1), CLASSES)


def unet(layers: Layers, x: Any, widths: tuple[int, ...] = (16, 32, 64)) -> Any:
    """-> one number per pixel: f32[batch, size, size, 1]."""
    jax, jnp = layers.jax, layers.jax.numpy
    twice = lambda x, features: [x := jax.nn.silu(layers.batch_norm(layers.conv(x, features, 3))) for _ in range(2)][-1]
    kept = []
    for features in widths:
        x = twice(x, features)
        kept.append(x)
        x = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    x = twice(x, 2 * widths[-1])
    for features, beside in zip(widths[::-1], kept[::-1]):
        x = jax.image.resize(x, (*beside.shape[:3], x.shape[-1]), "nearest")
        x = twice(jnp.concatenate([x, beside], axis=-1), features)
    return layers.conv(x, 1, 1)


MODELS = {"ResNet-50": Model(resnet50, 8, 64), "ViT": Model(vit, 8, 64), "U-Net": Model(unet, 8, 32)}


class Vision:
    """A network, its parameters and its training step by gradient descent with momentum."""

    def __init__(self, frontend: ModuleType, name: str):
        self.jax, self.model = frontend, MODELS[name]
        self.step = frontend.jit(self._step, donate_argnums=0)

    def init(self) -> list[Any]:
        """The parameters; made of the shapes alone."""
        layers = Layers(self.jax, None)
        model = self.model
        self.jax.eval_shape(lambda x: model.apply(layers, x), np.zeros((1, model.size, model.size, 3), np.float32))
        return layers.drawn

    def batch(self) -> tuple[Any, Any]:
        """Pictures, and classes of them or values of their pixels."""
        rng, model = np.random.default_rng(0), self.model
        pictures = rng.standard_normal((model.batch, model.size, model.size, 3)).astype(np.float32)
        if model.apply is unet:
            return pictures, pictures.mean(-1, keepdims=True)
        return pictures, rng.integers(0, CLASSES, model.batch).astype(np.int32)

    def _loss(self, parameters: list[Any], pictures: Any, wanted: Any) -> Any:
        jnp = self.jax.numpy
        out = self.model.apply(Layers(self.jax, parameters), pictures)
        if out.shape == wanted.shape:
            return jnp.square(out - wanted).mean()
        return -jnp.take_along_axis(self.jax.nn.log_softmax(out), wanted[:, None], axis=-1).mean()

    def _step(self, state: tuple[list[Any], list[Any]], pictures: Any, wanted: Any) -> tuple[Any, Any]:
        parameters, velocity = state
        loss, grads = self.jax.value_and_grad(self._loss)(parameters, pictures, wanted)
        velocity = [MOMENTUM * v - RATE * g for v, g in zip(velocity, grads)]
        return ([p + v for p, v in zip(parameters, velocity)], velocity), loss
