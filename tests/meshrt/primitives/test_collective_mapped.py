"""Collectives over dimensions that vmap maps under a name, judged by JAX: values, derivatives, error classes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshrt
from meshrt import P, errors, lax
from meshrt import numpy as mnp

N = 4
GROUPS = [[0, 2], [3, 1]]


def data(*shape, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 9, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def assert_same(ours, theirs, rtol=1e-5, what=""):
    ours, theirs = meshrt.tree.leaves(ours), jax.tree.leaves(theirs)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), what
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=1e-5, err_msg=what)


# name -> (collective of (lax, x of shape [4, 8, 3], name), whether it is linear)
COLLECTIVES = {
    "psum": lambda L, x, i: L.psum(x, i),
    "pmean": lambda L, x, i: L.pmean(x, i),
    "pmax": lambda L, x, i: L.pmax(x, i),
    "pmin": lambda L, x, i: L.pmin(x, i),
    "ppermute": lambda L, x, i: L.ppermute(x, i, [(0, 1), (1, 2), (2, 3), (3, 0)]),
    "pshuffle": lambda L, x, i: L.pshuffle(x, i, [2, 0, 3, 1]),
    "pbroadcast": lambda L, x, i: L.pbroadcast(x, i, 2),
    "all_gather": lambda L, x, i: L.all_gather(x, i),
    "all_gather at 1": lambda L, x, i: L.all_gather(x, i, axis=1),
    "all_gather at -1": lambda L, x, i: L.all_gather(x, i, axis=-1),
    "all_gather tiled": lambda L, x, i: L.all_gather(x, i, axis=1, tiled=True),
    "psum_scatter": lambda L, x, i: L.psum_scatter(x, i),
    "psum_scatter tiled": lambda L, x, i: L.psum_scatter(x, i, scatter_dimension=1, tiled=True),
    "all_to_all 0 0": lambda L, x, i: L.all_to_all(x, i, 0, 0),
    "all_to_all 0 1": lambda L, x, i: L.all_to_all(x, i, 0, 1),
    "all_to_all 0 2": lambda L, x, i: L.all_to_all(x, i, 0, 2),
    "all_to_all tiled 0 0": lambda L, x, i: L.all_to_all(x, i, 0, 0, tiled=True),
    "all_to_all tiled 1 0": lambda L, x, i: L.all_to_all(x, i, 1, 0, tiled=True),
    "all_to_all tiled 1 2": lambda L, x, i: L.all_to_all(x, i, 1, 2, tiled=True),
    "pswapaxes": lambda L, x, i: L.pswapaxes(x, i, 0),
    "axis_index": lambda L, x, i: x * L.axis_index(i),
    "axis_size": lambda L, x, i: x * L.axis_size(i),
}
CASES = [*COLLECTIVES]


def exchanged(L, x, i, split, concat):
    """An all_to_all by a gather."""
    everything = L.all_gather(x, i, axis=0)
    mine = L.dynamic_index_in_dim(everything, L.axis_index(i), split + 1, keepdims=False)
    return jnp.moveaxis(mine, 0, concat)


# What jax 0.10.2 has no rule for, or a wrong one (batching of psum_scatter over later dimensions, the transpose of
# all_to_all without tiled, all of pbroadcast), in words for which it has.
JUDGES = {
    **COLLECTIVES,
    "pbroadcast": lambda L, x, i: L.all_gather(x, i)[2],
    "psum_scatter": lambda L, x, i: L.dynamic_index_in_dim(L.psum(x, i), L.axis_index(i), 0, keepdims=False),
    "all_to_all 0 1": lambda L, x, i: exchanged(L, x, i, 0, 1),
    "all_to_all 0 2": lambda L, x, i: exchanged(L, x, i, 0, 2),
}


OURS, THEIRS = (lax, mnp, meshrt, COLLECTIVES), (jax.lax, jnp, jax, JUDGES)


def judged(program, *args, cases=tuple(CASES), rtol=1e-5):
    """Compares `program(collective of (x, name), np, api)(*args)`, all cases in one program of each library."""

    def run(lax, np_, api, table):
        bound = {c: lambda x, i, c=c: table[c](lax, x, i) for c in cases}
        return api.jit(lambda *args: [program(bound[c], np_, api)(*args) for c in cases])(*args)

    for case, ours, theirs in zip(cases, run(*OURS), run(*THEIRS), strict=True):
        assert_same(ours, theirs, rtol, case)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("axes", [(0, 0), (2, 1)], ids=str)
def test_values(axes, dtype):
    shape = [4, 8, 3]
    shape.insert(axes[0], N)
    judged(lambda f, np_, api: api.vmap(lambda x: f(x, "i"), *axes, axis_name="i"), data(*shape, dtype=dtype))


def test_jitted_inside():
    judged(lambda f, np_, api: api.vmap(api.jit(lambda x: f(x, "i")), axis_name="i"), data(N, 4, 8, 3))


def test_derivatives_inside_and_outside():
    def program(f, np_, api):
        loss = lambda x: np_.sum(np_.sin(f(np_.cos(x), "i")))

        def run(x):
            out, pull = api.vjp(api.vmap(loss, axis_name="i"), x)
            return api.vmap(api.grad(loss), axis_name="i")(x), out, pull(out)[0]

        return run

    judged(program, data(N, 4, 8, 3), cases=tuple(c for c in CASES if c not in ("pmax", "pmin")), rtol=1e-4)


@pytest.mark.parametrize("case", ["pmax", "pmin"])
def test_extrema_share_cotangents_among_ties(case):
    f = COLLECTIVES[case]
    x = data(N, 4, 8, 3, dtype=np.int32).astype(np.float32)
    ours = meshrt.vmap(meshrt.grad(lambda x: f(lax, x, "i").sum()), axis_name="i")(x)
    reduce = {"pmax": jnp.max, "pmin": jnp.min}[case]
    # Each member's result counts, and each gets the sum of the cotangents, as with psum.
    theirs = jax.grad(lambda x: N * reduce(x, axis=0).sum())(x)
    assert_same(ours, theirs)


@pytest.mark.parametrize("inner", [1, 3])
def test_under_another_vmap(inner):
    """The dimension that has no name is batched along."""

    def program(f, np_, api):
        each = lambda x: f(x, "i")
        outside = api.vmap(api.vmap(each, in_axes=inner), axis_name="i")
        inside = api.vmap(api.vmap(each, axis_name="i"), in_axes=inner + 1)
        return lambda x: (outside(x), inside(x))

    judged(program, np.moveaxis(data(N, 5, 4, 8, 3), 1, inner + 1))


def test_operands_that_are_not_mapped():
    """The collective concerns the named dimension even so: all members have the same value."""

    def program(f, np_, api):
        one = (lambda one: one) if api is jax else lambda one: 1  # JAX forgets the name where nothing is mapped
        return api.vmap(lambda a, x: f(np_.sin(x) * one(a), "i"), (0, None), axis_name="i")

    judged(program, np.ones(N, np.float32), data(4, 8, 3), cases=tuple(c for c in CASES if c != "axis_index"))


def merged(f, sizes):
    """`f` under one vmap per axis, of one dimension that holds all of them."""

    def run(x):
        names = ["a", "b", "c"][: len(sizes)]
        mapped = lambda x: f(x, tuple(names))
        for name in reversed(names):
            mapped = meshrt.vmap(mapped, axis_name=name)
        out = mapped(x.reshape(*sizes, *x.shape[1:]))
        return meshrt.tree.map(lambda o: o.reshape(x.shape[0], *o.shape[len(sizes) :]), out)

    return run


@pytest.mark.parametrize("sizes", [(2, 2), (2, 1, 2)], ids=str)
def test_several_names_are_one_axis(sizes):
    """Row-major: collectives over ("a", "b") are those over one dimension of all places."""

    def program(f, np_, api):
        return merged(f, sizes) if api is meshrt else jax.vmap(lambda x: f(x, "i"), axis_name="i")

    judged(program, data(N, 4, 8, 3))


@pytest.mark.parametrize("seed", range(12))
def test_partial_permutations_along_several_axes(seed):
    rng = np.random.default_rng(seed)
    sizes = [(2, 3), (3, 2), (2, 2, 2), (6,), (4, 2)][seed % 5]
    n = int(np.prod(sizes))
    count = int(rng.integers(0, n + 1))
    pairs = list(zip(rng.permutation(n)[:count].tolist(), rng.permutation(n)[:count].tolist()))
    x = data(n, 5, seed=seed)
    expected = np.zeros_like(x)
    for a, b in pairs:
        expected[b] = x[a]
    run = meshrt.jit(merged(lambda x, names: lax.ppermute(x, names, pairs), sizes))
    np.testing.assert_array_equal(run(x), expected)
    flags = x > 0
    np.testing.assert_array_equal(run(flags), np.where(expected != 0, expected > 0, False))
    pulled = meshrt.vjp(run, x)[1](mnp.asarray(x))[0]
    back = np.zeros_like(x)
    for a, b in pairs:
        back[a] = x[b]
    np.testing.assert_array_equal(pulled, back)


def judged_by_groups(f, groups, x):
    """What JAX gives for each group by itself, its members in their places."""
    out = None
    for group in groups:
        part = np.asarray(jax.jit(jax.vmap(lambda x: f(jax.lax, x, "i", None), axis_name="i"))(x[np.array(group)]))
        out = np.empty((len(x), *part.shape[1:]), part.dtype) if out is None else out
        out[np.array(group)] = part
    return out


IN_GROUPS = {
    "psum": lambda L, x, i, g: L.psum(x, i, axis_index_groups=g),
    "pmean": lambda L, x, i, g: L.pmean(x, i, axis_index_groups=g),
    "pmax": lambda L, x, i, g: L.pmax(x, i, axis_index_groups=g),
    "pmin": lambda L, x, i, g: L.pmin(x, i, axis_index_groups=g),
    "all_gather": lambda L, x, i, g: L.all_gather(x, i, axis_index_groups=g, axis=1),
    "all_gather tiled": lambda L, x, i, g: L.all_gather(x, i, axis_index_groups=g, tiled=True),
    "psum_scatter": lambda L, x, i, g: L.psum_scatter(x, i, axis_index_groups=g),
    "psum_scatter tiled": lambda L, x, i, g: L.psum_scatter(x, i, axis_index_groups=g, scatter_dimension=1, tiled=True),
    "all_to_all": lambda L, x, i, g: L.all_to_all(x, i, 0, 1, axis_index_groups=g),
    "all_to_all tiled": lambda L, x, i, g: L.all_to_all(x, i, 1, 0, axis_index_groups=g, tiled=True),
    "pswapaxes": lambda L, x, i, g: L.pswapaxes(x, i, 0, axis_index_groups=g),
}


@pytest.mark.parametrize("case", IN_GROUPS)
def test_groups_of_indices(case):
    f, x = IN_GROUPS[case], data(N, 2, 8, 3)
    ours = meshrt.jit(meshrt.vmap(lambda x: f(lax, x, "i", GROUPS), axis_name="i"))
    assert_same(ours(x), judged_by_groups(f, GROUPS, x))
    if case not in ("pmax", "pmin"):
        # Linear: the transpose is the one whose product with it is the same.
        out, pull = meshrt.vjp(ours, x)
        ct = data(*out.shape, seed=1)
        np.testing.assert_allclose(np.vdot(out, ct), np.vdot(x, pull(mnp.asarray(ct))[0]), rtol=1e-4)


@pytest.mark.parametrize("case", ["psum", "pmean", "pmax"])
def test_groups_of_different_sizes(case):
    f, x, groups = IN_GROUPS[case], data(6, 5), [[4, 0, 1], [2], [5, 3]]
    ours = meshrt.jit(meshrt.vmap(lambda x: f(lax, x, "i", groups), axis_name="i"))(x)
    assert_same(ours, judged_by_groups(f, groups, x))


def test_pytrees_and_constants():
    def program(L, np_, vmap):
        def f(x):
            tree = {"a": x, "b": (x > 0, 2, np.float32(3), np.ones(3, np.int32))}
            return L.psum(tree, "i"), L.psum(1, "i") * x, L.pmax((x, 1.5), "i"), L.pmean(x.astype(np_.int32), "i")

        return vmap(f, axis_name="i")(np_.arange(4.0) - 1)

    ours, theirs = program(lax, mnp, meshrt.vmap), program(jax.lax, jnp, jax.vmap)
    assert_same(ours, theirs)


def test_dimensions_among_the_names():
    x = data(N, 3, 5)
    for axes in ((0, "i"), ("i", 1), (1,), (0, 1, "i")):
        ours = meshrt.vmap(lambda x: (lax.psum(x, axes), lax.pmax(x, axes)), axis_name="i")(x)
        theirs = jax.vmap(lambda x: (jax.lax.psum(x, axes), jax.lax.pmax(x, axes)), axis_name="i")(x)
        assert_same(ours, theirs)


def test_control_flow_inside():
    def program(L, T, x):
        def f(x):
            scanned = L.scan(lambda c, t: (L.pmean(c, "i") + t, L.ppermute(c, "i", [(0, 1), (1, 0)])), x[0], x)
            chosen = L.cond(L.psum(x.sum(), "i") > 0, lambda y: L.psum(y, "i"), lambda y: y, x)
            looped = L.while_loop(lambda c: L.pmax(c.sum(), "i") < 100, lambda c: L.psum(c * c + 1, "i"), x)
            counted = L.fori_loop(0, 3, lambda k, c: c + L.axis_index("i"), 0)
            return scanned, chosen, looped, counted

        return T.jit(T.vmap(f, axis_name="i"))(x)

    x = data(2, 3, 4)
    assert_same(program(lax, meshrt, x), program(jax.lax, jax, x))


def test_derivatives_of_control_flow():
    def program(L, T, x):
        def f(x):
            step = lambda c, t: (L.pmean(c * t, "i") + t, L.psum(c, "i") * t)
            (last, every) = L.scan(T.checkpoint(step), x[0], x)
            return (last * every).sum() + L.cond(x.sum() > 0, lambda y: L.psum(y, "i"), lambda y: y, x.sum())

        outside = T.grad(lambda x: T.vmap(f, axis_name="i")(x).sum())
        return T.jit(lambda x: (T.vmap(T.grad(f), axis_name="i")(x), outside(x)))(x)

    x = data(N, 3, 4)
    assert_same(program(lax, meshrt, x), program(jax.lax, jax, x), 1e-4)


def test_custom_derivatives():
    def program(L, T, x):
        @T.custom_vjp
        def f(x):
            return L.psum(x * x, "i")

        f.defvjp(lambda x: (f(x), x), lambda x, ct: (L.pmean(ct, "i") * x,))

        @T.custom_jvp
        def g(x):
            return L.pmean(x * x, "i")

        g.defjvp(lambda primals, tangents: (g(*primals), L.psum(tangents[0], "i") * primals[0]))
        loss = lambda x: (f(x) + g(x)).sum() * x.sum()
        inside = T.vmap(T.grad(loss), axis_name="i")(x)
        if T is meshrt:  # where JAX does not know the name when it gets to the rule
            assert_same(T.grad(lambda x: T.vmap(loss, axis_name="i")(x).sum())(x), inside, 1e-4)
        return inside

    x = data(N, 3)
    assert_same(program(lax, meshrt, x), program(jax.lax, jax, x), 1e-4)


def test_one_function_at_several_sizes():
    """The size of an axis becomes part of what is traced, so traces are kept by it."""
    f = meshrt.jit(lambda x: lax.pmean(x, "i") + lax.axis_size("i"))
    for n in (2, 3, 2):
        x = data(n, 2)
        np.testing.assert_allclose(meshrt.vmap(f, axis_name="i")(x), np.broadcast_to(x.mean(0) + n, x.shape), rtol=1e-6)


def test_the_innermost_name_is_meant():
    x = data(2, 3)
    ours = meshrt.vmap(meshrt.vmap(lambda x: lax.psum(x, "i"), axis_name="i"), axis_name="i")(x)
    theirs = jax.vmap(jax.vmap(lambda x: jax.lax.psum(x, "i"), axis_name="i"), axis_name="i")(x)
    assert_same(ours, theirs)


def test_ragged_all_to_all_of_the_reference():
    operand = np.array([[1, 2, 2], [3, 4, 0]], np.float32)
    sizes = dict(
        input_offsets=[[0, 1], [0, 1]], send_sizes=[[1, 2], [1, 1]], output_offsets=[[0, 0], [1, 2]],
        recv_sizes=[[1, 1], [2, 1]],
    )  # fmt: skip
    args = [np.array(v, np.int32) for v in sizes.values()]
    run = meshrt.vmap(lambda x, *s: lax.ragged_all_to_all(x, np.zeros(4, np.float32), *s, axis_name="i"), axis_name="i")
    np.testing.assert_array_equal(run(operand, *args), [[1, 3, 0, 0], [2, 2, 4, 0]])


def random_slices(rng, n, k, rows, out_rows):
    """For each of n devices k slices to each other: tables of ragged_all_to_all that fit, each [n, n * k]."""
    sizes = np.zeros((n, n, k), np.int32)  # sender, receiver, slice
    for receiver in range(n):
        cuts = np.sort(rng.integers(0, out_rows + 1, n * k - 1))
        lengths = np.diff(np.concatenate([[0], cuts, [out_rows]]))
        lengths[rng.integers(0, n * k)] = 0
        sizes[:, receiver] = np.minimum(lengths, rows).reshape(n, k)
    starts = np.zeros_like(sizes)
    for receiver in range(n):
        flat = sizes[:, receiver].reshape(-1)
        starts[:, receiver] = (np.cumsum(flat) - flat).reshape(n, k)
    inputs = rng.integers(0, rows - sizes + 1).astype(np.int32)
    received = np.swapaxes(sizes, 0, 1)
    return [t.reshape(n, n * k).astype(np.int32) for t in (inputs, sizes, starts, received)]


def ragged_in_numpy(operand, output, inputs, sent, starts, received):
    n, total = inputs.shape
    out = output.copy()
    for d in range(n):
        for i in range(total):
            target, size = i // (total // n), sent[d, i]
            out[target, starts[d, i] : starts[d, i] + size] = operand[d, inputs[d, i] : inputs[d, i] + size]
    return out


@pytest.mark.parametrize("seed", range(8))
def test_ragged_all_to_all(seed):
    rng = np.random.default_rng(seed)
    n, k, rows, out_rows = ((2, 1, 5, 7), (3, 2, 6, 9), (4, 1, 3, 8), (1, 2, 4, 5))[seed % 4]
    operand, output = data(n, rows, 2, seed=seed), data(n, out_rows, 2, seed=seed + 50)
    tables = random_slices(rng, n, k, rows, out_rows)
    run = meshrt.jit(meshrt.vmap(lambda *xs: lax.ragged_all_to_all(*xs, axis_name="i"), axis_name="i"))
    expected = ragged_in_numpy(operand, output, *tables)
    np.testing.assert_array_equal(run(operand, output, *tables), expected)
    linear = lambda a, b: run(a, b, *tables)
    ct = data(*expected.shape, seed=seed + 99)
    d_operand, d_output = meshrt.vjp(linear, operand, output)[1](mnp.asarray(ct))
    np.testing.assert_allclose(
        np.vdot(expected, ct), np.vdot(operand, d_operand) + np.vdot(output, d_output), rtol=1e-4
    )
    pull = lambda a, b, c, *t: meshrt.vjp(lambda a, b: lax.ragged_all_to_all(a, b, *t, axis_name="i"), a, b)[1](c)
    inside = meshrt.jit(meshrt.vmap(pull, axis_name="i"))(operand, output, ct, *tables)
    np.testing.assert_allclose(inside[0], d_operand, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(inside[1], d_output, rtol=1e-5, atol=1e-6)
    t_out = meshrt.jvp(linear, (operand, output), (operand * 2, output * 3))[1]
    np.testing.assert_allclose(t_out, run(operand * 2, output * 3, *tables), rtol=1e-6)


def test_ragged_all_to_all_along_a_batch():
    rng = np.random.default_rng(3)
    n, k, rows, out_rows, members = 3, 2, 6, 9, 4
    operand, output = data(members, n, rows, 2), data(n, out_rows, 2, seed=1)
    tables = [random_slices(rng, n, k, rows, out_rows) for _ in range(members)]
    stacked = [np.stack(t) for t in zip(*tables)]
    expected = np.stack([ragged_in_numpy(operand[m], output, *tables[m]) for m in range(members)])
    each = lambda *xs: lax.ragged_all_to_all(*xs, axis_name="i")
    inner = meshrt.vmap(meshrt.vmap(each, (0, None, 0, 0, 0, 0)), (1, 0, 1, 1, 1, 1), 1, axis_name="i")
    np.testing.assert_array_equal(inner(operand, output, *stacked), expected)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({0: np.ones((2, 3, 3), np.float32)}, "equal shapes but for the first"),
        ({0: np.ones((2, 3), np.int32)}, "of one dtype"),
        ({2: np.ones((2, 2), np.float32)}, "input_offsets must be integer"),
        ({3: np.ones((2, 2, 1), np.int32)}, "send_sizes must be rank 1"),
        ({4: np.ones((2, 4), np.int32)}, "of one length"),
    ],
)
def test_ragged_operands_that_do_not_fit(change, text):
    args = [np.ones((2, 3), np.float32), np.ones((2, 4), np.float32), *[np.ones((2, 2), np.int32)] * 4]
    for i, a in change.items():
        args[i] = a
    with pytest.raises(ValueError, match=text):
        meshrt.vmap(lambda *xs: lax.ragged_all_to_all(*xs, axis_name="i"), axis_name="i")(*args)


@pytest.mark.parametrize("make_error", [
    lambda L, x: L.psum(x, "nowhere"),
    lambda L, x: L.axis_index("nowhere"),
    lambda L, x: L.axis_size("nowhere"),
    lambda L, x: L.all_gather(x, "nowhere"),
    lambda L, x: L.psum_scatter(x, "nowhere"),
    lambda L, x: L.all_to_all(x, "nowhere", 0, 0),
    lambda L, x: L.all_to_all(x[:3], "i", 0, 0),
    lambda L, x: L.all_to_all(x[:3], "i", 0, 0, tiled=True),
    lambda L, x: L.pshuffle(x, "i", [0, 0, 1, 2]),
    lambda L, x: L.psum(x, "i", axis_index_groups=[[0, 1], [1, 3]]),
    lambda L, x: L.psum(x, (0, "i"), axis_index_groups=[[0, 1], [2, 3]]),
    lambda L, x: L.all_gather(x, "i", to="elsewhere"),
    lambda L, x: L.pcast(x, "i", to="elsewhere"),
    lambda L, x: L.pcast(x, {"i"}, to="varying"),
])  # fmt: skip
def test_errors_are_of_the_classes_that_jax_raises(make_error):
    x = np.ones((4, 4), np.float32)
    with pytest.raises(Exception) as theirs:  # which is the question
        jax.vmap(lambda x: make_error(jax.lax, x), axis_name="i")(x)
    with pytest.raises(errors.MeshrtError) as ours:
        meshrt.vmap(lambda x: make_error(lax, x), axis_name="i")(x)
    assert isinstance(ours.value, type(theirs.value)), (ours.value, theirs.value)


@pytest.mark.parametrize("tiled", [False, True])
def test_parts_that_do_not_fit(tiled):
    """Under vmap JAX takes the one and fails in an assertion at the other; under shard_map both are ValueErrors."""
    with pytest.raises(ValueError, match=r"psum_scatter over .*scatter_dimension 0 of f32.3,4., 3, must"):
        meshrt.vmap(lambda x: lax.psum_scatter(x[:3], "i", tiled=tiled), axis_name="i")(np.ones((4, 4, 4), np.float32))


@pytest.mark.parametrize("perm", [[(0, 1), (0, 2)], [(0, 1), (2, 1)], [(0, 9)], [(-1, 0)]], ids=str)
def test_permutations_that_are_none(perm):
    with pytest.raises(ValueError, match=r"unique|go from 0 to 3"):
        meshrt.vmap(lambda x: lax.ppermute(x, "i", perm), axis_name="i")(np.ones(4, np.float32))


def test_an_unbound_name_says_what_is_bound():
    with pytest.raises(NameError, match=r"Found an unbound axis name: j. To fix this, please call psum under") as error:
        meshrt.vmap(lambda x: lax.psum(x, "j"), axis_name="i")(np.ones(4, np.float32))
    assert "axes in scope here: 'i'" in str(error.value)
    with pytest.raises(NameError, match="ppermute"):
        lax.ppermute(1.0, "i", [(0, 1)])


def test_sending_and_receiving_are_the_halves_of_a_permutation():
    x, ring = np.arange(8, dtype=np.float32).reshape(4, 2), [(0, 1), (1, 2), (3, 0)]

    def halves(x):
        token = lax.psend({"a": x}, "i", ring)["a"]
        token, x = lax.optimization_barrier((token, x))
        return lax.precv(token, meshrt.ShapeDtypeStruct.like(x), "i", ring)

    whole = lambda x: lax.ppermute(x, "i", ring)
    mesh = meshrt.sharding.Mesh(np.array(meshrt.devices()[:4]), ("i",))
    manual = lambda f: meshrt.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    for f, g in ((halves, whole), (meshrt.grad(lambda x: (halves(x) ** 2).sum()), None)):
        g = g or meshrt.grad(lambda x: (whole(x) ** 2).sum())
        for over in (lambda f: meshrt.vmap(f, axis_name="i"), manual, lambda f: meshrt.jit(manual(f))):
            np.testing.assert_array_equal(over(f)(x), over(g)(x))


def test_what_is_received_must_have_been_sent():
    def wrong(error, match, f):
        with pytest.raises(error, match=match):
            meshrt.vmap(f, axis_name="i")(np.ones(2, np.float32))

    send = lambda x: lax.psend(x, "i", [(0, 1)])
    wrong(TypeError, "Expected send to match recv", lambda x: lax.precv(None, x, "i", [(0, 1)]))
    wrong(ValueError, "would wait for ever", lambda x: lax.precv(send(x), x, "i", [(1, 0)]))
    wrong(TypeError, "f32", lambda x: lax.precv(send(x), meshrt.ShapeDtypeStruct((2,), np.float32), "i", [(0, 1)]))
    wrong(ValueError, "psend sources and destinations must be unique", lambda x: lax.psend(x, "i", [(0, 1), (0, 1)]))
    with pytest.raises(NameError, match="psend"):
        lax.psend(1.0, "i", [(0, 1)])
