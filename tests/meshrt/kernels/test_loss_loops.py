"""Cross-entropy of products for GPUs, as loops over classes: beside the kernel that other platforms run."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.experimental.pallas import ops
from meshrt.experimental.pallas.ops import losses
from meshrt.experimental.pallas.ops.placement import placed
from meshrt.sharding import NamedSharding
from meshrt.sharding import PartitionSpec as P
from tests.meshrt.kernels.test_evaluated import close


@pytest.fixture
def loops(monkeypatch):
    """The library as programs for GPUs have it, with blocks of 20 classes."""
    for name in ("_product_forward", "_product_backward"):
        fun = getattr(losses, name).on_gpus
        in_blocks = lambda split, *args, blocks, fun=fun: fun(split, *args, blocks=(0, 20))
        monkeypatch.setattr(losses, name, placed(in_blocks))


def inputs():
    r = np.random.RandomState(3)
    labels = r.randint(0, 48, (16,)).astype(np.int32)
    labels[2] = 60  # none of the classes
    return r.randn(16, 8).astype(np.float32), r.randn(48, 8).astype(np.float32), labels


def loss_and_gradients(x, head, labels):
    total = lambda x, head: (ops.linear_cross_entropy(x, head, labels) * jnp.arange(16.0)).sum()
    return meshrt.value_and_grad(total, (0, 1))(x, head)


def plain(x, head, labels):
    def total(x, head):
        logits = x @ head.T
        picked = jnp.where(jnp.arange(48) == labels[:, None], logits, 0).sum(1)
        return ((meshrt.nn.logsumexp(logits, 1) - picked) * jnp.arange(16.0)).sum()

    return meshrt.value_and_grad(total, (0, 1))(x, head)


def test_blocks_that_do_not_divide(loops):
    x, head, labels = inputs()

    close(meshrt.tree.leaves(loss_and_gradients(x, head, labels)), meshrt.tree.leaves(plain(x, head, labels)))


@pytest.mark.parametrize("specs", [(P("a"), P()), (P(), P("a")), (P("a"), P("b")), (P(), P())], ids=str)
def test_sharded_over_a_mesh(loops, specs):
    mesh = meshrt.make_mesh((4, 2), ("a", "b"))
    x, head, labels = inputs()
    placed = [meshrt.device_put(v, NamedSharding(mesh, s)) for v, s in zip((x, head), specs)]
    made = meshrt.jit(loss_and_gradients)(*placed, labels)
    close(meshrt.tree.leaves(made), meshrt.tree.leaves(plain(x, head, labels)))


def test_no_classes():
    x, _, labels = inputs()
    assert not np.isfinite(ops.linear_cross_entropy(x, np.ones((0, 8), np.float32), labels)).any()
