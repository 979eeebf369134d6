"""How far two right programs may be apart, element by element: a running error analysis of a program in JAX.

Every value gets a bound of its own on what rounding may have made of it (Higham, Accuracy and Stability of Numerical
Algorithms, section 3.3), computed along with the value:

* data that is only moved carries its bound along: an element of an argument must arrive as it is;
* a function of elements f(x, y) has |df/dx| of the bound of x and |df/dy| of that of y, and its own rounding, u |f|,
  where u is the unit roundoff of its type;
* a sum of n elements, in any order, has the sum of their bounds and sqrt(n) u times the sum of their absolute values
  (the probabilistic bound of Higham and Mary 2019; the worst case has n - 1); so do contractions.

A small element of a result next to large ones is therefore checked as closely as it can be: a row of sums of small
numbers does not get the tolerance of a row of large ones. Where an operation has no bound by elements (a
factorization, a Fourier transform) that of its result is a share `normwise` of its largest element.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex

__all__ = ["bounds"]

_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
SAFETY = 8.0  # functions as exp and tanh are a few units off themselves, and what is fused is rounded elsewhere


def bounds(function, args, normwise: float):
    """The bound of every element of every result of `function(*args)`, flattened; None for results that are exact."""
    closed = jax.make_jaxpr(function)(*args)
    flat = jax.tree.leaves(args)

    def run(*values):
        errors = [_none_or_zero(v) for v in values]
        return [e for _, e in _run(closed.jaxpr, closed.consts, list(zip(values, errors)), normwise)]

    found = jax.jit(run, compiler_options=_QUICKLY)(*flat)
    return [None if e is None else SAFETY * np.asarray(e, np.float64) for e in found]


def _inexact(x) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def _real(x):
    """The real type in which bounds of `x` are computed."""
    return jnp.float64 if jnp.result_type(x) in (jnp.float64, jnp.complex128) else jnp.float32


def _none_or_zero(x):
    return jnp.zeros(jnp.shape(x), _real(x)) if _inexact(x) else None


def _size(x):
    return jnp.abs(x).astype(_real(x))


def _unit(x) -> float:
    """Unit roundoff, and what underflow may lose."""
    return float(jnp.finfo(jnp.result_type(x)).eps) / 2


def _rounded(x):
    return _unit(x) * _size(x) + float(jnp.finfo(jnp.result_type(x)).tiny)


def _run(jaxpr, consts, args, normwise):
    """(value, bound) of the results of a jaxpr at (value, bound) of its arguments."""
    env = {}

    def read(v):
        return (v.val, _none_or_zero(v.val)) if isinstance(v, jex.Literal) else env[v]

    env.update(zip(jaxpr.constvars, [(c, _none_or_zero(c)) for c in consts]))
    env.update(zip(jaxpr.invars, args))
    for eqn in jaxpr.eqns:
        outs = _apply(eqn, [read(v) for v in eqn.invars], normwise)
        env.update(zip(eqn.outvars, outs))
    return [read(v) for v in jaxpr.outvars]


_CALLS = frozenset(
    ("checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "jit",
     "pjit", "remat", "remat2")
)  # fmt: skip


def _apply(eqn, pairs, normwise):
    name, params = eqn.primitive.name, eqn.params
    inner = next((params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in params), None)
    if name == "scan":
        return _scan(eqn, pairs, normwise)
    if name == "while":
        return _while(params, pairs, normwise)
    if name == "cond":
        return _cond(params, pairs, normwise)
    if inner is not None and name in _CALLS:
        return _run(*_inside(inner), pairs, normwise)
    values = [v for v, _ in pairs]
    outs = eqn.primitive.bind(*values, **params)
    outs = list(outs) if eqn.primitive.multiple_results else [outs]
    if not any(_inexact(o) for o in outs):
        return [(o, None) for o in outs]
    if all(e is None for _, e in pairs) and name not in _OF_ELEMENTS:
        return [(o, _rounded(o) if _inexact(o) else None) for o in outs]
    rule = _RULES.get(name)
    if rule is not None:
        found = rule(eqn, pairs, outs)
    elif name in _OF_ELEMENTS:
        found = [_of_elements(eqn, pairs, outs[0])]
    else:
        found = [_normwise(pairs, o, normwise) if _inexact(o) else None for o in outs]
    return list(zip(outs, found))


def _normwise(pairs, out, normwise):
    relative = normwise
    for v, e in pairs:
        if e is not None and e.size:
            relative += 16 * jnp.max(e) / jnp.maximum(jnp.max(_size(v)), 1e-30)
    size = _size(out)
    largest = jnp.max(jnp.where(jnp.isfinite(size), size, 0.0), initial=0.0)
    return jnp.full(jnp.shape(out), relative * largest, _real(out))


# -- elements ---------------------------------------------------------------------------------------------------

_OF_ELEMENTS = frozenset((
    "abs", "acos", "acosh", "add", "add_any", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clamp",
    "conj", "convert_element_type", "cos", "cosh", "digamma", "div", "erf", "erf_inv", "erfc", "exp", "exp2",
    "expm1", "floor", "imag", "integer_pow", "is_finite", "lgamma", "log", "log1p", "logistic", "max", "min",
    "mul", "neg", "nextafter", "pow", "real", "reduce_precision", "rem", "round", "rsqrt", "select_n", "sign",
    "sin", "sinh", "sqrt", "square", "sub", "tan", "tanh", "complex",
))  # fmt: skip
_EXACT = frozenset((
    "abs", "conj", "neg", "imag", "real", "sign", "round", "floor", "ceil", "max", "min", "clamp", "complex",
    "select_n",
))  # fmt: skip


def _of_elements(eqn, pairs, out):
    """The bound of an elementwise function: what its operands' bounds make of it, and its own rounding."""
    name = eqn.primitive.name
    total = jnp.zeros(jnp.shape(out), _real(out))
    values = [v for v, _ in pairs]
    if name in ("max", "min", "clamp", "complex"):
        for _, e in pairs:
            total = jnp.maximum(total, e) if e is not None else total
        return total
    if name == "select_n":
        errors = [e for _, e in pairs[1:]]
        return eqn.primitive.bind(values[0], *errors)
    for i, (v, e) in enumerate(pairs):
        if e is None:
            continue
        fixed = lambda x, i=i: eqn.primitive.bind(*values[:i], x, *values[i + 1 :], **eqn.params)
        _, slope = jax.jvp(fixed, (v,), (jnp.ones_like(v),))
        if not _inexact(slope):
            continue
        total = total + jnp.where(e == 0, 0.0, _size(slope) * e).astype(total.dtype)
    if name == "convert_element_type" and _inexact(values[0]) and _unit(out) <= _unit(values[0]):
        return total  # into a wider type
    return total if name in _EXACT else total + _rounded(out)


# -- data that moves, sums --------------------------------------------------------------------------------------


def _moved(eqn, pairs, outs):
    """What is done to the values is done to their bounds."""
    errors = [v if e is None else e for v, e in pairs]
    params = dict(eqn.params)
    if eqn.primitive.name == "gather" and params.get("fill_value") is None:
        params["fill_value"] = 0
    found = eqn.primitive.bind(*errors, **params)
    return list(found) if eqn.primitive.multiple_results else [found]


def _summed(eqn, pairs, outs):
    """Sums along axes, cumulative ones and those over windows, of any order."""
    ((v, e),) = pairs
    (out,) = outs
    if eqn.primitive.name == "cumsum":
        terms = v.shape[eqn.params["axis"]]
    elif eqn.primitive.name == "reduce_window_sum":
        terms = math.prod(eqn.params["window_dimensions"])
    else:
        terms = math.prod([v.shape[d] for d in eqn.params["axes"]])
    add = functools.partial(eqn.primitive.bind, **eqn.params)
    return [(add(e) + math.sqrt(terms) * _unit(out) * add(_size(v))).astype(_real(out))]


def _contracted(eqn, pairs, outs):
    """Contractions and convolutions: sums of products."""
    (x, ex), (y, ey) = pairs
    (out,) = outs
    sizes = jnp.float32 if _real(out) == jnp.float32 else jnp.float64
    params = dict(eqn.params)
    params["preferred_element_type"] = np.dtype(sizes)
    if "precision" in params:
        params["precision"] = None
    mul = lambda a, b: eqn.primitive.bind(a.astype(sizes), b.astype(sizes), **params)
    ax, ay = _size(x), _size(y)
    terms = max(1.0, math.sqrt(x.size * y.size / max(1, math.prod(jnp.shape(out)))))
    total = (math.sqrt(terms) + 1) * _unit(out) * mul(ax, ay)
    total = total if ex is None else total + mul(ex, ay)
    return [total if ey is None else total + mul(ax, ey)]


def _scatter_added(eqn, pairs, outs):
    (x, ex), (ids, _), (y, ey) = pairs
    (out,) = outs
    total = eqn.primitive.bind(_size(x), ids, _size(y), **eqn.params)
    if eqn.primitive.name == "scatter-sub":
        total = eqn.primitive.bind(_size(x), ids, -_size(y), **eqn.params)
        ey = -ey
    terms = math.sqrt(y.size)
    return [jnp.abs(eqn.primitive.bind(ex, ids, ey, **eqn.params)) + terms * _unit(out) * total]


def _scattered(eqn, pairs, outs):
    (_, ex), (ids, _), (_, ey) = pairs
    return [lax.scatter_max_p.bind(ex, ids, ey, **eqn.params)]


def _largest(eqn, pairs, outs):
    """Of the elements of which one is chosen, any."""
    ((_, e),) = pairs
    axes = eqn.params["axes"]
    return [jnp.max(e, axis=axes) if e.size else jnp.zeros(jnp.shape(outs[0]), e.dtype)]


def _sorted(eqn, pairs, outs):
    """Bounds travel with their elements."""
    values, errors = [v for v, _ in pairs], [e for _, e in pairs if e is not None]
    found = lax.sort_p.bind(*values, *errors, **{**eqn.params, "is_stable": True})[len(values) :]
    rest = iter(found)
    return [None if e is None else next(rest) for _, e in pairs]


def _top(eqn, pairs, outs):
    ((_, e),) = pairs
    return [jnp.take_along_axis(e, outs[1], axis=eqn.params.get("axis", -1)), None]


def _cumulative(eqn, pairs, outs):
    ((_, e),) = pairs
    return [lax.cummax(e, axis=eqn.params["axis"], reverse=eqn.params["reverse"])]


def _window_max(eqn, pairs, outs):
    ((_, e),) = pairs
    return [lax.reduce_window_max_p.bind(e, **eqn.params)]


def _select_and_add(eqn, pairs, outs):
    (source, es), (operand, _) = pairs
    (out,) = outs
    add = lambda s: eqn.primitive.bind(s.astype(operand.dtype), operand, **eqn.params)
    terms = math.sqrt(math.prod(eqn.params["window_dimensions"]))
    return [(add(es) + terms * _unit(out) * add(_size(source))).astype(_real(out))]


_MOVING = (
    "broadcast_in_dim", "concatenate", "copy", "copy_p", "dynamic_slice", "dynamic_update_slice", "expand_dims",
    "gather", "optimization_barrier", "pad", "reshape", "rev", "slice", "split", "squeeze", "transpose",
    "sharding_constraint", "reshard", "stop_gradient",
)  # fmt: skip
_RULES = {
    **dict.fromkeys(_MOVING, _moved),
    **dict.fromkeys(("reduce_sum", "cumsum", "reduce_window_sum"), _summed),
    **dict.fromkeys(("dot_general", "conv_general_dilated"), _contracted),
    **dict.fromkeys(("scatter-add", "scatter_add", "scatter-sub"), _scatter_added),
    **dict.fromkeys(("scatter", "scatter-max", "scatter-min", "scatter_max", "scatter_min"), _scattered),
    **dict.fromkeys(("reduce_max", "reduce_min"), _largest),
    "sort": _sorted,
    "top_k": _top,
    **dict.fromkeys(("cummax", "cummin"), _cumulative),
    **dict.fromkeys(("reduce_window_max", "reduce_window_min"), _window_max),
    "select_and_scatter_add": _select_and_add,
}


# -- control flow -----------------------------------------------------------------------------------------------


def _split(pairs):
    return [v for v, _ in pairs], [e for _, e in pairs]


def _inside(closed):
    """The Jaxpr and the constants of what stands in an equation's parameters, closed or not."""
    return getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())


def _scan(eqn, pairs, normwise):
    params = eqn.params
    jaxpr, values = _inside(params["jaxpr"])
    # What is stacked has one dimension more outside (versions of JAX name the numbers of operands differently).
    stacked = sum(len(v.aval.shape) > len(b.aval.shape) for v, b in zip(eqn.invars, jaxpr.invars))
    nk = sum(len(v.aval.shape) == len(b.aval.shape) for v, b in zip(eqn.outvars, jaxpr.outvars))
    nc = len(eqn.invars) - stacked - nk
    consts, init, xs = pairs[:nc], pairs[nc : nc + nk], pairs[nc + nk :]

    def body(carry, x):
        outs = _run(jaxpr, values, [*consts, *carry, *x], normwise)
        return outs[:nk], outs[nk:]

    carry, ys = lax.scan(body, init, xs, length=params["length"], reverse=params["reverse"])
    return [*carry, *ys]


def _while(params, pairs, normwise):
    ct, bt = params["cond_nconsts"], params["body_nconsts"]
    cond, body = _inside(params["cond_jaxpr"]), _inside(params["body_jaxpr"])
    tests, consts, init = pairs[:ct], pairs[ct : ct + bt], pairs[ct + bt :]
    again = lambda carry: _run(*cond, [*tests, *carry], normwise)[0][0]
    return lax.while_loop(again, lambda carry: _run(*body, [*consts, *carry], normwise), init)


def _cond(params, pairs, normwise):
    index, rest = pairs[0][0], pairs[1:]
    run = lambda b: lambda xs: _run(*_inside(b), xs, normwise)
    return lax.switch(index, [run(b) for b in params["branches"]], rest)
