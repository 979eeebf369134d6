"""Optimizers as triples of functions, under the names of jax.example_libraries.optimizers.

`init(params)` gives a state, `update(step, gradients, state)` the next one, and `get_params(state)` the parameters in
it. Parameters and gradients are pytrees; step sizes are numbers, or functions of the step.

>>> import meshrt, meshrt.numpy as jnp
>>> init, update, get_params = momentum(0.1, mass=0.9)
>>> state = init({"w": jnp.ones(3)})
>>> state = update(0, {"w": jnp.ones(3)}, state)
>>> params = get_params(state)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from meshrt import errors, tree_util
from meshrt import numpy as jnp

__all__ = [
    "JoinPoint", "Optimizer", "OptimizerState", "adagrad", "adam", "adamax", "clip_grads", "constant",
    "exponential_decay", "inverse_time_decay", "l2_norm", "make_schedule", "momentum", "nesterov", "optimizer",
    "pack_optimizer_state", "piecewise_constant", "polynomial_decay", "rmsprop", "rmsprop_momentum", "sgd", "sm3",
    "unpack_optimizer_state",
]  # fmt: skip

Schedule = Callable[[Any], Any]


class OptimizerState(NamedTuple):
    """The leaves of the state of each parameter, the structure of the parameters and those of the states."""

    packed_state: Any
    tree_def: Any
    subtree_defs: Any


tree_util.register_pytree_node(
    OptimizerState,
    lambda s: ((s.packed_state,), (s.tree_def, s.subtree_defs)),
    lambda structure, children: OptimizerState(children[0], *structure),
)


class Optimizer(NamedTuple):
    """What an optimizer is: three functions."""

    init_fn: Callable[[Any], Any]
    update_fn: Callable[[Any, Any, Any], Any]
    params_fn: Callable[[Any], Any]


def _packed(states: Any, tree: Any) -> OptimizerState:
    flat = [tree_util.tree_flatten(s) for s in states]
    return OptimizerState(tuple(leaves for leaves, _ in flat), tree, tuple(structure for _, structure in flat))


def _states(packed: OptimizerState) -> list[Any]:
    return [tree_util.tree_unflatten(d, leaves) for d, leaves in zip(packed.subtree_defs, packed.packed_state)]


def optimizer(opt_maker: Callable[..., Any]) -> Callable[..., Optimizer]:
    """Makes of an optimizer of one array one of pytrees.

    `opt_maker(...)` returns init(x), update(step, g, state) and get_params(state), where states are pytrees.

    Raises:
      ArgumentTypeError: (later) gradients that are no tree like the parameters, or a state that changes its structure.
    """

    @functools.wraps(opt_maker)
    def make(*args: Any, **kwargs: Any) -> Optimizer:
        init, update, get_params = opt_maker(*args, **kwargs)

        @functools.wraps(init)
        def init_all(params: Any) -> OptimizerState:
            leaves, tree = tree_util.tree_flatten(params)
            return _packed(map(init, leaves), tree)

        @functools.wraps(update)
        def update_all(i: Any, gradients: Any, state: OptimizerState) -> OptimizerState:
            leaves, tree = tree_util.tree_flatten(gradients)
            if tree != state.tree_def:
                raise errors.ArgumentTypeError(
                    "optimizer update function was passed a gradient tree that did not match the parameter tree it was "
                    f"initialized with: parameters {state.tree_def}, gradients {tree}"
                )
            out = _packed([update(i, g, s) for g, s in zip(leaves, _states(state))], tree)
            for before, after in zip(state.subtree_defs, out.subtree_defs):
                if before != after:
                    raise errors.ArgumentTypeError(
                        "optimizer update function produced an output structure that did not match its input "
                        f"structure: input {before} and output {after}"
                    )
            return out

        @functools.wraps(get_params)
        def params_of(state: OptimizerState) -> Any:
            return tree_util.tree_unflatten(state.tree_def, map(get_params, _states(state)))

        return Optimizer(init_all, update_all, params_of)

    return make


# ---------------------------------------------------------------------------------------------------------------------
# Optimizers


def _with_zeros(count: int) -> Callable[[Any], Any]:
    """The initial state: the parameter, and `count` arrays of zeros like it."""
    return lambda x: (x, *[jnp.zeros_like(x) for _ in range(count)])


def _first(state: Any) -> Any:
    return state[0]


@optimizer
def sgd(step_size: Any) -> Any:
    """Stochastic gradient descent.

    >>> meshrt.example_libraries.optimizers.sgd(0.1).update_fn(0, [jnp.array(1.0)],
    ...     meshrt.example_libraries.optimizers.sgd(0.1).init_fn([jnp.array(2.0)])).packed_state
    ([Array(1.9, dtype=float32, weak_type=True)],)
    """
    rate = make_schedule(step_size)
    return lambda x: x, lambda i, g, x: x - rate(i) * g, lambda x: x


@optimizer
def momentum(step_size: Any, mass: float) -> Any:
    """Gradient descent along a sum of gradients that decays by `mass`.

    >>> init, update, params = meshrt.example_libraries.optimizers.momentum(0.1, 0.9)
    >>> params(update(0, {"w": jnp.array(1.0)}, init({"w": jnp.array(2.0)})))
    {'w': Array(1.9, dtype=float32, weak_type=True)}
    """
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, velocity = state
        velocity = mass * velocity + g
        return x - rate(i) * velocity, velocity

    return _with_zeros(1), update, _first


@optimizer
def nesterov(step_size: Any, mass: float) -> Any:
    """Momentum that looks a step ahead.

    >>> init, update, params = meshrt.example_libraries.optimizers.nesterov(0.1, 0.9)
    >>> params(update(0, {"w": jnp.array(1.0)}, init({"w": jnp.array(2.0)})))
    {'w': Array(1.81, dtype=float32, weak_type=True)}
    """
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, velocity = state
        velocity = mass * velocity + g
        return x - rate(i) * (mass * velocity + g), velocity

    return _with_zeros(1), update, _first


def _over_root(g: Any, squares: Any) -> Any:
    """`g / sqrt(squares)`, zero where nothing has been added up yet."""
    return g * jnp.where(squares > 0, 1.0 / jnp.sqrt(squares), 0.0)


@optimizer
def adagrad(step_size: Any, momentum: float = 0.9) -> Any:
    """Steps divided by the root of all squared gradients (Duchi et al. 2011), with momentum.

    >>> init, update, params = meshrt.example_libraries.optimizers.adagrad(0.1)
    >>> params(update(0, {"w": jnp.array(1.0)}, init({"w": jnp.array(2.0)})))
    {'w': Array(1.99, dtype=float32, weak_type=True)}
    """
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, squares, m = state
        squares = squares + jnp.square(g)
        m = (1.0 - momentum) * _over_root(g, squares) + momentum * m
        return x - rate(i) * m, squares, m

    return _with_zeros(2), update, _first


@optimizer
def rmsprop(step_size: Any, gamma: float = 0.9, eps: float = 1e-8) -> Any:
    """Steps divided by the root of a decaying mean of squared gradients.

    >>> init, update, params = meshrt.example_libraries.optimizers.rmsprop(0.1)
    >>> params(update(0, {"w": jnp.array(1.0)}, init({"w": jnp.array(2.0)})))
    {'w': Array(1.6837723, dtype=float32, weak_type=True)}
    """
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean = state
        mean = mean * gamma + jnp.square(g) * (1.0 - gamma)
        return x - rate(i) * g / jnp.sqrt(mean + eps), mean

    return _with_zeros(1), update, _first


@optimizer
def rmsprop_momentum(step_size: Any, gamma: float = 0.9, eps: float = 1e-8, momentum: float = 0.9) -> Any:
    """`rmsprop` whose steps have momentum.

    >>> init, update, params = meshrt.example_libraries.optimizers.rmsprop_momentum(0.1)
    >>> params(update(0, {"w": jnp.array(1.0)}, init({"w": jnp.array(2.0)})))
    {'w': Array(1.6837723, dtype=float32, weak_type=True)}
    """
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, mean, m = state
        mean = mean * gamma + jnp.square(g) * (1.0 - gamma)
        m = momentum * m + rate(i) * g / jnp.sqrt(mean + eps)
        return x - m, mean, m

    return _with_zeros(2), update, _first


def _unbiased(beta: float, i: Any, dtype: Any) -> Any:
    """What a decaying mean that began with zeros has to be divided by after step `i`."""
    return 1 - jnp.asarray(beta, dtype) ** (i + 1)


@optimizer
def adam(step_size: Any, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Any:
    """Adam (Kingma and Ba 2015): decaying means of gradients and of their squares.

    >>> init, update, params = meshrt.example_libraries.optimizers.adam(0.1)
    >>> params(update(0, {"w": jnp.array(1.0)}, init({"w": jnp.array(2.0)})))
    {'w': Array(1.9000007, dtype=float32)}
    """
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, m, v = state
        m = (1 - b1) * g + b1 * m
        v = (1 - b2) * jnp.square(g) + b2 * v
        step = (m / _unbiased(b1, i, m.dtype)) / (jnp.sqrt(v / _unbiased(b2, i, m.dtype)) + eps)
        return x - rate(i) * step, m, v

    return _with_zeros(2), update, _first


@optimizer
def adamax(step_size: Any, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Any:
    """Adam with the largest gradient in place of the root of the mean square.

    >>> init, update, params = meshrt.example_libraries.optimizers.adamax(0.1)
    >>> params(update(0, {"w": jnp.array(1.0)}, init({"w": jnp.array(2.0)})))
    {'w': Array(1.9, dtype=float32)}
    """
    rate = make_schedule(step_size)

    def update(i: Any, g: Any, state: Any) -> Any:
        x, m, u = state
        m = (1 - b1) * g + b1 * m
        u = jnp.maximum(b2 * u, jnp.abs(g))
        return x - (rate(i) / _unbiased(b1, i, m.dtype)) * m / (u + eps), m, u

    return _with_zeros(2), update, _first


@optimizer
def sm3(step_size: Any, momentum: float = 0.9) -> Any:
    """SM3 (Anil et al. 2019): `adagrad` whose squares are kept by one vector per dimension.

    >>> init, update, params = meshrt.example_libraries.optimizers.sm3(0.1)
    >>> params(update(0, {"w": jnp.array([1.0])}, init({"w": jnp.array([2.0])})))
    {'w': Array([1.99], dtype=float32)}
    """
    rate = make_schedule(step_size)

    def init(x: Any) -> Any:
        shape, x = x.shape, jnp.atleast_1d(x)
        return x, jnp.zeros_like(x), [jnp.zeros(n, x.dtype) for n in x.shape], shape

    def update(i: Any, g: Any, state: Any) -> Any:
        x, m, vectors, shape = state
        others = [tuple(k for k in range(x.ndim) if k != j) for j in range(x.ndim)]
        bounds = [jnp.expand_dims(v, over) for v, over in zip(vectors, others)]
        squares = functools.reduce(jnp.minimum, bounds) + jnp.square(g)
        m = (1.0 - momentum) * _over_root(g, squares) + momentum * m
        return x - rate(i) * m, m, [squares.max(over) for over in others], shape

    return init, update, lambda state: state[0].reshape(state[3])


# ---------------------------------------------------------------------------------------------------------------------
# Step sizes


def constant(step_size: Any) -> Schedule:
    """The same in each step.

    >>> meshrt.example_libraries.optimizers.constant(0.1)(7)
    0.1
    """
    return lambda i: step_size


def exponential_decay(step_size: Any, decay_steps: Any, decay_rate: Any) -> Schedule:
    """Multiplied by `decay_rate` in every `decay_steps` steps.

    >>> meshrt.example_libraries.optimizers.exponential_decay(0.1, 10, 0.5)(10)
    0.05
    """
    return lambda i: step_size * decay_rate ** (i / decay_steps)


def inverse_time_decay(step_size: Any, decay_steps: Any, decay_rate: Any, staircase: bool = False) -> Schedule:
    """Divided by 1 + decay_rate * i / decay_steps; with `staircase` by what that is at whole multiples.

    >>> meshrt.example_libraries.optimizers.inverse_time_decay(0.1, 10, 1.0)(10)
    0.05
    """
    passed = (
        (lambda i: decay_rate * jnp.floor(i / decay_steps)) if staircase else (lambda i: decay_rate * i / decay_steps)
    )
    return lambda i: step_size / (1 + passed(i))


def polynomial_decay(step_size: Any, decay_steps: Any, final_step_size: Any, power: float = 1.0) -> Schedule:
    """From `step_size` to `final_step_size`, along a power of what is left of `decay_steps`.

    >>> meshrt.example_libraries.optimizers.polynomial_decay(0.1, 10, 0.0)(5)
    Array(0.05, dtype=float32, weak_type=True)
    """

    def schedule(i: Any) -> Any:
        left = 1 - jnp.minimum(i, decay_steps) / decay_steps
        return left**power * (step_size - final_step_size) + final_step_size

    return schedule


def piecewise_constant(boundaries: Any, values: Any) -> Schedule:
    """`values[k]` after `k` of the `boundaries`. ArgumentValueError unless there is one more value than boundaries.

    >>> meshrt.example_libraries.optimizers.piecewise_constant([10], [0.1, 0.01])(20)
    Array(0.01, dtype=float32)
    """
    boundaries, values = jnp.array(boundaries), jnp.array(values)
    if boundaries.ndim != 1 or values.ndim != 1:
        raise errors.ArgumentValueError("boundaries and values must be sequences")
    if boundaries.shape[0] != values.shape[0] - 1:
        raise errors.ArgumentValueError(
            f"boundaries length must be one shorter than values length: {boundaries.shape[0]} and {values.shape[0]}"
        )
    return lambda i: values[jnp.sum(i > boundaries)]


def make_schedule(scalar_or_schedule: Any) -> Schedule:
    """A function of the step, of one or of a number. ArgumentTypeError for anything else.

    >>> meshrt.example_libraries.optimizers.make_schedule(0.1)(7)
    0.1
    """
    if callable(scalar_or_schedule):
        return scalar_or_schedule
    if jnp.ndim(scalar_or_schedule):
        raise errors.ArgumentTypeError(
            f"a step size must be a number or a function of the step, got {type(scalar_or_schedule)}"
        )
    return constant(scalar_or_schedule)


# ---------------------------------------------------------------------------------------------------------------------
# Gradients and states


def l2_norm(tree: Any) -> Any:
    """The root of the sum of all squared elements of a pytree.

    >>> meshrt.example_libraries.optimizers.l2_norm([jnp.array([3.0]), jnp.array([4.0])])
    Array(5., dtype=float32)
    """
    return jnp.sqrt(sum(jnp.vdot(x, x) for x in tree_util.tree_leaves(tree)))


def clip_grads(grad_tree: Any, max_norm: Any) -> Any:
    """The pytree, scaled down if its `l2_norm` is above `max_norm`.

    >>> meshrt.example_libraries.optimizers.clip_grads([jnp.array([3.0, 4.0])], 1.0)
    [Array([0.6, 0.8], dtype=float32)]
    """
    norm = l2_norm(grad_tree)
    return tree_util.tree_map(lambda g: jnp.where(norm < max_norm, g, g * (max_norm / norm)), grad_tree)


class JoinPoint:
    """A leaf of one pytree in which another one begins."""

    def __init__(self, subtree: Any):
        self.subtree = subtree

    def __iter__(self) -> Iterator[Any]:
        yield self.subtree


def unpack_optimizer_state(opt_state: OptimizerState) -> Any:
    """A pytree like the parameters, with a `JoinPoint` around the state of each, for saving.

    >>> from meshrt.example_libraries import optimizers
    >>> state = optimizers.sgd(0.1).init_fn({"w": jnp.array(2.0)})
    >>> list(optimizers.unpack_optimizer_state(state))
    ['w']
    """
    return tree_util.tree_unflatten(opt_state.tree_def, map(JoinPoint, _states(opt_state)))


def pack_optimizer_state(marked_pytree: Any) -> OptimizerState:
    """The state of which `unpack_optimizer_state` made this. ArgumentTypeError for other leaves than JoinPoints.

    >>> from meshrt.example_libraries import optimizers
    >>> state = optimizers.sgd(0.1).init_fn({"w": jnp.array(2.0)})
    >>> optimizers.pack_optimizer_state(optimizers.unpack_optimizer_state(state)) == state
    True
    """
    points, tree = tree_util.tree_flatten(marked_pytree)
    for point in points:
        if not isinstance(point, JoinPoint):
            raise errors.ArgumentTypeError(f"expected JoinPoints as leaves, got {type(point).__name__}")
    return _packed([p.subtree for p in points], tree)
