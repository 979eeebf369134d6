"""Names of the top level that scripts use beside the transformations."""

import importlib

import jax
import numpy as np
import pytest

import meshrt


def test_named_call_names_the_operations():
    for J in (jax, meshrt):
        f = J.named_call(lambda x: x + 1, name="block")
        text = J.jit(f).lower(J.numpy.ones(2)).as_text(debug_info=True)
        assert "block/add" in text
    assert float(meshrt.named_call(lambda x: x + 1)(meshrt.numpy.float32(1))) == 2


def test_types_of_devices_and_shards():
    assert all(isinstance(d, meshrt.Device) for d in meshrt.devices())
    assert all(isinstance(s, meshrt.Shard) for s in meshrt.numpy.ones(2).addressable_shards)
    assert meshrt.float0 == jax.dtypes.float0


@pytest.mark.parametrize("name", meshrt.__all__)
def test_every_public_name_exists_in_jax_or_is_ours(name):
    assert hasattr(meshrt, name)
    ours = ("ad_checkpoint", "clear_backends", "errors", "explain_cache_miss", "get_mesh")
    if name not in ours:  # or imported there, or in later releases only
        assert hasattr(jax, name), f"meshrt.{name} has no counterpart"


def test_names_of_jax_for_errors_of_tracing():
    x = np.ones(2)
    for name, use in (("ConcretizationTypeError", bool), ("TracerBoolConversionError", bool),
                      ("TracerIntegerConversionError", lambda a: [0, 1][a]),
                      ("TracerArrayConversionError", np.asarray)):  # fmt: skip
        with pytest.raises(getattr(meshrt.errors, name)):
            meshrt.jit(lambda a, use=use: use(a[0].astype(int)))(x)
    sharding = meshrt.sharding.SingleDeviceSharding(meshrt.devices()[0])
    with pytest.raises(meshrt.errors.UnexpectedTracerError, match="cannot be called within a traced context"):
        meshrt.jit(lambda a: meshrt.make_array_from_callback((2,), sharding, lambda i: a[i]))(x)


@pytest.mark.parametrize("kind", ["BackendError", "CompileError", "ExecutionError", "DeviceMemoryError"])
def test_what_runtimes_report_has_jaxs_name(kind):
    assert issubclass(getattr(meshrt.errors, kind), meshrt.errors.JaxRuntimeError)
    assert issubclass(meshrt.errors.JaxRuntimeError, RuntimeError) and issubclass(
        jax.errors.JaxRuntimeError, RuntimeError
    )


# Names of ours, and those that JAX had in other versions.
OURS = {
    "lax": {"all_gather_invariant", "pargmax", "pargmin", "pvary"},
    "numpy": {"top_k"},
}


@pytest.mark.parametrize("room", ["lax", "lax.linalg", "numpy", "numpy.linalg", "random", "nn", "tree", "image"])
def test_a_room_offers_no_names_of_its_workshop(room):
    ours, peer = (importlib.import_module(f"{package}.{room}") for package in ("meshrt", "jax"))
    more = {n for n in ours.__all__ if not n.endswith("_p") and not hasattr(peer, n)}
    assert more <= OURS.get(room, set())


def test_modules_that_are_imported_when_asked_for_are_listed():
    assert {"nn", "random", "scipy", "export"} <= set(dir(meshrt))
    assert meshrt.nn is importlib.import_module("meshrt.nn")
