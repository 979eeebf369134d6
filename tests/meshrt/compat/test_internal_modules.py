"""Internal modules of JAX's that tests written for it import: the same answers as JAX's own, and gaps said where a name
is asked for."""

import difflib
import os
import subprocess
import sys

import pytest

from tests.meshrt.compat.test_door import INSTALL, passes

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
