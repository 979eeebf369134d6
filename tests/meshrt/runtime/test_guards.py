"""Transfer guards, judged by JAX: which operations each level forbids, in which direction; and live arrays."""

import gc
import logging
import threading

import jax
import jax.numpy as xnp
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import config, errors

pytestmark = pytest.mark.collects

LEVELS = ("allow", "log", "disallow", "log_explicit", "disallow_explicit")
DIRECTIONS = ("host_to_device", "device_to_device", "device_to_host")


def operations(lib, np_):
    sharding = lib.sharding
    mesh = sharding.Mesh(np.array(lib.devices()[:8]), ("x",))
    rows = sharding.NamedSharding(mesh, sharding.PartitionSpec("x"))
    x, host = np_.arange(8.0), np.arange(8.0, dtype=np.float32)
    spread = lib.device_put(x, rows)
    inc, add = lib.jit(lambda a: a + 1), lib.jit(lambda a, b: a + b)
    placed = lib.jit(lambda a: a + 1, in_shardings=rows)
    return {
        "numpy argument": lambda: inc(host),
        "number argument": lambda: inc(2.0),
        "array argument": lambda: inc(x),
        "spread argument": lambda: inc(spread),
        "beside a spread one": lambda: add(spread, x),
        "in_shardings": lambda: placed(x),
        "eager number": lambda: x + 2.0,
        "eager numpy": lambda: x + host,
        "asarray": lambda: np_.asarray(host),
        "device_put numpy": lambda: lib.device_put(host),
        "device_put numpy, spread": lambda: lib.device_put(host, rows),
        "device_put array": lambda: lib.device_put(x, lib.devices()[3]),
        "device_put array, spread": lambda: lib.device_put(x, rows),
        "callback": lambda: lib.make_array_from_callback((8,), rows, lambda i: host[i]),
        "fetch": lambda: np.asarray(inc(spread)),
        "device_get": lambda: lib.device_get(inc(spread)),
    }


def refused(lib, np_, direction, level):
    out = set()
    for name, call in operations(lib, np_).items():
        call()
        with getattr(lib, f"transfer_guard_{direction}")(level):
            try:
                call()
            except RuntimeError as e:
                assert f"Disallowed {direction.replace('_', '-')} transfer: aval=" in str(e)
                out.add(name)
    return out


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_is_refused(direction, level):
    if direction == "device_to_host" and jax.__version_info__ >= (0, 11):  # counts what CPU devices share as transfers
        assert refused(meshrt, jnp, direction, level) == set()
        return
    assert refused(meshrt, jnp, direction, level) == refused(jax, xnp, direction, level)


def test_the_general_guard_is_that_of_all_directions():
    ops = operations(meshrt, jnp)
    for name in ("numpy argument", "in_shardings"):
        with meshrt.transfer_guard("disallow"), pytest.raises(errors.TransferGuardError, match="device_put before"):
            ops[name]()
    with meshrt.transfer_guard("disallow"), meshrt.transfer_guard_host_to_device("allow"):
        ops["numpy argument"]()
        with pytest.raises(errors.TransferGuardError):
            ops["in_shardings"]()
    refused = pytest.raises(errors.TransferGuardError)
    with meshrt.transfer_guard_host_to_device("allow"), meshrt.transfer_guard("disallow"), refused:
        ops["numpy argument"]()
    config.update("jax_transfer_guard", "disallow")
    try:
        with pytest.raises(errors.TransferGuardError):
            ops["numpy argument"]()
        with meshrt.transfer_guard("allow"):
            ops["numpy argument"]()
    finally:
        config.update("transfer_guard", None)
    ops["numpy argument"]()


def test_kept_scalars_are_refused_too():
    f, x = meshrt.jit(lambda a, b: a * b), jnp.ones(3)
    for call in (lambda: f(x, 3.0), lambda: x * 3.0):
        call()
        with meshrt.transfer_guard("disallow"), pytest.raises(errors.TransferGuardError):
            call()


def test_logging(caplog):
    ops = operations(meshrt, jnp)
    with caplog.at_level(logging.WARNING, "meshrt.transfer"), meshrt.transfer_guard("log"):
        ops["device_put numpy"]()
        assert not caplog.records
        ops["numpy argument"]()
    assert "host-to-device transfer: aval=" in caplog.text and "SingleDeviceSharding" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "meshrt.transfer"), meshrt.transfer_guard("log_explicit"):
        ops["device_put array"]()
    assert "device-to-device transfer" in caplog.text


def test_a_guard_is_its_threads_own():
    ops, seen = operations(meshrt, jnp), []
    with meshrt.transfer_guard("disallow"):
        thread = threading.Thread(target=lambda: seen.append(ops["numpy argument"]()))
        thread.start()
        thread.join()
    assert len(seen) == 1


def test_unknown_levels():
    with pytest.raises(ValueError, match=r"must be None or in \['allow', 'log', 'disallow'"):
        meshrt.transfer_guard("never")


def test_live_arrays():
    gc.collect()
    before = {id(x) for x in meshrt.live_arrays()}
    x, y = jnp.ones((3, 5)), meshrt.device_put(np.ones(4), meshrt.devices()[3])
    ids = {id(a) for a in meshrt.live_arrays()}
    assert {id(x), id(y)} <= ids - before
    assert {id(a) for a in meshrt.live_arrays("cpu")} == ids
    y.delete()
    del x
    assert not {id(a) for a in meshrt.live_arrays()} - before - {id(y)} and id(y) not in {
        id(a) for a in meshrt.live_arrays()
    }
    jitted = meshrt.jit(lambda a: a + 1)(y := jnp.zeros(2))
    assert any(a is jitted for a in meshrt.live_arrays()) and any(a is y for a in meshrt.live_arrays())


OF_THE_LIBRARY = {
    "nn": ("celu elu hard_sigmoid hard_silu hard_tanh leaky_relu log_sigmoid mish relu relu6 selu silu soft_sign "
           "softmax softplus sparse_plus sparse_sigmoid squareplus standardize"),
    "numpy": ("angle average corrcoef count_nonzero cov deg2rad gradient logical_not log2 mean median nan_to_num "
              "nanargmax nanmax nanmean nanmedian nanstd nansum rad2deg sinc std tril triu trunc unwrap var"),
}  # fmt: skip


@pytest.mark.parametrize("name", [f"{room}.{n}" for room, names in OF_THE_LIBRARY.items() for n in names.split()])
def test_constants_of_the_library_are_no_transfers_of_its_users(name):
    room, function = name.split(".")
    x = jnp.arange(12.0).reshape(3, 4) - 5
    call = getattr(getattr(meshrt, room), function)
    wanted = call(x)
    for _ in range(2):  # the first time it is compiled
        with meshrt.transfer_guard_host_to_device("disallow"):
            found = call(x)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))
