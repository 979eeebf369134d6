"""Programs of a few operations on operands that Explicit axes split in drawn ways: the types of every value, and those
of derivatives, are JAX's, and so is the class of what is refused.

Only types are compared (nothing is compiled), so a draw takes milliseconds. Where JAX refuses a sharding that it cannot
express and ours can, ours may go on.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.nn
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.nn
import meshrt.numpy

from ..beside import builtin_kinds

_SHAPES = [(8,), (4, 8), (8, 4), (4, 4), (8, 8), (4, 8, 4), (1, 8), (8, 1), (2, 4, 8)]
_UNARY = """
-a; a * 2; jnp.sum(a); jnp.sum(a, 0); jnp.sum(a, -1); jnp.max(a, 0); jnp.max(a, -1, keepdims=True); a.T; jnp.ravel(a)
a.reshape((a.shape[0], -1)); jnp.expand_dims(a, 0); a[..., None]; jnp.squeeze(a); a[0]; a[..., :2]; a[::2]; a[None]
jnp.flip(a, 0); jnp.cumsum(a, 0); jnp.cumsum(a, -1); jnp.sort(a, -1); jnp.argsort(a, -1); jnp.argmax(a, -1)
jnp.concatenate([a, a], 0); jnp.concatenate([a, a], -1); jnp.stack([a, a]); jnp.pad(a, [(1, 1)] * a.ndim)
jnp.broadcast_to(a, (2,) + a.shape); jnp.swapaxes(a, 0, -1); nn.softmax(a, -1); jnp.where(a > 0, a, 0); jnp.mean(a, 0)
jnp.roll(a, 1, 0); jnp.tile(a, 2); jnp.repeat(a, 2, 0); jnp.split(a, 2, 0)[0]; jnp.split(a, 2, -1)[1]; jnp.prod(a, -1)
lax.dynamic_slice_in_dim(a, 0, 2, 0); jnp.any(a > 0, 0); jnp.linalg.norm(a); jnp.var(a, 0); jnp.moveaxis(a, 0, -1)
a.reshape(a.shape + (1,)); a.reshape((2, a.shape[0] // 2) + a.shape[1:]); a.astype(jnp.int32); lax.reduce_max(a, (0,))
lib.vmap(lambda r: r * 2)(a); lib.vmap(jnp.sum)(a); lib.vmap(lambda r: r * 2, in_axes=a.ndim - 1)(a)
lax.map(lambda r: r + 1, a); lax.scan(lambda c, r: (c + r.sum(), r), 0.0, a)[1]; lib.jit(jnp.cos)(a)
lib.checkpoint(jnp.sin)(a); lax.cond(True, jnp.sin, jnp.cos, a); lax.fori_loop(0, 2, lambda i, c: c * 2, a)
jnp.full_like(a, 1); jnp.zeros_like(a); jnp.einsum("i...->i", a); jnp.einsum("i...->...", a); jnp.diff(a, axis=0)
lax.top_k(a, 2)[0]; lib.sharding.reshard(a, P()); lib.sharding.reshard(a, P("x")); a.at[0].set(1.0); a.at[0].add(1.0)
jnp.sum(a, 0, out_sharding=P("x")); jnp.reshape(a, (-1,), out_sharding=P("x")); jnp.fft.fft(a).real; jnp.median(a, 0)
"""
_BINARY = """
a + b; a * b; jnp.dot(a, b); a @ b; jnp.einsum("ij,jk->ik", a, b); jnp.einsum("ij,ij->i", a, b); jnp.matmul(a, b.T)
jnp.einsum("ij,kj->ik", a, b); jnp.concatenate([a, b], 0); jnp.concatenate([a, b], -1); jnp.stack([a, b])
jnp.outer(a.ravel(), b.ravel()); jnp.dot(a, b, out_sharding=P("x")); jnp.tensordot(a, b, 1); jnp.maximum(a, b)
jnp.einsum("ij,jk->ik", a, b, out_sharding=P("x", "y")); jnp.inner(a, b); jnp.where(a > 0, a, b); jnp.kron(a, b)
lib.vmap(jnp.dot)(a, b); lib.vmap(lambda p, q: p + q, (0, None))(a, b); jnp.vdot(a, b); jnp.append(a, b, 0)
lax.scan(lambda c, r: (c + r, c.sum()), b, a)[0]; lax.cond(True, lambda p, q: p, lambda p, q: q, a, b)
jnp.einsum("bij,bjk->bik", a, b); jnp.einsum("...i,i->...", a, b); lax.dynamic_update_slice(a, b, (0,) * a.ndim)
"""
Step = tuple[Any, int, int]


def _expressions(text: str) -> list[Any]:
    return [compile(e.strip(), e.strip(), "eval") for e in text.replace("\n", ";").split(";") if e.strip()]


_UNARIES, _BINARIES = _expressions(_UNARY), _expressions(_BINARY)


def _spec(draw: np.random.RandomState, shape: tuple[int, ...], names: list[str]) -> tuple[Any, ...]:
    free, out = [*names], []
    draw.shuffle(free)
    for _ in shape:
        kind = draw.rand()
        if kind < 0.45 or not free:
            out.append(None)
        else:
            out.append(free.pop() if kind < 0.9 or len(free) < 2 else (free.pop(), free.pop()))
    return tuple(out)


def _program(seed: int) -> tuple[tuple[str, ...], list[Any], list[Step], bool]:
    draw = np.random.RandomState(seed)
    kinds = ("Explicit", "Explicit", "Auto" if draw.rand() < 0.33 else "Explicit")
    first = _SHAPES[draw.randint(len(_SHAPES))]
    second = [first, first[::-1], _SHAPES[draw.randint(len(_SHAPES))]][draw.randint(3)]
    names = ["x", "y", "z"][: 2 if kinds[2] == "Auto" else 3]
    steps: list[Step] = []
    for n in range(2, 2 + draw.randint(1, 4)):
        table = _UNARIES if draw.rand() < 0.6 else _BINARIES
        steps.append((table[draw.randint(len(table))], draw.randint(n) if n == 2 else n - 1, draw.randint(n)))
    return kinds, [(s, _spec(draw, s, names)) for s in (first, second)], steps, draw.rand() < 0.35


def _types(library: Any, seed: int) -> list[Any]:
    """The types of all values, and of the derivatives where one is drawn; in the end the error, if there is one."""
    kinds, operands, steps, differentiated = _program(seed)
    types = tuple(getattr(library.sharding.AxisType, kind) for kind in kinds)
    mesh = library.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=types)
    names = {"jnp": library.numpy, "lax": library.lax, "nn": library.nn, "P": library.P, "lib": library}
    found: list[Any] = []

    def run(*values: Any) -> Any:
        known = [*values]
        found.clear()
        for expression, i, j in steps:
            known.append(eval(expression, {**names, "a": known[i], "b": known[j]}))
            found.append(str(library.typeof(known[-1])))
        return known[-1]

    with library.set_mesh(mesh):
        given = [
            library.ShapeDtypeStruct(shape, np.float32, sharding=library.NamedSharding(mesh, library.P(*spec)))
            for shape, spec in operands
        ]
        try:
            if differentiated:
                grads = library.eval_shape(library.grad(lambda *v: library.numpy.sum(run(*v) * 1.0), (0, 1)), *given)
                found.append([g.shape for g in grads])
            else:
                library.eval_shape(run, *given)
        except Exception as e:  # whatever JAX raises is what ours must raise
            found.append(e)
    return found


def _check(seed: int) -> None:
    theirs, ours = _types(jax, seed), _types(meshrt, seed)
    shown = f"program {seed}: {[s[0].co_filename for s in _program(seed)[2]]} of {_program(seed)[1]}: {ours} {theirs}"
    refused = theirs[-1]
    if not isinstance(refused, Exception):
        assert ours == theirs, shown
    elif isinstance(ours[-1], Exception):
        if not isinstance(refused, AssertionError | IndexError):  # which tell its caller nothing
            assert all(isinstance(ours[-1], kind) for kind in builtin_kinds(refused)), shown
    else:
        assert "ShardingTypeError" in type(refused).__name__ or "sharding" in str(refused), shown


def test_drawn_programs_have_the_types_of_jax():
    for seed in range(150):
        _check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_drawn_programs_have_the_types_of_jax(part):
    for seed in range(1000 + 300 * part, 1300 + 300 * part):
        _check(seed)
