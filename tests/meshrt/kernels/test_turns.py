"""Kernels for GPUs whose steps begin and end where they do anything (`turns`), by the evaluator of their modules."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.experimental.pallas import ops
from meshrt.experimental.pallas.ops import placement
from tests.meshrt.kernels.programs import OURS
from tests.meshrt.kernels.test_any_size import compared
from tests.meshrt.kernels.test_evaluated import drawn, evaluated, kind

pl, jnp, pltpu = OURS.pl, OURS.np, OURS.pltpu
ROWS, COLUMNS = 5, 3


def ends(i):
    return jnp.minimum(i, COLUMNS - 1), jnp.minimum(2 * i + 1, COLUMNS)


def sums_of_some(turns, semantics=("parallel", "arbitrary")):
    """Row by row, the sum of the columns from `ends` on, as the evaluator finds it."""

    def kernel(x_ref, o_ref, acc):
        first, end = ends(pl.program_id(0))

        @pl.when(pl.program_id(1) == first)
        def _():
            acc[...] = jnp.zeros(4, np.float32)

        acc[...] += x_ref[...]

        @pl.when(pl.program_id(1) == end - 1)
        def _():
            o_ref[...] = acc[...]

    params = {
        "mosaic": pltpu.CompilerParams(dimension_semantics=semantics),
        "triton": meshrt.experimental.pallas.triton.CompilerParams(turns=turns),
    }
    return pl.pallas_call(
        kernel, meshrt.ShapeDtypeStruct((ROWS, 4), np.float32), grid=(ROWS, COLUMNS),
        in_specs=[pl.BlockSpec((None, None, 4), lambda i, j: (i, j, 0))],
        out_specs=pl.BlockSpec((None, 4), lambda i, j: (i, 0)), scratch_shapes=[pltpu.VMEM((4,), np.float32)],
        compiler_params=params,
    )  # fmt: skip


def test_a_loop_begins_and_ends_where_turns_say():
    (x,) = drawn([kind(OURS, (ROWS, COLUMNS, 4))])
    wanted = np.stack([x[i, min(i, COLUMNS - 1) : min(2 * i + 1, COLUMNS)].sum(0) for i in range(ROWS)])
    np.testing.assert_allclose(evaluated("cuda", sums_of_some(ends), [x])[0], wanted, rtol=1e-6)
    np.testing.assert_allclose(sums_of_some(ends)(x), wanted, rtol=1e-6)


def test_turns_are_those_of_steps_one_after_the_other():
    f = sums_of_some(ends, ("arbitrary", "parallel"))
    with pytest.raises(errors.ArgumentValueError, match=r"turns.*'arbitrary'"):
        meshrt.jit(f).trace(kind(OURS, (ROWS, COLUMNS, 4))).lower(lowering_platforms=("cuda",))


@pytest.mark.parametrize("seed", range(3))
def test_attention_in_turns(monkeypatch, seed):
    """Bands of any place, blocks that do not divide, rows that see nothing, segments; values and derivatives."""
    random = np.random.RandomState(seed)
    blocks = tuple(int(n) for n in 2 ** random.randint(1, 4, 2))
    monkeypatch.setattr(placement, "on_gpus", lambda name, arrays: blocks)
    queries, keys = (int(n) for n in random.randint(3, 15, 2))
    window = tuple(None if random.rand() < 0.3 else int(random.randint(-2, 6)) for _ in range(2))
    own = [random.randint(0, 2, (1, n)).astype(np.int32) for n in (queries, keys)]
    named = {"query_segments": own[0], "key_segments": own[1]} if random.rand() < 0.5 else {}
    how = {"causal": bool(random.rand() < 0.4), "window": window, **named}
    args = drawn([kind(OURS, s) for s in ((1, queries, 4, 4), (1, keys, 2, 4), (1, keys, 2, 4))], seed)

    def total(*args):
        out, log = ops.flash_attention(*args, **how, return_residual=True)
        return (out**2).sum() + jnp.where(jnp.isfinite(log), log, 0).sum()

    compared(lambda *args: ops.flash_attention(*args, **how), args)
    compared(meshrt.grad(total, (0, 1, 2)), args)


def has_products_in_branches(f, args):
    text = meshrt.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    assert "tt.dot" in text
    depth = found = 0
    for line in text[text.index("scf.for") :].split("\\0A"):
        depth += "scf.if" in line
        found += depth > 0 and "tt.dot" in line
        depth -= depth > 0 and line.strip().startswith("}") and "else" not in line
    return found > 0


def test_causal_attention_has_no_branch_around_its_products():
    """Inside of which nothing would be fetched ahead."""
    args = [kind(OURS, (1, 256, 2, 64))] * 3
    with_blocks = lambda blocks: lambda *a: ops.flash_attention(*a, causal=True, block_sizes=blocks)
    assert has_products_in_branches(with_blocks((64, 64)), args)
    assert not has_products_in_branches(with_blocks(None), args)
