"""Settings as context managers under JAX's names; JAX is the judge of what they do."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import warnings

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy
from meshrt import errors
from meshrt._jax_settings import FIXED, WITHOUT_EFFECT

pytestmark = pytest.mark.collects

LIBRARIES = [meshrt, jax]


def both(program):
    """What `program` gives with meshrt and with JAX."""
    return [program(lib) for lib in LIBRARIES]


def ids(x):
    return sorted(d.id for d in x.devices())


def test_default_device():
    def program(lib):
        one, two = lib.devices()[1], lib.devices()[2]
        made_outside = lib.numpy.ones(3)
        committed = lib.device_put(np.ones(3), lib.devices()[5])
        double = lib.jit(lambda x: x * 2)
        seen = [ids(double(made_outside)), ids(double(np.ones(3)))]
        with lib.default_device(one):
            inner = lib.numpy.ones(3)
            seen += [ids(inner), ids(double(np.ones(3))), ids(double(made_outside)), ids(double(committed))]
            seen += [ids(lib.numpy.arange(3) + 1), ids(lib.random.normal(lib.random.key(0), (2,)))]
            seen += [ids(lib.device_put(np.ones(3))), ids(lib.device_put(committed))]
            with lib.default_device(two):
                seen += [ids(lib.numpy.zeros(3)), ids(double(inner)), ids(double(np.ones(3)))]
            with lib.default_device("cpu"):
                seen += [ids(lib.numpy.zeros(3))]
            with lib.default_device(None):
                seen += [ids(lib.numpy.zeros(3))]
            seen += [ids(lib.numpy.zeros(3)), lib.default_device.value is one]
        return [*seen, ids(lib.numpy.zeros(3)), ids(double(inner)), ids(double(np.ones(3)))]

    ours, theirs = both(program)
    assert ours == theirs


def test_default_device_by_update():
    def program(lib):
        lib.config.update("jax_default_device", lib.devices()[3])
        try:
            return ids(lib.numpy.ones(3)), ids(lib.jit(lambda x: x + 1)(np.ones(3)))
        finally:
            lib.config.update("jax_default_device", None)

    ours, theirs = both(program)
    assert ours == theirs == ([3], [3])


def test_default_device_beside_a_mesh():
    def program(lib):
        mesh = lib.sharding.Mesh(np.array(lib.devices()[:4]), ("x",))
        spread = lib.device_put(np.ones(8, np.float32), lib.NamedSharding(mesh, lib.P("x")))
        with lib.default_device(lib.devices()[6]):
            return ids(lib.jit(lambda x: x + 1)(spread)), ids(spread + 1), ids(spread + np.ones(8, np.float32))

    ours, theirs = both(program)
    assert ours == theirs


@pytest.mark.parametrize("value", ["cpux", 3, b"cpu"])
def test_no_device(value):
    for call in (meshrt.default_device, lambda v: meshrt.config.update("default_device", v)):
        with pytest.raises(errors.ConfigError, match=r"must be passed either a Device .* the platforms are cpu, "):
            call(value)
    with pytest.raises(ValueError), jax.default_device(value):
        pass


def test_enable_x64():
    def program(lib):
        seen = [str(lib.numpy.ones(2).dtype)]
        with lib.enable_x64(True):
            seen += [str(lib.numpy.ones(2).dtype), lib.config.x64_enabled, lib.config.read("jax_enable_x64")]
            with lib.enable_x64(False):
                seen += [str(lib.numpy.asarray(np.ones(2)).dtype)]
        with lib.enable_x64():
            seen += [str(lib.jit(lambda x: x * 2)(np.ones(2)).dtype)]
        return [*seen, str(lib.jit(lambda x: x * 2)(np.ones(2)).dtype), lib.config.jax_enable_x64]

    ours, theirs = both(program)
    assert ours == theirs


def test_the_others_set_their_settings():
    cases = {
        "default_matmul_precision": "highest", "debug_nans": True, "debug_infs": True, "log_compiles": True,
        "numpy_dtype_promotion": "strict", "disable_jit": True, "enable_x64": True, "default_prng_impl": "rbg",
        "explain_cache_misses": True, "remove_size_one_mesh_axis_from_type": True,
    }  # fmt: skip
    for name, value in cases.items():

        def program(lib, name=name, value=value):
            seen = [str(getattr(lib.config, f"jax_{name}"))]
            with getattr(lib, name)(value):
                seen.append(str(getattr(lib.config, f"jax_{name}")))
            return [*seen, str(getattr(lib.config, f"jax_{name}"))]

        ours, theirs = both(program)
        assert ours[1:] == theirs[1:] and ours[0] == ours[2], name


def test_as_decorator_and_more_than_once():
    def program(lib):
        context = lib.default_matmul_precision("highest")

        @context
        def read(depth):
            value = lib.config.jax_default_matmul_precision
            return [value, *(read(depth - 1) if depth else [])]

        seen = [*read(1), str(lib.config.jax_default_matmul_precision)]
        with context:
            seen.append(lib.config.jax_default_matmul_precision)
        return [*seen, str(lib.config.jax_default_matmul_precision)]

    ours, theirs = both(program)
    assert ours == theirs


def test_an_error_inside_and_another_thread():
    def program(lib):
        seen = []
        try:
            with lib.debug_nans(True):
                thread = threading.Thread(target=lambda: seen.append(lib.config.jax_debug_nans))
                thread.start(), thread.join()
                lib.numpy.log(-lib.numpy.ones(2))
        except FloatingPointError:
            seen.append("error")
        return [*seen, lib.config.jax_debug_nans]

    ours, theirs = both(program)
    assert ours == theirs == [False, "error", False]


def test_disable_jit():
    def program(lib):
        seen = []
        f = lib.jit(
            lambda x: seen.append(isinstance(x, lib.core.Tracer) if lib is jax else "Tracer" in type(x).__name__)
        )
        with lib.disable_jit():
            f(1.0)
            with lib.disable_jit(False):
                f(1.0)
        return seen

    ours, theirs = both(program)
    assert ours == theirs == [False, True]


def test_misuse():
    with pytest.raises(errors.ArgumentTypeError, match="default_matmul_precision takes one value"):
        meshrt.default_matmul_precision()
    with pytest.raises(TypeError, match=r"its value is meshrt.enable_x64.value"):
        bool(meshrt.enable_x64)
    with pytest.raises(errors.ConfigError, match=r"new enum value must be None or in \['default'"):
        meshrt.default_matmul_precision("best")
    assert "now None" in repr(meshrt.default_device)


def test_settings_that_do_not_exist():
    with pytest.raises(AttributeError, match=r"'debug_key_misuse': .*did you mean debug_key_reuse"):
        meshrt.debug_key_misuse
    with pytest.raises(errors.ConfigError, match="jax_debug_key_misuse; did you mean debug_key_reuse"):
        meshrt.config.update("jax_debug_key_misuse", True)


# Names that JAX's own functions use to talk to one another.
_INTERNAL = {"check_vma", "eager_constant_folding", "mock_num_gpu_processes"}


def _settings_of_jax():
    """Names of the settings that `import jax` makes: other modules of it, its own tests' among them, add theirs."""
    program = "import jax; print(*jax.config.values)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def test_every_setting_of_jax_is_known():
    for name in _settings_of_jax() - _INTERNAL:
        value = getattr(meshrt.config, name, KeyError)
        assert value is not KeyError, name
        short = name.removeprefix("jax_")
        theirs = jax.config.values[name]
        if short in WITHOUT_EFFECT or short in FIXED:
            assert str(value) == str(getattr(theirs, "name", theirs)).lower() or value == theirs, name
            meshrt.config.update(name, value)
    for name in FIXED:
        with pytest.raises(errors.ConfigError, match="JAX's, as it is"):
            meshrt.config.update(f"jax_{name}", object())
    with meshrt.config.override(jax_remat3=True):
        assert meshrt.config.jax_remat3
    assert not meshrt.config.jax_remat3


def test_array_garbage_collection_guard(capfd):
    class Knot:
        pass

    def collect(lib):
        knot = Knot()
        knot.itself, knot.array = knot, lib.numpy.ones(2)
        del knot
        gc.collect()
        return "was deleted by the Python garbage collector" in capfd.readouterr().err

    def program(lib):
        gc.collect()
        seen = [collect(lib)]
        with lib.array_garbage_collection_guard("log"):
            seen.append(collect(lib))
            with lib.array_garbage_collection_guard("allow"):
                seen.append(collect(lib))
            seen.append(collect(lib))
        lib.config.update("jax_array_garbage_collection_guard", "log")
        seen.append(collect(lib))
        lib.config.update("jax_array_garbage_collection_guard", None)
        return [*seen, collect(lib)]

    ours, theirs = both(program)
    assert ours == theirs == [False, True, False, True, True, False]
    with pytest.raises(errors.ConfigError, match="'fatal'"), meshrt.array_garbage_collection_guard("never"):
        pass


def test_thread_guard():
    def program(lib):
        with lib.thread_guard(True):
            seen = [lib.thread_guard.value]
            with lib.thread_guard(False):
                seen.append(lib.thread_guard.value)
            lib.numpy.ones(2) + 1
        thread = threading.Thread(target=lambda: seen.append(float(lib.numpy.ones(()) + 1)))
        thread.start()
        thread.join()
        return [*seen, lib.thread_guard.value]

    ours, theirs = both(program)
    assert ours == theirs == [True, False, 2.0, False]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("debug_infs", True), ("debug_nans", True), ("default_device", None), ("default_matmul_precision", "highest"),
        ("default_prng_impl", "rbg"), ("enable_x64", True), ("log_compiles", False),
        ("numpy_dtype_promotion", "strict"), ("threefry_partitionable", False), ("transfer_guard", "allow"),
        ("transfer_guard_device_to_device", "allow"), ("transfer_guard_device_to_host", "allow"),
        ("transfer_guard_host_to_device", "allow"),
    ],
)  # fmt: skip
def test_values_by_name(name, value):
    for lib in LIBRARIES:
        with getattr(lib, name)(new_val=value):
            assert name == "transfer_guard" or getattr(lib, name).value == value
        with pytest.raises(TypeError), lib.disable_jit(new_val=True):
            pass
        with lib.disable_jit(disable=False):
            assert not lib.config.jax_disable_jit


@pytest.mark.parametrize("setting", ["allow", "warn", "raise"])
def test_rank_promotion(setting):
    combined = {
        "+": lambda lib, x, y: x + y, "maximum": lambda lib, x, y: lib.numpy.maximum(x, y),
        "where": lambda lib, x, y: lib.numpy.where(x > 0, y, 0),  # takes arrays of any ranks
        "jit": lambda lib, x, y: lib.jit(lambda x, y: x * y)(x, y),
        "scalar": lambda lib, x, y: y - lib.numpy.ones(()),
    }  # fmt: skip

    def program(lib, combine):
        row, table = lib.numpy.ones(3), lib.numpy.ones((2, 3))
        for inside in ("allow", setting):  # what was run before does not matter
            with lib.numpy_rank_promotion(inside), warnings.catch_warnings(record=True) as noted:
                warnings.simplefilter("always")
                try:
                    combine(lib, row, table)
                except ValueError as e:
                    return [], "could not be broadcast" in str(e)
        return [w for w in noted if "automatic rank promotion" in str(w.message)], False

    for name, combine in combined.items():
        (ours, refused), (_, refused_there) = both(lambda lib, c=combine: program(lib, c))
        assert refused == refused_there, name
        # JAX warns while it traces, which is not each time.
        assert len(ours) == (setting == "warn" and name not in ("where", "scalar")), name


def test_no_tracing():
    def program(lib):
        f = lib.jit(lambda x: x + 1)
        f(np.ones(3))
        with lib.no_tracing():
            seen = [f(np.ones(3)).tolist()]
            for call in (lambda: f(np.ones(4)), lambda: lib.jit(lambda x: x * 2)(np.ones(3))):
                with pytest.raises(RuntimeError, match=r"<lambda> at \S+\.py:\d+ for `jit`, but 'no_tracing'"):
                    call()
        return [*seen, f(np.ones(4)).tolist(), lib.no_tracing.value]

    ours, theirs = both(program)
    assert ours == theirs


def test_a_program_that_would_run():
    def program(library):
        f = library.jit(lambda x: x + 1)
        f(2.0)
        for _ in range(2):
            with library.no_execution(), pytest.raises(RuntimeError, match="no_execution"):
                f(2.0)
            assert f(2.0) == 3

    both(program)


def test_values_that_outlive_their_trace():
    def program(library):
        kept = []
        body = lambda c, x: (kept.append(c) or library.numpy.sin(c), None)
        with library.checking_leaks():
            with pytest.raises(Exception, match="Leaked"):
                library.jit(lambda x: kept.append(x) or x)(3)
            with pytest.raises(Exception, match="Leaked trace"):
                library.lax.scan(body, 1.0, np.arange(3.0))

    both(program)


@pytest.mark.parametrize("transform", ["jit", "vmap"])
@pytest.mark.parametrize("leaks", ["variable", "function"])
def test_values_that_outlive_their_trace_in_closures(transform, leaks):
    def program(library):
        kept = None

        def f(x):
            nonlocal kept
            kept = x if leaks == "variable" else lambda: x
            return x

        with library.checking_leaks(), pytest.raises(Exception, match="Leaked trace"):
            getattr(library, transform)(f)(np.arange(3.0))

    both(program)


@pytest.mark.parametrize("custom", ["custom_jvp", "custom_vjp", "custom_gradient"])
def test_rules_that_close_over_mapped_values_go_with_their_function(custom):
    def program(library):
        def f(x):
            y = 2 * x
            if custom == "custom_gradient":
                return library.custom_gradient(lambda z: (z * y, lambda ct: ct * y))(x)
            g = getattr(library, custom)(lambda z: 2 * z)
            if custom == "custom_jvp":
                g.defjvp(lambda p, t: (2 * p[0], y * t[0]))
            else:
                g.defvjp(lambda z: (2 * z, None), lambda _, ct: (y * ct,))
            return g(x)

        with library.checking_leaks():
            library.vmap(f)(np.arange(3.0))

    both(program)


def test_traces_of_which_nothing_is_left():
    def program(library):
        with library.check_tracer_leaks():
            f = library.jit(lambda x: library.numpy.sin(x) * 2)
            f(3.0), library.vmap(f)(np.arange(3.0)), library.grad(f)(3.0)
            library.jvp(lambda x: library.lax.scan(lambda c, x: (c, None), x, None, length=1)[0], (3.0,), (1.0,))
            library.jit(lambda x: library.vjp(library.checkpoint(lambda x: library.nn.relu(2 * x)), x)[0])(1.0)

    both(program)


def test_jaxprs_are_checked():
    with meshrt.enable_checks(True):
        f = meshrt.jit(lambda x: meshrt.lax.cond(x > 0, lambda: meshrt.numpy.sin(x), lambda: 2.0))
        assert f(0.0) == 2


def test_a_context_of_the_users_own():
    def program(library):
        mode, traced = library.make_user_context("plain"), []
        f = library.jit(lambda x: traced.append(mode.value) or x)
        f(1.0)
        with mode("fancy"):
            f(1.0)
            with mode("fancier"):
                f(1.0)
            f(1.0)
        f(1.0)
        assert traced == ["plain", "fancy", "fancier"]
        mode.set_global("other")
        assert mode.get_global() == mode.value == "other"
        mode.set_global("plain")

    both(program)


def test_raw_keys_as_the_settings_say():
    def program(library):
        raw = library.random.PRNGKey(0)
        with library.legacy_prng_key("error"):
            library.random.bits(library.random.key(0))
            with pytest.raises(ValueError, match="Legacy uint32 key array passed as key to"):
                library.random.bits(raw)
        with library.legacy_prng_key("warn"), pytest.warns(UserWarning, match="Legacy uint32 key array passed as key"):
            library.random.bits(raw)
        with library.enable_custom_prng(True):
            assert library.random.PRNGKey(0).shape == ()

    both(program)
