"""What crosses the edges of branches and loops in kernels for TPUs: masks go as numbers, views are chosen between."""

from __future__ import annotations

import re

import numpy as np
import pytest

import meshrt
from tests.meshrt.kernels.programs import OURS
from tests.meshrt.kernels.test_evaluated import close, drawn, evaluated, kind
from tests.meshrt.kernels.test_hardware import needs_tpu

pl, jnp, lax = OURS.pl, OURS.np, meshrt.lax


def branch(x, y, i):
    return jnp.where(lax.cond(i % 2 == 0, lambda: x > 0, lambda: y > 0), x, y)


def choice(x, y, i):
    return jnp.where(lax.switch(i, [lambda: x > 0, lambda: y > x, lambda: x == y]), x, y)


def counted(x, y, i):
    return jnp.where(lax.fori_loop(0, i + 1, lambda j, c: c & (y > j - 1), x > 0), x, y)


def while_true(x, y, i):
    go_on = lambda c: (c[0] < 3) & (c[0] * c[0] < 5)
    return jnp.where(lax.while_loop(go_on, lambda c: (c[0] + 1, c[1] ^ (y > 0)), (i, x > 0))[1], x, y)


def scanned(x, y, i):
    return jnp.where(lax.scan(lambda c, _: (c | (y > 1), None), x > 0, None, length=3)[0], x, y)


def rows(x, y, i):
    return lax.cond(i % 2 == 0, lambda: x[:1], lambda: y[2:3]) + x


def columns(x, y, i):
    return lax.cond(i % 2 == 0, lambda: x[:, :1], lambda: y[:, :1]) + x


def masks_of_rows(x, y, i):
    of_x, of_y = x > 0, y > 0
    return jnp.where(lax.cond(i % 2 == 0, lambda: of_x, lambda: of_y), x, y)


BODIES = [branch, choice, counted, while_true, scanned, rows, columns, masks_of_rows]


def kernel_of(body):
    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = body(x_ref[...], y_ref[...], pl.program_id(0))

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    f = pl.pallas_call(kernel, kind(OURS, (24, 128)), grid=(3,), in_specs=[block, block], out_specs=block)
    return f, [kind(OURS, (24, 128))] * 2


@pytest.mark.parametrize("body", BODIES)
def test_values(body):
    f, kinds = kernel_of(body)
    args = drawn(kinds)
    close(evaluated("tpu", f, args), [f(*args)])


@pytest.mark.parametrize("body", BODIES)
@needs_tpu
@pytest.mark.tpu
def test_tpus_compile_them(body):
    f, kinds = kernel_of(body)
    compiled = meshrt.jit(f).trace(*kinds).lower(lowering_platforms=("tpu",)).compile(topology="v5e:1x1")
    assert re.search("tpu_custom_call", compiled.as_text())


def test_masks_stay_masks_on_gpus():
    f, kinds = kernel_of(branch)
    args = drawn(kinds)
    np.testing.assert_array_equal(evaluated("cuda", f, args)[0], f(*args))
