"""A file of tests as those who use JAX write them: run with JAX and with meshrt in its place (`test_test_util.py`).

By itself it is no test of pytest's: its name does not begin with `test_`.
"""

import contextlib
import os
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax import lax
from jax._src import array, config, core, deprecations
from jax._src import test_util as jtu
from jax._src.lib import xla_client as xc
from jax._src.sharding_impls import GSPMDSharding
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

config.parse_flags_with_absl()
jtu.request_cpu_devices(4)

X = np.arange(4, dtype="float32")
UNARY = ("sin", "exp", "sqrt", "tanh", "abs", "sign", "floor", "isfinite", "square", "log1p", "reciprocal")
BINARY = ("add", "multiply", "maximum", "arctan2", "power", "less", "logaddexp", "hypot")
INTEGERS = ("gcd", "bitwise_xor")
COUNTERS = (
    jtu.count_pjit_cpp_cache_miss, jtu.count_jit_tracing_cache_miss, jtu.count_jit_and_pmap_lowerings,
    jtu.count_jit_compilation_cache_miss, jtu.count_compilation_after_persistent_cache_miss,
)  # fmt: skip


class Numbers(jtu.JaxTestCase):
    @jtu.sample_product(
        name=UNARY, shape=[(3,), (2, 1), jtu.NUMPY_SCALAR_SHAPE], dtype=jtu.dtypes.floating + jtu.dtypes.complex,
        rand=["rand_default", "rand_some_zero"],
    )  # fmt: skip
    @jtu.ignore_warning(category=RuntimeWarning)
    def test_unary(self, name, shape, dtype, rand):
        if name in ("floor", "log1p") and np.issubdtype(dtype, np.complexfloating):
            self.skipTest("of real numbers")
        sample, ours = getattr(jtu, rand)(self.rng()), getattr(jnp, name)
        self._CheckAgainstNumpy(getattr(np, name), ours, lambda: [sample(shape, dtype)], rtol=1e-4, atol=1e-5)
        self._CompileAndCheck(ours, lambda: [sample(shape, dtype)], rtol=1e-5)

    @jtu.sample_product([{"shapes": ((3,), (3,))}, {"shapes": ((2, 3), ())}], name=BINARY, dtype=jtu.dtypes.floating)
    @jax.numpy_rank_promotion("allow")
    def test_binary(self, name, shapes, dtype):
        sample = jtu.rand_positive(self.rng())
        self._CheckAgainstNumpy(
            getattr(np, name), getattr(jnp, name), lambda: [sample(s, dtype) for s in shapes], rtol=1e-5
        )

    @parameterized.product(name=INTEGERS, dtype=jtu.dtypes.integer + jtu.dtypes.unsigned)
    def test_integers(self, name, dtype):
        sample = jtu.rand_int(self.rng(), 0, 7)
        arguments = lambda: [sample((3, 2), dtype), sample((3, 2), dtype)]
        self._CheckAgainstNumpy(getattr(np, name), getattr(jnp, name), arguments)
        self._CompileAndCheck(getattr(jnp, name), arguments)

    @parameterized.product(name=["conj", "real", "abs", "sin"], mode=["fwd", "rev", "lin"])
    def test_derivatives(self, name, mode):
        z = jtu.rand_not_small(self.rng(), 1)((3,), np.complex64)
        jtu.check_grads(getattr(jnp, name), (z,), 2, modes=[mode], atol=0.1, rtol=0.1, eps=1e-2)

    def test_no_derivative(self):
        wrong = jax.custom_jvp(lambda x: jnp.sin(x))
        wrong.defjvp(lambda x, t: (wrong(*x), 2 * t[0]))
        for modes in ("fwd", "rev"):
            with self.assertRaises(AssertionError):
                jtu.check_grads(wrong, (X,), 1, modes=[modes])


@jtu.with_config(jax_enable_x64=True)
class Wide(jtu.JaxTestCase):
    def test_it(self):
        jtu.check_grads(jnp.tanh, (self.rng().randn(3),), 2)
        self.assertDtypesMatch(jnp.arange(3), np.arange(3))


class Counts(jtu.JaxTestCase):
    def counted(self, call):
        with contextlib.ExitStack() as stack:
            found = [stack.enter_context(counter()) for counter in COUNTERS]
            call()
            return tuple(count() for count in found)

    def test_calls(self):
        f, y = jax.jit(lambda x: lax.sin(lax.exp(x))), jnp.arange(3.0)
        self.assertEqual(self.counted(lambda: f(y)), (1, 1, 1, 1, 1))
        self.assertEqual(self.counted(lambda: f(y)), (0, 0, 0, 0, 0))
        self.assertCacheMisses(lambda: f(X), tracing=1, lowering=1, aot_call=0)
        with self.assertRaises(AssertionError):
            self.assertCacheMisses(lambda: f(y), tracing=1)
        self.assertEqual(self.counted(lambda: f.lower(np.float32([1, 2])))[1:], (1, 1, 0, 0))
        compiled = f.lower(y).compile()
        with jtu.count_aot_jit_cpp_cache_miss() as missed:
            compiled(y), compiled(y)
        self.assertEqual(missed(), 1)

    def test_shardings(self):
        mesh = jtu.create_mesh((2, 2), ("x", "y"))
        a, b = (jax.device_put(np.ones((4, 4), np.float32), NamedSharding(mesh, s)) for s in (P("x"), P()))
        f = jax.jit(lambda x: lax.sin(lax.cos(x)))
        self.assertEqual(self.counted(lambda: f(a))[1:], (1, 1, 1, 1))
        self.assertEqual(self.counted(lambda: f(b))[1:], (0, 1, 1, 1))
        self.assertEqual(self.counted(lambda: [f(a), f(b)]), (0,) * 5)

    def test_operations(self):
        y = jnp.arange(3.0)
        kept = jax.jit(lambda x: lax.log(lax.exp(x)))
        kept(y)
        with jtu.count_primitive_compiles() as made:
            for _ in range(2):
                lax.mul(lax.sin(y), lax.cos(y))
            lax.integer_pow(y, 3), lax.integer_pow(y, 5)
        self.assertEqual(made(), 5)
        self.assertEqual(self.counted(lambda: kept(y))[1:], (0,) * 4)

    def test_lowered(self):
        with jtu.collect_lowered_jaxprs() as found, jtu.count_events("trace_to_jaxpr")() as traced:
            jax.jit(lambda x: lax.tan(x))(X)
        ((jaxpr, module),) = found
        self.assertEqual(([e.primitive.name for e in jtu.iter_eqns(jaxpr.jaxpr)], traced()), (["tan"], 1))
        self.assertIn("tan", str(module))
        with jtu.assert_num_jit_and_pmap_compilations(1):
            jax.jit(lambda x: lax.neg(lax.tan(x)))(X)
        with jtu.count_internal_device_puts() as puts:
            jnp.asarray(X)
        self.assertIsInstance(puts(), dict)


class Functions(jtu.JaxTestCase):
    def test_errors(self):
        for kind, words, call in (
            (core.ConcretizationTypeError, "boolean conversion of traced", lambda: jax.jit(lambda x: x or 1)(1.0)),
            (TypeError, "only defined for scalar-output functions", lambda: jax.grad(lambda x: x)(X)),
            (ValueError, "vmap got inconsistent sizes", lambda: jax.vmap(lambda a, b: a)(X, X[1:])),
            (TypeError, "add got incompatible shapes for broadcasting", lambda: lax.add(X, X[1:])),
            (ValueError, "rank_promotion", lambda: jnp.add(X, np.float32([X]))),
            (jax.errors.TracerArrayConversionError, "__array__|ndarray", lambda: jax.jit(lambda x: np.sin(x))(X)),
        ):
            with self.assertRaisesRegex(kind, words):
                call()

    def test_values(self):
        self.assertAllClose({"a": (X, [1.0])}, {"a": (jnp.asarray(X), [1.0])}, check_dtypes=False)
        self.assertAllClose(None, None)
        self.assertArraysEqual(jnp.asarray(X), X)
        for wrong in ([X], {"a": X}, X + 1, X.astype("int32"), X[1:]):
            with self.assertRaises(AssertionError):
                self.assertAllClose(X, wrong)
        jtu.assert_dot_precision(lax.Precision.HIGH, lambda x: jnp.dot(x, x, precision="high"), X)

    @jtu.with_explicit_mesh((2, 2), ("x", "y"))
    def test_explicit(self, mesh):
        a = jax.device_put(np.ones((4, 4), np.float32), NamedSharding(mesh, P("x", "y")))
        self.assertEqual(jax.jit(jnp.sin)(a).sharding.spec, P("x", "y"))
        with self.assertRaises(core.ShardingTypeError):
            jax.jit(lambda a: a @ a)(a)

    @parameterized.named_parameters(("small", 2), ("large", 64))
    def test_meshes(self, size):
        self.assertEqual(jtu.create_mesh((size,), ("x",), iota_order=True).size, size)

    def test_deprecated(self):
        deprecations.register("of-this-file")
        with self.assertDeprecationWarnsOrRaises("of-this-file", "old"):
            deprecations.warn("of-this-file", "an old thing", 1)
        deprecations.accelerate("of-this-file")
        with self.assertDeprecationWarnsOrRaises("of-this-file", "old", error_class=TypeError):
            deprecations.warn("of-this-file", "an old thing", 1, error_class=TypeError)
        deprecations.unregister("of-this-file")
        with self.assertWarnsRegex(UserWarning, "ab."), jtu.ignore_warning(message="x"):
            warnings.warn("xxx", stacklevel=1)
            warnings.warn("abc", stacklevel=1)

    @jtu.skip_on_flag("jax_enable_x64", False)
    def test_flag(self):
        self.fail()

    @jtu.run_on_devices("tpu", "gpu")
    def test_elsewhere(self):
        self.fail()

    def test_fails(self):
        self.assertArraysEqual(jnp.zeros(2), jnp.ones(2))

    @jtu.thread_unsafe_test()
    def test_alone(self):
        before = threading.active_count()
        with jtu.set_env(OF_THIS_FILE="1"):
            self.assertEqual(os.environ["OF_THIS_FILE"], "1")
        self.assertEqual(threading.active_count(), before)


class Arch(jtu.JaxTestCase, jtu.CudaArchSpecificTest):
    def test_it(self):
        self.skip_unless_tcgen05_int8()
        self.fail()


TRANSFERS = (jtu.count_device_put, jtu.count_device_put_fast_path_hit, jtu.count_jax_array_shard_arg_calls)


class Transfers(jtu.JaxTestCase):
    def counted(self, call):
        with contextlib.ExitStack() as stack:
            found = [stack.enter_context(counter()) for counter in TRANSFERS]
            call()
            return tuple(count() for count in found)

    def test_put(self):
        mesh = jtu.create_mesh((2, 2), ("x", "y"))
        split, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
        renamed = NamedSharding(jtu.create_mesh((2, 2), ("a", "b")), P("a"))
        first, second = jax.devices()[:2]
        parts, here = jax.device_put(X, split), jax.device_put(X, first)
        one = NamedSharding(jax.make_mesh((1,), ("x",), devices=[first]), P("x"))
        for found, values, where in [
            ((0, 0, 0), parts, split), ((1, 1, 1), parts, whole), ((0, 1, 1), parts, renamed), ((0, 1, 1), here, one),
            ((1, 0, 0), here, second), ((1, 0, 0), here, first), ((1, 1, 1), parts, first), ((1, 0, 0), X, split),
            ((1, 1, 1), (parts, X), renamed), ((0, 1, 1), (here, here), one), ((3, 0, 0), [X] * 3, second),
            ((1, 0, 0), 3.0, None), ((0, 0, 0), here, None),
        ]:  # fmt: skip
            self.assertEqual(self.counted(lambda: jax.device_put(values, where)), found, (values, where))

    def test_calls(self):
        y = jnp.arange(4.0)
        add = jax.jit(lambda x, y: lax.add(x, y))
        self.assertEqual(self.counted(lambda: add(y, y)), (0, 1, 1))
        self.assertEqual(self.counted(lambda: add(y, y)), (0, 0, 0))
        self.assertEqual(self.counted(lambda: jax.jit(lambda x, y: lax.sub(x, y))(y, X)), (1, 1, 1))
        self.assertEqual(self.counted(lambda: jax.jit(lambda x: lax.neg(x))(X)), (1, 0, 0))
        self.assertEqual(self.counted(lambda: jax.jit(lambda x: jax.device_put(x, jax.devices()[0]))(y)), (0, 1, 1))


class XlaShardings(jtu.JaxTestCase):
    def proto(self, dims, devices, replicated=False):
        proto = xc.OpSharding()
        proto.type = xc.OpSharding.Type.OTHER
        proto.tile_assignment_dimensions, proto.tile_assignment_devices = dims, devices
        proto.replicate_on_last_tile_dim = replicated
        return proto

    def test_written(self):
        mesh = jtu.create_mesh((2, 2), ("x", "y"))
        turned = Mesh(np.array(jax.devices()[:4])[[0, 2, 3, 1]].reshape(2, 2), ("x", "y"))
        for spec, text in [
            (P("x", "y"), "{devices=[2,2]<=[4]}"), (P("y", "x"), "{devices=[2,2]<=[2,2]T(1,0)}"),
            (P(("y", "x")), "{devices=[4,1]<=[2,2]T(1,0)}"), (P("x"), "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"),
            (P("y"), "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}"), (P(), "{replicated}"),
        ]:  # fmt: skip
            self.assertEqual(str(NamedSharding(mesh, spec)._to_xla_hlo_sharding(2)), text)
            listed = NamedSharding(turned, spec)._to_xla_hlo_sharding(2)
            self.assertEqual(listed, NamedSharding(mesh, spec)._to_xla_hlo_sharding(2))
        found = NamedSharding(mesh, P("y"))._to_xla_hlo_sharding(2)
        self.assertEqual(found, xc.HloSharding.from_proto(self.proto([2, 1, 2], [0, 2, 1, 3], True)))
        self.assertEqual(hash(found), hash(xc.HloSharding.from_proto(self.proto([2, 1, 2], [0, 2, 1, 3], True))))

    def test_kept(self):
        devices = jax.devices()[:4]
        whole = GSPMDSharding.get_replicated(devices)
        self.assertEqual(whole, GSPMDSharding(devices, xc.HloSharding.replicate()))
        self.assertEqual(repr(whole), "GSPMDSharding({replicated}, memory_kind=device)")
        self.assertTrue(whole.is_fully_replicated)
        split = GSPMDSharding(devices, self.proto([2, 1, 2], [0, 2, 1, 3], True))
        self.assertIsInstance(split, jax.sharding.Sharding)
        self.assertEqual(split, GSPMDSharding(tuple(devices), self.proto([2, 1, 2], [0, 2, 1, 3], True)))
        self.assertNotEqual(split, whole)
        self.assertEqual(split.with_memory_kind("unpinned_host").memory_kind, "unpinned_host")
        self.assertIn("[2,1,2]", repr(split.with_memory_kind("unpinned_host")))
        like = NamedSharding(jtu.create_mesh((2, 2), ("x", "y")), P("y"))
        self.assertTrue(split.is_equivalent_to(like, 2) or split.shard_shape((4, 1)) == like.shard_shape((4, 1)))
        x = jax.device_put(X.reshape(4, 1), split)
        self.assertIsInstance(x.sharding, GSPMDSharding)
        self.assertEqual([s.device.id for s in x.addressable_shards if s.index[0].start == 2], [1, 3])


class Parts(jtu.JaxTestCase):
    def made(self, shape, devices, committed=True, dtype=np.float32):
        pieces = [jax.device_put(X, d) for d in devices]
        sharding = NamedSharding(jtu.create_mesh((2,), ("x",)), P("x"))
        return array.ArrayImpl(core.ShapedArray(shape, np.dtype(dtype)), sharding, pieces, committed=committed)

    def test_it(self):
        devices = jax.devices()
        found = self.made((8,), devices[:2])
        self.assertArraysEqual(found, np.concatenate([X, X]))
        self.assertTrue(found.committed)
        for wrong, words in [
            (((8,), devices[:1]), "Expected 2 per-device arrays .* but got 1"),
            (((10,), devices[:2]), r"Expected shard shape \(5,\) doesn't match the single device array shape \(4,\)"),
            (((8,), [devices[0], devices[3]]), "Addressable devices and per-device arrays devices do not match"),
            (((8,), devices[:2], True, np.int32), "must have matching dtypes. Got float32, expected int32 for buffer"),
        ]:
            with self.assertRaisesRegex(ValueError, words):
                self.made(*wrong)


@jtu.thread_unsafe_test_class()
class Donated(jtu.BufferDonationTestCase):
    @parameterized.parameters(*jtu.JIT_IMPLEMENTATION)
    def test_it(self, jit):
        kept, given = jnp.arange(3.0), jnp.arange(4.0)
        jit(lambda x: lax.neg(x), donate_argnums=0)(given)
        self.assertNotDeleted(kept)
        (self.assertDeleted if jit._name == "jit" else self.assertNotDeleted)(given)


if __name__ == "__main__":
    absltest.main(testLoader=jtu.JaxTestLoader())
