"""Programs written as text: partitioned, run, and compared with the same text on one device."""

from __future__ import annotations

import re

import numpy as np

import collectives
import propagation

from . import harness

__all__ = ["MESH", "check_text", "over", "per_value"]

MESH = 'sdy.mesh @mesh = <["x"=8]>\n'


def _dims(dims) -> str:
    return "<@mesh, [" + ", ".join("{" + ", ".join(f'"{a}"' for a in d.split()) + "}" for d in dims) + "]>"


def over(*dims: str) -> str:
    """The attribute of an argument or result; each dimension names its axes."""
    return "{sdy.sharding = #sdy.sharding" + _dims(dims) + "}"


def per_value(*dims: str) -> str:
    """The attribute of an operation with one result."""
    return "{sdy.sharding = #sdy.sharding_per_value<[" + _dims(dims) + "]>}"


def _plain(text: str) -> str:
    """The program without meshes and shardings."""
    text = re.sub(r"sdy\.mesh @\w+ = <.*>\n", "", text)
    return re.sub(r"\{sdy\.sharding = #sdy\.sharding(_per_value)?<(?:[^<>]|<[^<>]*>)*>\}", "", text)


def check_text(text: str, args, rtol: float | None = None):
    """Partitions `text` as it is and after propagation; results agree to the last bit, or (floats) within `rtol`."""
    args = [np.asarray(a) for a in args]
    expected = harness.one_device(_plain(text), args)
    for program in (text, propagation.run(text)):
        partitioned = collectives.partition(program)
        got, _ = harness.run_partitioned(partitioned, args, [e.shape for e in expected])
        for g, e in zip(got, expected):
            assert g.dtype == e.dtype
            if rtol is None:
                np.testing.assert_array_equal(g.view(_bits(g)), e.view(_bits(e)))
            else:
                np.testing.assert_allclose(g, e, rtol=rtol)
    return partitioned


def _bits(x: np.ndarray) -> np.dtype:
    return x.dtype if x.dtype.kind in "biu" else np.dtype(f"u{min(8, x.dtype.itemsize)}")
