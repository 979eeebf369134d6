"""What each primitive does with sparse values, for `sparsify`.

A rule is `rule(environment, values, params) -> values`; it is asked where at least one operand is sparse. Rules compute
in the current trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors, lax
from meshrt.core import source
from meshrt.core.basic.pointwise import add_any_p
from meshrt.core.jaxpr import Jaxpr, Literal
from meshrt.core.primitive import Primitive, as_list
from meshrt.core.types import aval_of
from meshrt.experimental.sparse import compressed, convolution, gathering, products, shapes
from meshrt.experimental.sparse.dense import todense_p
from meshrt.experimental.sparse.environment import (
    SparsifyEnv,
    SparsifyValue,
    arrays_to_spvalues,
    spvalues_to_arrays,
)
from meshrt.jit import jit
from meshrt.lax import cond_p, scan_p, switch, while_loop, while_p
from meshrt.lax import scan as scan_over
from meshrt.primitives.call import jit_p
from meshrt.primitives.compositions import conj_p, square_p, squeeze_p, stack_p, stage_p
from meshrt.tree_util import tree_flatten, tree_structure

__all__ = ["COMPRESSED", "RULES", "apply_rule", "run_program"]

Values = Sequence[SparsifyValue]
Rule = Callable[[SparsifyEnv, Values, dict[str, Any]], Values]


def apply_rule(spenv: SparsifyEnv, primitive: Primitive, values: Values, params: dict[str, Any]) -> Values:
    """The results of an operation on values.

    Raises:
      UnsupportedError: it has no rule for sparse values.
    """
    if not any(v.is_sparse() for v in values):
        outs = primitive.bind(*[spenv.data(v) for v in values], **params)
        return [spenv.dense(o) for o in as_list(primitive, outs)]
    rules = COMPRESSED if any(v.is_bcsr() for v in values) else RULES
    if primitive in rules:
        return rules[primitive](spenv, values, params)
    if primitive in DENSE_RESULTS:
        raise errors.UnsupportedError(
            f"sparse rule for {primitive} is not implemented because it would result in dense output. If this is your "
            "intent, use sparse.todense() to convert your arguments to dense matrices."
        )
    raise _unknown(primitive)


def _unknown(primitive: Primitive) -> errors.UnsupportedError:
    return errors.UnsupportedError(f"sparse rule for {primitive} is not implemented.")


def run_program(spenv: SparsifyEnv, jaxpr: Jaxpr, consts: Sequence[Any], values: Values) -> Values:
    """Runs a program on values."""
    env: dict[Any, SparsifyValue] = {v: spenv.dense(c) for v, c in zip(jaxpr.constvars, consts)}
    env.update(zip(jaxpr.invars, values))
    read = lambda a: spenv.dense(a.val) if type(a) is Literal else env[a]
    previous = source.set_replay(None)
    try:
        for eqn in jaxpr.eqns:
            source.set_replay(eqn.source)
            outs = apply_rule(spenv, eqn.primitive, [read(a) for a in eqn.invars], eqn.params)
            env.update(zip(eqn.outvars, outs))
    finally:
        source.set_replay(previous)
    return [read(a) for a in jaxpr.outvars]


# ---------------------------------------------------------------------------------------------------------------------
# Element by element


def _like(spenv: SparsifyEnv, value: SparsifyValue, data: Any, **known: Any) -> SparsifyValue:
    """Other elements at the coordinates of a value."""
    facts = {"indices_sorted": value.indices_sorted, "unique_indices": value.unique_indices} | known
    return spenv.sparse(value.shape, data, indices_ref=value.indices_ref, indptr_ref=value.indptr_ref, **facts)


def _each_once(spenv: SparsifyEnv, value: SparsifyValue) -> SparsifyValue:
    if value.unique_indices:
        return value
    mat = spvalues_to_arrays(spenv, value)
    once: SparsifyValue = arrays_to_spvalues(spenv, mat.sum_duplicates(nse=mat.nse, remove_zeros=False))
    return once


def _unary(primitive: Primitive, linear: bool = False) -> Rule:
    """Of an operation that is 0 at 0; where it is not linear, elements of equal coordinates are added before."""

    def rule(spenv: SparsifyEnv, values: Values, params: dict[str, Any]) -> Values:
        value = values[0] if linear else _each_once(spenv, values[0])
        return [_like(spenv, value, primitive.bind(spenv.data(value), **params))]

    return rule


def _complex(spenv: SparsifyEnv, values: Values, params: dict[str, Any]) -> Values:
    """Of parts that are known to have the same coordinates."""
    x, y = values
    if x.indices_ref != y.indices_ref:
        raise _unknown(lax.complex_p)
    return [_like(spenv, x, lax.complex(spenv.data(x), spenv.data(y)))]


def _integer_pow(spenv: SparsifyEnv, values: Values, params: dict[str, Any]) -> Values:
    if params["y"] <= 0:
        raise errors.UnsupportedError(
            f"sparse rule for integer_pow with non-positive exponent {params['y']} is not implemented because it would "
            "result in dense output. If this is your intent, use sparse.todense() to convert your argument to a dense "
            "array."
        )
    return _unary(lax.integer_pow_p)(spenv, values, params)


def _add(spenv: SparsifyEnv, values: Values, params: dict[str, Any]) -> Values:
    x, y = values
    if not (x.is_sparse() and y.is_sparse()):
        return _add_dense(spenv, x, y)
    if x.shape != y.shape:
        raise errors.UnsupportedError(f"Addition between sparse matrices of different shapes: {x.shape}, {y.shape}.")
    if x.indices_ref == y.indices_ref:
        return [_like(spenv, x, lax.add(spenv.data(x), spenv.data(y)))]
    return arrays_to_spvalues(spenv, [products.bcoo_add(*spvalues_to_arrays(spenv, [x, y]))])


def _add_dense(spenv: SparsifyEnv, x: SparsifyValue, y: SparsifyValue) -> Values:
    sparse, dense = (x, y) if x.is_sparse() else (y, x)
    mat, other = spvalues_to_arrays(spenv, [sparse, dense])
    return [spenv.dense(products.add_dense(mat, other))]


def _sub(spenv: SparsifyEnv, values: Values, params: dict[str, Any]) -> Values:
    x, y = values
    if not (x.is_sparse() and y.is_sparse()):
        raise errors.UnsupportedError("Subtraction between sparse and dense array: use sparse.todense() before.")
    return _add(spenv, [x, _like(spenv, y, lax.neg(spenv.data(y)))], {})


def _mul(spenv: SparsifyEnv, values: Values, params: dict[str, Any]) -> Values:
    x, y = values
    if x.is_sparse() and y.is_sparse():
        if x.indices_ref == y.indices_ref and x.unique_indices:
            return [_like(spenv, x, lax.mul(spenv.data(x), spenv.data(y)))]
        return arrays_to_spvalues(spenv, [products.bcoo_multiply_sparse(*spvalues_to_arrays(spenv, values))])
    sparse, dense = (x, y) if x.is_sparse() else (y, x)
    product = products.multiplied(*spvalues_to_arrays(spenv, [sparse, dense]))
    return [_like(spenv, sparse, product.data)]


def _div(spenv: SparsifyEnv, values: Values, params: dict[str, Any]) -> Values:
    x, y = values
    if y.is_sparse():
        raise errors.UnsupportedError(
            "Division by a sparse array is not implemented because it would result in dense output. If this is your "
            "intent, use sparse.todense() to convert your arguments to a dense array."
        )
    quotient = products.divide_dense(*spvalues_to_arrays(spenv, [x, y]))
    return [_like(spenv, x, quotient.data)]


# ---------------------------------------------------------------------------------------------------------------------
# Operations of arrays


def _of_arrays(primitive: Primitive, function: Callable[..., Any]) -> Rule:
    def rule(spenv: SparsifyEnv, values: Values, params: dict[str, Any]) -> Values:
        outs = function(*spvalues_to_arrays(spenv, list(values)), **params)
        return arrays_to_spvalues(spenv, as_list(primitive, outs))

    return rule


def _transpose(spenv: SparsifyEnv, values: Values, params: dict[str, Any]) -> Values:
    """Parts whose dimensions stay where they are stay the same buffers."""
    (value,), order = values, tuple(params["permutation"])
    mat = spvalues_to_arrays(spenv, value)
    turned = shapes.bcoo_transpose(mat, permutation=order)
    start, stop = mat.n_batch, mat.n_batch + mat.n_sparse
    fixed = [p == i for i, p in enumerate(order)]
    batch, sparse, dense = all(fixed[:start]), all(fixed[start:stop]), all(fixed[stop:])
    parts: dict[str, Any] = {"data_ref": value.data_ref} if batch and dense else {"data": turned.data}
    parts |= {"indices_ref": value.indices_ref} if batch and sparse else {"indices": turned.indices}
    facts = {"indices_sorted": turned.indices_sorted, "unique_indices": turned.unique_indices}
    return [spenv.sparse(turned.shape, **parts, **facts)]


def _reduce_sum(spenv: SparsifyEnv, values: Values, params: dict[str, Any]) -> Values:
    total = shapes.bcoo_reduce_sum(spvalues_to_arrays(spenv, values[0]), axes=params["axes"])
    return arrays_to_spvalues(spenv, [total if total.shape else total.todense()])


def _stack(concatenate: Callable[..., Any], broadcast: Callable[..., Any]) -> Callable[..., Any]:
    def stack(*mats: Any, axis: int) -> Any:
        shape, places = list(mats[0].shape), [*range(axis), *range(axis + 1, mats[0].ndim + 1)]
        shape.insert(axis, 1)
        return concatenate([broadcast(m, shape=shape, broadcast_dimensions=places) for m in mats], dimension=axis)

    return stack


# ---------------------------------------------------------------------------------------------------------------------
# Programs inside of programs


def _runner(jaxpr: Jaxpr) -> Callable[[Sequence[Any]], Any]:
    """A program as a function of sparse and dense arrays. What is known of shared coordinates is not known inside."""

    def run(arrays: Sequence[Any]) -> Any:
        inner = SparsifyEnv()
        values = [arrays_to_spvalues(inner, a) for a in arrays]
        return spvalues_to_arrays(inner, list(run_program(inner, jaxpr, (), values)))

    return run


def _call(spenv: SparsifyEnv, values: Values, params: dict[str, Any]) -> Values:
    run = _runner(params["jaxpr"])
    run.__name__ = params["name"]
    return arrays_to_spvalues(spenv, jit(run)(spvalues_to_arrays(spenv, list(values))))


def _cond(spenv: SparsifyEnv, values: Values, params: dict[str, Any]) -> Values:
    index, *operands = spvalues_to_arrays(spenv, list(values))
    found: list[Any] = []

    def branch(jaxpr: Jaxpr) -> Callable[[Any], Any]:
        def run(arrays: Any) -> Any:
            outs = _runner(jaxpr)(arrays)
            found.append(outs)
            _check_alike(found[0], outs)
            return outs

        return run

    return arrays_to_spvalues(spenv, switch(index, [branch(b) for b in params["branches"]], operands))


def _check_alike(first: Any, other: Any) -> None:
    """That branches give the same sparse and dense arrays, with parts of the same types."""
    types = [[aval_of(x).short() for x in tree_flatten(outs)[0]] for outs in (first, other)]
    if tree_structure(first) != tree_structure(other) or types[0] != types[1]:
        raise errors.ArgumentTypeError(
            "sparsified true_fun and false_fun output must have the same type structure, that is the same sparse and "
            f"dense arrays of one number of specified elements, got {first} and {other}; use todense() or "
            "update_layout() on one of them"
        )


def _while(spenv: SparsifyEnv, values: Values, params: dict[str, Any]) -> Values:
    arrays, test_n = spvalues_to_arrays(spenv, list(values)), params["cond_nconsts"]
    body_n = test_n + params["body_nconsts"]
    test, body = _runner(params["cond_jaxpr"]), _runner(params["body_jaxpr"])
    outs = while_loop(
        lambda xs: test([*arrays[:test_n], *xs])[0], lambda xs: body([*arrays[test_n:body_n], *xs]), arrays[body_n:]
    )
    return arrays_to_spvalues(spenv, outs)


def _scan(spenv: SparsifyEnv, values: Values, params: dict[str, Any]) -> Values:
    """Sparse values may be constants and carries: slices of sparse arrays have no fixed number of elements."""
    num_consts, first_x = params["num_consts"], params["num_consts"] + params["num_carry"]
    if any(v.is_sparse() for v in values[first_x:]):
        raise errors.UnsupportedError("sparse rule for scan with x values.")
    arrays, body = spvalues_to_arrays(spenv, list(values)), _runner(params["jaxpr"])

    def step(carry: Any, xs: Any) -> Any:
        outs = body([*arrays[:num_consts], *carry, *xs])
        return outs[: params["num_carry"]], outs[params["num_carry"] :]

    carry, ys = scan_over(
        step, arrays[num_consts:first_x], arrays[first_x:], length=params["length"], reverse=params["reverse"],
        unroll=params["unroll"],
    )  # fmt: skip
    return arrays_to_spvalues(spenv, [*carry, *ys])


# ---------------------------------------------------------------------------------------------------------------------

_LINEAR = (lax.copy_p, lax.imag_p, lax.neg_p, lax.real_p, conj_p, stage_p, lax.stop_gradient_p)
_ZERO_AT_ZERO = (
    lax.abs_p, lax.asin_p, lax.asinh_p, lax.atan_p, lax.atanh_p, lax.bessel_i1e_p, lax.expm1_p, lax.log1p_p,
    lax.sign_p, lax.sin_p, lax.sinh_p, lax.sqrt_p, square_p, lax.tan_p, lax.tanh_p, lax.convert_element_type_p,
)  # fmt: skip
DENSE_RESULTS = frozenset({
    lax.acos_p, lax.acosh_p, lax.bessel_i0e_p, lax.cos_p, lax.cosh_p, lax.eq_p, lax.exp_p, lax.ge_p, lax.gt_p, lax.le_p,
    lax.lt_p, lax.log_p, lax.ne_p, lax.xor_p,
})  # fmt: skip
_CALLS: dict[Primitive, Rule] = {jit_p: _call, cond_p: _cond, while_p: _while, scan_p: _scan}
_COMMON: dict[Primitive, Rule] = {
    **{p: _unary(p, linear=True) for p in _LINEAR}, **{p: _unary(p) for p in _ZERO_AT_ZERO},
    lax.complex_p: _complex, lax.integer_pow_p: _integer_pow,
    todense_p: _of_arrays(todense_p, lambda x, tree: x.todense()), **_CALLS,
}  # fmt: skip

_ARRAYS: dict[Primitive, Callable[..., Any]] = {
    lax.broadcast_in_dim_p: shapes.bcoo_broadcast_in_dim,
    lax.concatenate_p: lambda *mats, dimension: shapes.bcoo_concatenate(mats, dimension=dimension),
    lax.conv_general_dilated_p: convolution.bcoo_conv_general_dilated,
    lax.dot_general_p: products.bcoo_dot_general,
    lax.dynamic_slice_p: lambda mat, *at, slice_sizes: shapes.bcoo_dynamic_slice(mat, at, slice_sizes),
    lax.gather_p: gathering.bcoo_gather,
    lax.reshape_p: shapes.bcoo_reshape,
    lax.rev_p: shapes.bcoo_rev,
    lax.slice_p: shapes.bcoo_slice,
    squeeze_p: shapes.bcoo_squeeze,
    stack_p: _stack(shapes.bcoo_concatenate, shapes.bcoo_broadcast_in_dim),
}
RULES: dict[Primitive, Rule] = {
    **_COMMON, **{p: _of_arrays(p, f) for p, f in _ARRAYS.items()}, lax.add_p: _add,
    add_any_p: _add, lax.sub_p: _sub, lax.mul_p: _mul,
    lax.div_p: _div, lax.transpose_p: _transpose, lax.reduce_sum_p: _reduce_sum,
}  # fmt: skip

_COMPRESSED_ARRAYS: dict[Primitive, Callable[..., Any]] = {
    lax.broadcast_in_dim_p: compressed.bcsr_broadcast_in_dim,
    lax.concatenate_p: lambda *mats, dimension: compressed.bcsr_concatenate(mats, dimension=dimension),
    lax.dot_general_p: compressed.bcsr_dot_general,
    stack_p: _stack(compressed.bcsr_concatenate, compressed.bcsr_broadcast_in_dim),
}
COMPRESSED: dict[Primitive, Rule] = {**_COMMON, **{p: _of_arrays(p, f) for p, f in _COMPRESSED_ARRAYS.items()}}
