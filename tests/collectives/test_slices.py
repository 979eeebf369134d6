"""Slices and pads along split dimensions: what they send, compared with XLA's partitioner and one device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation

from .jax_side import Case, check


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("to", [(), (None, "x")], ids=["as it was", "from another dimension"])
def test_what_is_wanted_whole_is_gathered_before_it_is_padded(to):
    """11 rows over 8 devices would be sent as 16."""

    def build(constrain):
        def run(x):
            x = constrain(x, *to) if to else x
            return constrain(jnp.pad(x, ((1, 2), (2, 1), (1, 2)), constant_values=0.5), None, None, None)

        return run

    x = normal(8, 8, 8)
    _, sent = check(Case({"x": 8}, build, (x,), (P("x"),), P()), exact=True)
    assert sent <= x.nbytes * 7 / 8 + (x.nbytes / 8 * 7 / 8 if to else 0)


@pytest.mark.parametrize("position", [0, 3, -1])
@pytest.mark.parametrize(("axes", "n"), [({"x": 8}, 8), ({"x": 8}, 32), ({"a": 3, "b": 2}, 12)])
def test_one_position_of_a_split_dimension_is_sent_to_all_as_a_sum(axes, n, position):
    names = tuple(axes)

    def build(constrain):
        return lambda x: jnp.tanh(x)[:, position] * 2

    x = normal(4, n, 16)
    result, _ = check(Case(axes, build, (x,), (P(None, names),), P()), rtol=1e-6)
    assert [e.kind for e in result.plan] == ["all_reduce"]


def test_one_flag_of_a_split_dimension():
    def build(constrain):
        return lambda x: (x > 0)[-1]

    check(Case({"x": 8}, build, (normal(16, 4),), (P("x"),), P()))


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize(("axes", "n"), [({"x": 8}, 32), ({"a": 3, "b": 2}, 24)])
def test_gradients_of_strided_slices_stay_where_they_are(axes, n, start):
    spec = P(tuple(axes))

    def build(constrain):
        return jax.grad(lambda x: jnp.sum(jnp.sin(x[start::2])))

    result, sent = check(Case(axes, build, (normal(n, 5),), (spec,), spec), rtol=1e-6)
    assert sent == 0 and not len(result.plan)


@pytest.mark.parametrize(
    ("low", "high", "inner"), [(1, 0, 1), (2, 1, 3), (5, -2, 2), (-1, 3, 2), (0, 0, 1), (3, -4, 2)]
)
@pytest.mark.parametrize("n", [16, 13])
def test_pads_that_set_elements_apart(low, high, inner, n):
    def build(constrain):
        return lambda x: jax.lax.pad(constrain(x, "x"), jnp.float32(0.5), [(low, high, inner), (0, 0, 0)])

    check(Case({"x": 8}, build, (normal(n, 3),), (P(),)), above_xla=True, exact=True)


def test_what_a_window_takes_whole_serves_the_update_too():
    """Half of a split dimension, read and written at traced positions; the result wants another order of axes."""

    def build(constrain):
        def f(x, i):
            x = jnp.tanh(x)
            rows = jax.lax.dynamic_slice_in_dim(x, i, 8, 1)
            return jax.lax.dynamic_update_slice_in_dim(x, rows * 2, i // 2, 1)

        return f

    specs = P(None, ("a", "b", "c")), P()
    case = Case({"a": 2, "b": 2, "c": 2}, build, (normal(8, 16, 24), np.int32(5)), specs, P(None, ("b", "a")))
    result, _ = check(case, rtol=1e-6)
    assert [e.kind for e in result.plan] == ["all_gather"]


@pytest.mark.parametrize(("axes", "n"), [({"x": 8}, 64), ({"x": 3, "y": 2}, 23)])
def test_short_windows_are_written_where_they_lie(axes, n):
    """Windows of one to many positions, some across devices' boundaries, some clamped; nothing else is rewritten."""
    lengths = 1, 3, 4, n // 2
    starts = np.array([-3, 0, 2, 6, 7, 13, n - 2, n + 5], np.int32)

    def build(constrain):
        def f(x, updates, starts):
            x = constrain(x, *axes)
            write = lambda u, i: jax.lax.dynamic_update_slice_in_dim(x, u, starts[i], 0)
            return [constrain(write(u, i), *axes) for u in updates for i in range(starts.size)]

        return f

    updates = [normal(m, 8) + 9 for m in lengths]
    case = Case(axes, build, (normal(n, 8), updates, starts), (P(), [P()] * len(lengths), P()))
    check(case, above_xla=True, exact=True)


def test_a_cache_is_updated_without_rewriting_it():
    def build(constrain):
        return lambda cache, row, i: jax.lax.dynamic_update_slice(cache, row, (0, i, 0))

    case = Case({"x": 8}, build, (normal(2, 4096, 3), normal(2, 1, 3), np.int32(2000)), (P(None, "x"), P(), P()))
    result, sent = check(case, exact=True)
    assert sent == 0
    lines = [line.split(" loc(")[0].rstrip() for line in result.as_text().splitlines()]
    written = [line for line in lines if line.endswith("2x512x3xf32>")]
    assert len(written) == 1 and "dynamic_update_slice" in written[0]


def test_what_a_sum_took_whole_is_not_cut_again():
    """Nodes are gathered to look up edges, and added to the messages as they were before."""

    def build(constrain):
        return lambda nodes, a, b: nodes + jnp.zeros_like(nodes).at[b].add(nodes[a] * 2)

    a, b = np.random.default_rng(1).integers(0, 64, (2, 512)).astype(np.int32)
    case = Case({"x": 8}, build, (normal(64, 4), a, b), (P("x"), P("x"), P("x")), P("x"))
    result, _ = check(case)
    assert [e.kind for e in result.plan] == ["all_gather", "reduce_scatter"]
    assert "dynamic_slice" not in result.as_text()


@pytest.mark.parametrize("first", [0, 2])
def test_pieces_that_two_tensors_share_are_not_taken_for_each_other(first):
    """238 of 240 positions, in pieces of 30 on 8 devices, may lie in the same pieces; whole, they are not the same."""

    def build(constrain):
        return lambda x: (jnp.sort(x), constrain(jnp.sort(x)[first : first + 238], "x"))

    check(Case({"x": 8}, build, (normal(240),), (P("x"),), (P(), P())), exact=True, above_xla=True)


def test_a_row_that_everybody_reads_and_a_neighbour_takes_is_sent_to_that_neighbour_alone():
    def build(constrain):
        def step(stages, out):  # a pipeline's: the last stage's result is collected, and all move on
            return jnp.roll(stages, 1, axis=0), out + jnp.squeeze(jax.lax.slice_in_dim(stages, 7, 8))

        return step

    args = (normal(8, 16, 4), normal(16, 4))
    case = Case({"x": 8}, build, args, (P("x"), P()), (P("x"), P()))
    _, sent = check(case)
    assert sent == 16 * 4 * 4 * (1 + 2 * 7 / 8)


@pytest.mark.parametrize(
    ("n", "taps", "length", "rest", "rows"),
    [(128, 17, 112, 0, 28), (64, 9, 40, 0, 21), (61, 7, 37, 2, 58), (32, 11, 10, 3, 35)],
)
def test_short_slices_that_overlap_share_one_window(n, taps, length, rest, rows):
    """Pieces of a filter's valid part lie elsewhere than the signal's; taps far from one another have own windows."""

    def build(constrain):
        def f(x):
            x = jnp.pad(constrain(x, "x"), ((rest, rest), (0, 0)), constant_values=2.0)
            return constrain(sum(x[i : i + length] * (i + 1.0) for i in range(taps)), "x")

        return f

    case = Case({"x": 8}, build, (normal(n, 8),), (P(),))
    _, sent = check(case)
    assert sent <= rows * 8 * 4


def test_slices_that_are_joined_again_or_cut_again_take_what_they_need_themselves():
    def build(constrain):
        def f(x):
            parts = [x[i : i + 37] for i in range(8)]
            return jnp.concatenate(parts), sum(jnp.sin(p) for p in parts), [x[i : i + 40][2:9] for i in range(3)]

        return f

    check(Case({"x": 8}, build, (normal(64, 4),), (P("x"),)))


def test_the_program_grows_with_its_slices_no_faster():
    def lines(taps):
        build = lambda constrain: lambda x: sum(jnp.pad(x[i : i + 40], ((0, 3), (0, 0))) for i in range(taps))
        case = Case({"x": 8}, build, (normal(256, 8),), (P("x"),))
        return collectives.partition(propagation.run(case.text)).as_text().count("\n")

    few, many = lines(16), lines(64)
    assert few < 40 * 16 and many < 4.5 * few


def test_a_pad_by_nothing_is_its_operand():
    """As JAX writes one in the gradient of pooling: what devices exchange of the operand serves it, too."""
    padded = lambda x: jax.lax.pad(x, jnp.float32(-1), [(0, 0, 0), (0, 0, 0)])
    build = lambda constrain: lambda x: (jnp.roll(x, 1, 0), jnp.roll(padded(x), 1, 0) * 2)
    x = np.arange(16 * 6, dtype=np.float32).reshape(16, 6)
    _, sent = check(Case({"x": 8}, build, (x,), (P("x"),), (P("x"), P("x"))))
    assert sent == x[0].nbytes


@pytest.mark.parametrize(("whole", "sent"), [(False, 384), (True, 384 + 384)])
def test_what_is_sliced_where_it_is_split_is_resharded_afterwards(whole, sent):
    """Two rows of eight, of which one device of two holds both: one travels, and only what is left is gathered."""

    def build(constrain):
        return lambda x: constrain(x[1:3], "c", "b", None if whole else "a")

    x = np.arange(8 * 16 * 24, dtype=np.float32).reshape(8, 16, 24)
    case = Case({"a": 2, "b": 2, "c": 2}, build, (x,), (P("c", "b", "a"),))
    assert check(case, exact=True)[1] == sent
