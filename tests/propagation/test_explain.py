"""Explanations are replayed: every step of every chain must have happened as it says."""

from __future__ import annotations

import itertools

import pytest

import propagation
from benchmarks.peers import Peer
from propagation import errors
from propagation.axes import contains
from propagation.fuzz import module
from propagation.program import Func

from . import feature_cases
from .test_differential import CASES


def _has(sharding, dim, axis) -> bool:
    if sharding is None or dim >= len(sharding.dims):
        return False
    return any(contains(a, axis) for a in sharding.dims[dim].axes)


def _replay_step(log, step, following) -> None:
    if step.number is None:  # it began with the sharding of another member of its group
        op, first = log.shared[step.value]
        assert op is step.op and step.factor is None and _has(log.initial(log.slot_of(first)), step.dim, step.axis)
        assert step.source is following.value and step.dim == step.source_dim == following.dim
        return
    event = log.events[step.number]
    assert event.op is step.op and event.round == step.round
    table = {}
    target = log._slot[step.value.index] if step.value is not None else event.slots[1]
    for t, new in event.decision.changes:
        table[event.slots[t]] = (t, new)
    t, new = table[target]
    assert _has(new, step.dim, following.axis) and not _has(event.before[t], step.dim, step.axis)
    source = log._slot[step.source.index] if step.source is not None else event.slots[1]
    sources = [s for s, slot in enumerate(event.slots) if slot == source]
    assert any(_has(event.before[s], step.source_dim, following.axis) for s in sources), step
    if event.rule is not None and not isinstance(event.op, Func):
        mappings = (*event.rule.operands, *event.rule.results)
        assert step.factor in mappings[t][step.dim]
        assert any(step.factor in mappings[s][step.source_dim] for s in sources)
    else:
        assert step.dim == step.source_dim
    assert step.source is following.value and step.source_dim == following.dim


def _replay(result) -> int:
    """Replays every chain of `result`; the number of chains."""
    log, count = result.log, 0
    inserted = {"sdy.reshard", "sdy.all_reduce", "sdy.replicated_to_unreduced", "sdy.sharded_to_unreduced"}
    for func in result.program.funcs.values():
        values = [*func.args, *(v for op in func.body.walk() for v in op.results)]
        for value in values:
            sharding = result.sharding(value)
            if sharding is None or (value.index >= len(log._slot) and value.op.name in inserted):
                continue
            for dim, d in enumerate(sharding.dims):
                count += _replay_chains(result, d.axes, result.explain(value, dim), None)
        for number, sharding in enumerate(result.shardings.results[func] if func in log._results else ()):
            for dim, d in enumerate(sharding.dims if sharding is not None else ()):
                chains = log.explain_result(func, number, dim, d.axes)
                count += _replay_chains(result, d.axes, chains, log._results[func][number])
    return count


def _replay_chains(result, axes, chains, slot: int | None) -> int:
    """Replays the chain of each of `axes`; `slot` is the place of what they start at, if that is a function's result.
    The number of chains."""
    assert len(chains) == len(axes)
    for axis, chain in zip(axes, chains):
        assert contains(axis, chain[0].axis)  # all of it, or a part where others have the rest
        numbers = [s.number for s in chain[:-1] if s.number is not None]
        assert numbers == sorted(numbers, reverse=True) and len(numbers) in (len(chain) - 1, len(chain) - 2)
        for step, following in itertools.pairwise(chain):
            _replay_step(result.log, step, following)
        before = chain[-2].number if len(chain) > 1 else None
        start = slot if len(chain) == 1 else None if before is None else result.log.events[before].slots[1]
        _replay_end(result, chain[-1], start)
    return len(chains)


def _replay_end(result, last, result_slot: int | None) -> None:
    """A chain ends at an annotation: of the value, of a constraint that was put on it before the decisions, or of a
    manual computation, whose edges know its manual axes from the start. `result_slot` is the place of a function's
    result, if that is where it ends."""
    log, by = result.log, last.constraint
    assert last.op is None
    if last.is_inserted:
        assert result.stage == "pipeline" and not _has(log.decided(last.value), last.dim, last.axis)
        uses = [op.name for op in result.program.main.body.walk() if last.value in op.operands]
        assert uses and set(uses) <= {"sdy.reshard", "sdy.all_reduce"}  # its users want something else
        return
    slot = result_slot if last.value is None else log._slot[last.value.index]
    is_applied = any(op is by and log._slot[value.index] == slot for op, value in log.applied)
    if _has(log._initial[slot], last.dim, last.axis) and (by is None or is_applied):
        return
    assert by.name == "sdy.manual_computation" and last.axis.name in by.data["manual_axes"], last
    annotated = [*by.data["in_shardings"], *(result.sharding(v) for v in by.results)]
    assert any(_has(s, last.dim, last.axis) for s in annotated)


@pytest.mark.parametrize("stage", ["propagated", "closed"])
def test_chains_of_random_modules(stage):
    chains = 0
    for seed in range(120):
        try:
            chains += _replay(propagation.run(module(seed), stage, chlo=False))
        except errors.UnsupportedModuleError:
            continue
    assert chains > 1000


@pytest.mark.smoke
@pytest.mark.parametrize("stage", ["user_priority", "propagated", "closed", "pipeline"])
def test_chains_of_features_and_shrunk_cases(stage):
    modules = [path.read_text() for path in CASES] + [feature_cases.module(name) for name in feature_cases.CASES]
    assert sum(_replay(propagation.run(text, stage, chlo=False)) for text in modules) > 140


def test_chains_of_programs_from_meshrt():
    peer, chains = Peer("meshrt", 8), 0
    try:
        for unrolled in (False, True):
            model = {"layers": 2, "width": 32, "heads": 2, "hidden": 64, "context": 32, "batch": 8, "vocabulary": 64}
            text = peer("lowered_text", model={**model, "unrolled": unrolled}, mesh={"data": 4, "model": 2})
            chains += _replay(propagation.run(text, whole_axes=True))
    finally:
        peer.close()
    assert chains > 2000


def test_chains_of_programs_from_jax():
    from . import programs

    chains = sum(_replay(propagation.run(text)) for _, text in programs.programs(quick=True))
    assert chains > 4000


MATMUL = """sdy.mesh @mesh = <["a"=2, "b"=4]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>},
                %w: tensor<16x32xf32>) -> tensor<8x32xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
       : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  REST
}"""


def _missing(rest: str) -> list[str]:
    return [str(m) for m in propagation.run(MATMUL.replace("REST", rest)).missing()]


def test_nothing_is_missing_where_all_is_sharded():
    assert _missing("return %0 : tensor<8x32xf32>") == []


def test_missing_names_what_stopped_an_axis():
    closed = """%1 = stablehlo.tanh %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>]>} : tensor<8x32xf32>
    return %1 : tensor<8x32xf32>"""
    (found,) = _missing(closed)
    assert "the dimension is closed" in found and "stablehlo.tanh" in found and "-:6" in found
    unknown = '%1 = "my.op"(%0) : (tensor<8x32xf32>) -> tensor<8x32xf32>\nreturn %1 : tensor<8x32xf32>'
    (found,) = _missing(unknown)
    assert "no sharding rule" in found
    blocked = """%c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_slice %0, %c, %c, sizes = [4, 32]
         : (tensor<8x32xf32>, tensor<i32>, tensor<i32>) -> tensor<4x32xf32>
    %2 = stablehlo.reshape %1 : (tensor<4x32xf32>) -> tensor<128xf32>
    return %0 : tensor<8x32xf32>"""
    assert _missing(blocked) == []  # removed: nothing uses it


def test_steps_name_factor_strategy_and_round():
    result = propagation.run(MATMUL.replace("REST", "return %0 : tensor<8x32xf32>"))
    (chain,) = result.explain(result.program.main.returned[0], 0)
    step = chain[0]
    assert (step.op.name, step.factor, step.strategy) == ("stablehlo.dot_general", 0, "aggressive")
    assert "along factor 0, aggressive strategy, round 2" in str(step)


def test_dimensions_of_a_later_priority_come_from_their_annotation():
    """What was decided while they were held back is not the value's last sharding."""
    note = '{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {"b"}p1]>]>}'
    rest = f"%1 = stablehlo.tanh %0 {note} : tensor<8x32xf32>\nreturn %1 : tensor<8x32xf32>"
    result = propagation.run(MATMUL.replace("REST", rest))
    assert _replay(result) > 0
    (chain,) = result.explain("%1:1")
    assert [str(step) for step in chain] == [
        "dimension 1 of <%3 tensor<8x32xf32>, result of stablehlo.tanh 0> is annotated with axis 'b' by the user (-:6)"
    ]


def test_an_axis_put_together_of_parts_comes_from_its_major_one():
    """A reshape merges dimensions of which each has a part of the axis."""
    text = """sdy.mesh @mesh = <["x"=8]>
    func.func @main(%x: tensor<4x1024xf32>)
        -> (tensor<4x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
      %0 = stablehlo.reshape %x : (tensor<4x1024xf32>) -> tensor<4x4x256xf32>
      %1 = stablehlo.tanh %0 : tensor<4x4x256xf32>
      %2 = stablehlo.reshape %1 : (tensor<4x4x256xf32>) -> tensor<4x1024xf32>
      return %2 : tensor<4x1024xf32> }"""
    result = propagation.run(text)
    assert _replay(result) > 3
    (chain,) = result.explain("arg0", 1)
    assert [(step.axis.size, step.dim) for step in chain] == [(4, 1)] * 5
    assert chain[-1].value is None and "annotated with axis 'x'" in str(chain[-1])
