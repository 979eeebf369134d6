"""`sparsify`: functions of dense arrays, made functions of sparse ones.

There are two ways to the same rules (`rules.py`): the function's program is run with values of which some are sparse,
or the function itself runs on tracers that know that they are. The first takes whatever can be traced, the second
functions that look at their arguments as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes
from meshrt.core.naming import wraps
from meshrt.core.trace import Trace, Tracer, context, set_trace, trace_to_jaxpr
from meshrt.experimental.sparse.coordinates import bcoo_extract
from meshrt.experimental.sparse.dense import todense
from meshrt.experimental.sparse.environment import (
    SparsifyEnv,
    SparsifyValue,
    arrays_to_spvalues,
    is_sparse_array,
    spvalues_to_arrays,
    spvalues_to_avals,
)
from meshrt.experimental.sparse.rules import COMPRESSED, RULES, apply_rule, run_program
from meshrt.transforms.arguments import fun_name
from meshrt.transforms.custom_jvp import custom_jvp, custom_jvp_call_p
from meshrt.transforms.high import flatten
from meshrt.tree_util import tree_flatten, tree_map, tree_unflatten

__all__ = [
    "SparseTracer", "SparsifyEnv", "SparsifyValue", "arrays_to_spvalues", "sparsify", "sparsify_raw",
    "spvalues_to_arrays", "spvalues_to_avals",
]  # fmt: skip


def sparsify(f: Callable[..., Any], use_tracer: bool = False) -> Callable[..., Any]:
    """A function that takes sparse arrays, `BCOO` and `BCSR`, where `f` takes dense ones, and computes with what they
    specify only. Results are sparse where they follow from sparse arguments.

    Args:
      f: a function of pytrees of arrays.
      use_tracer: whether `f` itself sees that values are sparse (`SparseTracer`), and may take keyword arguments only
        that are no arrays. By default it is traced once as a function of dense arrays.

    Raises:
      UnsupportedError: (a NotImplementedError) an operation of `f` is not known for sparse arrays, or would make them
        dense: use `todense` before.

    >>> import meshrt.numpy as mnp
    >>> from meshrt.experimental import sparse
    >>> m = sparse.BCOO.fromdense(mnp.array([[0.0, 2.0], [3.0, 0.0]]))
    >>> sparse.sparsify(lambda m, v: 2 * m.T @ v)(m, mnp.array([1.0, 10.0]))
    Array([60.,  4.], dtype=float32)
    """
    return _by_tracers(f) if use_tracer else _by_program(f)


def sparsify_raw(f: Callable[..., Any]) -> Callable[..., tuple[Sequence[SparsifyValue], Any]]:
    """As `sparsify`, for values of an environment: (environment, *values) -> (flat values, the result's structure)."""

    def wrapped(spenv: SparsifyEnv, *spvalues: Any, **params: Any) -> tuple[Sequence[SparsifyValue], Any]:
        values, tree = tree_flatten(spvalues, is_leaf=lambda x: isinstance(x, SparsifyValue))
        out_tree = None

        def flat(*xs: Any) -> list[Any]:
            nonlocal out_tree
            outs, out_tree = flatten(f(*tree_unflatten(tree, xs), **params))
            return outs

        closed = trace_to_jaxpr(flat, spvalues_to_avals(spenv, values), fun_name(f))
        return run_program(spenv, closed.jaxpr, closed.consts, values), out_tree

    return wrapped


def _by_program(f: Callable[..., Any]) -> Callable[..., Any]:
    raw = sparsify_raw(f)

    @wraps(f)
    def wrapped(*args: Any, **params: Any) -> Any:
        spenv = SparsifyEnv()
        outs, out_tree = raw(spenv, *arrays_to_spvalues(spenv, args), **params)
        return tree_unflatten(out_tree, spvalues_to_arrays(spenv, outs))

    return wrapped


class SparseTracer(Tracer):
    """An array that may be sparse, while a function runs under `sparsify(use_tracer=True)`."""

    __slots__ = ("_spvalue",)

    _trace: _SparseTrace

    def __init__(self, trace: _SparseTrace, spvalue: SparsifyValue):
        self._trace, self._spvalue = trace, spvalue
        self.aval = spvalues_to_avals(trace.spenv, spvalue)

    @property
    def spenv(self) -> SparsifyEnv:
        return self._trace.spenv


class _SparseTrace(Trace):
    """Applies the rules for sparse values in `parent`."""

    __slots__ = ("parent", "requires_low", "spenv")

    def __init__(self, parent: Trace):
        self.parent, self.requires_low, self.spenv = parent, parent.requires_low, SparsifyEnv()

    def value(self, x: Any) -> SparsifyValue:
        if isinstance(x, SparsifyValue):
            return x
        if type(x) is SparseTracer and x._trace is self:
            return x._spvalue
        found: SparsifyValue = arrays_to_spvalues(self.spenv, x)
        return found

    def process_primitive(self, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
        with set_trace(self.parent):
            if not any(type(a) is SparseTracer and a._trace is self for a in args):
                return self.parent.process_primitive(primitive, args, params)
            values = [self.value(a) for a in args]
            outs = [SparseTracer(self, v) for v in apply_rule(self.spenv, primitive, values, params)]
        return outs if primitive.multiple_results else outs[0]


def _run_on_tracers(trace: _SparseTrace, f: Callable[..., Any], *args: Any) -> Any:
    """What f gives for pytrees of arrays and values of the trace's environment: values, or pairs of lists of them."""
    wrapped = tree_map(lambda v: SparseTracer(trace, trace.value(v)), args, is_leaf=_is_leaf)
    with set_trace(trace):
        return tree_map(trace.value, f(*wrapped))


def _is_leaf(x: Any) -> bool:
    return is_sparse_array(x) or isinstance(x, SparsifyValue)


def _custom_jvp(spenv: SparsifyEnv, values: Sequence[SparsifyValue], params: dict[str, Any]) -> Any:
    """A function with a derivative of its own keeps it: its rule is applied to sparse primals and tangents, which
    have the primals' coordinates."""
    jaxpr, num_consts, rule = params["call_jaxpr"], params["num_consts"], params["rule"]

    @custom_jvp
    def call(consts: Any, arrays: Any) -> Any:
        inner = SparsifyEnv()
        given = [arrays_to_spvalues(inner, x) for x in (*consts, *arrays)]
        return spvalues_to_arrays(inner, list(run_program(inner, jaxpr, (), given)))

    @call.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:
        trace = _SparseTrace(context.trace)
        given = [trace.value(x) for x in primals[1]]
        moved = [_tangent(trace.spenv, v, t) for v, t in zip(given, tangents[1])]
        outs, slopes = _run_on_tracers(trace, rule, given, moved)
        found = spvalues_to_arrays(trace.spenv, list(outs))
        return found, [_of_result(trace.spenv, o, s) for o, s in zip(outs, slopes)]

    arrays = spvalues_to_arrays(spenv, list(values))
    return arrays_to_spvalues(spenv, call(arrays[:num_consts], arrays[num_consts:]))


def _tangent(spenv: SparsifyEnv, value: SparsifyValue, tangent: Any) -> SparsifyValue:
    if value.is_dense():
        return spenv.dense(tangent)
    return spenv.sparse(
        value.shape, tangent.data, indices_ref=value.indices_ref, indptr_ref=value.indptr_ref,
        indices_sorted=value.indices_sorted, unique_indices=value.unique_indices,
    )  # fmt: skip


def _of_result(spenv: SparsifyEnv, value: SparsifyValue, slope: SparsifyValue) -> Any:
    """A tangent in the structure of a result: that of its data, and none of its coordinates. What a tangent says of
    coordinates that the result does not specify is not asked (see `derivatives.py`)."""
    tangent = spvalues_to_arrays(spenv, slope)
    if value.is_dense():
        return todense(tangent)
    found = spvalues_to_arrays(spenv, value)
    (_, *places), tree = tree_flatten(found)
    if slope.indices_ref == value.indices_ref:
        data = tangent.data
    else:
        by_place = found.to_bcoo() if value.is_bcsr() else found
        data = bcoo_extract(by_place, todense(tangent)).data
    return tree_unflatten(tree, [data, *[np.zeros(p.shape, dtypes.float0) for p in places]])


# The rule needs tracers, which need the rules.
RULES[custom_jvp_call_p] = COMPRESSED[custom_jvp_call_p] = _custom_jvp


def _by_tracers(f: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(f)
    def wrapped(*args: Any, **params: Any) -> Any:
        leaves, tree = tree_flatten(args, is_leaf=is_sparse_array)
        trace = _SparseTrace(context.trace)
        tracers = [SparseTracer(trace, trace.value(x)) for x in leaves]
        with set_trace(trace):
            outs, out_tree = flatten(f(*tree_unflatten(tree, tracers), **params))
        return tree_unflatten(out_tree, spvalues_to_arrays(trace.spenv, [trace.value(o) for o in outs]))

    return wrapped
