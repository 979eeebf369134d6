"""What programs know of the functions that they were, as in JAX: names of arguments, results, file and line."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import jax
import jax.extend
import numpy as np
import pytest

import meshrt
import meshrt.extend
from meshrt.transforms.ordering import in_order


def _body(c: Any, t: Any) -> Any:
    return c + t, {"y": c}


def _keywords(x: Any, *rest: Any, scale: Any, **others: Any) -> Any:
    return [x + rest[0], {"s": scale * others["b"]}]


class _Called:
    def __call__(self, x: Any, y: Any) -> Any:
        return x + y

    def method(self, x: Any, y: Any) -> Any:
        return {"s": x + y}


def _loop(lib: Any, x: Any) -> Any:
    return lib.lax.while_loop(lambda s: s["i"] < 3, lambda s: {"i": s["i"] + 1, "v": s["v"] * 2}, {"i": 0, "v": x})


def _custom(lib: Any, x: Any) -> Any:
    f = lib.custom_jvp(lambda x, y: x * y)
    f.defjvp(lambda p, t: (f(*p), t[0] + t[1]))
    return f(x, x)


# What is traced, and for which arguments.
PROGRAMS: dict[str, Any] = {
    "names": lambda lib: (lambda state, x: (x, state["w"][1]), ({"w": [1.0, 2.0]}, 3.0), {}),
    "one result": lambda lib: (lambda x: x, (1.0,), {}),
    "keywords": lambda lib: (_keywords, (1.0, 2.0), {"scale": 3.0, "b": 4.0}),
    "by keyword": lambda lib: (lambda x, y: x + y, (1.0,), {"y": 2.0}),
    "a partial": lambda lib: (functools.partial(lambda a, b, c: a + b + c, 1.0), (2.0,), {"c": 3.0}),
    "a method": lambda lib: (_Called().method, (1.0, 2.0), {}),
    "a jitted function": lambda lib: (lib.jit(lambda x, y: x + y), (1.0, 2.0), {}),
    "static arguments": lambda lib: (
        lambda x: lib.jit(lambda n, x, m: x * n * m, static_argnums=0, static_argnames="m")(2, x, m=3), (1.0,), {},
    ),
    "a scan": lambda lib: (lambda x: lib.lax.scan(_body, x, np.float32([1, 2])), (1.0,), {}),
    "a scan that captures": lambda lib: (
        lambda x: lib.lax.scan(lambda c, t: (c * x, t * 2), 1.0, np.float32([1, 2])), (1.0,), {},
    ),
    "a loop": lambda lib: (lambda x: _loop(lib, x), (1.0,), {}),
    "branches": lambda lib: (
        lambda p, x: lib.lax.cond(p, lambda u: u["a"], lambda v: v["a"] * 2, {"a": x}), (True, 1.0), {},
    ),
    "a checkpoint": lambda lib: (lib.checkpoint(lambda x, y: [x * y]), (1.0, 2.0), {}),
    "a map of a call": lambda lib: (lib.vmap(lib.jit(lambda x: x * 2)), (np.float32([1, 2]),), {}),
    "a custom derivative": lambda lib: (lambda x: _custom(lib, x), (1.0,), {}),
}  # fmt: skip
# JAX does not say where the results of a function with rules stand.
UNTOLD_BY_JAX = {"a custom derivative"}


def _told(jaxpr: Any, with_results: bool) -> list[Any]:
    """What is known of a program and of those in it."""
    info = jaxpr.debug_info
    names = info.safe_arg_names(len(jaxpr.invars))
    found: list[Any] = [(info.traced_for, info.func_src_info, names, info.result_paths if with_results else None)]
    for eqn in jaxpr.eqns:
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    found += _told(inner, with_results)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_know_their_functions_as_those_of_jax(name: str) -> None:
    made = []
    for lib in (meshrt, jax):
        fun, args, kwargs = PROGRAMS[name](lib)
        made.append(_told(lib.make_jaxpr(fun)(*args, **kwargs).jaxpr, name not in UNTOLD_BY_JAX))
    assert made[0] == made[1]


def test_parts_of_a_function_are_told() -> None:
    for lib in (meshrt, jax):
        info = lib.make_jaxpr(_keywords)(1.0, 2.0, scale=3.0, b=4.0).jaxpr.debug_info
        assert info.func_name == "_keywords"
        assert info.func_filename == __file__
        assert info.func_lineno == _keywords.__code__.co_firstlineno
        assert info.replace_func_name("g").func_name == "g"
        assert info.filter_arg_names([False, True, False, True]) == (info.arg_names[1], info.arg_names[3])
        assert info.filter_result_paths([False, True]) == (info.result_paths[1],)
        assert info.with_unknown_names().safe_arg_names(2) == ("", "")
        with pytest.raises(AssertionError):
            info.safe_arg_names(2)


def test_programs_made_of_others_know_the_function() -> None:
    for lib in (meshrt, jax):
        jaxpr = lib.make_jaxpr(_keywords)(1.0, 2.0, scale=3.0, b=4.0).jaxpr
        same = jaxpr.replace(eqns=jaxpr.eqns)
        fewer = jaxpr.replace(outvars=jaxpr.outvars[:1])
        assert same.debug_info == jaxpr.debug_info
        assert fewer.debug_info == jaxpr.debug_info.with_unknown_names()


def test_a_program_does_not_keep_its_function() -> None:
    big = np.ones(3)

    def f(x: Any) -> Any:
        return x + big.sum()

    closed = meshrt.make_jaxpr(f)(1.0)
    kept = weakref.ref(f)
    del f
    gc.collect()
    assert kept() is None
    assert closed.jaxpr.debug_info.arg_names == ("x",)


def _call_says(lib: Any) -> Any:
    f = lib.jit(lambda x, y: x + y, donate_argnums=0, keep_unused=True)
    closed = lib.make_jaxpr(lib.value_and_grad(lambda x: f(x, np.float32(2))))(1.0)
    skipped = ("jaxpr", "name")
    says = [{k: repr(v) for k, v in e.params.items() if k not in skipped} for e in closed.eqns if "jaxpr" in e.params]
    return says


def test_calls_say_what_those_of_jax_say() -> None:
    ours, theirs = map(_call_says, (meshrt, jax))
    assert len(ours) == 2  # the second is the derivative
    assert ours == theirs
    assert "donated_invars=(True, False)" in str(
        meshrt.make_jaxpr(meshrt.jit(lambda x, y: x + y, donate_argnums=0))(1.0, 2.0)
    )


def _bound(lib: Any, **changes: Any) -> Any:
    (eqn,) = lib.make_jaxpr(lib.jit(lambda x: x * 2, donate_argnums=0))(np.float32([1, 2])).eqns
    call = lambda x: eqn.primitive.bind(x, **{**eqn.params, **changes})[0]
    x = np.float32([[3, 4], [5, 6]])
    rows = lib.vmap(call)(x)
    return np.asarray(rows).tolist(), np.asarray(lib.grad(lambda x: call(x)[0])(x[0])).tolist()


def test_programs_bind_calls_with_the_parameters_of_jax() -> None:
    assert _bound(meshrt) == _bound(jax)


def test_what_a_bound_call_would_lose_is_refused() -> None:
    """JAX's calls take shardings; those of ours are equations around the call."""
    split = meshrt.NamedSharding(meshrt.make_mesh((2,), ("x",)), meshrt.P("x"))
    with pytest.raises(meshrt.errors.UnsupportedError, match=r"out_shardings=.* constrain what goes in and comes out"):
        _bound(meshrt, out_shardings=(split,))
    with pytest.raises(TypeError, match=r"unexpected parameters \['resource_env'\]"):
        _bound(meshrt, resource_env=None)


def test_what_is_said_around_an_equation_is_said_again() -> None:
    for lib in (meshrt, jax):
        (eqn,) = lib.make_jaxpr(lambda x: lib.numpy.sin(x))(1.0).eqns
        with eqn.ctx.manager:
            (again,) = lib.make_jaxpr(lambda x: lib.numpy.sin(x))(1.0).eqns
        assert again.ctx.compute_type is eqn.ctx.compute_type is None
        assert again.ctx.xla_metadata is None


def test_calls_with_ordered_effects_say_the_same_behind_their_token() -> None:
    def noted(x: Any, y: Any, unused: Any) -> Any:
        meshrt.debug.print("{}", x, ordered=True)
        return x + y

    called = meshrt.jit(noted, donate_argnums=1, keep_unused=True)
    (call,) = in_order(meshrt.make_jaxpr(lambda *args: called(*args))(1.0, 2.0, 3.0).jaxpr).eqns
    assert (call.params["donated_invars"], call.params["keep_unused"]) == ((False, False, True, False), True)
    assert len(call.params["in_shardings"]) == len(call.invars) == 4
