"""Settings and event counters."""

import threading

import pytest

import meshrt
from meshrt import config, errors
from meshrt.config import FIELDS, Settings, settings
from meshrt.runtime import events


def test_environment_and_defaults():
    s = Settings({"MESHRT_ENABLE_X64": "true", "MESHRT_NUM_CPU_DEVICES": "3", "MESHRT_PARTITIONER": "xla"})
    assert s.enable_x64 is True and s.num_cpu_devices == 3 and s.partitioner == "xla" and s.debug_nans is False
    for name, text in (
        ("ENABLE_X64", "maybe"),
        ("NUM_CPU_DEVICES", "two"),
        ("PARTITIONER", "gspmd"),
        ("NUM_CPU_DEVICES", "0"),
    ):
        with pytest.raises(errors.ConfigError, match=name.lower()):
            Settings({f"MESHRT_{name}": text})


@pytest.mark.smoke
def test_updates_and_overrides():
    s = Settings({})
    key = s.trace_key()
    s.update("jax_enable_x64", True)
    assert s.enable_x64 and s.trace_key() != key and s.jax_enable_x64
    s.update("enable_x64", False)
    assert s.trace_key() == key
    with s.override(default_matmul_precision="highest", enable_x64=True):
        inside = s.trace_key()
        assert inside != key and s.read("default_matmul_precision") == "highest"
        seen = []
        thread = threading.Thread(target=lambda: seen.append((s.enable_x64, s.trace_key())))
        thread.start()
        thread.join()
        assert seen == [(False, key)]
        s.update("debug_nans", True)  # not a field of the key
        assert s.trace_key() == inside
        with s.override(partitioner="xla"):
            assert s.trace_key() == inside and s.compile_key() != Settings({}).compile_key()
    assert s.trace_key() == key


def test_every_field_says_which_caches_it_enters():
    for field in FIELDS.values():
        assert field.cache in ("trace", "compile", "none") and field.doc
        assert field.check(field.default) == field.default


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("enable_x65", True, "Unrecognized config option: enable_x65; did you mean enable_x64"),
        ("no_such_thing_at_all", True, "no_such_thing_at_all. The settings are"),
        ("enable_x64", 1, "expected bool"),
        ("max_in_flight", 0, "at least"),
        ("max_in_flight", True, "expected int"),
        ("default_matmul_precision", "low", "new enum value must be None or in"),
    ],
)
def test_errors(name, value, text):
    with pytest.raises(errors.ConfigError, match=text):
        config.update(name, value)
    with pytest.raises(AttributeError):
        settings.enable_x65
    with pytest.raises(AttributeError):
        settings.enable_x64 = True
    with pytest.raises(errors.ConfigError, match=r"call meshrt.config.update\('jax_enable_x64', True\)"):
        config.jax_enable_x64 = True


def test_devices_cannot_change_once_they_exist():
    count = len(meshrt.devices())
    config.update("num_cpu_devices", count)
    with pytest.raises(errors.ConfigError, match=r"num_cpu_devices.*exist already.*MESHRT_NUM_CPU_DEVICES=3"):
        config.update("num_cpu_devices", 3)
    with pytest.raises(errors.ConfigError, match="belongs to the process"), config.override(num_cpu_devices=3):
        pass


def test_cpu_device_count_reads_xla_flags(monkeypatch):
    monkeypatch.setattr(config, "settings", Settings({}))
    monkeypatch.setenv("XLA_FLAGS", "--a=b --xla_force_host_platform_device_count=5")
    assert config.cpu_device_count() == 5
    monkeypatch.setenv("XLA_FLAGS", "")
    assert config.cpu_device_count() == 1


def test_events():
    seen = []
    stop = events.subscribe(lambda kind, details: seen.append((kind, details)))
    with events.count("trace", "nothing") as n:
        events.record("trace", function="f")
        assert n.trace == 1
        events.record("trace")
    events.record("trace")
    stop()
    events.record("trace")
    assert n["trace"] == 2 and n.as_dict() == {"trace": 2, "nothing": 0}
    assert seen[0] == ("trace", {"function": "f"}) and len(seen) == 3
