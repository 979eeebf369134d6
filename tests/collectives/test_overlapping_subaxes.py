"""Sub-axes that overlap such that no refinement of the mesh has them all: "x":(1)2 and "x":(1)3 of 6 or 12 devices.

Programs with random shardings over such parts equal one device and what XLA's partitioner makes of them; propagation
decides what the real Shardy decides.
"""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

import collectives
import propagation
from collectives.annotations import Propagation
from collectives.module import _partition
from collectives.options import Options
from collectives.overlapping_subaxes import Overlapping
from propagation.annotations import parse_sharding
from propagation.fuzz.compare import compare
from propagation.fuzz.oracle import Oracle
from propagation.model import Mesh

from . import harness

MESHES = {"6": (("x", 6),), "2x6": (("y", 2), ("x", 6)), "12": (("x", 12),), "6x2": (("x", 6), ("y", 2))}
N = 12
KINDS = ["add", "multiply", "tanh", "transpose", "dot", "reduce", "broadcast", "reverse", "slice", *2 * ["constraint"]]


def parts(mesh):
    """Every axis and sub-axis: its text, its size, and what it is of."""
    out = []
    for name, size in mesh:
        out.append((f'"{name}"', size, (name, 1, size)))
        cuts = [k for k in range(1, size + 1) if size % k == 0]
        for pre in cuts:
            for end in cuts:
                if end > pre and end % pre == 0 and (pre, end) != (1, size):
                    out.append((f'"{name}":({pre}){end // pre}', end // pre, (name, pre, end)))
    return out


def _coexist(a, b):
    """Whether two parts may stand in one sharding: disjoint, and cut by one chain of boundaries."""
    if a[0] != b[0]:
        return True
    (_, low_end), (high, _) = sorted([a[1:], b[1:]])
    return high % low_end == 0


def sharding(rng, mesh, rank, share=0.6):
    """The dimensions of a sharding of a tensor of `rank`, all of size N."""
    used, dims = [], []
    for _ in range(rank):
        own, size = [], 1
        while rng.random() < share and len(own) < 2:
            text, n, part = rng.choice(parts(mesh))
            joined = own and used[-1][0] == part[0] and used[-1][2] == part[1]  # to be written as one
            if N % (size * n) == 0 and all(_coexist(part, u) for u in used) and not joined:
                own.append(text)
                used.append(part)
                size *= n
            else:
                break
        dims.append("{" + ", ".join(own) + "}")
    return f"<@mesh, [{', '.join(dims)}]>"


def program(rng, mesh, count):
    """A module whose tensors have dimensions of size N, with a random sharding at every second value."""
    t = lambda rank: "tensor<" + f"{N}x" * rank + "f32>"
    note = lambda rank: f"{{sdy.sharding = #sdy.sharding{sharding(rng, mesh, rank)}}}"
    values = [(f"%a{i}", rng.choice([1, 2, 2, 2, 3])) for i in range(3)]
    args = ", ".join(f"{v}: {t(r)} {note(r)}" for v, r in values)
    ranks, lines = [r for _, r in values], []

    def emit(text, rank):
        name = f"%{len(lines)}"
        lines.append(f"  {name} = {text}")
        values.append((name, rank))

    for _ in range(count):
        a, rank = rng.choice(values)
        same = [v for v, r in values if r == rank]
        kind = rng.choice(KINDS)
        if kind in ("add", "multiply"):
            emit(f"stablehlo.{kind} {a}, {rng.choice(same)} : {t(rank)}", rank)
        elif kind == "tanh":
            emit(f"stablehlo.tanh {a} : {t(rank)}", rank)
        elif kind == "transpose":
            dims = rng.sample(range(rank), rank)
            emit(f"stablehlo.transpose {a}, dims = {dims} : ({t(rank)}) -> {t(rank)}", rank)
        elif kind == "dot":
            b, other = rng.choice(values)
            if not 0 < rank + other - 2 <= 3:
                continue
            i, j, made = rng.randrange(rank), rng.randrange(other), rank + other - 2
            types = f"({t(rank)}, {t(other)}) -> {t(made)}"
            emit(f"stablehlo.dot_general {a}, {b}, contracting_dims = [{i}] x [{j}] : {types}", made)
        elif kind == "reduce" and rank > 1:
            lines.append(f"  %{len(lines)} = stablehlo.constant dense<0.0> : tensor<f32>")
            over = f"applies stablehlo.add across dimensions = [{rng.randrange(rank)}]"
            types = f"({t(rank)}, tensor<f32>) -> {t(rank - 1)}"
            emit(f"stablehlo.reduce({a} init: %{len(lines) - 1}) {over} : {types}", rank - 1)
        elif kind == "broadcast" and rank < 3:
            dims = sorted(rng.sample(range(rank + 1), rank))
            emit(f"stablehlo.broadcast_in_dim {a}, dims = {dims} : ({t(rank)}) -> {t(rank + 1)}", rank + 1)
        elif kind == "reverse":
            emit(f"stablehlo.reverse {a}, dims = [{rng.randrange(rank)}] : {t(rank)}", rank)
        elif kind == "slice":
            d = rng.randrange(rank)
            cut = [f"{6 * (i == d)}:{N}" for i in range(rank)]
            half = "tensor<" + "".join(f"{6 if i == d else N}x" for i in range(rank)) + "f32>"
            lines.append(f"  %{len(lines)} = stablehlo.slice {a} [{', '.join(cut)}] : ({t(rank)}) -> {half}")
            one = f"%{len(lines) - 1}"
            emit(f"stablehlo.concatenate {one}, {one}, dim = {d} : ({half}, {half}) -> {t(rank)}", rank)
        elif kind == "constraint":
            emit(f"sdy.sharding_constraint {a} {sharding(rng, mesh, rank)} : {t(rank)}", rank)
    outs = rng.sample(values[3:], min(2, len(values) - 3)) or values[:1]
    results = ", ".join(t(r) + (f" {note(r)}" if rng.random() < 0.7 else "") for _, r in outs)
    axes = ", ".join(f'"{n}"={s}' for n, s in mesh)
    names, types = ", ".join(v for v, _ in outs), ", ".join(t(r) for _, r in outs)
    body = "\n".join(lines)
    head = f"sdy.mesh @mesh = <[{axes}]>\nfunc.func @main({args}) -> ({results}) {{"
    return f"{head}\n{body}\n  return {names} : {types}\n}}\n", ranks


def plain(text):
    """The program without shardings."""
    text = re.sub(r"sdy\.mesh @\w+ = <.*>\n", "", text)
    text = re.sub(r" \{sdy\.sharding = #sdy\.sharding<(?:[^<>]|<[^<>]*>)*>\}", "", text)
    return re.sub(
        r"sdy\.sharding_constraint (%\w+) <.*> : (tensor<.*>)", r"stablehlo.optimization_barrier \1 : \2", text
    )


def check(shape, seed, by_xla=False):
    """(whether the program's sub-axes have no common refinement, bytes sent by ours and by XLA's)."""
    rng = random.Random(f"{shape}{seed}")
    text, ranks = program(rng, MESHES[shape], rng.choice([3, 6, 10]))
    args = [
        np.asarray(np.random.RandomState(seed + i).randint(-2, 3, (N,) * r), np.float32) for i, r in enumerate(ranks)
    ]
    want = harness.one_device(plain(text), args)
    shapes = [w.shape for w in want]
    propagated = propagation.run(text)
    known = Propagation(propagated)
    found = collectives.partition(propagated)
    overlaps = len(Overlapping.candidates(known, known.used_axes(), found.mesh, known.results())) > 1
    got, compiled = harness.run_partitioned(found, args, shapes)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-3)
    sent = [harness.hlo_bytes(compiled.hlo(), found.mesh.size)[0], 0.0]
    if by_xla:
        annotated = re.sub(r"sdy\.reshard (?=%)", "sdy.sharding_constraint ", propagation.run(text).as_text())
        theirs = harness.Compiled(annotated, found.mesh.size, by_xla=True)
        shards = theirs([harness.pieces(a, s) for a, s in zip(args, found.arg_shardings)])
        for pieces, g, s in zip(shards, got, found.result_shardings):
            np.testing.assert_allclose(harness.unshard(pieces, g.shape, s), g, rtol=1e-4, atol=1e-3)
        sent[1] = harness.hlo_bytes(theirs.hlo(), found.mesh.size)[0]
    return overlaps, sent


@pytest.mark.parametrize("shape", MESHES)
def test_programs_equal_one_device_and_xla(shape):
    assert sum(check(shape, seed, by_xla=seed < 2)[0] for seed in range(5)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5, 100))
@pytest.mark.parametrize("shape", MESHES)
def test_more_programs_equal_one_device(shape, seed):
    check(shape, seed)


@pytest.mark.slow
def test_all_together_send_less_than_xlas():
    found = [sent for overlaps, sent in (check("6", seed, by_xla=True) for seed in range(60)) if overlaps]
    ours, theirs = np.sum(found, 0)
    assert len(found) > 30 and ours < 0.7 * theirs


@pytest.mark.parametrize("shape", MESHES)
def test_propagation_is_shardys(shape):
    compared = 0
    with Oracle() as oracle:
        for seed in range(25):
            rng = random.Random(f"{shape}{seed}")
            text, _ = program(rng, MESHES[shape], rng.choice([3, 6, 10]))
            found = compare(text, oracle("closed", text))
            assert not found.is_failure, (seed, found.detail)
            compared += found.verdict == "agree"
    assert compared > 15


def test_the_boundaries_of_most_bytes_are_kept_and_others_change_hands_at_the_edges():
    text = """sdy.mesh @mesh = <["x"=6]>
    func.func @main(%a: tensor<36xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)3}]>},
        %b: tensor<12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)2}]>}) ->
        (tensor<36xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)3}]>},
         tensor<12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)2}]>}) {
      %0 = stablehlo.tanh %a : tensor<36xf32>
      %1 = stablehlo.tanh %b : tensor<12xf32>
      return %0, %1 : tensor<36xf32>, tensor<12xf32> }"""
    found = collectives.partition(propagation.run(text))
    assert [s.to_text() for s in found.arg_shardings] == [
        '#sdy.sharding<@mesh, [{"x":(1)3}]>', '#sdy.sharding<@mesh, [{"x":(1)2}]>',
    ]  # fmt: skip
    assert [(e.kind, e.bytes) for e in found.plan.entries] == [("collective_permute", 24.0)] * 2
    assert "a sub-axis that overlaps others, argument 1" in found.plan.as_text()


def test_images_have_the_same_pieces():
    mesh = Mesh("mesh", (("x", 12), ("y", 2)))
    overlapping = Overlapping(mesh, {"x": {1, 4, 12}})
    rng = random.Random(0)
    for _ in range(200):
        text = "#sdy.sharding" + sharding(rng, mesh.axes, 3)
        given = parse_sharding(text, {"mesh": mesh})
        image = overlapping.image(given)
        assert [d.factor for d in image.dims] == [d.factor for d in given.dims]
        overlapping.atoms.dims(image)  # can be written in atoms
        pairs = overlapping.pairs(given, image)
        if pairs is not None:
            have, want = overlapping._pieces(given), overlapping._pieces(image)
            assert (have[pairs[:, 0]] == want[pairs[:, 1]]).all()
            assert sorted(pairs[:, 0]) == sorted(pairs[:, 1]) == list(range(24))


MANUAL = """sdy.mesh @mesh = <["x"=6]>
    func.func @main(%a: tensor<36xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)3}]>}, %b: tensor<12xf32>) ->
        (tensor<36xf32>, tensor<12xf32>) {
      %0 = sdy.manual_computation(%b) in_shardings=[<@mesh, [{"x":(1)2}]>] out_shardings=[<@mesh, [{"x":(1)2}]>]
          manual_axes={"x"} (%c: tensor<6xf32>) {
        %1 = stablehlo.tanh %c : tensor<6xf32>
        sdy.return %1 : tensor<6xf32>
      } : (tensor<12xf32>) -> tensor<12xf32>
      return %a, %0 : tensor<36xf32>, tensor<12xf32> }"""


def test_others_stand_for_parts_that_overlap_those_of_manual_axes():
    a, b = np.arange(36, dtype=np.float32), np.arange(12, dtype=np.float32)
    got, _ = harness.run_partitioned(collectives.partition(propagation.run(MANUAL)), [a, b], [(36,), (12,)])
    np.testing.assert_array_equal(got[0], a)
    np.testing.assert_allclose(got[1], np.tanh(b), rtol=1e-5)


def test_overlapping_parts_of_manual_axes():
    text = MANUAL.replace(
        "return %a, %0",
        """%2 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x":(1)3}]>]
          out_shardings=[<@mesh, [{"x":(1)3}]>] manual_axes={"x"} (%c: tensor<12xf32>) {
        sdy.return %c : tensor<12xf32>
      } : (tensor<36xf32>) -> tensor<36xf32>
      return %2, %0""",
    )
    a, b = np.arange(36, dtype=np.float32), np.arange(12, dtype=np.float32)
    got, _ = harness.run_partitioned(collectives.partition(propagation.run(text)), [a, b], [(36,), (12,)])
    np.testing.assert_array_equal(got[0], a)
    np.testing.assert_allclose(got[1], np.tanh(b), rtol=1e-5)


@pytest.mark.parametrize("seed", [1, 20, 39])
def test_the_boundaries_are_those_that_send_least(seed):
    """Here they are not those of the most bytes at the edges, which come first."""
    rng = random.Random(f"6{seed}")
    propagated = propagation.run(program(rng, MESHES["6"], rng.choice([3, 6, 10]))[0])
    found, known = collectives.partition(propagated), Propagation(propagated)
    candidates = Overlapping.candidates(known, known.used_axes(), found.mesh, known.results())
    each = [_partition(known.program, known, None, Options(), o).plan.bytes for o in candidates]
    assert len(each) == 2 and found.plan.bytes <= min(each) < each[0]
