"""Arrays in TensorStore's formats, written and read by JAX and by meshrt alike."""

import os

import jax
import numpy as np
import pytest
from jax.experimental.array_serialization import serialization as jax_serialization

import meshrt
from meshrt import errors
from meshrt.experimental.array_serialization import serialization, tensorstore_impl

pytest.importorskip("tensorstore")

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
    with pytest.raises(errors.ArgumentValueError, match="absolute"):
        serialization.get_tensorstore_spec("x/y", ocdbt=True)
    with pytest.raises(errors.ArgumentValueError, match="inside the bucket"):
        serialization.get_tensorstore_spec("gs://bucket")
