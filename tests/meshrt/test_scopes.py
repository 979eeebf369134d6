"""The paths of scopes and transformations that equations have, in Jaxprs and in what is lowered: as in JAX."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest

import meshrt

X = np.float32([1, 2])


def _inner(l):
    """`named_scope("bar")` around a sine."""
    return lambda x: l.named_scope("bar")(l.lax.sin)(x)


def _loop(l):
    body, test = l.named_scope("bar")(lambda x: x + 1.0), l.named_scope("test")(lambda x: x < 5.0)
    return l.named_scope("foo")(lambda x: l.lax.while_loop(test, body, x))


def _branches(l):
    yes, no = l.named_scope("yes")(lambda x: x + 1.0), l.named_scope("no")(lambda x: x - 1.0)
    return l.named_scope("foo")(lambda x: l.lax.cond(x > 0, yes, no, x))


def _with_rule(l):
    f = l.custom_jvp(lambda x: l.lax.sin(x))
    f.defjvp(lambda p, t: (f(*p), t[0]))
    return f


PROGRAMS = {
    "a scope": lambda l: (l.named_scope("foo")(_inner(l)), X),
    "a scope in a map": lambda l: (l.named_scope("foo")(l.vmap(_inner(l))), X),
    "a map without a scope": lambda l: (l.named_scope("foo")(l.vmap(l.lax.sin)), X),
    "maps in maps": lambda l: (l.vmap(l.vmap(_inner(l))), X[None]),
    "a tangent": lambda l: (l.named_scope("foo")(lambda x: l.jvp(_inner(l), (x,), (x,))), X),
    "a tangent of a map": lambda l: (lambda x: l.jvp(l.vmap(_inner(l)), (x,), (x,)), X),
    "a map of a gradient": lambda l: (l.vmap(l.grad(_inner(l))), X),
    "a gradient": lambda l: (l.grad(l.named_scope("foo")(_inner(l))), X[0]),
    "a call": lambda l: (l.named_scope("foo")(l.jit(_inner(l))), X),
    "a map of a call": lambda l: (l.named_scope("foo")(l.vmap(l.jit(_inner(l)))), X),
    "a gradient of a call": lambda l: (l.grad(l.named_scope("foo")(l.jit(_inner(l)))), X[0]),
    "a loop": lambda l: (_loop(l), X[0]),
    "a tangent of a loop": lambda l: (lambda x: l.jvp(_loop(l), (x,), (x,)), X[0]),
    "branches": lambda l: (_branches(l), X[0]),
    "a scan": lambda l: (lambda x: l.lax.scan(lambda c, t: (c * l.lax.sin(t), c), x, X), X[0]),
    "a checkpoint": lambda l: (l.checkpoint(l.named_scope("foo")(lambda x: l.lax.sin(x))), X[0]),
    "a rule for forward mode": lambda l: (_with_rule(l), X[0]),
}
LOWERED = {
    "a call": ["foo/jit(", "bar/sin"],
    "a map of a call": ["foo/vmap(jit(", "bar/sin"],
    "a gradient": ["jvp(foo)/bar/cos", "transpose(jvp(foo))/bar/mul"],
    "a loop": ["foo/while/body/bar/add", "foo/while/cond/test/lt"],
    "a tangent of a loop": ["jvp(foo)/while/body/bar/add", "jvp(foo)/while/cond/test/lt"],
    "a scan": ["jit(<lambda>)/while/body/closed_call"],
    "a checkpoint": ["jit(<lambda>)/checkpoint/foo/sin"],
    "a rule for forward mode": ["jit(<lambda>)/sin"],
    "branches": ["foo/cond/branch_0_fun/no/sub", "foo/cond/branch_1_fun/yes/add"],
}


def _paths(jaxpr):
    """The paths of a Jaxpr's equations, and of those in it, by what they compute (but for copies and conversions)."""
    found = set()
    for eqn in jaxpr.eqns:
        inside = [p for p in eqn.params.values() if hasattr(p, "eqns") or hasattr(p, "jaxpr")]
        inside += eqn.params.get("branches", ())
        if inside or eqn.primitive.name in ("sin", "cos", "mul", "add", "sub", "lt"):
            found.add((eqn.primitive.name, str(eqn.source_info.name_stack)))
        for p in inside:
            found |= _paths(getattr(p, "jaxpr", p))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_paths_in_jaxprs(name):
    ours, theirs = (_paths(l.make_jaxpr(f)(x).jaxpr) for l in (meshrt, jax) for f, x in [PROGRAMS[name](l)])
    assert ours == theirs


@pytest.mark.parametrize("name", LOWERED)
def test_paths_in_what_is_lowered(name):
    for l in (jax, meshrt):
        f, x = PROGRAMS[name](l)
        text = l.jit(f).lower(x).as_text(debug_info=True)
        assert [part for part in LOWERED[name] if part not in text] == []


def test_a_function_is_staged_apart_from_scopes_around_it():
    inner = meshrt.jit(_inner(meshrt))
    first, second = (
        _paths(meshrt.make_jaxpr(meshrt.named_scope(name)(lambda x: inner(x)))(X).jaxpr) for name in ("foo", "fee")
    )
    assert ("sin", "bar") in first & second


def test_what_is_computed_again_says_so():
    f = meshrt.checkpoint(lambda x: meshrt.lax.sin(meshrt.lax.sin(x)))
    assert "rematted_computation" not in meshrt.jit(f).lower(X[0]).as_text(debug_info=True)
    assert "rematted_computation/" in meshrt.jit(meshrt.grad(f)).lower(X[0]).as_text(debug_info=True)
    with meshrt.named_scope("jvp("):
        meshrt.grad(meshrt.lax.sin)(1.0)


def test_paths_begin_with_the_function_that_is_compiled():
    def program(lib):
        def f(x):
            with lib.named_scope("foo"):
                return lib.numpy.sin(x) * 2

        lowered = lib.jit(f).lower(X)
        texts = (lowered.as_text(debug_info=True), lowered.as_text("hlo", debug_info=True), lowered.compile().as_text())
        return [path for text in texts for path in ("jit(f)/foo/sin", "jit(f)/foo/mul") if path in text]

    assert program(meshrt) == program(jax) and len(program(meshrt)) >= 5
    assert "jit(f)" not in meshrt.jit(lambda x: x).lower(X).as_text()


def test_paths_begin_with_the_function_where_they_go_on_in_another():
    def program(lib):
        inner = lib.jit(lambda x: lib.numpy.sin(x) * 2)
        return lib.jit(lambda x: inner(x) + inner(x + 1)).lower(X).compile().as_text()

    for text in map(program, (jax, meshrt)):
        assert text.count('op_name="jit(<lambda>)/jit(<lambda>)/sin"') == text.count('/sin"') > 0


def _keyed(x, unused, *rest, k=3, **more):
    return {"a": x["it's"] + rest[1][0], "b": more["q"] + k}


@pytest.mark.parametrize(
    "options", [{}, {"keep_unused": True}, {"static_argnames": "k"}], ids=["plain", "all", "static"]
)
def test_arguments_have_their_names_in_texts_with_locations(options):
    def names(package):
        text = (
            package.jit(_keyed, **options).lower({"it's": 1.0}, 2.0, 3.0, (4.0,), k=5, q=6.0).as_text(debug_info=True)
        )
        main = next(line for line in text.splitlines() if "func.func public @main" in line)
        return re.findall(r'%arg\d+: tensor<[^>]*> loc\(("[^,]*")\)', main)

    assert names(meshrt) == names(jax) != []


def test_captured_values_have_no_names():
    captured = meshrt.numpy.arange(100.0)
    text = meshrt.jit(lambda x: x + captured.sum()).lower(1.0).as_text(debug_info=True)
    assert text.count('loc("x")') == 1 and '%arg1: tensor<f32> loc("x")' in text
