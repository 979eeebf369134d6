"""What crosses to a compiler: only what it takes, and what that is."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jaxlib.mlir import ir

import meshrt
import meshrt.numpy as jnp
import meshrt.scipy.special as special
from meshrt import errors, lax
from meshrt.extend import backend
from meshrt.lowering.capabilities import capabilities_of
from meshrt.lowering.legalize import legalize, operations
from meshrt.runtime.executable import compile_program
from meshrt.xla import jaxlib_api

X = np.linspace(0.1, 0.9, 8, dtype=np.float32)


@pytest.fixture
def configured(tmp_path):
    """Writes rows for a platform's compiler, and has them hold."""

    def write(platform, rows):
        (tmp_path / f"{platform}.toml").write_text(rows)
        meshrt.config.update("backend_configs", str(tmp_path))

    yield write
    meshrt.config.update("backend_configs", None)


@pytest.fixture
def crossing(monkeypatch):
    """The modules that cross to a compiler."""
    seen, compile_and_load = [], jaxlib_api.compile_and_load

    def spy(module, *args):
        seen.append(module)
        return compile_and_load(module, *args)

    monkeypatch.setattr(jaxlib_api, "compile_and_load", spy)
    return seen


def dialects(module):
    parsed = module if isinstance(module, ir.Module) else jaxlib_api.parse(module)
    return {str(op.name).partition(".")[0] for op in operations(parsed)}


def module(body, types="tensor<4xf32>"):
    return f"""module {{
  func.func @main(%arg0: {types}) -> {types} {{
    {body}
    return %0 : {types}
  }}
}}"""


# Every operation that is written as one of CHLO's.
SUGAR = {
    "erf": special.erf, "erfc": special.erfc, "erf_inv": special.erfinv, "lgamma": special.gammaln,
    "digamma": special.digamma, "i1e": special.i1e, "sinh": jnp.sinh, "cosh": jnp.cosh, "asin": jnp.arcsin,
    "acos": jnp.arccos, "atan": jnp.arctan, "asinh": jnp.arcsinh, "atanh": jnp.arctanh, "tan": jnp.tan,
    "polygamma": lambda x: special.polygamma(1, x), "zeta": lambda x: special.zeta(x + 2, x),
    "top_k": lambda x: lax.top_k(x, 3)[0], "square": jnp.square,
}  # fmt: skip


@pytest.mark.parametrize("name", SUGAR)
def test_001_01_no_chlo_reaches_a_compiler_that_does_not_take_it(name, configured, crossing):
    expected = meshrt.jit(SUGAR[name])(X)
    configured("cpu", "chlo = false")
    f = SUGAR[name]
    got = meshrt.jit(lambda x: f(x) + 0)(X)
    assert dialects(crossing[-1]) <= {"builtin", "func", "stablehlo"}
    np.testing.assert_allclose(got, expected, rtol=2e-6)


def test_001_01_a_partitioned_program_crosses_without_chlo_and_sdy(configured, crossing):
    configured("cpu", "chlo = false\nsdy = false")
    mesh = meshrt.make_mesh((8,), ("x",))
    x = meshrt.device_put(np.ones((8, 4), np.float32), meshrt.NamedSharding(mesh, meshrt.P("x")))
    got = meshrt.jit(lambda x: special.erf(x).sum(0) - 1)(x)
    assert dialects(crossing[-1]) <= {"builtin", "func", "stablehlo"}
    np.testing.assert_allclose(got, special.erf(np.ones(4, np.float32)) * 8 - 1, rtol=1e-6)


def test_001_01_what_a_compiler_does_not_take_is_refused_before_it_runs(crossing):
    cases = {
        "arith": module("%0 = arith.addf %arg0, %arg0 : tensor<4xf32>"),
        "meshrt's own": module('%0 = stablehlo.custom_call @meshrt.inspect_sharding(%arg0) : (tensor<4xf32>) -> '
                               'tensor<4xf32>'),
        "'cusolver_getrf_ffi'": module('%0 = stablehlo.custom_call @cusolver_getrf_ffi(%arg0) : (tensor<4xf32>) -> '
                                       'tensor<4xf32>'),
    }  # fmt: skip
    for words, text in cases.items():
        program = compile_program(text, num_devices=1)
        for caught in (errors.CompileError, NotImplementedError):
            with pytest.raises(caught, match=words) as raised:
                program.load(meshrt.devices()[:1])
        assert "-:" in str(raised.value) or "at " in str(raised.value)
    assert not crossing


def test_001_01_the_message_has_operation_line_and_reason(configured):
    configured("cpu", 'not_operations = ["stablehlo.sine"]')
    with pytest.raises(errors.UnsupportedByBackendError) as caught:
        meshrt.jit(lambda x: jnp.sin(x) * 3)(X)
    text = str(caught.value)
    assert "stablehlo.sine" in text and "test_boundary.py:" in text and "does not take this operation" in text


def test_001_01_operations_in_generic_syntax_are_walked_in_pretty_modules(configured):
    """Those with no other syntax stand so among others that have one."""
    configured("cpu", 'not_operations = ["stablehlo.reduce_window"]')
    windows = meshrt.jit(lambda x: lax.reduce_window(x, 0.0, lax.add, (2,), (1,), "VALID")).lower(X).module.text
    for text in (windows, jaxlib_api.pretty(windows)):
        with pytest.raises(errors.UnsupportedByBackendError, match=r"stablehlo\.reduce_window"):
            legalize(text, backend.capabilities("cpu"))


def test_001_02_only_what_is_exact_is_done_on_wider_elements(configured):
    configured("cpu", 'wider = ["stablehlo.add of bf16", "stablehlo.concatenate of bf16 f32"]')
    both = meshrt.jit(lambda x, y: (jnp.concatenate([x + x, x]), jnp.concatenate([y, y])))
    text = both.lower(jnp.ones(2, jnp.bfloat16), X).module.text
    crosses = jaxlib_api.parse(legalize(text, backend.capabilities("cpu")))
    kinds = {(str(op.name), str(op.results[0].type)) for op in operations(crosses) if op.results}
    joined = {("stablehlo.concatenate", "tensor<4xf32>"), ("stablehlo.concatenate", "tensor<16xf32>")}
    assert {("stablehlo.add", "tensor<2xbf16>"), *joined} <= kinds


def test_001_02_what_a_compiler_takes_crosses_as_it_was_written():
    text = meshrt.jit(lambda x: special.erf(x) @ x).lower(X).module.text
    assert "chlo" in text and legalize(text, capabilities_of("cpu")) is text
    pretty = jaxlib_api.pretty(text)
    assert legalize(pretty, capabilities_of("cpu")) is pretty
    parsed = jaxlib_api.parse(text)
    assert legalize(parsed, capabilities_of("cpu")) is parsed


def test_001_03_a_stable_compiler_gets_artifacts_of_its_version(configured, crossing):
    configured("cpu", 'stable_only = true\nnewest = "1.9.0"')
    got = meshrt.jit(lambda x: special.erf(x) * 5)(X)
    assert b"StableHLO_v1.9.0" in crossing[-1]
    np.testing.assert_allclose(got, special.erf(X) * 5, rtol=1e-6)
    configured("old", 'newest = "1.7.0"')
    newer = module("%0 = stablehlo.optimization_barrier %arg0 : tensor<4xf4E2M1FN>", "tensor<4xf4E2M1FN>")
    with pytest.raises(errors.UnsupportedByBackendError, match=r"1\.7\.0"):
        legalize(newer, capabilities_of("old"))


def test_001_03_unknown_plugins_get_stable_programs_only():
    takes = capabilities_of("somebody's")
    assert takes.stable_only and not (takes.chlo or takes.sdy or takes.shape)
    told = capabilities_of(
        "somebody's", {"stablehlo_current_version": [1, 3, 0], "stablehlo_minimum_version": [1, 0, 0]}
    )
    assert (told.oldest, told.newest) == ("1.0.0", "1.3.0")
    assert not told.supports("stablehlo", "add", "0.9.0") and told.supports("stablehlo", "add", "1.1.0")


def test_001_04_a_backend_says_what_it_supports():
    assert backend.supports("stablehlo", "add", "1.9.0") and backend.supports("chlo", "erf", platform="cpu")
    assert not backend.supports("stablehlo", "fly") and not backend.supports("arith", "addf")
    cuda = backend.capabilities("gpu")
    assert cuda.name == "cuda" and cuda.takes_custom_call("cusolver_getrf_ffi")
    assert not cuda.takes_custom_call("lapack_sgetrf_ffi")
    assert not cuda.supports("stablehlo", "composite", "0.18.0") and cuda.supports("stablehlo", "composite", "0.19.0")
    assert not cuda.supports("stablehlo", "add", "99.0.0")
    with pytest.raises(ValueError, match="no version of StableHLO"):
        cuda.supports("stablehlo", "add", "new")


def test_001_04_types_and_custom_calls_are_capabilities_too(configured):
    double = module("%0 = stablehlo.add %arg0, %arg0 : tensor<4xcomplex<f64>>", "tensor<4xcomplex<f64>>")
    with pytest.raises(errors.UnsupportedByBackendError, match=r"complex<f64>"):
        legalize(double, capabilities_of("tpu"))
    assert legalize(double, capabilities_of("cpu")) is double
    lapack = meshrt.jit(jnp.linalg.qr).lower(np.eye(3, dtype=np.float32)).module.text
    with pytest.raises(errors.UnsupportedByBackendError, match=r"'lapack_sgeqrf_ffi'"):
        legalize(lapack, capabilities_of("cuda"))
    configured("abacus", 'custom_calls = ["bead_*"]\nnot_dtypes = ["f32"]\nstable_only = false')
    assert backend.capabilities("abacus").takes_custom_call("bead_move")
    with pytest.raises(errors.UnsupportedByBackendError, match="element type f32"):
        legalize(module("%0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>"), backend.capabilities("abacus"))


@pytest.mark.parametrize("rows", ["chlo = 3", "colour = true", 'newest = "soon"', "not_dtypes = [1]", "="])
def test_001_04_files_that_say_no_capability_are_refused(rows, configured):
    configured("cpu", rows)
    with pytest.raises(ValueError, match=r"cpu\.toml|no version"):
        backend.capabilities("cpu")


def test_001_04_a_folder_of_files_that_is_not_there_is_said(tmp_path):
    missing = meshrt.config.override(backend_configs=str(tmp_path / "none"))
    with missing, pytest.raises(ValueError, match=r"backend_configs names .*none, which is no folder"):
        backend.capabilities("somebody's new one")


@pytest.mark.parametrize("rows", [
    'newest = "abc"', 'oldest = "2.0"', 'oldest = "99.0.0"', 'not_operations = ["sine"]', "not_operations = 'x'",
    'not_operations = ["stablehlo.sine of"]', 'not_operations = ["stablehlo.sine of float16"]',
    'not_dtypes = ["float16"]', 'wider = ["stablehlo.reduce"]', 'chlo = "no"', "newest = 3", "what = 1", "no toml",
])  # fmt: skip
def test_001_04_files_of_rows_that_say_nothing(rows, configured):
    """Entries that no operation and no type has would be passed over otherwise."""
    configured("somebody", rows)
    with pytest.raises(errors.ConfigError, match=r"somebody\.toml"):
        backend.capabilities("somebody")


def test_001_04_a_compiler_may_read_nothing_older_than_what_jaxlib_writes(configured):
    configured("somebody", 'oldest = "current"\nnewest = "current"')
    found = backend.capabilities("somebody")
    assert found.oldest_version == found.newest_version
    assert found.supports("stablehlo", "add", found.newest_version) and not found.supports("stablehlo", "add", "1.0.0")


def test_backends_are_printed():
    command = [sys.executable, "-m", "meshrt", "backends", "cpu", "tpu"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "chlo" in said and "lapack_*" in said


# ---------------------------------------------------------------------------------------------------------------------
# Plugins


def run(program, *args, **env):
    done = subprocess.run([sys.executable, "-c", program, *args], check=False, capture_output=True, text=True,
                          timeout=120, env={**os.environ, **env})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def mock_plugin(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("jax_plugins") / "abacus" / "pjrt_plugin_abacus.so"
    library.parent.mkdir()
    source = Path(__file__).parent / "mock_plugin.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    (library.parent / "__init__.py").write_text("raise RuntimeError('not to be imported')")
    return library


REFUSED = """
import sys, meshrt
from meshrt.extend import backend
if sys.argv[1:]:
    backend.register_plugin("abacus", sys.argv[1], {"flavour": "salty", "count": 3})
    assert backend.capabilities("abacus").stable_only
try:
    meshrt.devices("abacus")
except meshrt.errors.BackendError as e:
    print(e)
"""


def test_a_plugin_is_loaded_with_its_options_when_a_device_is_asked_for(mock_plugin):
    said = run(REFUSED, str(mock_plugin))
    assert "the mock has no device;" in said and "flavour=salty" in said and "count=3" in said


def test_plugins_of_the_environment_and_of_packages_are_found(mock_plugin):
    assert "the mock has no device;" in run(REFUSED, PJRT_NAMES_AND_LIBRARY_PATHS=f"abacus:{mock_plugin}")
    site = mock_plugin.parent.parent.parent / "site"
    shutil.copytree(mock_plugin.parent, site / "jax_plugins" / "abacus")
    assert "the mock has no device;" in run(REFUSED, PYTHONPATH=str(site))
    assert "Unknown backend abacus" in run(REFUSED)


def test_a_client_of_a_plugin_runs_programs():
    program = """
import numpy as np, meshrt
meshrt.config.update("num_cpu_devices", 2)
from meshrt.extend import backend
from meshrt.xla import jaxlib_api
backend.register_plugin("second", client=lambda options: jaxlib_api.cpu_client(options["devices"]),
                        options={"devices": 3})
assert meshrt.default_backend() == "second" and meshrt.device_count() == 3
x = meshrt.device_put(np.arange(3.0, dtype=np.float32), meshrt.devices("second")[2])
print(meshrt.jit(lambda x: x + 1)(x), meshrt.device_count("cpu"))
"""
    assert run(program).split() == ["[1.", "2.", "3.]", "2"]


def test_plugins_that_cannot_be_are_refused(tmp_path):
    for name, options in {"cpu": {"library_path": "a.so"}, "abacus": {}, "gpu": {"library_path": "a.so"}}.items():
        with pytest.raises(ValueError):
            backend.register_plugin(name, **options)
    for name, options in ((3, None), ("npu", [1])):
        with pytest.raises(errors.ArgumentTypeError, match="plugin"):
            backend.register_plugin(name, "a.so", options)
    nothing = """
import meshrt
meshrt.extend.backend.register_plugin("npu", client=lambda options: None)
try: meshrt.devices("npu")
except meshrt.errors.BackendError as e: print(e)
"""
    assert "gave None, which has no devices" in run(nothing)
    missing = f"""
import meshrt
meshrt.extend.backend.register_plugin("abacus", {str(tmp_path / "a.so")!r})
try: meshrt.devices("abacus")
except RuntimeError as e: print(e)
try: meshrt.extend.backend.register_plugin("abacus", "b.so")
except ValueError as e: print(e)
"""
    said = run(missing)
    assert "give register_plugin the path" in said and "registered for the platform 'abacus' already" in said
