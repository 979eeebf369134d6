"""Modules that somebody broke: an error with a line and a way out, or a program; never anything else."""

from __future__ import annotations

import random
import re
import subprocess
import sys

import pytest

import collectives
import propagation
from collectives import errors
from collectives.errors import CollectivesError
from propagation.errors import PropagationError

MODULE = """sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @other = <["z"=8]>
func.func public @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>} loc("state['w']"),
                       %b: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {?}]>}, %n: tensor<i32>)
    -> (tensor<8x32xf32> {jax.result_info = "result", sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
        tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
     : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]> : tensor<8x32xf32>
  %2 = stablehlo.sine %1 : tensor<8x32xf32>
  %3 = stablehlo.reshape %2 : (tensor<8x32xf32>) -> tensor<256xf32>
  %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [0]
     : (tensor<256xf32>, tensor<f32>) -> tensor<f32>
  %5 = stablehlo.custom_call @mystery(%2) : (tensor<8x32xf32>) -> tensor<8x32xf32>
  %6:2 = stablehlo.while(%i = %n, %c = %5) : tensor<i32>, tensor<8x32xf32>
   cond { %7 = stablehlo.compare LT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %7 : tensor<i1> }
   do { %8 = stablehlo.add %i, %one : tensor<i32>
        %9 = func.call @f(%c) : (tensor<8x32xf32>) -> tensor<8x32xf32>
        stablehlo.return %8, %9 : tensor<i32>, tensor<8x32xf32> }
  %10 = sdy.manual_computation(%6#1) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>]
    manual_axes={"x"} (%z: tensor<2x32xf32>) {
      %11 = "stablehlo.all_reduce"(%z) <{replica_groups = dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>}> ({
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %12 = stablehlo.add %p, %q : tensor<f32>
        stablehlo.return %12 : tensor<f32> }) : (tensor<2x32xf32>) -> tensor<2x32xf32>
      sdy.return %11 : tensor<2x32xf32> } : (tensor<8x32xf32>) -> tensor<8x32xf32>
  return %10, %4 : tensor<8x32xf32>, tensor<f32>
}
func.func private @f(%x: tensor<8x32xf32>) -> tensor<8x32xf32> {
  %0 = stablehlo.slice %x [0:8, 1:32] : (tensor<8x32xf32>) -> tensor<8x31xf32>
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %1 = stablehlo.pad %0, %c, low = [0, 1], high = [0, 0], interior = [0, 0]
     : (tensor<8x31xf32>, tensor<f32>) -> tensor<8x32xf32>
  return %1 : tensor<8x32xf32>
}
"""
TYPES = ["bf16", "i32", "i1", "complex<f32>", "f8E4M3FN", "index"]
AXES = ['{"x"}', '{"y"}', "{}", '{"y", "x"}', '{"x":(1)2}', '{"x":(2)4}', '{"nope"}', '{"x", ?}']
MESHES = ['"x"=8', '"x"=4, "y"=3', "", '"x"=0', '"x"=3, "y"=2', '"x"=9223372036854775807', '"x"=2, "x"=4']
CALLS = ["Sharding", "ApproxTopK", "lapack_spotrf_ffi", "Qr", "annotate_device_placement", "tpu_custom_call", ""]


def mutated(text: str, rng: random.Random) -> str:
    lines = text.splitlines()
    at = rng.randrange(1, len(lines))
    any_of = lambda pattern, put: re.sub(pattern, lambda m: put if rng.random() < 0.2 else m[0], text)
    return rng.choice(
        [
            lambda: "\n".join(lines[:at] + lines[at + 1 :]),
            lambda: "\n".join([*lines[:at], rng.choice(lines), *lines[at:]]),
            lambda: text[: rng.randrange(len(text))],
            lambda: any_of("f32", rng.choice(TYPES)),
            lambda: re.sub(r"\b32\b|\b31\b", str(rng.choice([0, 1, 30, 33, 7])), text),
            lambda: any_of(r"\b\d+\b", str(rng.choice([0, 1, 2, 3, 9, 1 << 31]))),
            lambda: any_of(r'\{"[xy]"\}|\{\}', rng.choice(AXES)),
            lambda: text.replace('"x"=4, "y"=2', rng.choice(MESHES)),
            lambda: text.replace("@mystery", f"@{rng.choice(CALLS)}"),
            lambda: any_of("@mesh", "@other"),
            lambda: any_of("stablehlo.sine", rng.choice(["stablehlo.nope", "stablehlo.not", "stablehlo.fft"])),
            lambda: text.replace("[{}, {\"x\"}]", '[{}, {"x"}], unreduced={"y"}'),
            lambda: text.replace("public @main", "public @other"),
            lambda: any_of("%[0-9a-z]+", rng.choice(["%0", "%a", "%zero"])),
        ]
    )()  # fmt: skip


def run(seed: int, count: int) -> None:
    """What the child process does: it ends with 0 unless something else is raised than an error of ours."""
    rng = random.Random(seed)
    for _ in range(count):
        text = mutated(MODULE.replace("@mystery", "@tpu_custom_call") if rng.random() < 0.5 else MODULE, rng)
        options = {"topology": rng.choice(["v5e:2x4", "h100:8", "v5e:4x4"])} if rng.random() < 0.2 else {}
        try:
            given = text if rng.random() < 0.5 else propagation.run(text)
            result = collectives.partition(given, allow_full_gather=rng.random() < 0.7, **options)
        except (CollectivesError, PropagationError) as e:
            assert len(str(e)) < 3000 and "\n\n" not in str(e)
            continue
        assert result.module.operation.verify() and result.plan.as_text() and result.plan.as_json() is not None


@pytest.mark.parametrize(
    "seed, count", [(1, 80), (2, 80), *[pytest.param(s, 1500, marks=pytest.mark.slow) for s in (3, 4)]]
)
def test_mutated_modules_neither_end_the_process_nor_raise_anything_else(seed, count):
    code = f"from tests.collectives.test_bad_input import run; run({seed}, {count})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("size", [1 << 62, 1 << 24])
def test_meshes_that_no_program_can_name(size):
    text = f"""sdy.mesh @mesh = <["x"={size}]>
      func.func @main(%x: tensor<8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}]>}}) -> tensor<8xf32> {{
      return %x : tensor<8xf32> }}"""
    with pytest.raises(errors.UnsupportedShardingError, match=rf"has {size} devices; .* at most 1048576"):
        collectives.partition(text)
    with pytest.raises(errors.UnsupportedShardingError, match="at most 1048576"):
        collectives.plan_reshard((8,), "f32", f"x={size}", "[{}]", "[{}]")
