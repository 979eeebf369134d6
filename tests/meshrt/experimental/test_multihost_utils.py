"""Exchanges between two real processes."""

from __future__ import annotations

import numpy as np

from meshrt.experimental import multihost_utils
from tests.meshrt.launch.conftest import launch  # noqa: F401 -- a fixture

SCRIPT = """
import numpy as np
import meshrt
meshrt.distributed.initialize()
from meshrt.experimental.multihost_utils import process_allgather, sync_global_devices
sync_global_devices("start")
big = np.arange(1 << 18, dtype=np.float64) + rank  # more than one chunk of the store
both = process_allgather({"small": np.full((2,), rank, np.int32), "big": big})
assert both["small"].tolist() == [[0, 0], [1, 1]] and both["small"].dtype == np.int32
assert both["big"].shape == (2, 1 << 18) and (both["big"][1] - both["big"][0] == 1).all()
assert process_allgather(np.full((2,), rank), tiled=True).tolist() == [0, 0, 1, 1]
mesh = meshrt.make_mesh((4,), ("x",))
sharding = meshrt.NamedSharding(mesh, meshrt.P("x"))
mine = np.arange(4 * rank, 4 * rank + 4).astype("bfloat16")
whole = process_allgather(meshrt.make_array_from_process_local_data(sharding, mine))
assert whole.dtype.name == "bfloat16" and whole.astype(int).tolist() == list(range(8))
try:
    process_allgather(np.zeros(rank + 1))
except meshrt.errors.ArgumentTypeError as e:
    print(e)
"""


def test_two_processes_exchange_values(launch):  # noqa: F811
    result = launch("--nproc", 2, "--devices-per-process", 2, body=SCRIPT)
    assert result.code == 0, result.err
    text = "the processes hold different kinds of arrays: process 0: float64[1], process 1: float64[2]"
    assert result.out.count(text) == 2


def test_one_process_alone_needs_no_service():
    multihost_utils.sync_global_devices("x")
    assert multihost_utils.process_allgather([np.arange(2), 3])[0].tolist() == [[0, 1]]
    assert multihost_utils.process_allgather(np.arange(2), tiled=True).tolist() == [0, 1]
