"""Internal modules of JAX's that tests written for it import: the same answers as JAX's own, and gaps said where a name
is asked for."""

import difflib
import os
import subprocess
import sys

import pytest

from tests.meshrt.compat.test_door import INSTALL, passes, run

SCRIPT = os.path.join(os.path.dirname(__file__), "internal_checks.py")


def _printed(*args):
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    ran = subprocess.run(
        [sys.executable, SCRIPT, *args], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout.splitlines()


def test_the_same_answers():
    judge, ours = _printed(), _printed("meshrt")
    assert len(judge) > 60
    assert [*difflib.unified_diff(judge, ours, "JAX", "meshrt", lineterm="", n=0)] == []


IMPORTS = """
    from jax._src import lib, lax, state, export, pallas, cudnn, debugger, cache_key, tpu_custom_call, clusters
    from jax._src.lib import _jax, jax_jit, jaxlib_extension_version, pytree, xla_client
    from jax._src.lib.mlir.dialects import func, hlo, sdy
    from jax._src.export import _export, serialization, shape_poly
    from jax._src.state import types, indexing, utils
    from jax._src.checkify import ErrorEffect, FailedCheckError, JaxRuntimeError, OOBError
    from jax._src.pjit import jit_p, pjit_p
    from jax._src.internal_test_util import lax_test_util, test_harnesses
    from jax._src.internal_test_util.test_harnesses import CustomArg, Harness, RandArg, StaticArg
    from jax._src.named_sharding import DuplicateSpecError
    from jax._src.hijax import Box, HiPrimitive
    from jax.experimental.sparse import test_util
    from jax._src.pallas import core, pallas_call, mosaic
    from jax._src.random import core, prng
    from jax._src.lax.control_flow import conditionals, loops, solves, while_p
    import jax._src.lax.control_flow.loops, meshrt.lax; assert not hasattr(meshrt.lax, "loops")
    assert jax._src.state.types.ReadEffect is jax._src.state.ReadEffect
    assert lax.parallel is jax.lax or lax.parallel.psum_p is jax.lax.psum_p
"""


@pytest.mark.parametrize("line", [line.strip() for line in IMPORTS.strip().splitlines()])
def test_imports(line):
    passes(f"{INSTALL}\nimport jax, jax._src.state\nfrom jax._src import lax\n{line}")


def test_absent_names_are_refused_where_they_are_asked_for():
    passes(
        INSTALL
        + """
import jax, meshrt.errors
from jax._src import cache_key, tpu_custom_call
from jax._src.pallas.mosaic_gpu import lowering
for module in (cache_key, tpu_custom_call, lowering):
    try: module.get
    except meshrt.errors.MissingFunctionError: pass
    else: raise SystemExit(1)
for name in ("jax._src.nothing", "jax._src.util.nothing"):
    try: __import__(name)
    except ModuleNotFoundError: pass
    else: raise SystemExit(2)
"""
    )


def test_all_names_of_a_module_that_is_not_here_are_an_import_error():
    passes(
        INSTALL
        + """
import jax, meshrt.errors
for line in ("from jax._src.cache_key import *", "from jax._src.cache_key import get", "import jax._src.nothing"):
    try: exec(line)
    except ImportError as e: assert "jax._src." in str(e), e
    else: raise SystemExit(line)
import jax._src.shard_alike, jax._src.util
assert dir(jax._src.shard_alike) == ["shard_alike"] and "safe_map" in dir(jax._src.util)
"""
    )


def test_settings_of_a_programs_own_name_the_variable_that_initialises_them():
    passes(
        """
import os
os.environ["A_COUNT"] = "4"
"""
        + INSTALL
        + """
import jax
from jax._src import config
count = config.int_state("a_count", 3, "how many")
assert count.value == 4
try: jax.config.update("a_count", "x")
except ValueError as e: assert "the environment variable A_COUNT." in str(e), e
else: raise SystemExit(1)
"""
    )


CASES = """
import operator, sys
import numpy as np
import jax, jax.numpy as jnp
from absl.testing import absltest
from jax.experimental import sparse
from jax.experimental.sparse import test_util as sptu
from jax._src import test_util as jtu
from jax._src.internal_test_util import test_harnesses
from jax._src.internal_test_util.test_harnesses import CustomArg, Harness, Limitation, RandArg, StaticArg

HARNESSES = [
    Harness("take", "ax=0[1,2]", lambda a, i, axis: jnp.take(a, i, axis=axis),
            [RandArg((3, 4), np.float32), np.array([0, 1]), StaticArg(0)], dtype=np.float32),
    Harness("custom", "", lambda x: x, [CustomArg(lambda rng: rng.randn(2))], dtype=np.float64),
    Harness("left", "out", None, [], dtype=np.float32,
            jax_unimplemented=[Limitation("none", devices="cpu")]),
]

class Sparse(sptu.SparseTestCase):
    def test_sums(self):
        for layout in sptu.iter_sparse_layouts((3, 4)):
            draw = sptu.rand_bcoo(self.rng(), n_batch=layout.n_batch, n_dense=layout.n_dense)
            dense, thin = lambda x: x.sum(0), lambda x: sparse.bcoo_reduce_sum(x, axes=(0,))
            self._CheckAgainstDense(dense, thin, lambda: [draw((3, 4), np.float32)], rtol=1e-5)
            self._CheckGradsSparse(dense, thin, lambda: [draw((3, 4), np.float32)])

    def test_products(self):
        rng = jtu.rand_default(self.rng())
        for make in (sptu.rand_bcoo, sptu.rand_bcsr):
            draw = make(self.rng(), nse=5)
            self._CheckAgainstDense(
                operator.matmul, operator.matmul, lambda: [draw((3, 4), np.float32), rng((4, 2), np.float32)],
                tol=sptu.MATMUL_TOL,
            )
            self.assertEqual(draw((3, 4), np.float32).nse, 5)
        draw = sptu.rand_bcoo(self.rng())
        self._CheckBatchingSparse(
            operator.matmul, operator.matmul, lambda: [draw((3, 4), np.float32), rng((4, 2), np.float32)],
            tol=sptu.MATMUL_TOL, bdims=[0, 1],
        )
        one = draw((3, 4), np.float32)
        self.assertSparseArraysEquivalent(one, one)
        with self.assertRaises(AssertionError):
            self.assertSparseArraysEquivalent(one, 2 * one)
        self.assertEqual(int((sptu.rand_sparse(self.rng(), nse=3)((3, 4), np.float32) != 0).sum()), 3)

class Harnesses(jtu.JaxTestCase):
    @test_harnesses.parameterized(HARNESSES)
    def test_harness(self, harness):
        print(self._testMethodName, jax.tree.map(np.shape, harness.dyn_fun(*harness.dyn_args_maker(self.rng()))))

    @test_harnesses.parameterized([h for h in test_harnesses.all_harnesses if h.group_name == "cos"])
    def test_all(self, harness):
        print(harness, harness.fun(*harness.args_maker(self.rng())).dtype)

absltest.main(argv=["cases"], testLoader=jtu.JaxTestLoader())
"""


@pytest.mark.parametrize("install", ["", INSTALL], ids=["JAX", "meshrt"])
def test_cases_with_helpers(install):
    pytest.importorskip("absl")
    done = run("-W", "ignore", "-c", install + CASES)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith(("test_", "cos_"))]
    assert sorted(said) == [
        "cos_shape_bfloat16_20_20_ bfloat16", "cos_shape_complex64_20_20_ complex64",
        "cos_shape_float16_20_20_ float16", "cos_shape_float32_20_20_ float32",
        "test_harness_custom_ (2,)", "test_harness_take_ax_0_1_2_ (2, 4)",
    ]  # fmt: skip
