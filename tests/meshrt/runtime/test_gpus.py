"""GPUs: what is known of them without one, and what their compiler takes (`make test-tpu`)."""

from __future__ import annotations

import time
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.runtime import backend
from meshrt.xla import jaxlib_plugins, jaxlib_profiling
from tests.meshrt.kernels.test_hardware import needs_cuda


def device(platform, version=""):
    return types.SimpleNamespace(platform=platform, client=types.SimpleNamespace(platform_version=version))


@pytest.mark.parametrize(
    ("given", "expected"),
    [(("gpu", "PJRT C API\ncuda 13000"), "cuda"), (("gpu", "rocm 60000"), "rocm"), (("cuda",), "cuda"),
     (("cpu",), "cpu"), (("tpu", "rocm"), "tpu"), (("mine",), "mine")],
)  # fmt: skip
def test_programs_are_written_for_the_compiler_of_a_gpu(given, expected):
    assert backend.platform_of(device(*given)) == expected


def test_the_default_backend_is_called_as_devices_call_themselves(monkeypatch):
    monkeypatch.setattr(backend, "_default", "cuda")
    assert meshrt.default_backend() == "gpu" and backend.default_platform() == "cuda"
    monkeypatch.setattr(backend, "_default", "tpu")
    assert meshrt.default_backend() == backend.default_platform() == "tpu"


@pytest.mark.parametrize("name", ["cuda", "rocm"])
def test_gpu_is_the_one_that_is_the_default(monkeypatch, name):
    monkeypatch.setattr(backend, "_default", name)
    monkeypatch.setattr(backend, "_clients", {name: object()})
    monkeypatch.setattr(backend, "_devices", {name: ("a device",)})
    assert meshrt.devices(meshrt.default_backend()) == ["a device"] and backend.is_here("gpu")


class OnGpu:
    """An array of another library on a GPU that this process does not use."""

    def __dlpack_device__(self):
        return (2, 3)

    def __dlpack__(self, **_):
        raise AssertionError("nobody may ask for it")


def test_arrays_on_gpus_that_are_not_used_are_refused():
    with pytest.raises(errors.UnsupportedError, match="cuda device 3, which meshrt does not use"):
        jnp.from_dlpack(OnGpu())


class Plugins:
    """jaxlib's table of plugins: a name that is taken is refused."""

    def __init__(self):
        self.loaded, self.started = [], []

    def pjrt_plugin_loaded(self, name):
        return name in self.loaded

    def pjrt_plugin_initialized(self, name):
        return name in self.started

    def load_pjrt_plugin_dynamically(self, name, library):
        time.sleep(0.01)
        if name in self.loaded:
            raise RuntimeError(f"ALREADY_EXISTS: {name}")
        self.loaded.append(name)
        return object()

    def initialize_pjrt_plugin(self, name):
        self.started.append(name)


@pytest.fixture
def plugins(monkeypatch):
    table = Plugins()
    monkeypatch.setattr(jaxlib_plugins, "_xc", table)
    monkeypatch.setattr(jaxlib_plugins, "_libraries", {})
    monkeypatch.setattr(jaxlib_profiling, "register_plugin", lambda api: None)
    monkeypatch.setattr(jaxlib_plugins.jaxlib_calls, "register_gpu_calls", lambda name, api: None)
    monkeypatch.setattr(jaxlib_plugins.jaxlib_api, "deserialize", lambda *args: "loaded")
    return table


@pytest.mark.parametrize("name", ["cuda", "tpu"])
def test_jax_starts_on_a_platform_after_meshrt(plugins, name):
    jaxlib_plugins.load_plugin(name, "plugin.so")
    jaxlib_plugins.load_plugin(name, "plugin.so")
    if not plugins.pjrt_plugin_loaded(name):  # JAX looks for "tpu" alone
        plugins.load_pjrt_plugin_dynamically(name, "plugin.so")
    assert len(plugins.loaded) == len(set(plugins.loaded)) and set(plugins.started) <= set(plugins.loaded)


def test_threads_load_a_plugin_once(plugins):
    jaxlib_plugins.load_plugin("cuda", "plugin.so")
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: jaxlib_plugins.deserialize("cuda", b"", [], None), range(4)))
    assert made == ["loaded"] * 4 and plugins.loaded.count("cuda") == 1


def decompositions():
    spd = lambda x: x @ x.T + 8 * jnp.eye(8)
    return {
        "qr": lambda x: jnp.linalg.qr(x)[1], "cholesky": lambda x: jnp.linalg.cholesky(spd(x)),
        "svd": lambda x: jnp.linalg.svd(x)[1], "eigh": lambda x: jnp.linalg.eigh(spd(x))[0], "lu": jnp.linalg.inv,
        "eig": lambda x: jnp.linalg.eigvals(x), "pivoted qr": lambda x: meshrt.scipy.linalg.qr(x, pivoting=True)[1],
    }  # fmt: skip


@pytest.mark.tpu
@needs_cuda
@pytest.mark.parametrize("name", list(decompositions()))
def test_the_compiler_knows_the_kernels_that_programs_call(name):
    x = meshrt.ShapeDtypeStruct((8, 8), np.float32)
    lowered = meshrt.jit(decompositions()[name]).trace(x).lower(lowering_platforms=("cuda",))
    assert "custom_call" in lowered.as_text()
    assert lowered.compile(topology="h100:1").memory_analysis().output_size_in_bytes > 0
