"""What kernels that ship take of a GPU: blocks by the width of heads, and warps by what they hold."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import meshrt
from meshrt.experimental.pallas import ops
from meshrt.experimental.pallas.ops import heuristics
from tests.meshrt.kernels.test_any_size import kind

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)


@pytest.mark.parametrize(
    "width, dtype, forward, backward",
    [
        (64, BF16, (64, 64), (64, 64)),
        (128, BF16, (64, 64), (64, 64)),
        (192, BF16, (64, 64), (64, 32)),
        (256, BF16, (64, 64), (64, 32)),
        (512, BF16, (32, 32), (32, 16)),
        (64, F32, (32, 32), (32, 32)),
        (256, F32, (16, 16), (16, 16)),
    ],
)
def test_blocks_of_attention_by_the_width_of_heads(width, dtype, forward, backward):
    arrays = [kind(1, 128, 2, width, dtype=dtype)] * 3
    assert heuristics.on_gpus("attention", arrays) == forward
    assert heuristics.on_gpus("attention_gradient", arrays) == backward


def launches(width, causal):
    """The warps and stages of each kernel of attention and its derivative."""
    q = kind(1, 256, 2, width, dtype=BF16)
    f = lambda q, k, v: ops.flash_attention(q, k, v, causal=causal).astype(np.float32).sum()
    text = meshrt.jit(meshrt.grad(f, (0, 1, 2))).trace(q, q, q).lower(lowering_platforms=("cuda",)).as_text()
    found = {}
    for call in re.findall(r"@__gpu\$xla.gpu.triton.*", text):
        name = re.search(r'name = "(flash\w*)"', call)[1]
        found[name] = tuple(int(re.search(rf"num_{what} = (\d+)", call)[1]) for what in ("warps", "stages"))
        loads = call[: call.index("tt.dot")].split("\\0A")
        # What stands in a branch is not fetched ahead: none stands around blocks where all pairs may attend.
        assert causal or sum("scf.if" in line for line in loads) == 1
    return found


@pytest.mark.parametrize("causal", [False, True])
def test_warps_of_attention_by_what_a_program_holds(causal):
    few = launches(128, causal)
    assert few == {"flash_attention": (4, 2), "flash_attention_queries": (4, 2), "flash_attention_keys": (8, 2)}
    assert set(launches(256, causal).values()) == {(8, 2)}
