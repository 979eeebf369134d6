"""A pipeline: each device has one stage of a network, and micro-batches go from stage to stage.

    python examples/by_hand/pipeline.py

In tick t, stage s works on micro-batch t - s; after all ticks the last stage has every result. Gradients come out of
`meshrt.grad` without more ado: the transpose of sending on is sending back.
(Huang et al.: "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2019.)
"""

import numpy as np
from compare import report

import meshrt as jax
import meshrt.numpy as jnp
from meshrt import P, lax

STAGES, WIDTH, MICRO, BATCH = 8, 64, 16, 8


def stage(weights, x):
    return x + jnp.tanh(x @ weights)


def network(weights, batches):
    """weights: f32[stages, width, width], batches: f32[micro, batch, width]; all stages one after another."""
    return lax.scan(lambda x, w: (stage(w, x), None), batches, weights)[0]


def pipeline(weights, batches):
    """weights: this device's stage, f32[1, width, width]; batches: all of them, of which stage 0 takes them in turn."""
    stages, me = lax.axis_size("stage"), lax.axis_index("stage")
    onward = [(i, i + 1) for i in range(stages - 1)]
    ticks = batches.shape[0] + stages - 1

    def tick(arrived, t):
        fresh = lax.dynamic_index_in_dim(batches, jnp.minimum(t, batches.shape[0] - 1), keepdims=False)
        done = stage(weights[0], jnp.where(me == 0, fresh, arrived))
        return lax.ppermute(done, "stage", onward), done

    empty = lax.pcast(jnp.zeros(batches.shape[1:]), "stage", to="varying")
    _, done = lax.scan(tick, empty, jnp.arange(ticks))
    return done[None, stages - 1 :]  # those of the last stage are the results


def programs(mesh):
    """(by hand, Auto mode): functions of weights and batches."""
    run = jax.shard_map(pipeline, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P("stage"))
    return (lambda weights, batches: run(weights, batches)[-1]), network


def arguments(mesh):
    draw = np.random.default_rng(0)
    weights = draw.normal(size=(STAGES, WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
    batches = draw.normal(size=(MICRO, BATCH, WIDTH)).astype(np.float32)
    put = lambda x, spec: jax.device_put(x, jax.NamedSharding(mesh, spec))
    return put(weights, P("stage")), put(batches, P())


def loss(forward):
    """The training loss: gradients flow back through the pipeline."""
    return lambda weights, batches: (forward(weights, batches) ** 2).mean()


def main():
    mesh = jax.make_mesh((STAGES,), ("stage",), axis_types=(jax.sharding.AxisType.Auto,))
    by_hand, automatic = programs(mesh)
    args = arguments(mesh)
    np.testing.assert_allclose(by_hand(*args), network(*map(np.asarray, args)), rtol=1e-4, atol=1e-5)
    report(f"{MICRO} micro-batches through {STAGES} stages", by_hand=(by_hand, args), automatic=(automatic, args))
    report("and their gradients", by_hand=(jax.grad(loss(by_hand)), args), automatic=(jax.grad(loss(automatic)), args))


if __name__ == "__main__":
    main()
