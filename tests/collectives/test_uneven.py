"""Reshards of dimensions that do not divide: what a program does costs what `plan_reshard` says, and moves the right
elements to the right places. Judged by XLA's CPU devices."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

import collectives
from collectives import plan_reshard
from collectives.layout import Atoms
from collectives.reshard.boxes import boxes_between
from propagation.model import AxisRef, DimSharding, Mesh, TensorSharding

from . import harness
from .test_reshard import MESHES, lacking

MESH_5 = Mesh("m", (("a", 5),))


def program(shape, source, target) -> str:
    """The argument, whole, brought to `source`, to `target` and back to everybody, nothing passing by the two."""
    type_ = f"tensor<{'x'.join(map(str, shape))}xf32>"
    whole = f"{{sdy.sharding = #sdy.sharding<@m, [{', '.join(['{}'] * len(shape))}]>}}"
    steps, value = "", "%x"
    for i, s in enumerate((source, target)):
        on = s.to_text().removeprefix("#sdy.sharding")
        barrier = f"stablehlo.optimization_barrier {{sdy.sharding = #sdy.sharding_per_value<[{on}]>}}"
        steps += f"  %c{i} = sdy.sharding_constraint {value} {on} : {type_}\n  %b{i} = {barrier} %c{i} : {type_}\n"
        value = f"%b{i}"
    head = f"func.func @main(%x: {type_} {whole}) -> ({type_} {whole})"
    return f"sdy.mesh @m = {source.mesh.to_text()}\n{head} {{\n{steps}  return {value} : {type_}\n}}"


def draw(rng: random.Random, mesh: Mesh, rank: int) -> TensorSharding:
    """A sharding over some of the mesh's axes, or halves of them."""
    parts = []
    for name, size in mesh.axes:
        if size % 2 == 0 and size > 2 and rng.random() < 0.4:
            parts += [AxisRef(name, 1, 2), AxisRef(name, 2, size // 2)]
        else:
            parts.append(mesh.axis(name))
    rng.shuffle(parts)
    dims: list[list] = [[] for _ in range(rank)]
    for axis in parts:
        where = rng.randrange(-1, rank)
        if where >= 0 and not (dims[where] and dims[where][-1].name == axis.name):
            dims[where].append(axis)
    return TensorSharding(mesh, [DimSharding(d) for d in dims])


def check(shape, source, target):
    mesh = source.mesh
    there = plan_reshard(shape, "f32", mesh, source, target)
    back = plan_reshard(shape, "f32", mesh, target, TensorSharding.replicated_on(mesh, len(shape)))
    text = program(shape, source, target)
    result = collectives.partition(text, optimize=False)
    assert sum(e.bytes for e in result.plan) == pytest.approx(there.bytes + back.bytes), text
    assert len(result.plan) == sum(s.rounds for s in (*there.steps, *back.steps)), text
    x = np.arange(1, 1 + math.prod(shape), dtype=np.float32).reshape(shape)
    (got,), _ = harness.run_partitioned(collectives.partition(text), [x], [shape])
    np.testing.assert_array_equal(got, x)
    return there


def sampled(name: str, count: int, seed: int):
    mesh = MESH_5 if name == "5" else MESHES[name]
    rng = random.Random(seed)
    for _ in range(count):
        rank = rng.randint(1, 3)
        shape = tuple(rng.choice((1, 2, 3, 5, 7, 8, 11, 12, 13)) for _ in range(rank))
        yield shape, draw(rng, mesh, rank), draw(rng, mesh, rank)


@pytest.mark.parametrize("name", ["8", "4x2", "2x2x2", "3x2", "5"])
def test_programs_cost_what_plans_say(name):
    kinds = set()
    for shape, source, target in sampled(name, 6, 3):
        kinds |= {s.kind for s in check(shape, source, target).steps}
    assert kinds


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["8", "4x2", "2x2x2", "3x2", "5"])
def test_many_programs_cost_what_plans_say(name, seed):
    for shape, source, target in sampled(name, 40, 100 + seed):
        check(shape, source, target)


@pytest.mark.smoke
def test_boxes_are_the_bound_where_one_dimension_does_not_divide():
    mesh = MESHES["4x2"]
    on = lambda *dims: TensorSharding(mesh, [DimSharding([mesh.axis(a) for a in d]) for d in dims])
    source, target = on("a", "b"), on("b", "a")
    plan = check((13, 8), source, target)
    assert [s.kind for s in plan.steps] == ["pieces"] and plan.bound == 4 * lacking((13, 8), source, target)
    assert plan.bytes <= 1.5 * plan.bound


def test_boxes_of_any_two_layouts_bring_what_is_lacking():
    """Element by element: windows of the senders' pieces, put into the receivers', give every device its part."""
    rng = random.Random(1)
    for _ in range(150):
        mesh = rng.choice([MESHES["4x2"], MESHES["2x2x2"], MESHES["3x2"], MESH_5])
        rank = rng.randint(1, 3)
        shape = tuple(rng.randint(1, 13) for _ in range(rank))
        source, target = draw(rng, mesh, rank), draw(rng, mesh, rank)
        atoms = Atoms(mesh, (*source.axes, *target.axes))
        found = boxes_between(shape, atoms.dims(source), atoms.dims(target), atoms.sizes)
        if found is None:
            continue
        groups = atoms.groups(found.atoms)
        x = np.arange(math.prod(shape)).reshape(shape)
        old, new = harness.pieces(x, source), harness.pieces(x, target)
        held, wide = (s.shard_shape(shape) for s in (source, target))
        wide = tuple(n + low + high for n, low, high in zip(wide, found.low, found.high))
        at = lambda corner, box: tuple(slice(c, c + n) for c, n in zip(corner, box))
        got = [np.full(wide, -1) for _ in new]
        for put in (*found.rounds, *found.own):
            senders = put.sender[put.sender >= 0]
            assert len(set(senders.tolist())) == len(senders)
            for devices in groups:
                for receiver, sender in enumerate(put.sender.tolist()):
                    if sender < 0:
                        continue
                    piece = old[devices[sender]]
                    padded = np.pad(piece, [(0, n - m) for n, m in zip(held, piece.shape)], constant_values=-2)
                    part = padded[at(put.cut_at[sender], put.box)]
                    assert part.shape == put.box
                    where = got[devices[receiver]][at(put.put_at[receiver], put.box)]
                    assert where.shape == put.box
                    where[...] = part
        for whole, want in zip(got, new):
            np.testing.assert_array_equal(whole[at(found.low, want.shape)], want)


def unreduced(rng: random.Random, name: str):
    """A shape, an argument unreduced over some axes whose dimensions divide, and a target for which they may not."""
    mesh = MESH_5 if name == "5" else MESHES[name]
    rank = rng.randint(1, 3)
    shape = tuple(rng.choice((2, 3, 5, 7, 8, 12, 13)) for _ in range(rank))
    drawn, target = draw(rng, mesh, rank), draw(rng, mesh, rank)
    dims = []
    for n, dim in zip(shape, drawn.dims):
        axes = dim.axes
        while n % math.prod(a.size for a in axes):
            axes = axes[:-1]
        dims.append(DimSharding(axes))
    used = {a.name for d in dims for a in d.axes}
    free = [mesh.axis(a) for a in mesh.axis_names if a not in used]
    return shape, TensorSharding(mesh, dims, (), free[: rng.randint(0, len(free))]), target


def check_sums(rng: random.Random, name: str):
    shape, source, target = unreduced(rng, name)
    mesh, whole = source.mesh, TensorSharding.replicated_on(source.mesh, len(shape))
    type_ = f"tensor<{'x'.join(map(str, shape))}xf32>"
    on = target.to_text().removeprefix("#sdy.sharding")
    order = list(range(mesh.size))
    rng.shuffle(order)
    text = (
        f"sdy.mesh @m = {mesh.to_text()[:-1]}, device_ids={order}>\n"
        f"func.func @main(%x: {type_} {{sdy.sharding = {source.to_text()}}}) -> "
        f"({type_} {{sdy.sharding = {whole.to_text()}}}) {{\n  %c = sdy.sharding_constraint %x {on} : {type_}\n"
        f"  %b = stablehlo.optimization_barrier {{sdy.sharding = #sdy.sharding_per_value<[{on}]>}} %c : {type_}\n"
        f"  return %b : {type_}\n}}"
    )
    plans = [plan_reshard(shape, "f32", mesh, *ends) for ends in ((source, target), (target, whole))]
    result = collectives.partition(text, optimize=False)
    assert sum(e.bytes for e in result.plan) == pytest.approx(sum(p.bytes for p in plans)), text
    values = np.random.default_rng(0)
    atoms = Atoms(mesh, source.unreduced)
    place = atoms.coordinate(atoms.of_axes(source.unreduced))
    addends = [values.integers(-9, 9, shape).astype(np.float32) for _ in range(place.max() + 1)]
    shards = [harness.pieces(addends[k], source)[d] for d, k in enumerate(place.tolist())]
    (out,) = harness.Compiled(collectives.partition(text).as_text(), mesh.size)([shards])
    np.testing.assert_array_equal(harness.unshard(out, shape, whole), sum(addends))


@pytest.mark.parametrize("name", ["8", "4x2", "2x2x2", "3x2", "5"])
def test_sums_of_what_does_not_divide_cost_what_plans_say(name):
    rng = random.Random(11)
    for _ in range(4):
        check_sums(rng, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["8", "4x2", "2x2x2", "3x2", "5"])
def test_many_sums_of_what_does_not_divide_cost_what_plans_say(name):
    rng = random.Random(12)
    for _ in range(60):
        check_sums(rng, name)


FEW = {"f32": np.float32, "f16": np.float16, "i1": np.bool_, "i8": np.int8, "complex<f32>": np.complex64}


@pytest.mark.parametrize("dtype", FEW)
def test_few_elements_on_many_devices_are_added_up(dtype):
    """All but some of the devices hold padding: it is not sent along, and bits arrive as they are."""
    mesh = Mesh("m", (("x", 8),))
    split = TensorSharding(mesh, [DimSharding([]), DimSharding([mesh.axis("x")])])
    plan = plan_reshard((6, 2), dtype, mesh, split, (None, None))
    assert [s.kind for s in plan.steps] == ["all_reduce"]
    x = np.array([np.nan, -np.nan, -0.0, 1e-7, np.inf, 3.0] * 2).reshape(6, 2)
    x = (np.arange(12).reshape(6, 2) if dtype == "i8" else x).astype(FEW[dtype])
    text = program((6, 2), split, split).replace("x2xf32", f"x2x{dtype}")
    (got,), _ = harness.run_partitioned(collectives.partition(text, optimize=False), [x], [(6, 2)])
    np.testing.assert_array_equal(got.view(np.uint8), x.view(np.uint8))
