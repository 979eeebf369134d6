"""The helpers of tests written for JAX, in a process where `import jax` gives meshrt."""

import itertools
import pathlib
import re
import shutil

import numpy as np
import pytest
from jax._src import test_util as judge

from tests.meshrt.compat.test_door import INSTALL, passes, run

SUITE = r"""
import sys, unittest, warnings
import numpy as np
import jax, jax.numpy as jnp
from jax._src import test_util as jtu
from absl.testing import parameterized

jtu.request_cpu_devices(8)
x = np.ones(3, "float32")

class Case(jtu.JaxTestCase):
    @jtu.sample_product(shape=[(2,), (3, 4), ()], dtype=jtu.dtypes.floating)
    def test_numbers(self, shape, dtype):
        rng = jtu.rand_default(self.rng())
        self._CompileAndCheck(jnp.sin, lambda: [rng(shape, dtype)])
        self._CheckAgainstNumpy(np.sin, jnp.sin, lambda: [rng(shape, dtype)], rtol=1e-5)

    def test_counts(self):
        f = jax.jit(lambda x: jnp.sin(x) + 1)
        with (jtu.count_jit_tracing_cache_miss() as traced, jtu.count_jit_and_pmap_lowerings() as lowered,
              jtu.count_pjit_cpp_cache_miss() as missed, jtu.count_jit_compilation_cache_miss() as made):
            f(x), f(x)
        self.assertEqual((traced(), lowered(), missed(), made()), (1, 1, 1, 1))
        self.assertCacheMisses(lambda: f(x), cpp=0, tracing=0, lowering=0)
        with jtu.collect_lowered_jaxprs() as found:
            jax.jit(jnp.cos)(x)
        self.assertIn("cosine", str(found[0][1]))
        with jtu.count_subjaxpr_to_hlo_conversion("inner") as inner:
            g = jax.jit(lambda x: 2 * x); g.__wrapped__.__name__ = "inner"
            jax.jit(lambda x: g(x) + g(x)).lower(x)
        with self.assertRaisesRegex(AssertionError, "0 programs were lowered, not 2"):
            with jtu.assert_num_jit_and_pmap_compilations(2): f(x)

    def test_printed(self):
        with jtu.capture_stdout() as out:
            jax.debug.print("x = {}", 1)
            jax.effects_barrier()
        self.assertEqual(out(), "x = 1\n")

    @jtu.with_explicit_mesh((2, 2), ("x", "y"))
    def test_mesh(self, mesh):
        self.assertEqual(jax.sharding.get_abstract_mesh().axis_types, (jax.sharding.AxisType.Explicit,) * 2)

    @jtu.run_on_devices("gpu")
    def test_left_out(self): 1 / 0

    @jtu.skip_on_devices("cpu")
    def test_left_out_too(self): 1 / 0

    @jtu.parameterized_filterable(kwargs=[dict(a=1, b="x y"), dict(a=2, b="z")])
    def test_named(self, a, b):
        self.assertIn(self._testMethodName, ("test_named_a_1_b_x_y", "test_named_a_2_b_z"))

    def test_warnings(self):
        with self.assertWarnsRegex(UserWarning, "ab."): warnings.warn("xabc")
        with self.assertRaises(UserWarning), self.assertNoWarnings(): warnings.warn("xabc")
        with self.assertRaises(AssertionError), self.assertWarns(UserWarning): pass
        with jtu.ignore_warning(message="x"): warnings.warn("xabc")

    def test_strict(self):
        with self.assertRaisesRegex(ValueError, "rank_promotion='raise'"): jnp.ones(3) + jnp.ones((2, 3))
        with jtu.strict_promotion_if_dtypes_match([np.int32, np.float32]): jnp.ones(3) + jnp.arange(3)
        self.assertMultiLineStrippedEqual("  a\n   b", "a\nb")
        with self.assertRaises(AssertionError): self.assertAllClose({"a": [x]}, {"a": [x + 1]})
        with self.assertRaises(AssertionError): self.assertArraysEqual(jnp.ones(3), jnp.ones(3, "int32"))

    def test_jaxprs(self):
        jtu.assert_dot_precision(jax.lax.Precision.HIGHEST, lambda x: jnp.dot(x, x, precision="highest"), x)
        forward, backward = jtu.fwd_bwd_jaxprs(jnp.sin, 1.0)
        self.assertEqual([e.primitive.name for e in backward.eqns], ["mul"])

@jtu.with_config(jax_numpy_rank_promotion="allow")
class Lenient(jtu.JaxTestCase):
    def test_it(self): jnp.ones(3) + jnp.ones((2, 3))

loaded = unittest.TestSuite(map(jtu.JaxTestLoader().loadTestsFromTestCase, (Case, Lenient)))
outcome = unittest.TextTestRunner(stream=sys.stderr).run(loaded)
assert outcome.wasSuccessful() and len(outcome.skipped) == 2 and outcome.testsRun == 14, outcome
"""


def test_a_suite_runs():
    passes(SUITE)


STYLE = str(pathlib.Path(__file__).with_name("jax_style.py"))
BY_PYTEST = INSTALL + "import sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))"


def outcomes(*command, **environ):
    """What became of each test of `jax_style.py`: those that passed, failed and were left out."""
    done = run(*command, JAX_NUM_GENERATED_CASES="3", **environ)
    said = re.findall(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+)", done.stderr)
    # absl writes a decorated test's number and its arguments
    return {(what, name.split("(")[0]) for what, name in said} or pytest.fail(done.stdout + done.stderr)


def test_a_file_has_the_outcomes_that_it_has_with_jax(tmp_path):
    judge = outcomes(STYLE)
    assert {what for what, _ in judge} == {"OK", "FAILED", "SKIPPED"}
    assert [name for what, name in judge if what == "FAILED"] == ["Functions.test_fails"]
    assert outcomes("-m", "meshrt", "run", "--as-jax", STYLE) == judge
    some = {"JAX_TEST_NUM_THREADS": "3", "JAX_TEST_TARGETS": "Functions|Donated", "JAX_EXCLUDE_TEST_TARGETS": "warn"}
    wanted = {(what, name) for what, name in judge if re.search("Functions|Donated", name)}
    assert outcomes("-m", "meshrt", "run", "--as-jax", STYLE, **some) == wanted
    file = shutil.copy(STYLE, tmp_path)  # out of reach of this project's conftest
    done = run("-c", BY_PYTEST, "-k", "not Numbers", "-p", "no:cacheprovider", file, folder=tmp_path)
    rest = [what for what, name in judge if "Numbers" not in name]
    counts = "{} failed, {} passed, {} skipped".format(*map(rest.count, ("FAILED", "OK", "SKIPPED")))
    assert counts in done.stdout, done.stdout


def test_samples_and_numbers_are_the_judges():
    from meshrt.compat.layer._src import test_util as ours

    grid = {"a": [1, 2, 3, 4], "b": list("xyz")}, [{"c": 1, "d": 2}, {"c": 3, "d": 4}]
    assert ours.sample_product_testcases(grid[1], **grid[0]) == judge.sample_product_testcases(grid[1], **grid[0])
    some_special = "rand_some_inf", "rand_some_nan", "rand_some_inf_and_nan"
    for name, dtype in itertools.product(some_special, ("float32", "complex64", "int32")):
        a, b = (getattr(m, name)(np.random.RandomState(0))((20000,), dtype) for m in (judge, ours))
        for share in (np.isnan, np.isinf, lambda x: np.isnan(x.real), lambda x: np.signbit(x.real)):
            assert abs(np.mean(share(a)) - np.mean(share(b))) < 0.03, (name, dtype)
    for name in ("rand_default", "rand_positive", "rand_nonzero", "rand_small_positive", "rand_not_small", "rand_small",
                 "rand_uniform", "rand_some_equal", "rand_bool", "rand_fullrange", "rand_some_zero"):  # fmt: skip
        for dtype in ("float32", "int16", "uint8", "bool"):
            a, b = (getattr(m, name)(np.random.RandomState(0))((3, 4), dtype) for m in (judge, ours))
            np.testing.assert_array_equal(a, b, err_msg=f"{name} {dtype}")
    a, b = (m.rand_default(np.random.RandomState(0))((3, 4), np.complex64) for m in (judge, ours))
    np.testing.assert_array_equal(a, b)
    for sizes in ((0, 3), (10, None)):
        a, b = (m.complex_plane_sample(np.complex64, *sizes) for m in (judge, ours))
        np.testing.assert_allclose(a, b, 1e-6)


@pytest.mark.parametrize("shape", [(2, 3), 4, "numpy", "python"])
def test_shapes_stand_for_scalars(shape):
    from meshrt.compat.layer._src import test_util as ours

    said = []
    for m in (judge, ours):
        own = {"numpy": m.NUMPY_SCALAR_SHAPE, "python": m.PYTHON_SCALAR_SHAPE}.get(shape, shape)
        value = m.rand_default(np.random.RandomState(0))(own, np.float32)
        said.append((m.format_shape_dtype_string(own, np.float32), type(value), np.shape(value)))
        said[-1] += (m.is_valid_shape(own, np.float32), m.is_valid_shape(own, np.int64))
    assert said[0] == said[1]


def test_tolerances_are_the_judges():
    from meshrt.compat.layer._src import test_util as ours

    for name, tolerance in judge.default_tolerance().items():
        assert ours.default_tolerance()[name] == tolerance, name
    for name, tolerance in judge.default_gradient_tolerance.items():
        assert ours.default_gradient_tolerance[name] == tolerance, name
    assert ours.join_tolerance({np.float32: 1e-3}, 1e-4)[np.dtype("float32")] == 1e-3
