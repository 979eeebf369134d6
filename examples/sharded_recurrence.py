"""A linear recurrence over time, h[t] = a[t] * h[t-1] + x[t], on sequences that are split over devices.

Written as a scan it is sequential in time: automatic sharding can only bring the whole sequence together. But two
numbers say what a stretch of time does to whatever came before it, so each device runs its own stretch and they
exchange these numbers. `custom_partitioning` makes that one operation: propagation sees a rule, "batch time feature",
and devices run `local`. Its gradient is the same operation, backwards in time.

    python examples/sharded_recurrence.py        prints both ways, with what they send, on 8 CPU devices
"""

import numpy as np

import meshrt
import meshrt.numpy as jnp
from meshrt import P, lax
from meshrt.experimental.custom_partitioning import custom_partitioning
from meshrt.sharding import AxisType


def recurrence(a, x, h0, reverse=False):
    """h of a[batch, time, feature] and x of the same shape, from h0[batch, feature]; and the last h."""

    def step(h, now):
        h = now[0] * h + now[1]
        return h, h

    moved = jnp.moveaxis(a, 1, 0), jnp.moveaxis(x, 1, 0)
    last, h = lax.scan(step, h0, moved, reverse=reverse)
    return jnp.moveaxis(h, 0, 1), last


def automatic(a, x, reverse=False):
    """The recurrence from zero, as anyone would write it."""
    return recurrence(a, x, jnp.zeros_like(a[:, 0]), reverse)[0]


def partition(reverse, mesh, arg_shapes, result_shape):
    """Every device runs its stretch of time, whichever axes of the mesh split it."""
    sharding = arg_shapes[0].sharding
    axes = (*sharding.spec, None, None)[1] or ()

    def local(a, x):
        if not axes:
            return automatic(a, x, reverse)
        # What a stretch does to what comes before it: h -> (product of a) * h + (its own last h).
        _, own = recurrence(a, x, jnp.zeros_like(a[:, 0]), reverse)
        decay, last = (lax.all_gather(v, axes) for v in (jnp.prod(a, 1), own))
        start, here, count = jnp.zeros_like(own), lax.axis_index(axes), decay.shape[0]
        for i in range(count)[::-1] if reverse else range(count):
            is_before = i > here if reverse else i < here
            start = jnp.where(is_before, decay[i] * start + last[i], start)
        return recurrence(a, x, start, reverse)[0]

    return mesh, local, sharding, (sharding, sharding)


@meshrt.custom_vjp
def sharded(a, x):
    """`automatic`, along time that stays split."""
    return _operation(a, x, False)


_operation = custom_partitioning(automatic, static_argnums=(2,))
_operation.def_partition(partition, sharding_rule="batch time feature, batch time feature -> batch time feature")


def _forward(a, x):
    h = sharded(a, x)
    return h, (a, h)


def _backward(kept, ct):
    # d[t] = ct[t] + a[t+1] * d[t+1] is the derivative by x[t], and h[t-1] * d[t] that by a[t].
    a, h = kept
    after = jnp.concatenate([a[:, 1:], jnp.zeros_like(a[:, :1])], 1)
    before = jnp.concatenate([jnp.zeros_like(h[:, :1]), h[:, :-1]], 1)
    d = _operation(after, ct, True)
    return before * d, d


sharded.defvjp(_forward, _backward)


def loss(way):
    return lambda a, x: jnp.mean(jnp.tanh(way(a, x)) ** 2)


def main():
    mesh = meshrt.make_mesh((2, 4), ("data", "time"), axis_types=(AxisType.Auto,) * 2)
    place = meshrt.NamedSharding(mesh, P("data", "time"))
    rng = np.random.default_rng(0)
    a = meshrt.device_put(rng.uniform(0.8, 1.0, (8, 512, 64)).astype(np.float32), place)
    x = meshrt.device_put(rng.standard_normal((8, 512, 64)).astype(np.float32), place)
    gradients = {}
    for way in (automatic, sharded):
        step = meshrt.jit(meshrt.grad(loss(way), (0, 1)))
        plan = step.trace(a, x).lower().partition().plan
        gradients[way] = step(a, x)
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(plan.counts.items()))
        print(f"{way.__name__:10} sends {plan.bytes / 1024:8.1f} KiB per device: {kinds}")
    for one, other in zip(*gradients.values()):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    print("the gradients agree")


if __name__ == "__main__":
    meshrt.config.update("num_cpu_devices", 8)
    main()
