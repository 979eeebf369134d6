"""Per-device programs in StableHLO's reference interpreter, which shares no code with XLA's compiler.

It runs in a child process, because it aborts when devices wait for each other longer than it allows (on a busy
machine); that is tried again.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import collectives
import propagation

from .harness import pieces, unshard
from .jax_side import Case

ROWS, X8 = P("x", None), {"x": 8}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def pool_gradient(x, ct):
    y, back = jax.vjp(lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (3, 1), (2, 1), "SAME"), x)
    return y, back(ct)[0]


def convolution_gradient(x, w, ct):
    dims = ("NHC", "HIO", "NHC")
    y, back = jax.vjp(lambda x, w: jax.lax.conv_general_dilated(x, w, (2,), "SAME", dimension_numbers=dims), x, w)
    return y, back(ct)


HOLES = np.where(np.arange(16)[:, None] % 5 == 1, np.array([np.nan, np.inf], np.float32), 1).astype(np.float32)

# name -> (mesh, function, arguments, input specs)
PROGRAMS = {
    "contraction": (X8, lambda a, b: a @ b, (normal(4, 16), normal(16, 4)), (P(None, "x"), ROWS)),
    "reduce_scatter": (X8, lambda a, b: jnp.tanh(a @ b)[::2], (normal(8, 16), normal(16, 4)), (P(None, "x"), ROWS)),
    "moves": (
        X8,
        lambda x: (jnp.roll(x, 3, 0), jnp.flip(x, 0), x[3:13], jnp.pad(x, ((2, 1), (0, 0))), x.reshape(-1)),
        (normal(16, 2),),
        (ROWS,),
    ),
    "interior_pad": ({"x": 5}, lambda x: jax.lax.pad(x, 0.5, ((2, 1, 2), (0, 0, 1))), (normal(10, 2),), (ROWS,)),
    "totals": ({"x": 5}, lambda x: (jnp.cumsum(x, 0), jax.lax.cummax(x, reverse=True)), (normal(10, 2),), (ROWS,)),
    "lookup": (
        {"a": 4, "b": 2},
        lambda t, i, s: t[i] * s,
        (normal(8, 2) + 3, np.array([7, 0, 3], np.int32), np.full((3, 2), np.inf, np.float32)),
        (P("a", "b"), P(), P()),
    ),
    "segments": (X8, lambda x: jax.ops.segment_sum(x, jnp.arange(16) % 8, 8), (normal(16, 2),), (ROWS,)),
    "pool": (X8, pool_gradient, (np.round(normal(16, 2)), normal(8, 2, seed=1)), (ROWS, ROWS)),
    "convolution": (
        {"a": 2, "b": 2},
        convolution_gradient,
        (normal(1, 8, 2), normal(3, 2, 2), normal(1, 4, 2)),
        (P(None, ("a", "b")), P(), P(None, ("a", "b"))),
    ),
    "top_k": ({"a": 2, "b": 2}, lambda x: jax.lax.sort(x, dimension=0), (HOLES[:8],), (P(("a", "b"), None),)),
    "sort": ({"x": 2}, lambda x: jnp.sort(x), (np.random.default_rng(0).permutation(16).astype(np.int32),), (P("x"),)),
    "uneven": (
        {"a": 3, "b": 2},
        lambda x: jnp.max(1 / jnp.pad(x, ((0, 3), (0, 0)))),
        (normal(12, 2),),
        (P(("a", "b")),),
    ),
    "swap": ({"a": 2, "b": 2}, lambda x: x.T * 2 + x, (normal(4, 4),), (P("a", "b"),)),
    "loop": (X8, lambda x: jax.lax.fori_loop(0, 2, lambda i, c: c * jnp.mean(c), x), (normal(8, 2),), (ROWS,)),
}

CHILD = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
from tests.collectives.interpreter import run_devices
jobs = pickle.load(open(sys.argv[2], "rb"))
for name, text, n, shards in jobs:
    with open(f"{sys.argv[3]}/{name}", "wb") as f:
        pickle.dump(run_devices(text, n, shards), f)
"""


def test_programs_in_the_reference_interpreter(tmp_path):
    jobs, expected, results = {}, {}, {}
    for name, (axes, f, args, specs) in PROGRAMS.items():
        case = Case(axes, lambda constrain, f=f: f, args, specs)
        result = collectives.partition(propagation.run(case.text))
        shards = [pieces(np.asarray(a), s) for a, s in zip(args, result.arg_shardings)]
        jobs[name] = (name, result.as_text(), result.mesh.size, shards)
        expected[name], results[name] = case.expected(), result
    evaluate(jobs, tmp_path)
    for name, values in expected.items():
        with open(tmp_path / name, "rb") as f:
            out = pickle.load(f)
        for shards, value, sharding in zip(out, values, results[name].result_shardings):
            got = unshard(shards, value.shape, sharding)
            np.testing.assert_allclose(got, value, rtol=2e-5, atol=2e-5, err_msg=name)


def evaluate(jobs, folder: Path, attempts: int = 4) -> None:
    """Writes the results of every job into `folder`."""
    root = Path(__file__).parents[2]
    for _ in range(attempts):
        left = [job for name, job in jobs.items() if not (folder / name).exists() or not (folder / name).stat().st_size]
        if not left:
            return
        (folder / "jobs").write_bytes(pickle.dumps(left))
        command = [sys.executable, "-c", CHILD, str(root), str(folder / "jobs"), str(folder)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        if done.returncode and "rendezvous timed out" not in done.stderr:
            pytest.fail(done.stderr[-3000:])
        if not done.returncode:
            return
    pytest.skip("the interpreter's devices waited for each other for too long: the machine is busy")
