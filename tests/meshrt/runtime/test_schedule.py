"""Collectives of scheduled HLO, in the ways in which XLA's compilers write them."""

from __future__ import annotations

import pytest

from meshrt import errors
from meshrt.runtime.schedule import schedule

GPU = """HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%scatter (p: f32[64]) -> f32[16] {
  %p = f32[64]{0} parameter(0)
  ROOT %rs = f32[16]{0} reduce-scatter(%p), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add
}

%body (t: (s32[], f32[16])) -> (s32[], f32[16]) {
  %t = (s32[], f32[16]{0}) parameter(0)
  %v = f32[16]{0} get-tuple-element(%t), index=1
  %cp-start = (f32[16]{0}, f32[16]{0}, u32[], u32[]) collective-permute-start(%v), source_target_pairs={{0,1},{1,0}}
  %work = f32[16]{0} fusion(%v), kind=kLoop, calls=%fused
  %cp-done = f32[16]{0} collective-permute-done(%cp-start)
  ROOT %r = (s32[], f32[16]{0}) tuple(%v, %cp-done)
}

ENTRY %main (x: f32[16], w: bf16[4,8]) -> f32[16] {
  %x = f32[16]{0} parameter(0)
  %w = bf16[4,8]{1,0} parameter(1)
  %ag-start = ((bf16[4,8]{1,0}), bf16[16,8]{1,0}) all-gather-start(%w), replica_groups=[1,4]<=[4], dimensions={0}
  %first = f32[16]{0} fusion(%x), kind=kLoop, calls=%fused
  %b = f32[16]{0} bitcast(%first)
  %second = f32[16]{0} custom-call(%b), custom_call_target="kernel"
  %ag-done = bf16[16,8]{1,0} all-gather-done(%ag-start)
  %ar-start = f32[16]{0} all-reduce-start(%second), replica_groups={}, to_apply=%add, metadata={op_name="sum"}
  %ar-done = f32[16]{0} all-reduce-done(%ar-start)
  %async = ((f32[64]{0}), f32[16]{0}) async-start(%ar-done), calls=%scatter
  %done = f32[16]{0} async-done(%async)
  %loop = (s32[], f32[16]{0}) while(%t0), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %sync = f32[16]{0} all-reduce(%done), replica_groups={{0,1},{2,3}}, to_apply=%add
}
"""


@pytest.mark.smoke
def test_starts_and_dones():
    found = schedule(GPU, 4)
    assert [(c.kind, c.groups, c.bytes, c.times, c.asynchronous, c.overlapped) for c in found] == [
        ("all_gather", (1, 4), 3 * 4 * 8 * 2, 1, True, 2),
        ("all_reduce", (1, 4), 2 * 3 / 4 * 64, 1, True, 0),
        ("reduce_scatter", (1, 4), 3 / 4 * 256, 1, True, 0),
        ("collective_permute", (2, 2), 64, 5, True, 1),
        ("all_reduce", (2, 2), 64, 1, False, 0),
    ]
    assert found[1].op_name == "sum" and found[0].shapes == ("bf16[16,8]",)


TPU = """HloModule jit_f, is_scheduled=true

%starting (p: bf16[4,8]) -> (bf16[4,8], bf16[16,8]) {
  %p = bf16[4,8]{1,0} parameter(0)
  %ag.1 = bf16[16,8]{1,0} all-gather(%p), replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %c = (bf16[4,8]{1,0}, bf16[16,8]{1,0}) custom-call(%ag.1), custom_call_target="AsyncCollectiveStart"
}

%carrying (p: bf16[4,8], x: bf16[8,8]) -> bf16[8,8] {
  %p = bf16[4,8]{1,0} parameter(0)
  %x = bf16[8,8]{1,0} parameter(1)
  %ag.2 = bf16[16,8]{1,0} all-gather(%p), replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %conv = bf16[8,8]{1,0} convolution(%x, %x), dim_labels=bf_io->bf
}

%ending (p: bf16[4,8]) -> bf16[16,8] {
  %p = bf16[4,8]{1,0} parameter(0)
  %ag.3 = bf16[16,8]{1,0} all-gather(%p), replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %d = bf16[16,8]{1,0} custom-call(%p, %ag.3), custom_call_target="AsyncCollectiveDone"
}

%scattering (p: f32[64]) -> f32[16] {
  %p = f32[64]{0} parameter(0)
  ROOT %rs = f32[16]{0} reduce-scatter(%p), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add
}

ENTRY %main (w: bf16[4,8], x: bf16[8,8], y: f32[64]) -> bf16[16,8] {
  %w = bf16[4,8]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %x = bf16[8,8]{1,0} parameter(1)
  %y = f32[64]{0} parameter(2)
  %async-collective-start = (bf16[4,8]{1,0}, bf16[16,8]{1,0}) fusion(%w), kind=kCustom, calls=%starting
  %middle = bf16[8,8]{1,0} fusion(%w, %x), kind=kCustom, calls=%carrying
  %plain = bf16[8,8]{1,0} fusion(%middle), kind=kLoop, calls=%nothing
  %async-collective-done = bf16[16,8]{1,0} fusion(%w), kind=kCustom, calls=%ending
  %after = f32[16]{0} fusion(%y), kind=kCustom, calls=%scattering
  ROOT %r = bf16[16,8]{1,0} copy(%async-collective-done)
}
"""


def test_fusions_that_carry_a_collective_count_once():
    found = schedule(TPU, 4)
    assert [(c.kind, c.name, c.asynchronous, c.overlapped) for c in found] == [
        ("all_gather", "async-collective-start", True, 2),
        ("reduce_scatter", "after", False, 0),
    ]
    assert found[1].bytes == 3 / 4 * 256


def test_what_is_no_hlo():
    with pytest.raises(errors.ArgumentValueError, match="no ENTRY"):
        schedule("module {}", 4)
