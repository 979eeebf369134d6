"""The derivatives that users call: grad, value_and_grad, vjp, jvp, linearize, linear_transpose."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt.core.basic.memory import in_space
from meshrt.core.basic.reshard import as_split, cotangent_type
from meshrt.core.basic.shapes import zeros
from meshrt.core.basic.varying import in_order, into_branch, vary
from meshrt.core.jaxpr import Jaxpr
from meshrt.core.naming import wraps
from meshrt.core.references import inner_type, is_ref
from meshrt.core.spaces import DEVICE
from meshrt.core.trace import EVAL, context, eval_jaxpr, trace_to_jaxpr
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray, aval_of, present
from meshrt.jit import jit
from meshrt.primitives.conversion import as_weak, convert_element_type
from meshrt.primitives.gradient_refs import deliver, state_cotangents, targets_of, wanted
from meshrt.primitives.state import whole_read, whole_write
from meshrt.primitives.traced_scalars import as_traced
from meshrt.runtime.array import Array
from meshrt.runtime.transfer import from_numpy, put_leaf
from meshrt.sharding.typed import abstract, without_sums
from meshrt.transforms.arguments import check_argnums, described, fun_name, require_function, split_aux
from meshrt.transforms.discharge import Cell
from meshrt.transforms.given_derivatives import (
    PUSHED,
    check_inputs,
    cotangent_leaves,
    linear_cotangents,
    tangent_leaves,
)
from meshrt.transforms.high import flatten
from meshrt.transforms.high_derivatives import no_derivative
from meshrt.transforms.jvp import jvp_flat
from meshrt.transforms.linear import LinearTracer, Purpose, backward, linearizing_for, transpose_jaxpr
from meshrt.transforms.linear_maps import LinearMap, Pullback, Run, places_among
from meshrt.transforms.linearize import LinearFunction, linearize_flat
from meshrt.transforms.tools import hoist_consts
from meshrt.tree_util import tree_structure, tree_unflatten

__all__ = ["fwd_and_bwd", "grad", "jvp", "linear_transpose", "linearize", "value_and_grad", "vjp"]


class _Flat:
    """A function of flat leaves made from one of pytrees; remembers the structure of the last result.

    With `has_aux` the leaves of the auxiliary part follow those of the value: they leave the trace as all results do,
    so that a trace around it sees what they depend on.
    """

    __slots__ = ("aux_tree", "count", "fun", "has_aux", "in_tree", "name", "out_tree")

    def __init__(self, fun: Callable[..., Any], in_tree: Any, has_aux: bool = False, name: Any = None):
        self.fun, self.in_tree, self.has_aux = fun, in_tree, has_aux
        self.name = fun if name is None else name
        self.out_tree: Any = None
        self.aux_tree: Any = None
        self.count = 0

    def __call__(self, *leaves: Any) -> list[Any]:
        out = self.fun(*tree_unflatten(self.in_tree, leaves))
        if not self.has_aux:
            flat, self.out_tree = flatten(out)
            self.count = len(flat)
            return flat
        out, aux = split_aux(self.name, out)
        flat, self.out_tree = flatten(out)
        extra, self.aux_tree = flatten(aux)
        self.count = len(flat)
        return flat + extra

    def split(self, outs: Sequence[Any]) -> tuple[list[Any], Any]:
        """The leaves of the value, and the auxiliary part (None without one)."""
        aux = tree_unflatten(self.aux_tree, outs[self.count :]) if self.has_aux else None
        return list(outs[: self.count]), aux


# ---------------------------------------------------------------------------------------------------------------------
# Reverse mode


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[..., Any]:
    """A function that returns the value of `fun` (a scalar) and its gradient in the arguments `argnums`.

    The gradient has the structure, shapes, dtypes and, along Explicit axes, shardings of those arguments: that of one
    argument, or a tuple for a sequence of `argnums`.

    Args:
      fun: a function of pytrees of arrays that returns a scalar.
      argnums: the positional arguments to differentiate by; those from the end may be counted negatively.
      has_aux: `fun` returns (value, aux), and the result is ((value, aux), gradient).
      holomorphic: `fun` is a holomorphic function of complex numbers.
      allow_int: integers and booleans may be among the arguments; their gradients have dtype `float0`.
      reduce_axes: of older versions of JAX; nothing depends on it.

    Raises:
      ArgumentTypeError: by the function that is returned: the value is no real scalar (with `holomorphic` no complex
        one), an argument is of integers, or the call has not the positional arguments `argnums`.

    >>> import meshrt, meshrt.numpy as jnp
    >>> value, gradient = meshrt.value_and_grad(lambda x: jnp.sum(x * x))(jnp.arange(3.0))
    >>> gradient
    Array([0., 2., 4.], dtype=float32)
    """
    require_function(fun)
    single = isinstance(argnums, int | np.integer)

    @boundary
    @wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nums = check_argnums(fun, argnums, len(args))
        dynamic = tuple(args[n] for n in nums)
        leaves, tree = flatten(dynamic)
        check_inputs(fun, leaves, args, nums, allow_int, holomorphic)
        leaves = into_branch(leaves)

        def call(*values: Any) -> Any:
            full = list(args)
            for n, v in zip(nums, values):
                full[n] = v
            return fun(*full, **kwargs)

        flat = _Flat(call, tree, has_aux, fun)
        nonzeros = [aval_of(x).is_differentiable for x in leaves]
        value, aux, linear = _scalar_linearized(fun, flat, leaves, nonzeros, holomorphic)
        cts = _pull_back(linear, [_one(value)])
        filled = [_cotangent(c, aval_of(x)) if nz else _float0(x) for c, x, nz in zip(cts, leaves, nonzeros)]
        gradient = tree_unflatten(tree, filled)
        gradient = gradient[0] if single else gradient
        return (value, aux) if has_aux else value, gradient

    return described(wrapped, fun, "Value and gradient", argnums, "the value, and what is like those arguments")


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[..., Any]:
    """A function that returns the gradient of `fun`, which must return a scalar.

    Parameters and errors are those of `value_and_grad`. With `has_aux` the result is (gradient, aux).

    >>> meshrt.grad(lambda x: x**3)(2.0)
    Array(12., dtype=float32, weak_type=True)
    >>> meshrt.grad(lambda x, y: (x * y).sum(), argnums=1)(jnp.array([1.0, 2.0]), jnp.ones(2))
    Array([1., 2.], dtype=float32)
    """
    require_function(fun)
    with_value = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int, reduce_axes)

    @boundary
    @wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = with_value(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return described(wrapped, fun, "Gradient", argnums, "what is like those arguments")


def _one(value: Any) -> Any:
    """The cotangent that gradients start from: an array as weak as the value is, to which it belongs."""
    aval = aval_of(value)
    one = dtypes.scalar_type_of(aval.dtype)(1) if aval.weak_type else None
    one = np.asarray(1, aval.dtype)[()] if one is None or aval_of(one).dtype != aval.dtype else one
    if type(value) is Array and value.committed:  # so that a constant gradient lies where the value does
        return put_leaf(one, without_sums(value.sharding), False, None)
    return as_traced(one)


def _scalar_linearized(fun, flat: _Flat, leaves, nonzeros, holomorphic: bool):
    outs, linear = linearize_flat(flat, leaves, nonzeros)
    outs, aux = flat.split(outs)
    if flat.out_tree.num_leaves != 1 or not tree_util.treedef_is_leaf(flat.out_tree):
        raise errors.ArgumentTypeError(
            f"Gradient only defined for scalar-output functions. {fun_name(fun)} had output {flat.out_tree}"
        )
    aval = aval_of(outs[0])
    if aval.shape:
        raise errors.ArgumentTypeError(
            f"Gradient only defined for scalar-output functions. {fun_name(fun)} had output shape: {aval.shape}. Sum "
            "it, or use vjp or jacrev"
        )
    if not aval.is_differentiable or (aval.dtype.kind == "c") != holomorphic:
        if holomorphic:
            wanted = "grad with holomorphic=True requires outputs with complex dtype"
        else:
            wanted = "grad requires real-valued outputs (output dtype that is a sub-dtype of np.floating)"
        raise errors.ArgumentTypeError(f"{wanted}, but got {aval.dtype} from {fun_name(fun)}")
    return outs[0], aux, linear


def _pull_back(linear: LinearFunction, cts: Sequence[Any], kept: Sequence[bool] = ()) -> list[Any]:
    """Cotangents of the inputs (None for zero, and for those that `kept` drops)."""
    outs = [t._var if type(t) is LinearTracer else None for t in linear.outs]
    inputs = [None if t is None else t._var for t in linear.inputs]
    return backward(linear.trace.tape, outs, cts, inputs, [v for v, keep in zip(inputs, kept) if not keep])


def _typed(value: Any, aval: ShapedArray) -> Any:
    """A derivative (None for zero, which is as weak as that is) of something of type `aval`: varying over the Manual
    axes over which that does, and an Array outside of traces."""
    if value is None:
        value = zeros(aval)
        if aval.weak_type:
            return convert_element_type(value, aval.dtype, weak_type=True)
    else:
        if aval.memory_space is not DEVICE:
            value = in_space(value, aval.memory_space)
        if aval.vma:
            value = vary(value, in_order(aval.vma))
    if context.trace is EVAL:
        if isinstance(value, np.generic):
            return from_numpy(value)
        if isinstance(value, int | float | complex):
            return convert_element_type(value, aval.dtype, weak_type=True)
    return value


def _cotangent(value: Any, aval: ShapedArray) -> Any:
    """The cotangent (None for zero) of something of type `aval`: partial sums where that is reduced."""
    wanted = cotangent_type(aval)
    if aval.is_high:
        return zeros(wanted) if value is None else value
    if value is None and wanted is not aval:
        value = as_split(zeros(aval.update(sharding=present(without_sums(aval.explicit)))), wanted.explicit)
    return _typed(value, wanted)


def _float0(x: Any) -> Any:
    return no_derivative(aval_of(x))


@boundary
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False, reduce_axes: Sequence[Any] = ()) -> Any:
    """(fun(*primals), pullback) where `pullback(ct)` is the tuple of cotangents of the primals.

    Args:
      primals: pytrees of arrays, which `fun` takes by position. Of a reference, what it holds is differentiated.
      has_aux: `fun` returns (value, aux), and the result is (value, pullback, aux).
      reduce_axes: of older versions of JAX; nothing depends on it.

    Raises:
      ArgumentTypeError, TreeError: by the pullback: a cotangent has not the structure, shapes and dtypes of the value.

    >>> meshrt.vjp(lambda x: x**3, 2.0)[1](1.0)
    (Array(12., dtype=float32, weak_type=True),)
    """
    require_function(fun)
    leaves, tree = flatten(primals)
    leaves = into_branch(leaves)
    flat = _Flat(fun, tree, has_aux)
    is_state = [is_ref(x) for x in leaves]
    # Of a reference, what it holds is differentiated.
    in_avals = [inner_type(x) if s else aval_of(x) for x, s in zip(leaves, is_state)]
    nonzeros = [a.is_differentiable for a in in_avals]
    outs, linear = linearize_flat(flat, leaves, nonzeros)
    outs, aux = flat.split(outs)
    out_tree, out_avals = flat.out_tree, [aval_of(o) for o in outs]
    name, live_states = fun_name(fun), [s and nz for s, nz in zip(is_state, nonzeros)]
    ends = linear.outs = [*linear.outs[: flat.count], *linear.states]

    def cotangents(given: tuple[Any, ...]) -> list[Any]:
        if len(given) != 1:
            raise errors.ArgumentTypeError(
                f"The function returned by `jax.vjp` applied to {name} was called with {len(given)} arguments, but "
                "functions returned by `jax.vjp` must be called with a single argument corresponding to the single "
                "value returned by the function being differentiated (even if that returned value is a tuple or other "
                "container)."
            )
        return cotangent_leaves(given[0], out_tree, out_avals, name)

    def ending(given: tuple[Any, ...], targets: Sequence[Any] | None) -> list[Any]:
        return [*cotangents(given), *state_cotangents(live_states, targets)]

    def filled(pulled: Iterable[Any], targets: Sequence[Any] | None, kept: Sequence[bool]) -> Any:
        values = [_cotangent(c, a) if keep else no_derivative(a) for c, a, keep in zip(pulled, in_avals, kept)]
        return tree_unflatten(tree, values if targets is None else deliver(values, is_state, targets))

    def pullback(*given: Any, into: tuple[Any, ...] | None = None) -> Any:
        targets = None if into is None else targets_of(name, into, tree)
        kept = wanted(nonzeros, targets)
        return filled(_pull_back(linear, ending(given, targets), kept), targets, kept)

    def parts() -> tuple[Run, Sequence[Any]]:
        inputs = [t for t in linear.inputs if t is not None]
        jaxpr, residuals = linear.trace.to_jaxpr(inputs, [t for t in ends if type(t) is LinearTracer])
        depends = [type(t) is LinearTracer for t in ends]
        pull = _transposed(jaxpr, len(residuals), nonzeros, depends)

        def run(held: Sequence[Any], *given: Any, into: tuple[Any, ...] | None = None) -> Any:
            targets = None if into is None else targets_of(name, into, tree)
            return filled(pull(held, ending(given, targets)), targets, wanted(nonzeros, targets))

        return Run(run, jaxpr), residuals

    # Operands that are results too may be NumPy's, wider than arrays.
    result = tree_unflatten(out_tree, [from_numpy(o) if type(o) is np.ndarray else o for o in outs])
    back = Pullback(pullback, parts, (out_avals, in_avals), tree, out_tree, places_among(leaves))
    return (result, back, aux) if has_aux else (result, back)


def fwd_and_bwd(
    fun: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool = False, jitted: bool = True
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The two passes of reverse mode, as functions that are compiled once for all calls with arguments of one type.

    `forward(*args)` is (value, residuals), or (value, residuals, aux) with `has_aux`; `backward(residuals, cotangent)`
    gives the cotangents of the arguments `argnums`: one, or a tuple for several. Neither is jitted if not `jitted`.

    >>> import meshrt.numpy as jnp
    >>> forward, backward = fwd_and_bwd(lambda x, w: x @ w, argnums=(0, 1))
    >>> y, residuals = forward(jnp.ones((2, 3)), jnp.ones((3, 4)))
    >>> dx, dw = backward(residuals, jnp.ones((2, 4)))
    """

    def forward(*args: Any) -> Any:
        nums = check_argnums(fun, argnums, len(args))

        def call(*values: Any) -> Any:
            full = list(args)
            for n, v in zip(nums, values):
                full[n] = v
            return fun(*full)

        return vjp(call, *[args[n] for n in nums], has_aux=has_aux)

    def backward(residuals: LinearMap, cotangent: Any) -> Any:
        pulled = residuals(cotangent)
        return pulled[0] if isinstance(argnums, int) else pulled

    return (jit(forward), jit(backward)) if jitted else (forward, backward)


def _transposed(jaxpr: Jaxpr, count: int, nonzeros: Any, depends: Any) -> Any:
    """The flat pullback as a function of the `count` residuals that the linear `jaxpr` takes first, and cotangents."""
    linear = (False,) * count + (True,) * sum(nonzeros)

    def pull(residuals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        cts = [c for c, d in zip(cotangents, depends) if d]
        back, found = transpose_jaxpr(jaxpr, linear, tuple(c is not None for c in cts))
        values = iter(eval_jaxpr(back.jaxpr, (), [*back.consts, *residuals, *[c for c in cts if c is not None]]))
        pulled = iter([next(values) if f else None for f in found])
        return [next(pulled) if nz else None for nz in nonzeros]

    return pull


# ---------------------------------------------------------------------------------------------------------------------
# Forward mode


@boundary
def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """(fun(*primals), tangents of the result), the directional derivative along `tangents`.

    Args:
      primals, tangents: sequences of pytrees alike in structure, shapes and dtypes; tangents of integers and booleans
        have dtype `float0`.
      has_aux: `fun` returns (value, aux), and the result is (value, tangents, aux).

    Raises:
      ArgumentTypeError, TreeError: a tangent is not of its primal's type or structure; ForwardModeError: `fun` applies
        a function that has a rule for reverse mode only (`custom_vjp`).

    >>> meshrt.jvp(lambda x: x**3, (2.0,), (1.0,))
    (Array(8., dtype=float32, weak_type=True), Array(12., dtype=float32, weak_type=True))
    """
    require_function(fun)
    if not isinstance(primals, tuple | list) or not isinstance(tangents, tuple | list):
        raise errors.ArgumentTypeError(
            "primal and tangent arguments to jax.jvp must be tuples or lists; "
            f"found {type(primals).__name__} and {type(tangents).__name__}."
        )
    leaves, tree = flatten(tuple(primals))
    given_leaves, tangent_tree = flatten(tuple(tangents))
    if tree != tangent_tree or isinstance(primals, list) != isinstance(tangents, list):
        raise errors.ArgumentTypeError(
            "primal and tangent arguments to jax.jvp must have the same tree structure; primals have tree structure "
            f"{tree_structure(primals)} whereas tangents have tree structure {tree_structure(tangents)}."
        )
    avals = [aval_of(x) for x in leaves]
    flat_tangents = [*map(as_weak, tangent_leaves(avals, given_leaves, tree, fun), avals)]
    flat = _Flat(fun, tree, has_aux)
    states = [(t, Cell(whole_read(t))) if is_ref(t) else None for t in flat_tangents]
    given = [t if state is None else state[1] for t, state in zip(flat_tangents, states)]
    outs, out_tangents = jvp_flat(flat, leaves, given)
    for state in states:
        if state is not None and state[1].written:
            ref, cell = state
            whole_write(ref, _typed(cell.value, inner_type(ref)))
    outs, aux = flat.split(outs)
    filled = [_tangent_or_zero(t, aval_of(o)) for t, o in zip(out_tangents, outs)]
    result = tree_unflatten(flat.out_tree, outs), tree_unflatten(flat.out_tree, filled)
    return (*result, aux) if has_aux else result


def _tangent_or_zero(t: Any, aval: ShapedArray) -> Any:
    if not aval.is_differentiable:
        return no_derivative(aval)
    if aval.is_high:
        return zeros(aval.to_tangent_aval()) if t is None else t
    return _typed(t, aval)


@boundary
def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """(fun(*primals), push) where `push(*tangents)` is the derivative at `primals`, without running `fun` again.

    With `has_aux`, `fun` returns (value, aux), and the result is (value, push, aux). Tangents of other structures or
    types than the primals' are an ArgumentTypeError.

    >>> meshrt.linearize(lambda x: x**3, 2.0)[1](1.0)
    Array(12., dtype=float32, weak_type=True)
    """
    require_function(fun)
    leaves, tree = flatten(primals)
    leaves = into_branch(leaves)
    flat = _Flat(fun, tree, has_aux)
    nonzeros = [aval_of(x).is_differentiable for x in leaves]
    with linearizing_for(Purpose.PUSH):
        outs, linear = linearize_flat(flat, leaves, nonzeros)
    outs, aux = flat.split(outs)
    inputs = [t for t in linear.inputs if t is not None]
    live = [t for t in linear.outs[: flat.count] if t is not None]
    jaxpr, residuals = linear.trace.to_jaxpr(inputs, live)
    out_tree, depends = flat.out_tree, [t is not None for t in linear.outs[: flat.count]]
    in_avals, out_avals = [aval_of(x) for x in leaves], [aval_of(o) for o in outs]

    def push(residuals: Sequence[Any], *tangents: Any) -> Any:
        given_leaves, tangent_tree = flatten(tangents)
        if tangent_tree != tree:
            raise errors.ArgumentTypeError(f"the linearized function expected {tree}, got {tangent_tree}")
        given = [t for t in tangent_leaves(in_avals, given_leaves, tree, fun, PUSHED) if t is not None]
        pushed = iter(eval_jaxpr(jaxpr, (), [*residuals, *given]))
        filled = [_tangent_or_zero(next(pushed) if d else None, a) for d, a in zip(depends, out_avals)]
        return tree_unflatten(out_tree, filled)

    result, run = tree_unflatten(out_tree, outs), Run(push, jaxpr)
    forward = LinearMap(functools.partial(push, residuals), lambda: (run, residuals))
    return (result, forward, aux) if has_aux else (result, forward)


@boundary
def linear_transpose(fun: Callable[..., Any], *primals: Any, reduce_axes: Sequence[Any] = ()) -> Callable[..., Any]:
    """The transpose of a linear function, given example arguments (only their types matter).

    The result takes a cotangent of what `fun` returns and gives the tuple of those of its arguments. `reduce_axes` is
    of older versions of JAX; nothing depends on it.

    Raises:
      DifferentiationError, UnsupportedError: `fun` is not linear in its arguments; by the function that is returned.

    >>> meshrt.linear_transpose(lambda x: 2.0 * x, 1.0)(3.0)
    (Array(6., dtype=float32, weak_type=True),)
    """
    require_function(fun)
    leaves, tree = flatten(primals)
    avals = [abstract(x) for x in leaves]
    flat = _Flat(fun, tree)
    closed = trace_to_jaxpr(flat, avals, fun_name(fun), requires_low=False)
    out_tree = flat.out_tree
    for one, other in ((avals, closed.out_avals), (closed.out_avals, avals)):
        if any(a.is_differentiable for a in one) and not all(a.is_differentiable for a in other):
            raise errors.ArgumentTypeError(
                "linear_transpose only supports [float or complex] -> [float or complex], and integer -> integer "
                f"functions, but got {[a.dtype for a in avals]} -> {[a.dtype for a in closed.out_avals]}. (in "
                f"{fun_name(fun)})"
            )

    hoisted, name = hoist_consts(closed), fun_name(fun)
    linear = (False,) * len(hoisted.consts) + (True,) * len(avals)

    def transposed(consts: Sequence[Any], ct: Any) -> Any:
        cts = linear_cotangents(ct, out_tree, closed.out_avals, name)
        back, nonzeros = transpose_jaxpr(hoisted.jaxpr, linear, tuple(c is not None for c in cts))
        pulled = iter(eval_jaxpr(back.jaxpr, (), [*back.consts, *consts, *[c for c in cts if c is not None]]))
        return tree_unflatten(tree, [_cotangent(next(pulled) if nz else None, a) for nz, a in zip(nonzeros, avals)])

    return LinearMap(functools.partial(transposed, hoisted.consts), lambda: (Run(transposed), hoisted.consts))
