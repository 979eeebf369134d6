"""What meshrt.distributed refuses, before and without other processes."""

from __future__ import annotations

import pytest

from meshrt import distributed
from meshrt.errors import ConfigError, DistributedError


@pytest.fixture
def no_job(monkeypatch):
    for prefix in ("MESHRT", "JAX"):
        for name in ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID", "LOCAL_DEVICE_IDS", "LAUNCHED"):
            monkeypatch.delenv(f"{prefix}_{name}", raising=False)


def test_a_process_that_nothing_identifies_is_an_error(no_job):
    with pytest.raises(ConfigError, match="coordinator_address and num_processes and process_id should be defined"):
        distributed.initialize()
    with pytest.raises(ConfigError, match="MESHRT_NUM_PROCESSES, MESHRT_PROCESS_ID"):
        distributed.initialize("10.0.0.1:1234")
    assert not distributed.is_initialized()
    distributed.shutdown()  # nothing to do


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("host", 2, 0), "'host' is not an address"),
        (("host:1", 0, 0), "num_processes=0"),
        (("host:1", 2, 2), r"process_id=2: expected a whole number from 0 to num_processes - 1 = 1"),
        (("host:1", 2, -1), "process_id=-1"),
        (("host:1", 2, 0, [0, 0]), "local_device_ids=\\[0, 0\\]: expected different"),
        (("host:1", 2, 0, None, "mpi4py"), "cluster_detection_method='mpi4py'"),
    ],
)
def test_bad_arguments(no_job, arguments, text):
    with pytest.raises((ConfigError, DistributedError), match=text):
        distributed.initialize(*arguments)


def test_a_bad_variable(no_job, monkeypatch):
    monkeypatch.setenv("MESHRT_COORDINATOR_ADDRESS", "h:1")
    monkeypatch.setenv("MESHRT_NUM_PROCESSES", "two")
    with pytest.raises(ConfigError, match="MESHRT_NUM_PROCESSES='two': expected a whole number"):
        distributed.initialize()


def test_variables_of_two_kinds_are_never_mixed(no_job, monkeypatch):
    monkeypatch.setenv("MESHRT_COORDINATOR_ADDRESS", "h:1")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    monkeypatch.setenv("JAX_PROCESS_ID", "0")
    with pytest.raises(ConfigError, match="num_processes and process_id should be defined"):
        distributed.initialize()


@pytest.mark.timeout(60)
def test_an_unreachable_coordinator_is_an_error_in_time(no_job, monkeypatch):
    monkeypatch.setattr("meshrt.runtime.backend.is_created", lambda: False)
    with pytest.raises(DistributedError, match=r"127.0.0.1:1 could not be reached within 1 s"):
        distributed.initialize("127.0.0.1:1", 2, 1, initialization_timeout=1)


@pytest.mark.timeout(60)
def test_a_name_that_does_not_resolve_is_an_error_at_once(no_job, monkeypatch):
    monkeypatch.setattr("meshrt.runtime.backend.is_created", lambda: False)
    with pytest.raises(DistributedError, match=r"the coordinator's name 'no.such.host.invalid' does not resolve"):
        distributed.initialize("no.such.host.invalid:1", 2, 1)


def test_devices_must_not_have_been_used(no_job, monkeypatch):
    monkeypatch.setattr("meshrt.runtime.backend.is_created", lambda: True)
    with pytest.raises(DistributedError, match="must be called before devices are used"):
        distributed.initialize("127.0.0.1:1", 2, 1)


def test_values_need_a_job(no_job):
    for call in (
        lambda: distributed.key_value_get("x"),
        lambda: distributed.barrier("x"),
        distributed.elastic().__enter__,
    ):
        with pytest.raises(DistributedError, match="this process is in no job"):
            call()
