"""What an expert writes by hand for some of the patterns: per-device programs with their collectives.

They take and return one device's pieces, as `jax.shard_map` gives them over the program's own shardings; what they send
is the `best` of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import patterns
from .base import PROGRAMS, Array, Workload

__all__ = ["EXPERTS", "by_hand"]

EXPERTS: dict[str, Callable] = {}


def expert(name: str) -> Callable[[Callable], Callable]:
    """Registers the function that follows for the program of that name."""

    def register(function: Callable) -> Callable:
        assert name in PROGRAMS, name
        EXPERTS[name] = function
        return function

    return register


def by_hand(program: Workload, mesh: Any) -> Callable:
    """The expert's version of a program, jitted, over whole arrays."""
    specs, outs = program.specs(), program.out_specs()
    mapped = jax.shard_map(EXPERTS[program.name], mesh=mesh, in_specs=specs, out_specs=outs, check_vma=False)
    placed = lambda tree: jax.tree.map(
        lambda s: jax.sharding.NamedSharding(mesh, s), tree, is_leaf=lambda s: isinstance(s, jax.sharding.PartitionSpec)
    )
    return jax.jit(mapped, in_shardings=placed(specs), out_shardings=placed(outs))


def gathered(params: Any, arrays: Any) -> Any:
    """Parameters whole, each gathered along the dimension that is split."""
    gather = lambda p, a: lax.all_gather(p, "x", axis=a.spec.index("x"), tiled=True)
    return jax.tree.map(gather, params, arrays, is_leaf=lambda a: isinstance(a, Array))


def scattered(grads: Any, arrays: Any) -> Any:
    """The means of gradients, each scattered along the dimension that its parameter is split along."""
    scatter = lambda g, a: lax.psum_scatter(g, "x", scatter_dimension=a.spec.index("x"), tiled=True) / 8
    return jax.tree.map(scatter, grads, arrays, is_leaf=lambda a: isinstance(a, Array))


def sharded_step(arrays: Any, params: Any, ids: jax.Array, labels: jax.Array) -> tuple[Any, jax.Array]:
    """FSDP: one gather of all parameters, one reduce-scatter of all gradients."""
    loss, grads = jax.value_and_grad(patterns.gated_loss)(gathered(params, arrays), ids, labels)
    return patterns.descend(params, scattered(grads, arrays)), lax.pmean(loss, "x")


@expert("fsdp without constraints")
def fsdp_free(params, ids, labels):
    return sharded_step(patterns.FREE, params, ids, labels)


@expert("fsdp, tied embeddings")
def fsdp_tied(params, ids, labels):
    return sharded_step(patterns.TIED, params, ids, labels)


@expert("microbatches, accumulator whole")
def microbatches(params, x, y):
    pairs = [[0, 2, 4, 6], [1, 3, 5, 7]]  # devices whose rows are of different microbatches
    deal = lambda t: lax.all_to_all(t, "x", 0, 0, axis_index_groups=pairs, tiled=True)
    total = patterns.accumulated(params, deal(x), deal(y), jax.tree.map(jnp.zeros_like, params))
    return patterns.descend(params, jax.tree.map(lambda g: lax.psum(g, "x") / 8, total))


@expert("recurrent layer, one kernel sliced into gates")
def sliced_gates(params, xs, cts):
    return lax.psum(patterns.sliced_gates(params, xs, cts), "x")


@expert("recurrent layer, kernels sliced in every step")
def sliced_kernels(params, xs, cts):
    return lax.psum(patterns.sliced_kernels(params, xs, cts), "x")


@expert("adam, parameters whole and the gradient split")
def adam(p, m, v, g):
    return patterns.adam_whole(p, m, v, lax.all_gather(g, "x", tiled=True))


@expert("residual and two partial sums")
def residual(r, a, w, b, v):
    return jnp.tanh(r + lax.psum_scatter(a @ w + b @ v, "x", scatter_dimension=0, tiled=True))


@expert("argmax over a split dimension")
def argmax(z):
    places = jnp.argmax(z, axis=1) + lax.axis_index("x") * z.shape[1]
    deal = lambda t: lax.all_to_all(t.reshape(8, -1), "x", 0, 0)
    values, places = deal(jnp.max(z, axis=1)), deal(places.astype(jnp.int32))
    chosen = jnp.take_along_axis(places, jnp.argmax(values, axis=0)[None], axis=0)[0]
    return lax.all_gather(chosen, "x", tiled=True)
