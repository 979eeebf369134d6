"""Kernels that ship: each one operation of a program, with its derivative and a sharding rule.

    matmul                     with bias and activation
    flash_attention            forward and backward; causal, windows, groups of heads, segments, bias
    paged_attention            one query a sequence, keys in pages
    rms_norm
    softmax_cross_entropy      over a vocabulary; linear_cross_entropy with the product before it
    selective_scan             state-space models
    all_gather_matmul, matmul_reduce_scatter      around a ring of devices, within shard_map

Each names its loops in a rule (`placement.py`), so propagation and the partitioner place it; block sizes come from
shapes and `heuristics.py`. See docs/kernel-library.md.
"""

from __future__ import annotations

from meshrt.experimental.pallas.ops.attention import flash_attention
from meshrt.experimental.pallas.ops.losses import linear_cross_entropy, softmax_cross_entropy
from meshrt.experimental.pallas.ops.norms import rms_norm
from meshrt.experimental.pallas.ops.paging import paged_attention
from meshrt.experimental.pallas.ops.products import matmul
from meshrt.experimental.pallas.ops.rings import all_gather_matmul, matmul_reduce_scatter
from meshrt.experimental.pallas.ops.scans import selective_scan

__all__ = [
    "all_gather_matmul", "flash_attention", "linear_cross_entropy", "matmul", "matmul_reduce_scatter",
    "paged_attention", "rms_norm", "selective_scan", "softmax_cross_entropy",
]  # fmt: skip
