"""Arrays in TensorStore's formats, written and read by JAX and by meshrt alike."""

import os
import sys

import jax
import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.experimental.array_serialization import serialization, tensorstore_impl
from tests.meshrt.launch.conftest import launch  # noqa: F401 -- a fixture

pytest.importorskip("tensorstore")
jax_serialization = pytest.importorskip("jax.experimental.array_serialization.serialization")

JAX, OURS = (jax, jax_serialization), (meshrt, serialization)


def sharding(lib, *spec):
    auto = (lib.sharding.AxisType.Auto,) * 2
    mesh = lib.make_mesh((4, 2), ("a", "b"), axis_types=auto, devices=lib.devices()[:8])
    return lib.sharding.NamedSharding(mesh, lib.sharding.PartitionSpec(*spec))


def values(lib):
    matrix, vector = np.arange(64, dtype=np.float32).reshape(8, 8), np.arange(6).astype(lib.numpy.bfloat16)
    places = sharding(lib, "a", "b"), sharding(lib, "b"), sharding(lib)
    return [lib.device_put(x, place) for x, place in zip((matrix, vector, np.int32(3)), places)]


@pytest.mark.parametrize("writer", [JAX, OURS], ids=["jax", "meshrt"])
def test_either_reads_what_the_other_writes_into_other_shardings(writer, tmp_path):
    lib, module = writer
    paths, committed = [str(tmp_path / name) for name in "abc"], []
    manager = module.GlobalAsyncCheckpointManager()
    manager.serialize_with_paths(
        values(lib), paths, on_commit_callback=lambda: committed.append(len(os.listdir(tmp_path)))
    )
    manager.wait_until_finished()
    assert (
        committed == [3] and len([f for f in os.listdir(tmp_path / "a") if f[0] != "."]) == 8
    )  # a chunk for each part
    for other, reads in (JAX, OURS):
        reader = reads.GlobalAsyncCheckpointManager()
        places = [sharding(other, None, "a"), sharding(other), sharding(other)]
        found = reader.deserialize_with_paths(places, paths)
        for got, wanted, place in zip(found, values(other), places):
            assert got.sharding == place and got.dtype == wanted.dtype
            np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(wanted, np.float32))
        (padded,) = reader.deserialize_with_paths(places[:1], paths[:1], [(12, 4)], [np.float16])
        np.testing.assert_array_equal(padded, np.pad(np.asarray(values(other)[0])[:, :4], ((0, 4), (0, 0))))
        assert padded.dtype == np.float16
        with pytest.raises(ValueError, match="NOT_FOUND"):
            reader.deserialize_with_paths(places[:1], [str(tmp_path / "nowhere")])


@pytest.mark.parametrize("path", ["/a/b/", "gs://bucket/x/y", "s3://bucket/x/y", "x/y"])
@pytest.mark.parametrize("options", [{}, {"process_idx": 2}, {"ocdbt": True}])
def test_specifications_are_jaxs(path, options):
    if path == "x/y" and "ocdbt" in options:
        pytest.skip("needs an absolute path")
    theirs = jax_serialization.get_tensorstore_spec(path, **options)
    assert serialization.get_tensorstore_spec(path, **options) == theirs
    array, mine = values(jax)[0], values(meshrt)[0]
    theirs = jax_serialization.get_tensorstore_spec(path, arr=array, **options)
    assert serialization.get_tensorstore_spec(path, arr=mine, **options) == theirs


def test_what_goes_wrong_in_the_background_is_raised_by_the_next_call(tmp_path):
    manager = serialization.GlobalAsyncCheckpointManager()

    def fail():
        raise OSError("no room")

    manager.serialize_with_paths(values(meshrt)[:1], [str(tmp_path / "a")], on_commit_callback=fail)
    with pytest.raises(OSError, match="no room"):
        manager.wait_until_finished()
    manager.check_for_errors()  # raised once
    spec = tensorstore_impl.get_tensorstore_spec(tmp_path / "a")
    assert tensorstore_impl.is_tensorstore_spec_leaf(spec) and not tensorstore_impl.is_tensorstore_spec_leaf({"a": 1})
    for value in (np.arange(3), meshrt.random.key(0)):
        with pytest.raises(errors.ArgumentTypeError, match="an array of numbers on devices"):
            manager.serialize_with_paths([value], [str(tmp_path / "b")])
    with pytest.raises(errors.ArgumentValueError, match="absolute"):
        serialization.get_tensorstore_spec("x/y", ocdbt=True)
    with pytest.raises(errors.ArgumentValueError, match="inside the bucket"):
        serialization.get_tensorstore_spec("gs://bucket")


def test_without_the_package_writing_and_reading_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    manager, path = serialization.GlobalAsyncCheckpointManager(), "/nowhere/a"
    for call in (
        lambda: manager.serialize_with_paths(values(meshrt)[:1], [path]),
        lambda: manager.deserialize_with_paths([sharding(meshrt)], [path]),
    ):
        with pytest.raises(errors.UnsupportedError, match="pip install tensorstore"):
            call()


PROCESSES = """
import os
import numpy as np
import meshrt
from meshrt import errors
from meshrt.experimental.array_serialization import serialization
meshrt.distributed.initialize()
sharding = meshrt.NamedSharding(meshrt.make_mesh((4,), ("x",)), meshrt.P("x"))
mine = np.arange(2 * rank, 2 * rank + 2, dtype=np.float32)
whole = meshrt.make_array_from_process_local_data(sharding, mine)
path, called = os.path.abspath("a"), []
manager = serialization.GlobalAsyncCheckpointManager(timeout_secs=20)
manager.serialize_with_paths([whole], [path], on_commit_callback=lambda: called.append(sorted(os.listdir(path))))
manager.wait_until_finished()
assert len(called) == (rank == 0) and called in ([], [[".zarray", "0", "1", "2", "3"]]), called
(found,) = manager.deserialize_with_paths([sharding], [path])
assert all(np.array_equal(s.data, np.arange(4.0)[s.index]) for s in found.addressable_shards)
begin = manager._commit
def commit(futures, callback):
    begin([type("Late", (), {"result": lambda self, timeout: 1 / 0})()] * rank, callback)
manager._commit = commit  # what process 1 holds cannot be written
manager.serialize_with_paths([whole], [path], on_commit_callback=lambda: called.append("too soon"))
try:
    manager.wait_until_finished()
except errors.CheckpointWriteError as e:
    print(rank, e)
except ZeroDivisionError as e:
    print(rank, e)
assert "too soon" not in called
manager.wait_until_finished()
"""


def test_processes_learn_at_once_what_went_wrong_in_another(launch):  # noqa: F811
    result = launch("--nproc", 2, "--devices-per-process", 2, body=PROCESSES)
    assert result.code == 0, result.err
    assert "0 could not write what they hold: processes 1, whose" in result.out and "1 division by zero" in result.out
