"""Functions of lax, numpy and nn with operand types, which tests of Explicit axes split in every way."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy
import numpy as np
from jax.sharding import AxisType as JaxAxisType
from jax.sharding import NamedSharding as JaxNamedSharding
from jax.sharding import PartitionSpec as JaxSpec

import meshrt
import meshrt.numpy
from meshrt.sharding import AxisType, NamedSharding, P

SIZES = {"x": 4, "y": 2}


class Library(NamedTuple):
    """What cases use of meshrt or of JAX."""

    root: Any
    lax: Any
    np: Any
    mesh: Any
    sharding: Callable[..., Any]


def libraries() -> tuple[Library, Library]:
    """meshrt and JAX on 4x2 meshes of Explicit axes x and y."""
    ours = meshrt.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    theirs = jax.make_mesh((4, 2), ("x", "y"), axis_types=(JaxAxisType.Explicit,) * 2)
    return (
        Library(meshrt, meshrt.lax, meshrt.numpy, ours, lambda spec: NamedSharding(ours, P(*spec))),
        Library(jax, jax.lax, jax.numpy, theirs, lambda spec: JaxNamedSharding(theirs, JaxSpec(*spec))),
    )


class Case(NamedTuple):
    """`fun(library, *operands)`; operands are given as (shape, dtype)."""

    name: str
    fun: Callable[..., Any]
    operands: tuple[tuple[tuple[int, ...], Any], ...]


def specs(shape: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """Every way to split a shape over the mesh evenly."""
    found = []
    for entries in itertools.product((None, "x", "y", ("x", "y")), repeat=len(shape)):
        axes = [e if isinstance(e, tuple) else (e,) for e in entries if e is not None]
        flat = [a for group in axes for a in group]
        sizes = [math.prod(SIZES[a] for a in (e if isinstance(e, tuple) else (e,))) if e else 1 for e in entries]
        if len(set(flat)) == len(flat) and all(n % s == 0 for n, s in zip(shape, sizes)):
            found.append(entries)
    return found


def drawn(case: Case, count: int, seed: int = 0) -> list[tuple[Any, ...]]:
    """Up to `count` ways to split all operands, and some where those of the highest rank are split alike."""
    everything = list(itertools.product(*[specs(s) for s, _ in case.operands]))
    rng = np.random.default_rng(seed)
    found = everything
    if len(everything) > count:
        found = [everything[i] for i in sorted(rng.choice(len(everything), count, replace=False))]
    rank = max(len(s) for s, _ in case.operands)
    alike = [c for c in everything if len({s for s in c if len(s) == rank}) == 1]
    return found if len(case.operands) == 1 else [*found, *[c for c in alike if c not in found][: count // 2]]


def floats(*shape: int) -> Any:
    return shape, np.float32


def ints(*shape: int) -> Any:
    return shape, np.int32


def flags(*shape: int) -> Any:
    return shape, np.bool_


RESHAPES = [
    ((8, 8), (64,)),
    ((64,), (8, 8)),
    ((8, 8), (8, 2, 4)),
    ((8, 8), (4, 2, 8)),
    ((8, 8), (8, 1, 8)),
    ((8, 1, 8), (8, 8)),
    ((4, 2, 8), (8, 8)),
    ((8, 8), (4, 16)),
    ((4, 16), (8, 8)),
    ((8, 8), (4, 2, 4, 2)),
    ((4, 2, 4, 2), (8, 8)),
    ((8, 2, 4), (8, 8)),
    ((16, 4), (8, 2, 4)),
    ((8, 8), (16, 2, 2)),
    ((24,), (2, 3, 4)),
    ((2, 3, 4), (24,)),
    ((8, 8), (2, 2, 2, 8)),
    ((4, 4, 4), (16, 4)),
    ((4, 4, 4), (4, 16)),
    ((4, 4, 4), (64,)),
    ((8, 8), (1, 64)),
    ((2, 8, 4), (2, 32)),
    ((16, 8), (8, 2, 8)),
    ((16, 8), (2, 8, 8)),
]

CASES = [
    Case("sin", lambda o, x: o.np.sin(x), (floats(8, 8),)),
    Case(
        "add",
        lambda o, x, y: o.lax.add(x, y),
        (
            floats(8, 8),
            floats(8, 8),
        ),
    ),
    Case(
        "dot",
        lambda o, x, y: o.lax.dot_general(x, y, (((1,), (0,)), ((), ()))),
        (
            floats(8, 8),
            floats(8, 8),
        ),
    ),
    Case(
        "bdot",
        lambda o, x, y: o.lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))),
        (
            floats(8, 4, 8),
            floats(8, 8, 4),
        ),
    ),
    Case("sum", lambda o, x: o.np.sum(x, 1), (floats(8, 8),)),
    Case("max", lambda o, x: o.np.max(x, 0), (floats(8, 8),)),
    Case("prod", lambda o, x: o.np.prod(x, 0), (floats(8, 8),)),
    Case("argmax", lambda o, x: o.np.argmax(x, 1), (floats(8, 8),)),
    Case("any", lambda o, x: o.np.any(x, 1), (flags(8, 8),)),
    Case("cumsum", lambda o, x: o.lax.cumsum(x, 1), (floats(8, 8),)),
    Case("cumlogsumexp", lambda o, x: o.lax.cumlogsumexp(x, 0), (floats(8, 8),)),
    Case("sort", lambda o, x: o.lax.sort(x, dimension=1), (floats(8, 8),)),
    Case(
        "sort2",
        lambda o, x, y: o.lax.sort((x, y), dimension=1),
        (
            floats(8, 8),
            floats(8, 8),
        ),
    ),
    Case("top_k", lambda o, x: o.lax.top_k(x, 4), (floats(8, 8),)),
    Case("bcast", lambda o, x: o.lax.broadcast_in_dim(x, (4, 8, 8), (1, 2)), (floats(8, 8),)),
    Case("transpose", lambda o, x: o.lax.transpose(x, (1, 0)), (floats(8, 8),)),
    Case("rev", lambda o, x: o.lax.rev(x, (0,)), (floats(8, 8),)),
    Case("squeeze", lambda o, x: o.lax.squeeze(x, (1,)), (floats(8, 1, 8),)),
    Case("convert", lambda o, x: o.lax.convert_element_type(x, np.int32), (floats(8, 8),)),
    Case("bitcast", lambda o, x: o.lax.bitcast_convert_type(x, np.uint8), (floats(8, 8),)),
    Case("bitcast2", lambda o, x: o.lax.bitcast_convert_type(x, np.int32), (floats(8, 8),)),
    Case(
        "concat",
        lambda o, x, y: o.lax.concatenate([x, y], 0),
        (
            floats(8, 8),
            floats(8, 8),
        ),
    ),
    Case("slice", lambda o, x: o.lax.slice(x, (0, 0), (4, 8)), (floats(8, 8),)),
    Case("slice2", lambda o, x: o.lax.slice(x, (0, 1), (8, 7)), (floats(8, 8),)),
    Case("slice3", lambda o, x: o.lax.slice(x, (1, 1), (8, 7)), (floats(8, 8),)),
    Case("dslice", lambda o, x: o.lax.dynamic_slice(x, (1, 0), (4, 8)), (floats(8, 8),)),
    Case("dslice2", lambda o, x: o.lax.dynamic_slice(x, (1, 0), (3, 8)), (floats(8, 8),)),
    Case("pad", lambda o, x: o.lax.pad(x, np.float32(0), ((1, 0, 0), (0, 0, 0))), (floats(8, 8),)),
    Case("pad2", lambda o, x: o.lax.pad(x, np.float32(0), ((4, 4, 0), (0, 0, 0))), (floats(8, 8),)),
    Case(
        "dus",
        lambda o, x, y: o.lax.dynamic_update_slice(x, y, (1, 0)),
        (
            floats(8, 8),
            floats(4, 8),
        ),
    ),
    Case("split", lambda o, x: o.lax.split(x, (4, 4), 0), (floats(8, 8),)),
    Case("split2", lambda o, x: o.lax.split(x, (3, 5), 0), (floats(8, 8),)),
    Case(
        "select",
        lambda o, p, x, y: o.lax.select(p, x, y),
        (
            flags(8, 8),
            floats(8, 8),
            floats(8, 8),
        ),
    ),
    Case(
        "selects",
        lambda o, p, x, y: o.lax.select(p, x, y),
        (
            flags(),
            floats(8, 8),
            floats(8, 8),
        ),
    ),
    Case(
        "clamp",
        lambda o, a, x, b: o.lax.clamp(a, x, b),
        (
            floats(8, 8),
            floats(8, 8),
            floats(8, 8),
        ),
    ),
    Case("clamps", lambda o, x: o.lax.clamp(np.float32(0), x, np.float32(1)), (floats(8, 8),)),
    Case("index", lambda o, x: x[2], (floats(8, 8),)),
    Case("index1", lambda o, x: x[:, 2], (floats(8, 8),)),
    Case("slicing", lambda o, x: x[:4], (floats(8, 8),)),
    Case("slicing2", lambda o, x: x[:, ::2], (floats(8, 8),)),
    Case(
        "take",
        lambda o, x, i: x[i],
        (
            floats(8, 8),
            ints(4),
        ),
    ),
    Case(
        "take1",
        lambda o, x, i: o.np.take(x, i, axis=1),
        (
            floats(8, 8),
            ints(4),
        ),
    ),
    Case(
        "taa",
        lambda o, x, i: o.np.take_along_axis(x, i, 1),
        (
            floats(8, 8),
            ints(8, 2),
        ),
    ),
    Case(
        "scat",
        lambda o, x, i, u: x.at[i].set(u),
        (
            floats(8, 8),
            ints(4),
            floats(4, 8),
        ),
    ),
    Case(
        "scatadd",
        lambda o, x, i, u: x.at[i].add(u),
        (
            floats(8, 8),
            ints(4),
            floats(4, 8),
        ),
    ),
    Case(
        "conv",
        lambda o, x, k: o.lax.conv_general_dilated(x, k, (1, 1), "SAME"),
        (
            floats(8, 4, 8, 8),
            floats(4, 4, 3, 3),
        ),
    ),
    Case(
        "redwin",
        lambda o, x: o.lax.reduce_window(x, np.float32(0), o.lax.add, (1, 2), (1, 2), "VALID"),
        (floats(8, 8),),
    ),
    Case("redwin2", lambda o, x: o.lax.reduce_window(x, -np.inf, o.lax.max, (1, 3), (1, 1), "SAME"), (floats(8, 8),)),
    Case("cholesky", lambda o, x: o.lax.linalg.cholesky(x), (floats(8, 8, 8),)),
    Case(
        "trisolve",
        lambda o, x, y: o.lax.linalg.triangular_solve(x, y, left_side=True),
        (
            floats(8, 4, 4),
            floats(8, 4, 4),
        ),
    ),
    Case("qr", lambda o, x: o.lax.linalg.qr(x, full_matrices=False), (floats(8, 8, 8),)),
    Case("eigh", lambda o, x: o.lax.linalg.eigh(x), (floats(8, 8, 8),)),
    Case("svd", lambda o, x: o.lax.linalg.svd(x, full_matrices=False), (floats(8, 8, 8),)),
    Case("fft", lambda o, x: o.lax.fft(x, "FFT", (8,)), (((8, 8), np.complex64),)),
    Case("rfft", lambda o, x: o.lax.fft(x, "RFFT", (8,)), (floats(8, 8),)),
    Case(
        "where",
        lambda o, p, x: o.np.where(p, x, 0.0),
        (
            flags(8, 8),
            floats(8, 8),
        ),
    ),
    Case("where2", lambda o, x: o.np.where(x > 0, x, 0.0), (floats(8, 8),)),
    Case(
        "badd",
        lambda o, x, y: x + y,
        (
            floats(8, 8),
            floats(8),
        ),
    ),
    Case("softmax", lambda o, x: o.root.nn.softmax(x, -1), (floats(8, 8),)),
    Case(
        "matmul",
        lambda o, x, y: x @ y,
        (
            floats(8, 8, 4),
            floats(4, 8),
        ),
    ),
    Case(
        "einsum",
        lambda o, x, y: o.np.einsum("bij,bjk->bik", x, y),
        (
            floats(8, 8, 4),
            floats(8, 4, 8),
        ),
    ),
    Case("mean", lambda o, x: o.np.mean(x, 0, keepdims=True), (floats(8, 8),)),
    Case("var", lambda o, x: o.np.var(x, -1), (floats(8, 8),)),
    Case("roll", lambda o, x: o.np.roll(x, 1, 0), (floats(8, 8),)),
    Case("tile", lambda o, x: o.np.tile(x, (2, 1)), (floats(8, 8),)),
    Case("tile_beside_others", lambda o, x: o.np.tile(x, (2, 1, 1, 3)), (floats(4, 2, 3),)),
    Case("tile_of_lax", lambda o, x: o.lax.tile(x, (2, 1, 2)), (floats(3, 4, 3),)),
    Case("outer_of_a_matrix", lambda o, x, y: o.np.outer(x, y), (floats(4, 3), floats(2))),
    Case("repeat", lambda o, x: o.np.repeat(x, 2, 0), (floats(8, 8),)),
    Case(
        "stack",
        lambda o, x, y: o.np.stack([x, y], 1),
        (
            floats(8, 8),
            floats(8, 8),
        ),
    ),
    Case("onehot", lambda o, i: o.root.nn.one_hot(i, 4), (ints(8),)),
    Case("tril", lambda o, x: o.np.tril(x), (floats(8, 8),)),
    Case("expand", lambda o, x: o.np.expand_dims(x, 1), (floats(8, 8),)),
    Case("swap", lambda o, x: o.np.swapaxes(x, 0, 1), (floats(8, 8),)),
    Case("vmapsum", lambda o, x: o.root.vmap(lambda v: o.np.sum(v))(x), (floats(8, 8),)),
    Case(
        "vmapdot",
        lambda o, x, y: o.root.vmap(lambda v, w: v @ w, in_axes=(0, None))(x, y),
        (
            floats(8, 4, 8),
            floats(8, 4),
        ),
    ),
    Case(
        "vmap2",
        lambda o, x, y: o.root.vmap(lambda v, w: v * w)(x, y),
        (
            floats(8, 8),
            floats(8, 8),
        ),
    ),
    Case(
        "vmap3",
        lambda o, x, y: o.root.vmap(lambda v, w: v @ w, in_axes=(1, 2))(x, y),
        (
            floats(8, 8),
            floats(8, 4, 8),
        ),
    ),
    Case(
        "scan",
        lambda o, c, x: o.lax.scan(lambda c, x: (c + x, c * 2), c, x),
        (
            floats(8),
            floats(4, 8),
        ),
    ),
    Case("map", lambda o, x: o.lax.map(lambda v: v * 2, x), (floats(8, 8),)),
    Case(
        "cond",
        lambda o, x, y: o.lax.cond(x.sum() > 0, lambda a, b: a * 2, lambda a, b: b, x, y),
        (
            floats(8, 8),
            floats(8, 8),
        ),
    ),
    Case(
        "while",
        lambda o, x, y: o.lax.while_loop(lambda c: c.sum() > 0, lambda c: c * y, x),
        (
            floats(8, 8),
            floats(8, 8),
        ),
    ),
    Case("barrier", lambda o, x, y: o.lax.optimization_barrier((x, y)), (floats(8, 4), floats(8))),
    Case("window_set", lambda o, x, v: x.at[2:4].set(v), (floats(8, 8), floats(2, 8))),
    Case("window_row", lambda o, x, v: x.at[:, 2:4].add(v), (floats(8, 8), floats(2))),
    Case("window_number", lambda o, x: x.at[1].set(2.0), (floats(8, 8),)),
    Case("window_all", lambda o, x, v: x.at[:].set(v), (floats(8, 8), floats(1, 8))),
    Case("window_max", lambda o, x, v: x.at[4:].max(v), (floats(8, 8), floats(8))),
    Case("fori", lambda o, x: o.lax.fori_loop(0, 3, lambda i, c: c * 2, x), (floats(8, 8),)),
]
CASES += [Case(f"reshape {a} to {b}", lambda o, x, b=b: o.lax.reshape(x, b), (floats(*a),)) for a, b in RESHAPES]
