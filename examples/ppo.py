"""Teaches an agent to balance a pole: proximal policy optimisation, with environments on all devices.

    python examples/ppo.py --rounds 12

The cart and its pole are equations of motion in the program itself, so that playing and learning is one function: each
device plays its own environments, and only gradients and a few means cross between them.
(Schulman et al.: "Proximal Policy Optimization Algorithms", 2017; the cart-pole is that of Barto et al. 1983.)
Replace `meshrt` by `jax` in the imports and the script runs unchanged.
"""

import argparse

import meshrt as jax
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

CARTS, TURNS, PASSES, HIDDEN = 64, 128, 8, 64
RATE, DISCOUNT, TRACE, CLIP, ENTROPY = 3e-3, 0.99, 0.95, 0.2, 0.01
GRAVITY, POLE, CART, LENGTH, FORCE, TICK, LONGEST = 9.8, 0.1, 1.0, 0.5, 10.0, 0.02, 200


def fresh(key):
    """A cart near the middle with its pole near the top: position, speed, angle, its speed; and the turn."""
    return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05), jnp.zeros((), jnp.int32)


def play(state, turn, action, key):
    """Pushes the cart to the left (0) or to the right (1). Returns the next state and turn, and whether it fell."""
    x, speed, angle, spin = state
    cos, sin, mass = jnp.cos(angle), jnp.sin(angle), POLE + CART
    push = (FORCE * (2 * action - 1) + POLE * LENGTH * spin**2 * sin) / mass
    turning = (GRAVITY * sin - cos * push) / (LENGTH * (4 / 3 - POLE * cos**2 / mass))
    moving = push - POLE * LENGTH * turning * cos / mass
    state = jnp.stack([x + TICK * speed, speed + TICK * moving, angle + TICK * spin, spin + TICK * turning])
    fell = (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 12 * jnp.pi / 180)
    over = fell | (turn + 1 >= LONGEST)
    new_state, new_turn = fresh(key)
    return jnp.where(over, new_state, state), jnp.where(over, new_turn, turn + 1), fell, over


def init(key):
    """One network whose last matrix gives two logits and the value."""
    first, second, last = jax.random.split(key, 3)
    draw = jax.nn.initializers.orthogonal()
    return [draw(first, (4, HIDDEN)), draw(second, (HIDDEN, HIDDEN)), 0.1 * draw(last, (HIDDEN, 3))]


def judge(params, state):
    """(log-probabilities of both actions, value in tens of turns) for state: f32[..., 4]."""
    scaled = state / jnp.array([2.4, 2.0, 0.2, 2.0])
    out = jnp.tanh(jnp.tanh(scaled @ params[0]) @ params[1]) @ params[2]
    return jax.nn.log_softmax(out[..., :2]), 10 * out[..., 2]


def episode(params, carts, key):
    """TURNS turns of one device's carts. Returns the carts and what happened, [TURNS, carts, ...]."""

    def turn(carts, key):
        state, count = carts
        chances, value = judge(params, state)
        act, restart = jax.random.split(key)
        action = jax.random.categorical(act, chances)
        keys = jax.random.split(restart, CARTS)
        new_state, new_count, fell, over = jax.vmap(play)(state, count, action, keys)
        chance = jnp.take_along_axis(chances, action[:, None], -1)[:, 0]
        return (new_state, new_count), (state, action, chance, value, fell, over)

    return lax.scan(turn, carts, jax.random.split(key, TURNS))


def advantages(values, last, fell, over):
    """Generalised advantages (Schulman et al. 2016), each turn rewarded by one; f32[TURNS, carts]."""

    def back(carry, inputs):
        following, advantage = carry
        value, fell, over = inputs
        surprise = 1.0 - fell + DISCOUNT * jnp.where(over, 0.0, following) - value
        advantage = surprise + DISCOUNT * TRACE * jnp.where(over, 0.0, advantage)
        return (value, advantage), advantage

    return lax.scan(back, (last, jnp.zeros_like(last)), (values, fell, over), reverse=True)[1]


def loss_fn(params, states, actions, chances, gains, returns):
    new, value = judge(params, states)
    ratio = jnp.exp(jnp.take_along_axis(new, actions[..., None], -1)[..., 0] - chances)
    gains = (gains - gains.mean()) / (gains.std() + 1e-8)
    policy = jnp.minimum(ratio * gains, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * gains).mean()
    entropy = -jnp.sum(jnp.exp(new) * new, axis=-1).mean()
    return 0.005 * jnp.mean(jnp.square(value - returns)) - policy - ENTROPY * entropy


@jax.jit
def learn(params, square, carts, key):
    """One round: the carts play, then the network learns from it in a few passes of RMSProp."""
    carts, (states, actions, chances, values, fell, over) = episode(params, carts, key)
    gains = advantages(values, judge(params, carts[0])[1], fell, over)
    batch = (states, actions, chances, gains, gains + values)

    def learn_once(carry, _):
        params, square = carry
        grads = jax.grad(loss_fn)(params, *batch)
        square = jax.tree.map(lambda s, g: 0.9 * s + 0.1 * g * g, square, grads)
        params = jax.tree.map(lambda p, g, s: p - RATE * g / (jnp.sqrt(s) + 1e-4), params, grads, square)
        return (params, square), None

    (params, square), _ = lax.scan(learn_once, (params, square), length=PASSES)
    return params, square, carts, TURNS * CARTS / jnp.maximum(over.sum(), 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((8,), ("cart",), axis_types=(AxisType.Auto,))
    key = jax.random.key(0)
    params = jax.device_put(init(key), NamedSharding(mesh, P()))
    square = jax.tree.map(jnp.zeros_like, params)
    carts = jax.device_put(jax.vmap(fresh)(jax.random.split(key, CARTS)), NamedSharding(mesh, P("cart")))
    for number in range(1, args.rounds + 1):
        params, square, carts, turns = learn(params, square, carts, jax.random.fold_in(key, number))
        print(f"round {number:2d}  turns to the end of an episode {float(turns):6.1f}")


if __name__ == "__main__":
    main()
