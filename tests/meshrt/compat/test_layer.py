"""The internal names of JAX's that libraries use. Each program runs in a process of its own."""

import pytest

from tests.meshrt.compat.test_door import passes


def test_what_libraries_ask_of_internal_modules():
    passes("""
        import collections
        import jax, jax.numpy as jnp, meshrt
        from jax._src import checkify, dtypes
        from jax._src.tree_util import _registry
        from jax._src.ad_util import stop_gradient_p
        from jax._src.state.types import AbstractRef
        from jax.experimental import hijax
        from jax.experimental.colocated_python import serialization

        assert dict in _registry and collections.OrderedDict in _registry and jax.Array not in _registry
        assert dtypes.supports_inf(jnp.float32) and not dtypes.supports_inf(jnp.float8_e4m3fn)
        assert checkify.checkify is jax.experimental.checkify.checkify and checkify.user_checks
        eqn, = jax.make_jaxpr(jax.lax.stop_gradient)(1.0).eqns
        assert eqn.primitive is stop_gradient_p and not isinstance(eqn.outvars[0], jax.core.DropVar)
        assert not isinstance(jnp.ones(3), (jax.Ref, AbstractRef)) and serialization.DeviceList

        from jax._src import distributed
        assert distributed.global_state.client is None and distributed.global_state.process_id == 0
        assert jnp.ones(3).sharding._addressable_device_assignment == (jax.devices()[0],)

        a, b = jax.export.symbolic_shape("a, b")
        assert str((jax.core.max_dim(a, 3), jax.core.min_dim(a, b))) == "(max(a, 3), min(a, b))"
        assert jax.core.max_dim(2, 3) == 3 and jax.core.min_dim(a + 1, a) == a

        class Write(hijax.HiPrimitive):
            pass

        for call in (lambda: Write("write").bind(1.0),):
            try:
                call()
            except NotImplementedError as e:
                assert isinstance(e, meshrt.errors.UnsupportedError)
            else:
                raise AssertionError("accepted")
    """)


def test_rules_that_primitives_of_ours_lack_may_be_given_and_folders_left_out():
    passes("""
        import jax, meshrt
        from jax._src import traceback_util
        from meshrt.core import source
        from jax._src.ad_util import stop_gradient_p
        from jax.interpreters import ad

        ad.primitive_transposes[stop_gradient_p] = lambda ct, x: (ct,)
        (pulled,) = jax.linear_transpose(lambda x: 2 * jax.lax.stop_gradient(x), 1.0)(3.0)
        assert pulled == 6.0
        try:
            ad.primitive_transposes[jax.lax.neg_p] = lambda ct, x: (ct,)
        except meshrt.errors.UnsupportedError:
            pass
        else:
            raise AssertionError("changed")

        traceback_util.register_exclusion("/library")
        code = compile("0", "/library/a.py", "exec")
        assert traceback_util._exclude_paths == ["/library"] and source.is_internal(code)
        traceback_util._exclude_paths.remove("/library")
        assert traceback_util._exclude_paths == [] and not source.is_internal(code)
    """)


def test_settings_as_flags():
    pytest.importorskip("absl")
    passes("""
        import sys
        import jax, jax.numpy as jnp

        sys.argv = ["program", "--jax_enable_x64", "--jax_debug_nans=true", "--other", "--", "--jax_disable_jit"]
        jax.config.parse_flags_with_absl()
        jax.config.parse_flags_with_absl()
        assert jnp.ones(1).dtype == "float64" and jax.config.jax_debug_nans and not jax.config.jax_disable_jit
    """)


def test_mlirs_bindings_are_jaxlibs():
    passes("""
        import jax.extend.mlir.dialects.stablehlo as one
        from jax._src.lib.mlir import ir
        from jax._src.lib.mlir.dialects import hlo
        from jax.extend.mlir import ir as public, passmanager
        from jax.interpreters import mlir
        import jaxlib.mlir.ir

        assert one is hlo and ir is public is mlir.ir is jaxlib.mlir.ir and passmanager.PassManager
    """)


def test_files_of_families_of_functions_are_the_modules_that_publish_them():
    passes("""
        import importlib
        import jax
        from jax._src import api, errors, public_test_util, sharding_impls, tree
        from jax._src.lax import control_flow, slicing
        from meshrt.compat.modules import ELSEWHERE

        assert api.jit is jax.jit and errors.UnexpectedTracerError is jax.errors.UnexpectedTracerError
        assert control_flow.scan is jax.lax.scan and slicing.gather is jax.lax.gather and tree.map is jax.tree.map
        assert public_test_util.check_grads and sharding_impls.NamedSharding is jax.NamedSharding
        assert all(importlib.import_module(f"jax.{name}") for name in ELSEWHERE)
    """)


def test_modules_that_tests_for_jax_import():
    passes("""
        from jax._src import array, compilation_cache, compute_on, ffi, mesh_utils, public_test_util, ref, xla_metadata
        from jax._src.lax import utils
        from jax._src.numpy import lax_numpy, linalg, util, vectorize
        import jax
        import jax._src.numpy.linalg as again

        assert lax_numpy is jax.numpy is vectorize and linalg is again is jax.numpy.linalg
        assert array.ArrayImpl is type(jax.numpy.ones(1)) and public_test_util.tolerance("float32") == 1e-6
        assert [x.dtype.name for x in util.promote_dtypes(1, 2.5)] == ["float32"] * 2
        assert not hasattr(jax._src.numpy, "no_such_file")
    """)
