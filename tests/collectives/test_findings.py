"""What cannot stay sharded is gathered, and said: a finding with its source line and bytes, an error if forbidden."""

from __future__ import annotations

import pytest

import collectives
import propagation
from collectives import errors

HEAD = 'sdy.mesh @mesh = <["a"=4, "b"=2]>\n'


def arg(name: str, kind: str, dims: str) -> str:
    return f"%{name}: tensor<{kind}> {{sdy.sharding = #sdy.sharding<@mesh, {dims}>}}"


def out(kind: str, dims: str = "") -> str:
    return f"-> (tensor<{kind}>{f' {{sdy.sharding = #sdy.sharding<@mesh, {dims}>}}' if dims else ''})"


def partition(text: str, **options):
    return collectives.partition(propagation.run(HEAD + text), **options)


LAST = '[{}, {}, {"a", "b"}]'
RESHAPE = f"""func.func @main({arg("x", "4x8x960xf32", LAST)}) OUT {{
  %0 = stablehlo.reshape %x : (tensor<4x8x960xf32>) -> tensor<4x7680xf32>
  REST
}}"""


def reshaped(result: str, rest: str = "return %0 : tensor<4x7680xf32>") -> str:
    return RESHAPE.replace("OUT", result).replace("REST", rest)


ROWS, COLUMNS, BOTH = '[{"b"}, {}]', '[{"a"}, {}]', '[{"b"}, {"a"}]'
TRANSFORM = f"""func.func @main({arg("x", "8x16xcomplex<f32>", BOTH)}) {out("8x16xcomplex<f32>", ROWS)} {{
  %0 = stablehlo.fft %x, type = FFT, length = [16] : (tensor<8x16xcomplex<f32>>) -> tensor<8x16xcomplex<f32>>
  return %0 : tensor<8x16xcomplex<f32>>
}}"""
UPDATE = f"""func.func @main({arg("x", "8x64xf32", ROWS)}, {arg("u", "8x8xf32", BOTH)}, %i: tensor<i32>)
    {out("8x64xf32", ROWS)} {{
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_update_slice %x, %u, %c, %i
       : (tensor<8x64xf32>, tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<8x64xf32>
  return %0 : tensor<8x64xf32>
}}"""
KEY = '[{"a"}]'
BITS = f"""func.func @main({arg("k", "4xui32", KEY)}) {out("64xui32")} {{
  %s, %0 = stablehlo.rng_bit_generator %k, algorithm = DEFAULT : (tensor<4xui32>) -> (tensor<4xui32>, tensor<64xui32>)
  return %0 : tensor<64xui32>
}}"""
PARTLY = {"fft": TRANSFORM, "dynamic_update_slice": UPDATE, "rng_bit_generator": BITS}


def test_a_reshape_whose_split_no_new_dimension_takes():
    for result in (out("4x7680xf32"), out("4x7680xf32", "[{}, {}]")):
        found = partition(reshaped(result))
        (finding,) = found.findings
        assert found.plan.counts == {"all_gather": 1}
        assert "f32[4,8,960@a,b] is gathered" in finding.message and finding.where
        assert finding.bytes == found.plan.bytes == 4 * 8 * 960 * 4 * 7 / 8
        with pytest.raises(
            errors.FullGatherError, match=r"reshape: .* is gathered: .*105 KiB.*annotate the operand"
        ) as e:
            partition(reshaped(result), allow_full_gather=False)
        assert e.value.where == finding.where


def test_a_reshape_whose_split_another_dimension_takes_first():
    """One exchange instead of a gather, also where nothing says how the result is to be split."""
    total = """%c = stablehlo.constant dense<0.0> : tensor<f32>
      %1 = stablehlo.sine %0 : tensor<4x7680xf32>
      %2 = stablehlo.reduce(%1 init: %c) applies stablehlo.add across dimensions = [1]
        : (tensor<4x7680xf32>, tensor<f32>) -> tensor<4xf32>
      return %2 : tensor<4xf32>"""
    for text in (reshaped(out("4x7680xf32", '[{}, {"a", "b"}]')), reshaped(out("4xf32"), total)):
        found = partition(text, allow_full_gather=False)
        assert not found.findings and found.plan.bytes < 15000
        assert found.plan.counts["all_to_all"] == 1 and "all_gather" not in found.plan.counts


def test_a_reshape_is_not_sent_twice():
    """Nothing is exchanged first if the whole is wanted afterwards."""
    later = "%1 = stablehlo.sine %0 : tensor<4x7680xf32>\n return %1 : tensor<4x7680xf32>"
    assert partition(reshaped(out("4x7680xf32"), later)).plan.counts == {"all_gather": 1}


@pytest.mark.parametrize("name", PARTLY)
def test_what_is_gathered_along_one_of_two_axes(name):
    found = partition(PARTLY[name])
    (finding,) = found.findings
    assert finding.message.startswith(f"stablehlo.{name}: ") and finding.where and finding.bytes > 0
    with pytest.raises(errors.FullGatherError, match=name):
        partition(PARTLY[name], allow_full_gather=False)


def test_what_a_gather_sends_has_all_sums_in_it():
    """Of a value that is unreduced over two axes, each part is summed up by itself before it is gathered."""
    text = """sdy.mesh @mesh = <["a"=2, "b"=2, "c"=2]>
func.func public @main(%x: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"c"}, {"a"}]>},
    %w: tensor<64x60xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>},
    %y: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"c"}, {"b"}]>},
    %v: tensor<64x60xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b"}, {}]>}) -> tensor<15x256xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<64x64xf32>, tensor<64x60xf32>) -> tensor<64x60xf32>
  %1 = stablehlo.dot_general %y, %v, contracting_dims = [1] x [0]
    : (tensor<64x64xf32>, tensor<64x60xf32>) -> tensor<64x60xf32>
  %2 = stablehlo.add %0, %1 : tensor<64x60xf32>
  %3 = stablehlo.reshape %2 : (tensor<64x60xf32>) -> tensor<15x256xf32>
  return %3 : tensor<15x256xf32>
}"""
    found = collectives.partition(propagation.run(text))
    (finding,) = found.findings
    assert found.plan.counts == {"all_reduce": 2, "all_gather": 1} and finding.bytes == found.plan.bytes


def test_an_exchange_is_no_gather():
    text = TRANSFORM.replace(BOTH, '[{}, {"a"}]').replace(ROWS, COLUMNS)
    found = partition(text, allow_full_gather=False)
    assert found.plan.counts["all_to_all"] and not found.findings


@pytest.mark.parametrize("target", ["CustomSPMDPartitioning", "meshrt.custom_partitioning"])
def test_what_its_users_process_partitions_is_said_to_stay(target):
    """JAX's custom_partitioning leaves a call with a rule and a number that only its own process knows."""
    text = f"""sdy.mesh @mesh = <["a"=2, "b"=2]>
    func.func @main(%x: tensor<8x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a"}}, {{"b"}}]>}},
        %y: tensor<16x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"b"}}, {{}}]>}}) -> tensor<8x4xf32> {{
      %0 = stablehlo.custom_call @{target}(%x, %y) {{api_version = 2 : i32, backend_config = "140",
        sdy.sharding_rule =
          #sdy.op_sharding_rule<([i, j], [j, k])->([i, k]) {{i=8, j=16, k=4}} reduction={{j}}, custom>}}
          : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
      return %0 : tensor<8x4xf32> }}"""
    propagated = propagation.run(text)
    assert propagated.result_shardings[0].to_text() == '#sdy.sharding<@mesh, [{"a"}, {}]>'
    found = collectives.partition(propagated, allow_full_gather=False)
    (finding,) = found.findings
    assert finding.kind == "unresolved" and target in finding.message and finding.where
    assert found.plan.counts == {"all_reduce": 1}
