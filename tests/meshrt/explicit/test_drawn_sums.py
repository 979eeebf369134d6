"""Programs of a few operations on partial sums and on copies over Explicit axes, drawn: the types of every value, and
those of their tangents, are JAX's, and so is the class of what both refuse. Nothing is compiled.

Where JAX refuses a sharding that it cannot express and ours can, ours may go on.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.ad_checkpoint
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.ad_checkpoint
import meshrt.numpy

from ..beside import builtin_kinds

_SPECS = """
P(); P("x"); P("x", "y"); P(unreduced={"x"}); P(reduced={"x"}); P("y", unreduced={"x"}); P("y", reduced={"x"})
P(None, "x", unreduced={"y"}); P("x", reduced={"y"}); P(unreduced={"x", "y"}); P(unreduced={"x"}, reduced={"y"})
"""
_STEPS = """
a * 2; -a; a + a; a - a * 3; a.T; jnp.sum(a); jnp.sum(a, 0); jnp.sum(a, -1); a.astype(jnp.bfloat16); a.reshape(4, 8)
a[:2]; a[0]; jnp.sin(a); a * a; a / 2; jnp.expand_dims(a, 0); jnp.concatenate([a, a], 0); jnp.stack([a, a])
jnp.zeros_like(a); reshard(a, P()); reshard(a, P("x")); reshard(a, P("y", unreduced={"x"}))
reshard(a, P("x", reduced={"y"})); reshard(a, P(unreduced={"x", "y"})); reshard(a, P(reduced={"x"}))
lib.jit(lambda v: v * 2)(a); lib.checkpoint(jnp.sin)(a); lax.cond(True, lambda v: v * 2, lambda v: v, a)
lax.scan(lambda c, _: (c * 2, None), a, None, length=2)[0]; lib.vmap(lambda v: v * 2)(a); lax.stop_gradient(a)
jnp.mean(a); jnp.dot(a, a.T, out_sharding=P(unreduced={"x"})); jnp.sum(a, 0, out_sharding=P(unreduced={"x"}))
lib.ad_checkpoint.checkpoint_name(a, "n"); jnp.where(True, a, a); a + b; a - b; a * b; jnp.concatenate([a, b])
jnp.dot(a, b.T, out_sharding=P(unreduced={"y"})); jnp.einsum("ij,ij->", a, b, out_sharding=P(unreduced={"x"}))
lax.dot_general(a, b, (((1,), (1,)), ((), ())), out_sharding=P("x", None, unreduced={"y"})); lib.vmap(jnp.add)(a, b)
"""
_MODES = ("types", "jvp", "linearize")


def _expressions(text: str) -> list[Any]:
    return [compile(e.strip(), e.strip(), "eval") for e in text.strip().replace("\n", ";").split(";") if e.strip()]


_ALL_SPECS, _ALL_STEPS = _expressions(_SPECS), _expressions(_STEPS)


def _program(seed: int) -> tuple[str, list[Any], list[tuple[Any, int, int]]]:
    draw = np.random.RandomState(seed)
    steps = []
    for n in range(2, 2 + draw.randint(1, 4)):
        first = draw.randint(n) if n == 2 else n - 1
        steps.append((_ALL_STEPS[draw.randint(len(_ALL_STEPS))], first, draw.randint(n)))
    specs = [_ALL_SPECS[draw.randint(len(_ALL_SPECS))] for _ in range(2)]
    return _MODES[draw.randint(len(_MODES))], specs, steps


def _derived(lib: Any, mode: str, f: Any, values: Any) -> Any:
    if mode == "jvp":
        return lib.jvp(f, values, values)
    if mode == "linearize":
        out, linear = lib.linearize(f, *values)
        return out, linear(*values)
    return f(*values)


def _types(lib: Any, seed: int) -> list[Any]:
    """The types of all results, in the end the error, if there is one."""
    mode, specs, steps = _program(seed)
    mesh = lib.make_mesh((2, 2), ("x", "y"), axis_types=(lib.sharding.AxisType.Explicit,) * 2)
    names = {"jnp": lib.numpy, "lax": lib.lax, "P": lib.P, "lib": lib, "reshard": lib.sharding.reshard}
    found: list[Any] = []

    def run(*values: Any) -> Any:
        known = [*values]
        for expression, i, j in steps:
            known.append(eval(expression, {**names, "a": known[i], "b": known[j]}))
        return known[-1]

    def program(*values: Any) -> None:
        out = _derived(lib, mode, run, values)
        found.extend(str(lib.typeof(x)) for x in lib.tree_util.tree_leaves(out))

    with lib.set_mesh(mesh):
        given = [
            lib.ShapeDtypeStruct((4, 8), np.float32, sharding=lib.NamedSharding(mesh, eval(s, names))) for s in specs
        ]
        try:
            lib.eval_shape(program, *given)
        except Exception as e:  # whatever JAX raises is what ours must raise
            found.append(e)
    return found


def _check(seed: int) -> bool:
    """Whether JAX takes the program."""
    theirs, ours = _types(jax, seed), _types(meshrt, seed)
    mode, specs, steps = _program(seed)
    shown = f"{seed}: {mode} of {[s[0].co_filename for s in steps]} {[s[1:] for s in steps]} of "
    shown += f"{[s.co_filename for s in specs]}: {ours} {theirs}"
    refused = theirs[-1] if theirs else None
    if not isinstance(refused, Exception):
        assert ours == theirs, shown
        return True
    if isinstance(refused, AssertionError | NotImplementedError):  # what JAX does not have yet
        return False
    if isinstance(ours[-1], Exception):
        assert all(isinstance(ours[-1], kind) for kind in builtin_kinds(refused)), shown
    else:
        assert (
            "ShardingTypeError" in type(refused).__name__
            or "sharding" in str(refused)
            or "PartitionSpec" in str(refused)
        ), shown
    return False


def test_drawn_sums_have_the_types_of_jax():
    assert sum(_check(seed) for seed in range(60)) >= 10  # the others are refused


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_many_drawn_sums_have_the_types_of_jax(part):
    for seed in range(1000 + 200 * part, 1200 + 200 * part):
        _check(seed)
