"""Collectives over Manual axes, judged by JAX: values, derivatives, what types vary over, both partitioners."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshrt
from collectives.kinds import kinds
from meshrt import lax
from meshrt import numpy as mnp
from meshrt.core.jaxpr import subjaxprs
from meshrt.sharding import AxisType
from tests.meshrt.primitives.test_collective_mapped import ragged_in_numpy, random_slices

PARTITIONERS = ("meshrt", "xla")


class Library:
    """Ours or JAX's by common names."""

    def __init__(self, top, np_, auto):
        self.top, self.lax, self.np, self.auto = top, top.lax, np_, auto

    def mesh(self, sizes):
        count = int(np.prod(sizes))
        names = ("x", "y", "z")[: len(sizes)]
        return self.top.make_mesh(
            sizes, names, axis_types=(self.auto,) * len(sizes), devices=self.top.devices()[:count]
        )

    def varying(self, x):
        aval = self.top.typeof(x)
        return aval.vma if self.top is meshrt else aval.mat.varying


OURS, THEIRS = Library(meshrt, mnp, AxisType.Auto), Library(jax, jnp, jax.sharding.AxisType.Auto)


@pytest.fixture(params=PARTITIONERS)
def partitioner(request):
    before = meshrt.config.settings.partitioner
    meshrt.config.update("partitioner", request.param)
    yield request.param
    meshrt.config.update("partitioner", before)


def assert_close(ours, theirs, what=""):
    a, b = np.asarray(ours), np.asarray(theirs)
    assert a.shape == b.shape and a.dtype == b.dtype, what
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4, err_msg=str(what))


# ---------------------------------------------------------------------------------------------------------------------
# Every collective


RING = [(i, (i + 1) % 4) for i in range(4)]
PAIRS = [[0, 3], [1, 2]]
# name -> (body of (library, x), in_specs, out_specs, other arguments of shard_map), on a 4x2 mesh for x: f32[16,8,4]
BODIES = {
    "psum": (lambda B, x: B.lax.psum(x, "x"), ("x",), ()),
    "psum of what is sharded along another axis": (lambda B, x: B.lax.psum(x, "x"), ("x", "y"), (None, "y")),
    "pmean": (lambda B, x: B.lax.pmean(x, ("x", "y")), ("x", "y"), ()),
    "pmax": (lambda B, x: B.lax.pmax(x, "x"), ("x",), ()),
    "pmin": (lambda B, x: B.lax.pmin(x, ("y", "x")), ("x", "y"), ()),
    "ppermute": (lambda B, x: B.lax.ppermute(x, "x", RING), ("x",), ("x",)),
    "ppermute of a part": (lambda B, x: B.lax.ppermute(x, "x", [(0, 1), (3, 0)]), ("x",), ("x",)),
    "ppermute of nothing": (lambda B, x: B.lax.ppermute(x, "x", []) + x, ("x",), ("x",)),
    "ppermute along two axes": (
        lambda B, x: B.lax.ppermute(x, ("x", "y"), [(0, 7), (1, 2), (3, 0)]), ("x", "y"), ("x", "y")),
    "pshuffle": (lambda B, x: B.lax.pshuffle(x, "x", [2, 0, 3, 1]), ("x",), ("x",)),
    "all_gather": (lambda B, x: B.lax.all_gather(x, "x", axis=1), ("x",), (None, "x")),
    "all_gather along two axes": (
        lambda B, x: B.lax.all_gather(x, ("y", "x"), tiled=True, axis=1), ("x", "y"), ("x", "y")),
    "all_gather invariant": (lambda B, x: B.lax.all_gather(x, "x", to="invarying", axis=2), ("x",), ()),
    "all_gather invariant, tiled": (
        lambda B, x: B.lax.all_gather(x, ("x", "y"), to="invarying", tiled=True), ("x", "y"), ()),
    "psum_scatter": (lambda B, x: B.lax.psum_scatter(x, "x"), ("x",), ("x",)),
    "psum_scatter tiled": (
        lambda B, x: B.lax.psum_scatter(x, "y", tiled=True, scatter_dimension=1), ("x", "y"), ("x", "y")),
    "all_to_all": (lambda B, x: B.lax.all_to_all(x, "x", 0, 0), ("x",), ("x",)),
    "all_to_all tiled": (lambda B, x: B.lax.all_to_all(x, "x", 0, 1, tiled=True), ("x",), (None, "x")),
    "all_to_all along two axes": (
        lambda B, x: B.lax.all_to_all(x, ("x", "y"), 1, 2, tiled=True), ("x",), ("x", "y")),
    "pswapaxes": (lambda B, x: B.lax.pswapaxes(x, "x", 0), ("x",), ("x",)),
    "axis_index": (lambda B, x: x * B.lax.axis_index(("y", "x")) + B.lax.axis_size("x"), ("x", "y"), ("x", "y")),
    "pcast": (lambda B, x: B.lax.pcast(B.np.sin(x), "y", to="varying"), ("x",), ("x", "y")),
    "psum in groups": (
        lambda B, x: B.lax.psum(x, "x", axis_index_groups=PAIRS), ("x",), ("x",), {"check_vma": False}),
    "psum in groups of different sizes": (
        lambda B, x: B.lax.psum(x, "x", axis_index_groups=[[0, 3, 1], [2]]), ("x",), ("x",), {"check_vma": False}),
    "all_gather in groups": (
        lambda B, x: B.lax.all_gather(x, "x", axis_index_groups=PAIRS, tiled=True), ("x",), ("x",)),
    "psum_scatter in groups": (
        lambda B, x: B.lax.psum_scatter(x, "x", axis_index_groups=PAIRS, tiled=True), ("x",), ("x",)),
    "all_to_all in groups": (
        lambda B, x: B.lax.all_to_all(x, "x", 0, 1, axis_index_groups=PAIRS, tiled=True), ("x",), ("x",)),
    "not checked": (lambda B, x: B.lax.psum(x, "x") * B.lax.axis_index("x"), ("x",), ("x",), {"check_vma": False}),
    "partial psum": (lambda B, x: B.lax.psum(B.np.sin(x), "x"), ("x",), (), {"axis_names": {"x"}}),
    "partial all_gather": (
        lambda B, x: B.lax.all_gather(x * x, "x", tiled=True), ("x",), ("x",), {"axis_names": {"x"}}),
    "partial all_to_all": (
        lambda B, x: B.lax.all_to_all(x @ B.np.ones((4, 6)), "x", 0, 1, tiled=True), ("x",), ("x",),
        {"axis_names": {"x"}}),
    "partial ppermute": (lambda B, x: B.lax.ppermute(x * 2, "x", RING), ("x",), ("x",), {"axis_names": {"x"}}),
    "partial psum_scatter": (
        lambda B, x: B.lax.psum_scatter(x * 2, "x", tiled=True), ("x",), ("x",), {"axis_names": {"x"}}),
    "partial axis_index": (
        lambda B, x: x + B.lax.axis_index("y"), (None, "y"), (None, "y"), {"axis_names": {"y"}}),
}  # fmt: skip
WITHOUT_DERIVATIVE = ("pmax", "pmin")  # in JAX


def everything(B, x, names, loss):
    """The results of all bodies, and their gradients."""
    mesh, P = B.mesh((4, 2)), B.top.P

    def run(x):
        out = []
        for name in names:
            body, ins, outs, *more = BODIES[name]
            mapped = B.top.shard_map(
                lambda x, body=body: body(B, x),
                mesh=mesh,
                in_specs=P(*ins),
                out_specs=P(*outs),
                **(more[0] if more else {}),
            )
            out.append(mapped(x))
            if loss and name not in WITHOUT_DERIVATIVE:
                out.append(B.top.grad(lambda x, mapped=mapped: (B.np.sin(mapped(x)) ** 2).sum())(x))
        return out

    return B.top.jit(run)(x)


QUARTERS = [list(BODIES)[i::4] for i in range(4)]


@pytest.mark.parametrize("names", QUARTERS, ids=range(4))
def test_every_collective(names, partitioner):
    x = np.random.default_rng(0).standard_normal((16, 8, 4)).astype(np.float32)
    ours, theirs = everything(OURS, x, names, True), everything(THEIRS, x, names, True)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert_close(a, b, (names, i))


def test_what_jax_cannot_run_on_cpus(partitioner):
    """pbroadcast and ragged_all_to_all."""
    n, k, rows, out_rows = 4, 2, 5, 9
    rng = np.random.default_rng(1)
    operand = rng.standard_normal((n, rows, 2)).astype(np.float32)
    output = rng.standard_normal((n, out_rows, 2)).astype(np.float32)
    tables = random_slices(rng, n, k, rows, out_rows)
    mesh, P = OURS.mesh((4, 2)), meshrt.P

    def body(a, b, *tables):
        mine = lax.ragged_all_to_all(a[0], b[0], *[t[0] for t in tables], axis_name="x")
        return mine[None], lax.pbroadcast(a, "x", 2), lax.pbroadcast(b > 0, "x", 1)

    run = meshrt.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    expected = ragged_in_numpy(operand, output, *tables)
    ragged, floats, flags = meshrt.jit(run)(operand, output, *tables)
    np.testing.assert_array_equal(ragged, expected)
    np.testing.assert_array_equal(floats, np.broadcast_to(operand[2], operand.shape))
    np.testing.assert_array_equal(flags, np.broadcast_to(output[1] > 0, output.shape))
    cts = [rng.standard_normal(a.shape).astype(np.float32) for a in (ragged, floats)]

    def back(a, b):
        return meshrt.vjp(lambda a, b: run(a, b, *tables)[:2], a, b)[1](tuple(map(mnp.asarray, cts)))

    d_operand, d_output = meshrt.jit(back)(operand, output)
    there = np.vdot(expected, cts[0]) + np.vdot(np.broadcast_to(operand[2], operand.shape), cts[1])
    np.testing.assert_allclose(np.vdot(operand, d_operand) + np.vdot(output, d_output), there, rtol=1e-4)


# ---------------------------------------------------------------------------------------------------------------------
# Random bodies


def random_body(seed, sizes, rows):
    """A program of (library, x): the value and, in `seen`, what each step's result varies over."""
    names = ("x", "y", "z")[: len(sizes)]
    size_of = dict(zip(names, sizes))

    def body(B, x, seen):
        rng = np.random.default_rng(seed)
        L, total = B.lax, B.np.zeros(())
        for _ in range(5):
            varying = [n for n in names if n in B.varying(x)]
            same = [n for n in names if n not in varying]
            group = varying if varying and (not same or rng.random() < 0.8) else same
            picked = tuple(rng.permutation(group)[: rng.integers(1, len(group) + 1)].tolist())
            n = int(np.prod([size_of[p] for p in picked]))
            d = int(rng.integers(0, 2))
            kind = rng.integers(0, 9)
            if kind == 0:
                x = x * 0.5 + L.psum(x, picked) / n
            elif kind == 1:
                x = L.psum(B.np.sin(x), picked) / n
            elif kind == 2:
                count = int(rng.integers(1, n + 1))
                perm = list(zip(rng.permutation(n)[:count].tolist(), rng.permutation(n)[:count].tolist()))
                x = L.ppermute(x, picked, perm)
            elif kind == 3:
                x = L.all_gather(x, picked, axis=d, tiled=True)
                x = B.top.lax.slice_in_dim(x, 0, rows, axis=d) if x.shape[d] >= rows else x
            elif kind == 4:
                to = "invarying" if rng.random() < 0.5 else "varying"
                x = L.all_gather(x, picked, to=to).mean(0)
            elif kind == 5 and x.shape[d] % n == 0:
                part = L.psum_scatter(x, picked, scatter_dimension=d, tiled=True) / n
                x = L.all_gather(part, picked, axis=d, tiled=True)
            elif kind == 6 and x.shape[d] % n == 0:
                x = L.all_to_all(x, picked, d, d, tiled=True)
            elif kind == 7:
                x = B.np.cos(x * (L.axis_index(picked) + 1))
            else:
                x = L.pcast(x, tuple(same), to="varying") if same else B.np.tanh(x)
            seen.append(sorted(B.varying(x)))
            total = total + x.mean()
        return B.np.broadcast_to(L.pcast(total, missing, to="varying") if (missing := tuple(
            n for n in names if n not in B.varying(total))) else total, (1,))  # fmt: skip

    return body


MESHES = [(8,), (4, 2), (2, 2, 2), (6,)]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(8))
def test_random_bodies(seed, partitioner):
    sizes = MESHES[seed % 4]
    rows = 24 if 6 in sizes else 16
    body = random_body(seed, sizes, rows)
    names = ("x", "y", "z")[: len(sizes)]
    x = np.random.default_rng(seed).standard_normal((rows * 2, rows)).astype(np.float32)

    def run(B):
        seen = []
        P = B.top.P
        mapped = B.top.shard_map(
            lambda x: body(B, x, seen), mesh=B.mesh(sizes), in_specs=P(names[0]), out_specs=P(names)
        )
        weights = np.arange(1, np.prod(sizes) + 1, dtype=np.float32)
        out, grad = B.top.jit(B.top.value_and_grad(lambda x: (mapped(x) * weights).sum()))(x)
        return seen[:5], out, grad

    ours, theirs = run(OURS), run(THEIRS)
    assert ours[0] == theirs[0]
    assert_close(ours[1], theirs[1])
    assert_close(ours[2], theirs[2])


def test_results_of_several_ranks_used_twice(partitioner):
    """XLA's importer took the second result's sharding for that of the first."""
    x = np.random.default_rng(0).standard_normal((16, 8, 4)).astype(np.float32)

    def run(B):
        P, mesh = B.top.P, B.mesh((4, 2))
        body = lambda x: (B.lax.psum_scatter(x, "x"), B.lax.all_to_all(x, "x", 0, 1, tiled=True))
        mapped = B.top.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
        inner = lambda a: B.top.shard_map(lambda a: (a * 2, a[0]), mesh=mesh, in_specs=P("x"), out_specs=P("x"))(a)
        twice = lambda a: sum((o * o + o).sum() for o in inner(a))
        return B.top.jit(B.top.value_and_grad(lambda x: sum((o * o).sum() + twice(o) for o in mapped(x))))(x)

    for a, b in zip(run(OURS), run(THEIRS), strict=True):
        assert_close(a, b)


# ---------------------------------------------------------------------------------------------------------------------
# vmap and shard_map


@pytest.mark.parametrize("check_vma", [True, False])
def test_names_of_both_kinds_at_once(check_vma):
    """Collectives over a mapped dimension and a Manual axis, which JAX refuses: as over one dimension of both."""
    x = np.random.default_rng(0).standard_normal((4, 3, 4, 24)).astype(np.float32)
    mesh, P = OURS.mesh((4,)), meshrt.P

    def bodies(L, x, names, index):
        return (
            L.psum(x, names), L.pmax(x, names), L.ppermute(x, names, [(i, (i * 5 + 1) % 12) for i in range(12)]),
            L.all_gather(x, names, tiled=True), L.psum_scatter(x, names, scatter_dimension=1, tiled=True),
            L.all_to_all(x, names, 1, 0, tiled=True), x * L.axis_index(names),
        )  # fmt: skip

    for names in (("x", "i"), ("i", "x")):
        y = x if names[0] == "x" else np.swapaxes(x, 0, 1)
        merged = jax.jit(jax.vmap(lambda x: bodies(jax.lax, x, "k", None), axis_name="k"))(y.reshape(12, 4, 24))

        def body(x, names=names):  # [1, 3, 4, 24]
            inner = meshrt.vmap(lambda x: bodies(lax, x, names, None), axis_name="i")(x[0])
            return meshrt.tree.map(lambda o: lax.pcast(o, "x", to="varying")[None] if "x" not in (
                meshrt.typeof(o).vma) and check_vma else o[None], inner)  # fmt: skip

        outs = meshrt.jit(meshrt.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=check_vma))(x)
        for a, b in zip(outs, merged, strict=True):
            a = np.asarray(a) if names[0] == "x" else np.swapaxes(np.asarray(a), 0, 1)
            np.testing.assert_allclose(a.reshape(b.shape), b, rtol=1e-4, atol=1e-5)


def test_shard_map_inside_vmap():
    """The mapped dimension passes collectives by, and may lie along a mesh axis of its own."""
    x = np.random.default_rng(0).standard_normal((2, 8, 6)).astype(np.float32)

    def run(B, **named):
        P = B.top.P
        body = lambda x: (B.lax.psum(x, "x"), B.lax.all_to_all(x, "x", 1, 0, tiled=True) * B.lax.axis_index("x"))
        mapped = B.top.shard_map(body, mesh=B.mesh((2, 2)), in_specs=P("x"), out_specs=(P(), P("x")))
        return B.top.jit(B.top.vmap(mapped, **named))(x)

    for named in ({}, {"spmd_axis_name": "y"}, {"axis_name": "i"}, {"axis_name": "x"}):
        theirs = run(THEIRS, **{k: v for k, v in named.items() if v != "x"})
        for a, b in zip(run(OURS, **named), theirs, strict=True):
            assert_close(a, b, named)


# ---------------------------------------------------------------------------------------------------------------------
# The plan, and the table of kinds


def test_the_plan_lists_them_with_the_users_line():
    mesh, P = OURS.mesh((4, 2)), meshrt.P

    def body(x):
        total = lax.psum(x, "x")
        moved = lax.ppermute(x, "x", RING)
        return total, moved, lax.all_gather(x, "x", to="invarying")

    first = body.__code__.co_firstlineno
    run = meshrt.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=(P(), P("x"), P()))
    plan = meshrt.jit(run).lower(np.ones((16, 8), np.float32)).partition().plan
    rows = {entry.kind: entry for entry in plan}
    assert rows.keys() >= {"all_reduce", "collective_permute"}
    shard = 4 * 8 * 4
    assert rows["all_reduce"].bytes == 2 * 3 / 4 * shard
    assert rows["collective_permute"].bytes == shard
    for kind, line in (("all_reduce", 1), ("collective_permute", 2)):
        assert f"{__file__}:{first + line}" in str(rows[kind].where)
        assert "written in the program" in rows[kind].cause


def staged(collective, shape):
    """The equations of a collective and of its transpose, in a region that checks nothing."""
    mesh, P = OURS.mesh((4,)), meshrt.P
    mapped = meshrt.shard_map(collective, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)

    def names(jaxpr):
        for eqn in jaxpr.eqns:
            yield eqn.primitive.name
            for inner in subjaxprs(eqn.params):
                yield from names(inner)

    x = np.ones(shape, np.float32)
    there = set(names(meshrt.make_jaxpr(mapped)(x).jaxpr))
    out, pull = meshrt.vjp(mapped, x)
    return there, set(names(meshrt.make_jaxpr(pull)(out).jaxpr))


KINDS = {
    "all_gather": lambda x: lax.all_gather(x, "x", tiled=True),
    "reduce_scatter": lambda x: lax.psum_scatter(x, "x", tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True),
    "collective_permute": lambda x: lax.ppermute(x, "x", RING),
    "all_reduce": lambda x: lax.psum(x, "x"),
}


@pytest.mark.parametrize("name", KINDS)
def test_transposes_are_those_of_the_table_of_kinds(name):
    kind = kinds()[name]
    there, back = staged(KINDS[name], (16, 4))
    assert kind.primitive in there
    assert kind.transpose is not None and kinds()[kind.transpose].primitive in back
