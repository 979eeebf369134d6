"""Annotations one by one, and that explanations replay: without the annotations that they name, shardings are gone."""

import random

import pytest

import propagation
from propagation.annotation_sites import Said, annotations_of, origins
from propagation.fuzz import module
from propagation.model import AxisRef, DimSharding, TensorSharding
from propagation.program import Value, read

TEXT = """sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %b: tensor<8x8xf32>)
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}]>}) {
  %0 = stablehlo.add %a, %b : tensor<8x8xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{?}, {"y", ?}]> : tensor<8x8xf32>
  %2 = stablehlo.tanh %1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {?}]>]>} : tensor<8x8xf32>
  return %2 : tensor<8x8xf32> }"""


def test_every_annotation_and_programs_without_one():
    said = annotations_of(read(TEXT))
    assert [s.kind for s in said] == ["argument", "constraint", "value", "result"]
    texts = lambda edit=None: [s.to_text() for s in propagation.run(TEXT, annotate=edit).result_shardings]
    assert texts() == ['#sdy.sharding<@mesh, [{"x"}, {"y"}]>']
    assert texts(said[0].saying(None)) == ['#sdy.sharding<@mesh, [{}, {"y"}]>']
    assert texts(said[1].saying(None)) == ['#sdy.sharding<@mesh, [{"x"}, {}]>']
    assert texts(said[3].saying(said[0].sharding)) == ['#sdy.sharding<@mesh, [{"x"}, {}]>']
    edited = annotations_of(read(TEXT), said[0].saying(None))
    assert [s.kind for s in edited] == ["constraint", "value", "result"]


# Computations say shardings of their own edges, which are no annotations of values; groups pass them on at once.
OTHERS = ("manual_computation", "named_computation", "func.call", "sharding_group")
SEEDS = [seed for seed in range(80) if not any(word in module(seed) for word in OTHERS)]


@pytest.mark.parametrize("seed", SEEDS)
def test_explanations_replay(seed):
    """Each axis of each value goes when the annotations that its explanation names are taken away one after the other
    (several may ask for the same)."""
    text, draw = module(seed), random.Random(seed)
    base, said = propagation.run(text), annotations_of(read(text))
    count = len(read(text).values)
    sharded = [v for v in base.program.values[:count] if (s := base.sharding(v)) is not None and s.axes]
    for value in draw.sample(sharded, min(2, len(sharded))):
        for dim, split in enumerate(base.sharding(value).dims):
            for axis in split.axes:
                assert any(chain[0].axis.name == axis.name for chain in base.explain(value, dim)), (value, dim, axis)
                _goes(text, said, value, dim, axis)


# What functions return, what a call says, and members of groups: seeds in which one of them is what a chain ends at.
@pytest.mark.parametrize("seed", [10, 13, 86, 141])
def test_explanations_replay_through_calls_and_groups(seed):
    text, draw = module(seed), random.Random(seed)
    base, said = propagation.run(text), annotations_of(read(text))
    count = len(read(text).values)
    inside = [v for op in base.program.main.body.walk() for v in op.results if op.name != "sdy.reshard"]
    sharded = [v for v in inside if v.index < count and (s := base.sharding(v)) is not None and s.axes]
    for value in draw.sample(sharded, min(2, len(sharded))):
        for dim, split in enumerate(base.sharding(value).dims):
            for axis in split.axes:
                _goes(text, said, value, dim, axis)


def test_a_group_names_the_member_that_was_annotated():
    text = """sdy.mesh @mesh = <["x"=4]>
    func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %b: tensor<8xf32>)
        -> tensor<8xf32> {
      sdy.sharding_group %a group_id=0 : tensor<8xf32>
      sdy.sharding_group %b group_id=0 : tensor<8xf32>
      return %b : tensor<8xf32> }"""
    (chain,) = propagation.run(text).explain("arg1", 0)
    assert [step.value.number for step in chain] == [1, 0] and chain[0].source is chain[1].value
    assert "from dimension 0 of" in str(chain[0]) and str(chain[0]).endswith("as a member of its sharding group")
    assert "is annotated with axis 'x' by the user" in str(chain[1])
    now = propagation.run(text)
    ((found, _),) = origins(now, now.program.main.args[1], 0, annotations_of(read(text)))
    assert (found.kind, found.number) == ("argument", 0)


CALLED = """sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
  %0 = call @f(%a) : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32> }
func.func private @f(%b: tensor<8xf32>) -> (tensor<8xf32> {RETURNED}) {
  %1 = stablehlo.tanh %b : tensor<8xf32>
  %2 = sdy.manual_computation(%1) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>]
      manual_axes={"x"} (%c: tensor<2xf32>) {
    %3 = stablehlo.sine %c : tensor<2xf32>
    sdy.return %3 : tensor<2xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32> }"""


def test_what_a_called_function_returns_is_an_annotation():
    text = CALLED.replace("{RETURNED}", '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}')
    (said,) = annotations_of(read(text))
    assert (said.kind, said.number, said.where) == ("returned", 0, "-:5")
    bare = propagation.run(text, annotate=said.saying(None)).program.main
    assert annotations_of(read(text), said.saying(None)) == [] and bare.result_attrs


def test_a_computation_in_a_called_function_is_told_as_what_uses_a_value():
    (chain,) = propagation.run(CALLED.replace(" {RETURNED}", "")).explain("arg0", 0)
    assert chain[-1].constraint is not None and chain[-1].constraint.name == "sdy.manual_computation"
    assert "by the sdy.manual_computation that uses it (-:7)" in str(chain[-1])


def test_what_enters_a_computation_and_comes_from_there_ends():
    text, count = module(6), 0
    base, said = propagation.run(text), annotations_of(read(text))
    for value in base.program.main.args:
        for dim in range(value.type.rank):
            origins(base, value, dim, said)
            count += len(base.explain(value, dim))
    assert count > 1


def _goes(text: str, said: list[Said], value: Value, dim: int, axis: AxisRef) -> None:
    changed: dict[tuple[str, int], TensorSharding] = {}
    for _ in range(len(said) + 1):
        now = propagation.run(text, annotate=lambda p, s: [_saying(said, k, v)(p, s) for k, v in changed.items()])
        same = now.program.values[value.index]
        sharding = now.sharding(same)
        if sharding is None or not any(a.name == axis.name for a in sharding.dims[dim].axes):
            return
        named = [s for s, step in origins(now, same, dim, said) if step.axis.name == axis.name]
        assert named, f"dimension {dim} of {same} has {axis}, and nothing says why"
        key = named[0].kind, named[0].number
        before = changed.get(key, named[0].sharding)
        dims = [DimSharding([a for a in d.axes if a.name != axis.name], True) for d in before.dims]
        assert key not in changed, f"{key} does not say {axis} any more"
        changed[key] = TensorSharding(before.mesh, dims, before.replicated, before.unreduced, before.reduction)
    raise AssertionError(f"dimension {dim} of {value} keeps {axis}")


def _saying(said, key, sharding):
    return next(s for s in said if (s.kind, s.number) == key).saying(sharding)
