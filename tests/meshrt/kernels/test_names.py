"""The names of JAX's modules for kernels: given, or absent with an error of its own that says what to use."""

from __future__ import annotations

import importlib
import types

import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.experimental import pallas as pl
from meshrt.experimental.pallas import tpu as pltpu
from tests.meshrt.kernels.programs import JAX, OURS, call

# What JAX has and nobody can use here.
ABSENT = {"tpu": {"core", "matmul_acc_lhs", "matmul_pop", "matmul_push_rhs"}}


@pytest.mark.parametrize("module", ["", "tpu", "triton", "mosaic_gpu", "tpu_sc", "fuser"])
def test_names_are_given_or_absent_by_an_error_of_their_own(module):
    jax_module = pytest.importorskip(f"jax.experimental.pallas.{module}".rstrip("."))
    ours = importlib.import_module(f"meshrt.experimental.pallas.{module}".rstrip("."))
    # Submodules are there once somebody has imported them.
    named = {n: value for n, value in vars(jax_module).items() if not n.startswith("_")}
    names = [n for n, value in named.items() if not isinstance(value, types.ModuleType)]
    lacking = set()
    for name in names:
        try:
            getattr(ours, name)
        except errors.MissingFunctionError as e:
            lacking.add(name)
            assert f"module '{ours.__name__}' has no attribute '{name}'" in str(e)
    if module in ("mosaic_gpu", "tpu_sc", "fuser"):
        assert lacking == set(names) and ours.__all__ == []
    else:
        assert lacking <= ABSENT.get(module, set())


def test_absent_names_say_what_is_used_instead():
    from meshrt.experimental.pallas import mosaic_gpu

    for module, name, advice in (
        (mosaic_gpu, "wgmma", "for Triton"), (pltpu, "matmul_pop", "write a product"), (pl, "loob", "mean loop"),
    ):  # fmt: skip
        with pytest.raises(errors.MissingFunctionError, match=advice):
            getattr(module, name)


def test_earlier_names_read_and_write_by_an_index():
    def kernel(x, count, o, sums):
        part = (pl.ds(0, 4),)
        mask = meshrt.numpy.arange(4) < 3
        pl.store(o, part, 2 * pl.load(x, part, mask=mask, other=7.0), mask=mask)
        pl.store(o, (3,), pl.load(x, (0,)) + 0.5)
        sums[0] = count[0]
        pl.atomic_add(sums, (0,), 5)

    out = [meshrt.ShapeDtypeStruct((4,), np.float32), meshrt.ShapeDtypeStruct((1,), np.int32)]
    doubled, total = pl.pallas_call(kernel, out)(np.arange(1, 5, dtype=np.float32), np.array([2], np.int32))
    np.testing.assert_array_equal(doubled, [2, 4, 6, 1.5])
    assert total[0] == 7
    with pytest.raises(TypeError, match="maks"):
        pl.pallas_call(lambda x, o: pl.store(o, (0,), x[0], maks=False), out[0])(np.zeros(4, np.float32))
    assert pltpu.ANY is pl.ANY and pltpu.TPUCompilerParams is pltpu.CompilerParams
    assert pltpu.TPUMemorySpace.VMEM is pltpu.VMEM and pl.Unblocked is pl.Element


@pytest.mark.parametrize("lib", [OURS, JAX], ids=["ours", "jax"])
def test_slices_say_what_is_known_of_them(lib):
    slices = [lib.pl.Slice(2, 4), lib.pl.Slice.from_slice(slice(1, None, 2), 8)]

    def kernel(o_ref):
        slices.append(lib.pl.ds(lib.pl.program_id(0), 2))

    lib.jax.eval_shape(call(lib, kernel, (4,), grid=2))
    told = [(s.is_dynamic_start, s.is_dynamic_size, s.size, s.stride) for s in slices[:3]]
    assert told == [(False, False, 4, 1), (False, False, 4, 2), (True, False, 2, 1)]
