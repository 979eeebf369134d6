"""The reshard planner: bounds, the triangle inequality, XLA's bytes, and plans that move the right elements."""

from __future__ import annotations

import heapq
import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import collectives
from collectives import plan_reshard
from collectives.layout import Atoms
from collectives.reshard.planner import Planner
from propagation.model import AxisRef, DimSharding, Mesh, TensorSharding

from . import harness

MESHES = {
    "8": Mesh("m", (("a", 8),)),
    "4x2": Mesh("m", (("a", 4), ("b", 2))),
    "2x2x2": Mesh("m", (("a", 2), ("b", 2), ("c", 2))),
    "6x2": Mesh("m", (("a", 6), ("b", 2))),
    "3x2": Mesh("m", (("a", 3), ("b", 2))),
}


def shardings(mesh, rank, longest=2):
    """All shardings of a rank over whole axes."""
    lists = [t for k in range(longest + 1) for t in itertools.permutations(mesh.axis_names, k)]
    for choice in itertools.product(lists, repeat=rank):
        flat = [a for t in choice for a in t]
        if len(set(flat)) == len(flat):
            yield TensorSharding(mesh, [DimSharding([mesh.axis(a) for a in t]) for t in choice])


def split(mesh, *dims):
    """A sharding over axes of one letter each: `split(mesh, "ab", "")`."""
    return TensorSharding(mesh, [DimSharding([mesh.axis(a) for a in d]) for d in dims])


def lacking(shape, source, target):
    """Elements that the busiest device lacks, counted element by element."""
    worst = 0
    for d in range(source.mesh.size):
        have, want = np.zeros(shape, bool), np.zeros(shape, bool)
        have[harness._box(shape, source, d)] = True
        want[harness._box(shape, target, d)] = True
        worst = max(worst, int((want & ~have).sum()))
    return worst


@pytest.mark.parametrize("name", ["8", "4x2", "2x2x2"])
def test_bound_is_what_the_busiest_device_lacks(name):
    mesh, shape = MESHES[name], (16, 16)
    for source, target in itertools.product(shardings(mesh, 2), repeat=2):
        plan = plan_reshard(shape, "f32", mesh, source, target)
        assert plan.bound == 4 * lacking(shape, source, target)
        assert plan.bytes >= plan.bound - 1e-9
        assert plan.exact


def cheapest(shape, item):
    """Bytes of the cheapest way between all layouts of a matrix over three axes of two devices, by Dijkstra's search
    over everything that one ordinary collective does to a layout: {layout: {layout: bytes}}."""
    layouts = {
        (order[:cut], order[cut:])
        for count in range(4)
        for order in itertools.permutations(range(3), count)
        for cut in range(count + 1)
    }
    held = lambda dims: item * math.prod(shape) / 2 ** sum(map(len, dims))

    def moves(dims):
        for d, axes in enumerate(dims):
            for free in {0, 1, 2} - {*dims[0], *dims[1]}:  # a slice sends nothing
                yield tuple((*x, free) if e == d else x for e, x in enumerate(dims)), 0.0
            for k in range(len(axes)):
                kept, minor = axes[:k], axes[k:]
                yield tuple(kept if e == d else x for e, x in enumerate(dims)), (2 ** len(minor) - 1) * held(dims)
                for order in itertools.permutations(minor):  # an all-to-all to the other dimension, in any order
                    moved = tuple(kept if e == d else (*x, *order) for e, x in enumerate(dims))
                    yield moved, (1 - 1 / 2 ** len(minor)) * held(dims)
        for other in layouts:
            if other != dims and [*map(len, other)] == [*map(len, dims)]:
                yield other, held(dims)  # a permute between pieces of one shape

    def search(start):
        found, queue = {}, [(0.0, start)]
        while queue:
            cost, dims = heapq.heappop(queue)
            if dims not in found:
                found[dims] = cost
                for after, sent in moves(dims):
                    heapq.heappush(queue, (cost + sent, after))
        return found

    return {start: search(start) for start in layouts}


def test_every_plan_sends_what_the_busiest_device_lacks():
    """Every pair of layouts of a matrix, on meshes of eight devices. No way of ordinary collectives, of which an
    exhaustive search finds the cheapest, sends less than this bound; where they send more, exact pieces reach it."""
    shape = (1024, 1024)
    atoms = {"8": {"a": (0, 1, 2)}, "4x2": {"a": (0, 1), "b": (2,)}, "2x2x2": {"a": (0,), "b": (1,), "c": (2,)}}
    best = cheapest(shape, 4)
    for name, axes in atoms.items():
        mesh = MESHES[name]
        dims = lambda s, axes=axes: tuple(tuple(i for a in d.axes for i in axes[a.name]) for d in s.dims)
        for source, target in itertools.product(shardings(mesh, 2), repeat=2):
            plan = plan_reshard(shape, "f32", mesh, source, target)
            assert plan.bytes == plan.bound <= best[dims(source)][dims(target)], plan.as_text()


@pytest.mark.smoke
def test_known_plans():
    mesh = MESHES["4x2"]
    a, b = mesh.axis("a"), mesh.axis("b")
    split = lambda *dims: TensorSharding(mesh, [DimSharding(d) for d in dims])
    plan = lambda s, t, shape=(64, 64): plan_reshard(shape, "f32", mesh, s, t)
    kinds = lambda p: [s.kind for s in p.steps]
    whole = 64 * 64 * 4
    assert kinds(plan(split((a,), ()), split((), (a,)))) == ["all_to_all"]
    assert kinds(plan(split((), ()), split((b,), (a,)))) == ["slice", "slice"]
    gather_less = plan(split((), (b,)), split((a,), ()))
    assert gather_less.bytes == whole / 4 / 2  # slices first, then gathers
    fused = plan_reshard((16, 16, 16), "f32", mesh, split((b,), (), (a,)), split((), (a, b), ()))
    assert (kinds(fused), fused.bytes) == (["all_to_all"], 7 / 8 * 2048)


def test_partial_sums_become_reduce_scatters():
    mesh = MESHES["4x2"]
    a, b = mesh.axis("a"), mesh.axis("b")
    partial = TensorSharding(mesh, [DimSharding(), DimSharding((b,))], (), (a,))
    to_rows = TensorSharding(mesh, [DimSharding((a,)), DimSharding((b,))])
    to_all = TensorSharding(mesh, [DimSharding(), DimSharding((b,))])
    local = 64 * 32 * 4
    plan = plan_reshard((64, 64), "f32", mesh, partial, to_rows)
    assert ([s.kind for s in plan.steps], plan.bytes) == (["reduce_scatter"], 3 / 4 * local)
    plan = plan_reshard((64, 64), "f32", mesh, partial, to_all)
    assert ([s.kind for s in plan.steps], plan.bytes) == (["all_reduce"], 2 * 3 / 4 * local)


@pytest.mark.parametrize("shape", [(64, 64), (50, 48)])
@pytest.mark.parametrize("target", ['[{"a"}, {"b"}]', '[{"b"}, {"a"}]', '[{"a", "b"}, {}]', '[{}, {"b", "a"}]'])
def test_partial_sums_are_sliced_before_they_are_scattered(target, shape):
    """One reduce-scatter of what the devices need of it; pieces that do not divide are padded."""
    plan = plan_reshard(shape, "f32", "a=4,b=2", '[{}, {}], unreduced={"a"}', target)
    assert [s.kind for s in plan.steps if s.kind != "slice"] == ["reduce_scatter"]
    assert plan.bytes <= 1.12 * plan.bound


@pytest.mark.parametrize(
    ("mesh", "shape", "source", "middle", "target"),
    [
        ("c=2,a=2,b=2", (96, 96), '[{}, {"b"}], unreduced={"c"}', '[{"c"}, {"b", "a"}]', '[{}, {"a"}]'),
        ("a=6,b=2", (2304, 2304), '[{"a":(1)2}, {"b"}], unreduced={"a":(2)3}', '[{"a"}, {"b"}]', '[{"b"}, {"a":(1)2}]'),
    ],
)
def test_partial_sums_are_scattered_over_axes_that_are_gathered_again(mesh, shape, source, middle, target):
    """What is exchanged or permuted in between is smaller then: no way by hand is cheaper."""
    cost = lambda s, t: plan_reshard(shape, "f32", mesh, s, t).bytes
    assert cost(source, target) <= cost(source, middle) + cost(middle, target)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_triangle_inequality(data):
    mesh = MESHES[data.draw(st.sampled_from(["4x2", "2x2x2", "6x2"]))]
    pick = st.sampled_from(list(shardings(mesh, 2)))
    a, b, c = (data.draw(pick) for _ in range(3))
    cost = lambda s, t: plan_reshard((24, 24), "f32", mesh, s, t).bytes
    assert cost(a, c) <= cost(a, b) + cost(b, c) + 1e-9


def run_identity(shape, source, target):
    text = (
        f"sdy.mesh @m = {source.mesh.to_text()}\n"
        f"func.func @main(%x: tensor<{'x'.join(map(str, shape))}xf32> {{sdy.sharding = {source.to_text()}}}) -> "
        f"(tensor<{'x'.join(map(str, shape))}xf32> {{sdy.sharding = {target.to_text()}}}) {{\n"
        f"  return %x : tensor<{'x'.join(map(str, shape))}xf32>\n}}"
    )
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    result = collectives.partition(text)
    (got,), compiled = harness.run_partitioned(result, [x], [shape])
    np.testing.assert_array_equal(got, x)
    return result, harness.hlo_bytes(compiled.hlo(), source.mesh.size)[0]


@pytest.mark.parametrize("name", MESHES)
def test_plans_move_the_right_elements(name):
    mesh = MESHES[name]
    rng = np.random.default_rng(7)
    every = list(shardings(mesh, 3))
    for _ in range(6):
        source, target = (every[int(i)] for i in rng.integers(len(every), size=2))
        if mesh.size == 12:
            continue
        shape = (24, 24, 24) if mesh.size == 6 else (16, 16, 16)
        result, sent = run_identity(shape, source, target)
        assert sent <= result.plan.bytes + 1e-6


def test_sub_axes():
    mesh = MESHES["8"]
    low, high = AxisRef("a", 1, 2), AxisRef("a", 2, 4)
    source = TensorSharding(mesh, [DimSharding((low,)), DimSharding((high,))])
    for target in ([(high,), (low,)], [(mesh.axis("a"),), ()], [(), (high, low)]):
        target = TensorSharding(mesh, [DimSharding(d) for d in target])
        run_identity((16, 16), source, target)


@pytest.mark.parametrize("axes", [(("a", 64),), (("a", 16), ("b", 16)), (("a", 64), ("b", 64))])
def test_planning_does_not_depend_on_the_number_of_devices(axes):
    mesh = Mesh("m", axes)
    planner = Planner(Atoms(mesh))
    names = mesh.axis_names
    first = planner.atoms.of_axis(mesh.axis(names[0]))
    plan = planner.plan((1 << 16, 1 << 16), 4, (first, ()), ((), first))
    assert [s.kind for s in plan.steps] == ["all_to_all"]


def test_errors():
    mesh = MESHES["8"]
    flat = TensorSharding(mesh, [DimSharding()])
    partial = TensorSharding(mesh, [DimSharding()], (), (mesh.axis("a"),))
    with pytest.raises(collectives.errors.ReshardError, match="cannot make a partial sum"):
        plan_reshard((8,), "f32", mesh, flat, partial)
    with pytest.raises(collectives.errors.ReshardError, match="1 dimensions"):
        plan_reshard((8, 8), "f32", mesh, flat, flat)


def padded(sizes, source, target, ids=None):
    """Bytes that the busiest device lacks of an i8 tensor; device `ids[i]` is at position i of the target's mesh."""
    ids = range(source.mesh.size) if ids is None else ids
    worst = 0
    for position, device in enumerate(ids):
        have, want = np.zeros(sizes, bool), np.zeros(sizes, bool)
        have[harness._box(sizes, source, device)] = True
        want[harness._box(sizes, target, position)] = True
        worst = max(worst, int((want & ~have).sum()))
    return worst


@pytest.mark.parametrize("name", ["3x2", "4x2"])
@pytest.mark.parametrize("shape", [(7, 5), (63, 61), (3, 1)])
def test_sizes_that_do_not_divide_are_counted_and_stay_within_the_larger_piece(name, shape):
    mesh = MESHES[name]
    pieces = lambda s: math.prod(s.shard_shape(shape))
    for source, target in itertools.product(shardings(mesh, 2), repeat=2):
        plan = plan_reshard(shape, "i8", mesh, source, target)
        assert plan.bound == padded(shape, source, target)
        assert plan.bytes >= plan.bound
        assert plan.peak <= max(pieces(source), pieces(target))
        assert (not plan.bytes) == (plan.ratio == 1 and not plan.bound)


@pytest.mark.parametrize("shape", [(16, 16), (7, 5)])
def test_devices_in_another_order(shape):
    ids = (5, 2, 7, 0, 1, 4, 3, 6)
    mesh, there = MESHES["4x2"], Mesh("there", (("a", 4), ("b", 2)), ids)
    for source, target in itertools.product(shardings(mesh, 2), repeat=2):
        moved = TensorSharding(there, target.dims)
        plan = plan_reshard(shape, "i8", mesh, source, moved)
        assert plan.bound == padded(shape, source, target, ids)
        assert plan.bytes >= plan.bound
        assert plan.ratio < 3.1 and plan.peak <= max(math.prod(s.shard_shape(shape)) for s in (source, target))
        if plan.bound:
            assert plan.steps[-1].after.mesh is there


def test_an_order_that_changes_nothing_costs_nothing():
    mesh = MESHES["4x2"]
    ids = [i ^ 1 for i in range(8)]
    text = f'<["a"=4, "b"=2], device_ids={ids}>'
    plan = plan_reshard((64, 64), "f32", mesh, '[{"a"}, {}]', '[{"a"}, {}]', target_mesh=text)
    assert (plan.bytes, plan.bound, plan.steps) == (0, 0, ())
    plan = plan_reshard((64, 64), "f32", mesh, '[{"b"}, {}]', '[{"b"}, {}]', target_mesh=text)
    assert [s.kind for s in plan.steps] == ["collective_permute"] and plan.ratio == 1
    assert "in the target's order of devices" in plan.as_text()


def test_partial_sums_over_devices_in_another_order():
    text = '<["a"=4, "b"=2], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>'
    plan = plan_reshard((64, 64), "f32", "a=4,b=2", '[{}, {"b"}], unreduced={"a"}', '[{"a"}, {"b"}]', target_mesh=text)
    assert [s.kind for s in plan.steps] == ["reduce_scatter", "collective_permute"]
    kept = '[{}, {"b"}], unreduced={"a"}'
    plan = plan_reshard((64, 64), "f32", "a=4,b=2", kept, kept, target_mesh=text)
    assert [s.kind for s in plan.steps] == ["collective_permute"] and plan.bytes == 64 * 32 * 4


def test_memory_is_what_one_asks_for():
    ask = lambda **k: plan_reshard((7, 5), "f32", "a=3,b=2", '[{}, {"a"}]', '[{}, {"b"}]', **k)
    tight, loose = ask(), ask(memory=7 * 5 * 4)
    assert tight.peak == 7 * 3 * 4 and loose.bytes <= tight.bytes
    with pytest.raises(collectives.errors.ReshardError, match="larger of the two ends"):
        ask(memory=10)
    for bad in (0, -1, "much", True):
        with pytest.raises(collectives.errors.OptionError):
            ask(memory=bad)


def test_one_byte_of_memory_is_enough_for_pieces_of_one_byte():
    plan = plan_reshard((4,), "i8", "a=4", ("a",), ("a",), memory=1)
    assert (plan.steps, plan.peak) == ((), 1)


def test_how_many_collectives_each_step_is():
    """Also where the order of the devices changes: sums are one all-reduce, boxes as many permutes as rounds."""
    text = '<["a"=4, "b"=2], device_ids=[7, 2, 5, 0, 3, 6, 1, 4]>'
    kinds = set()
    for source, target in itertools.product(
        ['[{}, {"b"}], unreduced={"a"}', '[{"b"}, {}]'], ["[{}, {}]", '[{"a"}, {"b"}]']
    ):
        for shape, mesh in itertools.product([(7, 5), (64, 64)], [None, text]):
            for step in plan_reshard(shape, "f32", "a=4,b=2", source, target, target_mesh=mesh).steps:
                kinds.add(step.kind)
                if step.kind == "slice":
                    assert step.rounds == 0
                elif step.kind != "pieces":
                    assert step.rounds == 1, step
    assert {"all_reduce", "pieces"} <= kinds
    # Boxes between two orders of the devices, after the sum.
    text = '<["a"=4, "b"=2], device_ids=[5, 0, 3, 4, 2, 1, 6, 7]>'
    ends = '[{"a"}, {}], unreduced={"b"}', '[{}, {"b", "a"}]'
    plan = plan_reshard((7, 5), "f32", "a=4,b=2", *ends, target_mesh=text)
    assert [s.kind for s in plan.steps] == ["all_reduce", "pieces"] and plan.steps[0].rounds == 1


def test_what_may_be_written_for_a_mesh_and_a_sharding():
    mesh = MESHES["4x2"]
    plan = plan_reshard((64, 64), "f32", mesh, split(mesh, "a", ""), split(mesh, "", "ab"))
    for text in ("a=4,b=2", " a = 4, b=2 ", '<["a"=4, "b"=2]>', 'sdy.mesh @m = <["a"=4,"b"=2]>', {"a": 4, "b": 2}):
        for source in ('[{"a"}, {}]', '#sdy.sharding<@m, [{"a"}, {?}]>', '<@x, [{"a"},{}]>', ("a", None), [("a",), ()]):
            got = plan_reshard((64, 64), "float32", text, source, (None, ("a", "b")))
            assert got.as_text() == plan.as_text()
    axis = collectives.as_sharding('[{"a":(2)2}, {}], unreduced={"b"}', collectives.as_mesh("a=4,b=2"))
    assert axis.to_text() == '#sdy.sharding<@mesh, [{"a":(2)2}, {}], unreduced={"b"}>'
    assert 'pieces over a,b in 3 permutes: [{"a"}, {}] -> [{}, {"a", "b"}], 1.5 KiB' in plan.as_text()


def test_specs_of_jax():
    jax = pytest.importorskip("jax")
    spec = jax.sharding.PartitionSpec
    plan = plan_reshard((64, 64), np.float32, "a=4,b=2", spec("a", None), spec(None, "a"))
    assert [s.kind for s in plan.steps] == ["all_to_all"]


@pytest.mark.parametrize(
    ("dtype", "item"),
    [("f32", 4), ("float32", 4), (np.float64, 8), ("bool", 1), ("uint8", 1), ("bfloat16", 2), ("float8_e4m3fn", 1),
     ("complex64", 8), ("int4", 0.5), ("i64", 8), (np.dtype("int16"), 2)],
)  # fmt: skip
def test_element_types_by_any_name(dtype, item):
    assert plan_reshard((64,), dtype, "a=4", ("a",), (None,)).bytes == 48 * item


S, R = collectives.errors.UnsupportedShardingError, collectives.errors.ReshardError


@pytest.mark.parametrize(
    ("error", "change"),
    [(R, {"dtype": "foo"}), (R, {"dtype": None}), (R, {"dtype": 3}), (R, {"shape": (64, -64)}),
     (R, {"shape": (64, 64.5)}), (R, {"shape": "xx"}), (R, {"shape": None}), (R, {"shape": (64, True)}),
     (R, {"shape": (64,)}), (S, {"mesh": "b=2"}), (S, {"mesh": None}), (S, {"mesh": "a=4,,b=2"}), (S, {"mesh": "a"}),
     (S, {"mesh": "a=4,a=2"}), (S, {"mesh": {"a": "x"}}), (S, {"mesh": "a=0"}), (S, {"mesh": 3}),
     (S, {"source": '[{"a"}, {"a"}]'}), (S, {"source": ("a", "a")}), (S, {"source": ("z", None)}),
     (S, {"source": '[{"a"}, {}'}), (S, {"source": '[{"a"}, {}] x'}), (S, {"source": None}), (S, {"source": (1, 2)}),
     (S, {"source": '[{"a":(3)2}, {}]'}), (S, {"source": '[{"b"}, {}], unreduced={"b"}'}),
     (S, {"target_mesh": "a=2,b=4"}), (S, {"target_mesh": '<["a"=4, "b"=2], device_ids=[0, 1]>'}),
     (collectives.errors.TopologyError, {"topology": 3}), (collectives.errors.TopologyError, {"topology": "v5e:4x4"})],
)  # fmt: skip
def test_what_cannot_be_planned(error, change):
    asked = {"shape": (64, 64), "dtype": "f32", "mesh": "a=4,b=2", "source": ("a", None), "target": (None, "a")}
    with pytest.raises(error) as found:
        plan_reshard(**{**asked, **change})
    assert type(found.value) is error


def test_planning_for_256_devices_takes_little():
    """Under 100 ms but for a few in a thousand; what is asked again is remembered."""
    mesh = Mesh("m", tuple((c, 2) for c in "abcdefgh"))
    rng = np.random.default_rng(5)
    took = []
    for _ in range(30):
        ends = []
        for _ in range(2):
            where = rng.integers(-1, 2, size=8)
            ends.append(split(mesh, *("".join(c for c, w in zip("abcdefgh", where) if w == d) for d in range(2))))
        start = time.process_time()
        plan = plan_reshard((4096, 4096), "f32", mesh, *ends)
        took.append(time.process_time() - start)
        assert plan.ratio < 1.5
    assert sorted(took)[-3] < 0.1


def test_planners_of_equal_meshes_share_what_they_found(monkeypatch):
    """Programs after the first on a mesh shape are not searched for the same plans again; others are."""
    mesh = lambda *names: Atoms(Mesh("mesh", [(n, 4) for n in names]))
    move = ((0,), ()), ((), (0,))
    ask = lambda atoms, **kind: Planner(atoms, **kind).plan((1040, 528), 4.0, *((*d,) for d in move))
    first = ask(mesh("a", "b"))
    monkeypatch.setattr("collectives.reshard.planner.search", lambda *_: pytest.fail("searched again"))
    assert ask(mesh("c", "d")) is first
    with pytest.raises(pytest.fail.Exception):
        ask(mesh("a", "b"), memory=1 << 30)
