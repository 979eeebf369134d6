"""`debug.breakpoint`: what the prompt shows of programs, beside JAX's."""

from __future__ import annotations

import io
import re

import jax
import pytest

import meshrt


def _asked(l, commands, run):
    """What the prompt writes while `run(l, stop)` runs and is answered `commands`."""
    stdin, stdout = io.StringIO("".join(f"{c}\n" for c in commands)), io.StringIO()
    run(l, lambda **options: dict(stdin=stdin, stdout=stdout, num_frames=2, **options))
    l.effects_barrier()
    return re.sub(r"\n\s*\n", "\n", stdout.getvalue())  # JAX's sources end with an empty line


def eager(l, options):
    def f(x):
        y = x + 1.0
        l.debug.breakpoint(**options())
        return y

    f(l.numpy.array(2.0, "float32"))


def traced(l, options):
    def f(x):
        y = {"a": x + 1.0, "b": "text"}
        l.debug.breakpoint(**options())
        return y["a"]

    @l.jit
    def g(x):
        z = f(x)
        return l.numpy.exp(z)

    g(l.numpy.array(2.0, "float32"))


def mapped(l, options):
    def f(x):
        y = x + 1.0
        l.debug.breakpoint(**options(ordered=True))
        return y

    l.jit(lambda xs: l.lax.map(f, xs))(l.numpy.arange(2.0))
    l.vmap(lambda x: l.jit(f)(x))(l.numpy.arange(1.0))


def awaited(l, options):
    def f(x):
        y = x + 1.0
        return l.debug.breakpoint(**options(token=y))

    assert l.jit(f)(1.0) == 2.0


CASES = {
    "the program goes on": (eager, ["c"]),
    "values": (eager, ["p x, y", "pp [x] * 3", "x + y", "c"]),
    "what is not there": (eager, ["p nothing", "p 1 /", "c"]),
    "lines": (eager, ["l", "bt", "cont"]),
    "values of traced variables": (traced, ["p x", "p y['a'] + 1, y['b']", "c"]),
    "callers": (traced, ["u", "p x", "u", "d", "p x", "d", "w", "c"]),
    "every iteration, every member": (mapped, ["p y", "c", "p y", "c", "p x", "c"]),
    "a token": (awaited, ["p x", "c"]),
}


@pytest.mark.parametrize("name", CASES)
def test_as_in_jax(name):
    run, commands = CASES[name]
    ours, theirs = (_asked(l, commands, run) for l in (meshrt, jax))
    assert ours == theirs and ours.startswith("Entering")


@pytest.mark.parametrize("commands", [[], ["q"]])
def test_the_prompt_may_end_python(commands):
    for l in (jax, meshrt):
        with pytest.raises(SystemExit):
            _asked(l, commands, eager)


def test_an_order_and_a_token_exclude_each_other():
    for l in (jax, meshrt):
        with pytest.raises(ValueError, match="mutually exclusive"):
            l.debug.breakpoint(ordered=True, token=1.0)
