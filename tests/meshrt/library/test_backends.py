"""extend.backend: clients of platforms, and caches of libraries."""

import functools

import jax.extend.backend as backend_of_jax
import pytest

import meshrt
from meshrt.extend import backend


def test_clients_are_those_of_devices():
    client = backend.get_backend("cpu")
    assert client is meshrt.devices("cpu")[0].client is backend.get_backend(client) is backend.get_backend()
    assert list(backend.backends()) == list(backend_of_jax.backends()) == ["cpu"]
    assert backend.backend_xla_version() == backend_of_jax.backend_xla_version()
    for module in (backend, backend_of_jax):
        with pytest.raises(RuntimeError):
            module.get_backend("abacus")


def test_the_default_device_is_the_settings():
    assert backend.get_default_device() is meshrt.devices()[0]
    with meshrt.default_device(meshrt.devices()[3]):
        assert backend.get_default_device() is meshrt.devices()[3]


def test_caches_of_libraries_are_cleared_with_ours():
    made = []
    cached = functools.lru_cache(made.append)
    backend.register_backend_cache(cached, "what was made")
    cached(1), cached(1)
    meshrt.clear_caches()
    cached(1)
    assert made == [1, 1]


def test_compiled_programs_are_forgotten_and_traces_are_not():
    traced = []
    f = meshrt.jit(lambda x: (traced.append(1), x + 1)[1])
    assert f(1.0) == 2.0
    backend.clear_in_memory_compilation_cache()
    assert f(1.0) == 2.0 and traced == [1]
