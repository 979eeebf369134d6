"""Programs that walk over Jaxprs and make their own: `jax.interpreters.partial_eval` and call equations, beside JAX."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import pytest

import meshrt
from tests.meshrt.beside import assert_alike


def _modules(library: Any) -> Any:
    found = [importlib.import_module(f"{library.__name__}.{name}") for name in ("interpreters.partial_eval", "extend")]
    core = importlib.import_module(f"{library.__name__}.extend.core")
    linear_util = importlib.import_module(f"{library.__name__}.extend.linear_util")
    return found[0], core, linear_util


def _shape(library: Any) -> Any:
    return library.make_jaxpr(lambda x: x)(library.numpy.float32(1)).in_avals[0]


def _wrapped(library: Any, fun: Any) -> Any:
    if library is meshrt:
        return _modules(library)[2].wrap_init(fun)
    from jax._src import api_util

    return _modules(library)[2].wrap_init(fun, debug_info=api_util.debug_info("test", fun, (1.0,), {}))


def _staged(library: Any, options: dict[str, Any]) -> Any:
    array = library.numpy.arange(3.0)

    def fun(x: Any) -> list[Any]:
        library.numpy.sin(x)
        return [x * array, x * 2]

    partial_eval, _, _ = _modules(library)
    jaxpr, types, consts = partial_eval.trace_to_jaxpr_dynamic(_wrapped(library, fun), [_shape(library)], **options)
    return str(jaxpr), list(map(str, types)), consts


@pytest.mark.parametrize("options", [{}, {"auto_dce": True}], ids=str)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_function_of_flat_arrays_is_staged(options: dict[str, Any]) -> None:
    assert_alike(lambda library: _staged(library, options))


def _staged_in_part(library: Any, flags: list[bool]) -> Any:
    partial_eval, _, _ = _modules(library)
    fun = lambda *args: [library.numpy.sin(args[0]), args[-1]]
    jaxpr, types, _ = partial_eval.trace_to_jaxpr_dynamic(
        _wrapped(library, fun), [_shape(library)] * 3, keep_inputs=flags
    )
    return str(jaxpr), list(map(str, types))


@pytest.mark.parametrize("flags", [[True] * 3, [True, False, True], [False, True, False], [True]], ids=str)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_arguments_that_are_not_kept_are_not_handed_to_the_function(flags: list[bool]) -> None:
    assert_alike(lambda library: _staged_in_part(library, flags))


def _staged_with_constants(library: Any) -> Any:
    partial_eval, _, _ = _modules(library)
    read, unread, given = (library.numpy.arange(3.0) + i for i in range(3))

    def fun(x: Any) -> list[Any]:
        library.numpy.sin(unread)
        return [x * read, given]

    jaxpr, _, consts = partial_eval.trace_to_jaxpr_dynamic(_wrapped(library, fun), [_shape(library)], auto_dce=True)
    assert len(jaxpr.constvars) == len(consts)
    return str(jaxpr), consts


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_constants_that_only_pruned_equations_read_go_with_them() -> None:
    assert_alike(_staged_with_constants)


def _pruned(library: Any) -> Any:
    partial_eval, core, _ = _modules(library)
    both = core.Primitive("both")
    both.multiple_results = True
    both.def_abstract_eval(lambda *types: list(types))
    both.def_impl(lambda *values: values)

    def rule(used: Any, eqn: Any) -> Any:
        keep = lambda values: [v for v, u in zip(values, used) if u]
        return list(used), eqn.replace(invars=keep(eqn.invars), outvars=keep(eqn.outvars))

    partial_eval.dce_rules[both] = rule
    jaxpr = library.make_jaxpr(lambda x, y: both.bind(x, y)[0])(1.0, 2.0).jaxpr
    pruned, used = partial_eval.dce_jaxpr(jaxpr, [True])
    return str(pruned), used, partial_eval.dce_rules[both] is rule


def test_a_library_says_what_its_primitive_needs() -> None:
    assert_alike(_pruned)


def _called(library: Any, kind: str) -> Any:
    function = getattr(library, f"custom_{kind}")(library.numpy.sin)
    if kind == "jvp":
        function.defjvp(lambda primals, tangents: (function(*primals), 3 * tangents[0]))
    else:
        function.defvjp(lambda x: (function(x), None), lambda _, ct: (3 * ct,))
    (eqn,) = library.make_jaxpr(function)(1.0).eqns
    again = eqn.primitive.bind(*eqn.params["call_jaxpr"].consts, 1.0, **eqn.primitive.get_bind_params(eqn.params))
    return str(eqn.params["call_jaxpr"]), again, eqn.params["num_consts"]


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_what_a_function_with_derivatives_calls_is_found(kind: str) -> None:
    assert_alike(lambda library: _called(library, kind))


def test_a_name_that_is_missing_says_so() -> None:
    with pytest.raises(AttributeError, match="it is not implemented"):
        _modules(meshrt)[0].pe_of_another_name
    assert jax.__version__
