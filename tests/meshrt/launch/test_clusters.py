"""Who a process is, from the environments that launchers and clusters give."""

from __future__ import annotations

import os
import zlib

import pytest

from meshrt.distributed import clusters
from meshrt.distributed.clusters import identify
from meshrt.errors import ConfigError
from meshrt.launch.hostlist import expand_hosts

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_MCA_orte_hnp_uri": "765001728.0;tcp://10.0.0.7,172.17.0.1:53325",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_NTASKS": "9",
    "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NODELIST": "n[006,011-013]", "SLURM_LOCALID": "1",
}  # fmt: skip
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
POD = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1", "JOB_COMPLETION_INDEX": "2", "HOSTNAME": "train-2.nodes",
    "MESHRT_NUM_PROCESSES": "4",
}  # fmt: skip
JOBSET = POD | {
    "HOSTNAME": "big-workers-1-2.big", "MESHRT_JOB_INDEX": "1", "MESHRT_PODS_PER_JOB": "4", "MESHRT_NUM_PROCESSES": "8",
}  # fmt: skip
TPU = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "t0,t1"}
SLICES = TPU | {
    "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1", "MEGASCALE_COORDINATOR_ADDRESS": "first:8080",
}  # fmt: skip
OWN = {"MESHRT_COORDINATOR_ADDRESS": "m:1", "MESHRT_NUM_PROCESSES": "2", "MESHRT_PROCESS_ID": "1"}


def port(job: str) -> int:
    return 61440 + zlib.crc32(job.encode()) % 4096


@pytest.mark.parametrize(
    ("environ", "source", "address", "count", "rank", "local"),
    [
        (OPEN_MPI, "ompi", f"10.0.0.7:{61440 + 765001728 % 4096}", 8, 3, (1,)),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, "ompi", f"127.0.0.1:{61440 + 765001728 % 4096}", 8, 3, (1,)),
        (SLURM, "slurm", f"n006:{port('77.0')}", 8, 5, (1,)),
        (SLURM | {"SLURM_STEP_NUM_NODES": "1"}, "slurm", f"127.0.0.1:{port('77.0')}", 8, 5, (1,)),
        (SLURM | {"CUDA_VISIBLE_DEVICES": "0"}, "slurm", f"n006:{port('77.0')}", 8, 5, None),
        (MPICH, "mpich", f"127.0.0.1:{61440 + os.getppid() % 4096}", 2, 1, (1,)),
        (POD, "k8s", "train-0.nodes:55527", 4, 2, None),
        (JOBSET, "k8s", "big-workers-0-0.big:55527", 8, 6, None),
        (JOBSET | {"MESHRT_JOBSET_COORDINATOR": "lead.big"}, "k8s", "lead.big:55527", 8, 6, None),
        (TPU, "tpu", "t0:8482", 2, 1, None),
        (SLICES, "tpu", "first:8482", 4, 3, None),
        ({f"JAX_{k[7:]}": v for k, v in OWN.items()}, "JAX", "m:1", 2, 1, None),
        # Of several sources the first in order gives everything.
        (OPEN_MPI | SLURM | OWN, "MESHRT", "m:1", 2, 1, None),
        (SLURM | OPEN_MPI, "ompi", f"10.0.0.7:{61440 + 765001728 % 4096}", 8, 3, (1,)),
        (SLURM | POD, "slurm", f"n006:{port('77.0')}", 8, 5, (1,)),
    ],
)
def test_each_source_is_read(environ, source, address, count, rank, local):
    found = identify(environ)
    assert (found.source, found.coordinator_address) == (source, address)
    assert (found.num_processes, found.process_id, found.local_device_ids) == (count, rank, local)
    assert not found.launched


def test_arguments_stand_above_what_is_found_and_methods_can_be_chosen():
    assert identify(OPEN_MPI, address="a:1").coordinator_address == "a:1"
    assert identify(OPEN_MPI | SLURM, method="slurm").process_id == 5
    with pytest.raises(ConfigError, match="should be defined"):
        identify(OPEN_MPI, method="deactivate")
    with pytest.raises(ConfigError, match="meshrt knows ompi, slurm, mpich, tpu, k8s"):
        identify(OPEN_MPI, method="lsf")


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        # In a batch script SLURM_PROCID is 0, and no step runs.
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, "found in the environment: SLURM_JOB_ID"),
        (
            {k: v for k, v in OPEN_MPI.items() if "uri" not in k},
            "This Open MPI does not tell .*give coordinator_address",
        ),
        (MPICH | {"MPI_LOCALNRANKS": "1"}, "MPICH does not tell its processes"),
        (
            {k: v for k, v in POD.items() if k != "MESHRT_NUM_PROCESSES"},
            "set MESHRT_NUM_PROCESSES in the Job's manifest",
        ),
        ({k: v for k, v in JOBSET.items() if "PODS" not in k}, "MESHRT_PODS_PER_JOB is not"),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "many"}, "SLURM_STEP_NUM_TASKS='many': expected a whole number"),
        ({}, "found in the environment: nothing of them"),
    ],
)
def test_what_is_missing_is_named(environ, text):
    with pytest.raises(ConfigError, match=text):
        identify(environ)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ["a"]),
        ("n[0,2-3],a[1-2]b[3-4]", ["n0", "n2", "n3", "a1b3", "a1b4", "a2b3", "a2b4"]),
        ("n[006,011]", ["n006", "n011"]),
        ("x[09-11].y", ["x09.y", "x10.y", "x11.y"]),
    ],
)
def test_host_lists(text, hosts):
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize("text", ["", "n[1-]", "n[3-1]", "n[a]", "n[0-99999999]", "n[1-2000][1-2000]"])
def test_bad_host_lists(text):
    with pytest.raises(ConfigError):
        expand_hosts(text)


@pytest.mark.parametrize("text", ["x", "0", "-1", "nan", "inf"])
def test_bad_times(text):
    with pytest.raises(ConfigError, match="expected a time in seconds"):
        clusters.seconds({"T": text}, "T")
