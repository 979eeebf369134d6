"""What debug callbacks are called with under differentiation, judged by JAX."""

import jax
import jax.ad_checkpoint
import numpy as np
import pytest

import meshrt
from tests.meshrt.callbacks.programs import both

name_of = {jax: jax.ad_checkpoint.checkpoint_name, meshrt: meshrt.ad_checkpoint.checkpoint_name}


def calls(lib, run, ordered):
    """What `run(j, np, look)` looks at: (tag, values) in order."""
    seen = []

    def look(tag, *values):
        note = lambda *vs: seen.append((tag, *[round(float(np.asarray(v)), 3) for v in vs]))
        lib.jax.debug.callback(note, *values, ordered=ordered)

    run(lib.jax, lib.np, look)
    lib.jax.effects_barrier()
    return seen if ordered else sorted(seen)


def same(run, ordered):
    theirs, ours = both()
    want = calls(theirs, run, ordered)
    assert calls(ours, run, ordered) == want
    return want


def _loop(j, body, x, length=3):
    return j.lax.scan(lambda c, i: (body(c, i), None), x, np.arange(length, dtype=np.float32))[0]


def _in_branch(j, np_, look, c, w):
    j.lax.cond(w > 0, lambda: look("positive", w), lambda: None)
    return c * w


def _in_call(j, np_, look, c, w):
    both = j.jit(lambda c, w: (look("both", w), c * w)[1])
    alone = j.jit(lambda w: (look("alone", w), np_.sin(w))[1])
    return both(c, w) * alone(w)


def _in_inner_loop(j, np_, look, c, w):
    return c * j.lax.scan(lambda d, i: ((look("d", d, i), d + w)[1], None), 0.0, np.arange(2.0, dtype=np.float32))[0]


def _in_loop_of_carry(j, np_, look, c, w):
    return j.lax.scan(lambda d, _: ((look("w", w), d * w)[1], None), c, None, length=2)[0]


BODIES = {
    "constant": lambda j, np_, look, c, w: (look("w", w), c * w)[1],
    "nothing": lambda j, np_, look, c, w: (look("tick"), c * w)[1],
    "computed": lambda j, np_, look, c, w: (look("v", np_.sin(w) * 2), c * np_.sin(w))[1],
    "carry": lambda j, np_, look, c, w: (look("c", c), look("w", w), c * w)[2],
    "branch": _in_branch, "call": _in_call, "inner loop": _in_inner_loop, "inner of carry": _in_loop_of_carry,
}  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
@pytest.mark.parametrize("body", BODIES)
def test_what_sees_nothing_of_an_iteration_is_called_once(body, ordered):
    def run(j, np_, look):
        f = lambda x, w: _loop(j, lambda c, i: BODIES[body](j, np_, look, c, w), x)
        j.grad(f)(2.0, 3.0)
        j.jit(j.grad(f, (0, 1)))(4.0, 5.0)
        j.grad(j.checkpoint(lambda x: f(x, np_.float32(6.0))))(2.0)

    same(run, ordered)


def test_forward_mode_and_plain_calls_keep_every_iteration():
    def run(j, np_, look):
        f = lambda x, w: _loop(j, lambda c, i: (look("w", w), c * w)[1], x)
        f(2.0, 3.0)
        j.jvp(f, (2.0, 3.0), (1.0, 1.0))

    assert len(same(run, False)) == 6


def test_a_loop_without_iterations_calls_nothing():
    seen = []
    f = lambda x, w: _loop(meshrt, lambda c, i: (meshrt.debug.callback(seen.append, w), c * w)[1], x, 0)
    assert meshrt.grad(f)(2.0, 3.0) == 1.0 and not seen  # JAX calls once


# -- tangents ---------------------------------------------------------------------------------------------------------


def _looking_at_tangents(j, look):
    @j.custom_jvp
    def f(x):
        return x

    @f.defjvp
    def _(primals, tangents):
        look("t", primals[0], tangents[0])
        return primals[0], tangents[0]

    return f


WAYS = {
    "plain": lambda j, np_, f: lambda x: f(x * x) * 2,
    "jit": lambda j, np_, f: j.jit(lambda x: f(x * x) * 2),
    "scan": lambda j, np_, f: lambda x: j.lax.scan(lambda c, _: (f(c * c), None), x, None, length=2)[0],
    "cond": lambda j, np_, f: lambda x: j.lax.cond(x > 0, lambda x: f(np_.sin(x)), lambda x: x, x),
    "checkpoint": lambda j, np_, f: j.checkpoint(lambda x: np_.sin(f(x * x))),
}


@pytest.mark.parametrize("way", WAYS)
def test_linearized_functions_look_at_their_tangents(way):
    def run(j, np_, look):
        f = WAYS[way](j, np_, _looking_at_tangents(j, look))
        j.grad(f)(3.0)  # a transposed function has no tangents
        j.jit(j.grad(f))(3.0)
        _, push = j.linearize(f, 1.5)
        push(1.0)
        j.jit(push)(2.0)
        j.vmap(push)(np_.arange(2.0))

    assert len(same(run, False)) >= 4


# -- checkpoints ------------------------------------------------------------------------------------------------------


def _but(*names):
    return lambda prim, *_, **params: str(prim) != "name" or params["name"] not in names


POLICIES = {
    "all": lambda p: p.everything_saveable, "none": lambda p: p.nothing_saveable, "dots": lambda p: p.dots_saveable,
    "only a": lambda p: p.save_only_these_names("a"), "any but a": lambda p: p.save_any_names_but_these("a"),
    "all but a": lambda p: _but("a"), "all but both": lambda p: _but("a", "b"),
}  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_a_checkpoint_calls_again_what_its_policy_saves_nothing_of(policy):
    def run(j, np_, look):
        def f(x):
            look("nothing")
            look("x", x)
            a = name_of[j](np_.sin(x), "a")
            b = name_of[j](np_.cos(a), "b")
            look("a", a)
            look("both", a, b)
            return np_.exp(b) * a

        j.grad(j.checkpoint(f, policy=POLICIES[policy](j.checkpoint_policies)))(2.0)

    same(run, False)
