"""Damaged, hostile and wrong input: a typed error that says where, before anything is used; nothing is lost."""

import hashlib
import json
import os
import random

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import checkpoint, errors
from meshrt.sharding import NamedSharding
from meshrt.sharding import PartitionSpec as P
from tests.meshrt.checkpoint.trees import mesh_of, put

SHARD = "process_00000.safetensors"


@pytest.fixture
def path(tmp_path, mesh):
    checkpoint.save(
        tmp_path / "step",
        {"w": put(np.arange(32, dtype=np.float32).reshape(8, 4), mesh, "data", "model"), "n": np.arange(5), "s": 1.5},
        metadata={"step": 1},
    )
    return tmp_path / "step"


def damaged(path, match):
    with pytest.raises(errors.DamagedCheckpointError, match=match):
        checkpoint.restore(path, as_numpy=True)
    assert checkpoint.verify(path)


# --- bytes


def test_every_flipped_bit_is_noticed(path):
    want = checkpoint.restore(path, as_numpy=True)
    draw = random.Random(0)
    header = 8 + int.from_bytes((path / SHARD).read_bytes()[:8], "little")
    for name in (SHARD, "manifest.json"):
        good = (path / name).read_bytes()
        for _ in range(60):
            at = draw.randrange(len(good))
            bad = bytearray(good)
            bad[at] ^= 1 << draw.randrange(8)
            (path / name).write_bytes(bad)
            assert checkpoint.verify(path)
            if name != SHARD or at >= header:  # the header is for other readers
                damaged(path, "is damaged|manifest.json")
        (path / name).write_bytes(good)
    assert np.array_equal(checkpoint.restore(path, as_numpy=True)["w"], want["w"])


def test_the_damaged_leaf_is_named_and_others_are_read(path):
    data = bytearray((path / SHARD).read_bytes())
    data[-1] ^= 1  # the last tile, of float32: wide elements come first
    (path / SHARD).write_bytes(data)
    damaged(path, r"step/process_00000.safetensors is damaged: the bytes \d+ to \d+, which are .* of the leaf \['w'\]")
    assert checkpoint.restore(path, {"n": np.arange(5)}, partial=True)["n"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", [SHARD, "manifest.json"])
@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_files_that_are_cut_off(path, name, keep):
    data = (path / name).read_bytes()
    (path / name).write_bytes(data[:keep])
    damaged(path, f"{len(data[:keep])} bytes, and {len(data)} were committed|manifest.json")


def test_missing_files_and_things_that_are_no_files(path, tmp_path):
    content = (path / SHARD).read_bytes()
    (path / SHARD).unlink()
    damaged(path, "process_00000.safetensors is missing")
    os.mkfifo(path / SHARD)
    damaged(path, "is no file")
    (path / SHARD).unlink()
    (tmp_path / "elsewhere").write_bytes(content)
    (path / SHARD).symlink_to(tmp_path / "elsewhere")
    damaged(path, "cannot be opened")
    (path / "manifest.json").unlink()
    with pytest.raises(errors.CheckpointNotFoundError, match="It has no manifest"):
        checkpoint.restore(path)
    for wrong in (tmp_path / "none", tmp_path / "elsewhere"):
        with pytest.raises(errors.CheckpointNotFoundError, match="no committed checkpoint at"):
            checkpoint.restore(wrong)
    with pytest.raises(FileNotFoundError):
        checkpoint.describe(tmp_path / "none")
    with pytest.raises(errors.ArgumentTypeError, match=r"the path of a checkpoint is a string or a Path\. Got 3"):
        checkpoint.restore(3)
    with pytest.raises(errors.UnsupportedError, match="'gs://bucket/run' is an address of gs://"):
        checkpoint.save("gs://bucket/run", 1)


# --- manifests that a stranger wrote, with right checksums


def change(path, value):
    def edit(data):
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return edit


W = ("leaves", 2, "arrays", 0)
HOSTILE = {
    "a path": (("files", 0, 0), "../../etc/passwd", "'../../etc/passwd' is not the name of a file"),
    "an absolute path": (("files", 0, 0), "/etc/passwd", "is not the name of a file"),
    "another kind of name": (("files", 0, 0), "process_1.safetensors", "is not the name of a file"),
    "a size below zero": (("files", 0, 1), -1, "-1 is not the size of a file"),
    "a file that is too long": (("files", 0, 1), 1 << 80, "is not the size of a file"),
    "a shape that is too large": ((*W, "shape"), [1 << 40, 1 << 40], "is too large"),
    "a size that is no number": ((*W, "shape"), [8.0, 4], "8.0 is not a size"),
    "many dimensions": ((*W, "shape"), [1] * 100, "is too large"),
    "another shape": ((*W, "shape"), [8, 4, 2], "grid is not for 3 dimensions"),
    "an unknown dtype": ((*W, "dtype"), "object", "'object' is not an element type"),
    "a dtype that runs code": ((*W, "dtype"), "finfo", "makes no sense"),
    "tiles of nothing": ((*W, "tile"), [0, 2], "0 is not a size of tiles"),
    "huge tiles": ((*W, "tile"), [1 << 30, 1 << 30], "take more than"),
    "a grid that goes back": ((*W, "grid"), [[0, 4, 2, 6], [0, 2]], "does not divide a dimension of 8"),
    "a grid that begins late": ((*W, "grid"), [[1, 2, 4, 6], [0, 2]], "does not divide a dimension of 8"),
    "a grid beyond the end": ((*W, "grid"), [[0, 2, 4, 8], [0, 2]], "does not divide a dimension of 8"),
    "missing pieces": ((*W, "pieces"), [], "its grid has 8 pieces"),
    "a piece beyond the file": ((*W, "pieces", 0, 1), 1 << 40, "should be the bytes"),
    "an offset below zero": ((*W, "pieces", 0, 1), -8, "-8 is not an offset"),
    "a file that is not there": ((*W, "pieces", 0, 0), 9, "is in file 9 of 1"),
    "too few checksums": ((*W, "pieces", 0, 2), "", "has not one checksum for each of its 1 tiles"),
    "checksums that are none": ((*W, "pieces", 0, 2), "xxxxxxxx", "makes no sense"),
    "two leaves of one path": (("leaves", 0, "path"), "['w']", "two leaves of one path"),
    "a kind of leaf": (("leaves", 0, "kind"), "pickle", "kind 'pickle'"),
    "an array that is none": (("leaves", 2, "kind"), "python", "has not the arrays that it should"),
    "no leaves": (("leaves",), None, "makes no sense"),
    "a mesh": (("meshes",), [{"names": ["a"], "sizes": [-4], "types": ["Auto"]}], "makes no sense"),
    "no structure": (("structure",), {"exact": {"node": "os.system", "aux": "", "of": []}}, "os.system"),
    "a deep structure": (("structure",), {"plain": json.loads('{"list":[' * 300 + '"*"' + "]}" * 300)}, "deep"),
    "another structure": (("structure",), {"exact": {"list": ["*"]}}, "1 leaves, and there are 3"),
    "a sharding": ((*W, "sharding"), {"named": {"mesh": 7}}, "makes no sense: mesh 7 of 1"),
    "an infinite number": (("leaves", 1, "about"), {"float": "0x1p99999"}, "is no Python value"),
    "a value that is none": (("leaves", 1, "about"), {"import": "os"}, "no type of Python values"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_manifest_that_says_what_cannot_be(path, case):
    where, value, match = HOSTILE[case]
    rewrite(path, change(where, value))
    with pytest.raises((errors.DamagedCheckpointError, errors.CheckpointMismatchError), match=match):
        checkpoint.restore(path)


def rewrite(path, edit):
    """Changes what the manifest says, and makes its checksum right."""
    head, _, body = (path / "manifest.json").read_bytes().partition(b"\n")
    data = json.loads(b"{" + body)
    edit(data)
    body = json.dumps(data).encode()[1:]
    head = json.dumps({"meshrt_checkpoint": 1, "sha256": hashlib.sha256(body).hexdigest()})[:-1].encode()
    (path / "manifest.json").write_bytes(head + b",\n" + body)


def test_versions_to_come_and_files_of_others(path):
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"meshrt_checkpoint": 1', '"meshrt_checkpoint": 2'))
    damaged(path, "is of version 2 of the format, and this meshrt reads version 1")
    for other in ("", "{}", "[]", "[" * 100_000, "null", '{"sha256": 3}', "\0\0\0"):
        (path / "manifest.json").write_text(other)
        damaged(path, "does not begin as the manifest of a checkpoint does|checksum|nested")


# --- what is asked for is not what is there


def test_all_leaves_that_do_not_fit_are_named(path, mesh):
    like = {"w": np.zeros((8, 5), np.float32), "n": np.zeros(5, np.int32), "s": np.zeros(2)}
    with pytest.raises(errors.CheckpointMismatchError) as e:
        checkpoint.restore(path, like)
    for text in (r"['w'] has the shape [8, 4], and [8, 5] is wanted", "['n'] has the dtype int64, and int32 is wanted",
                 "['s'] is the Python value", "float64[2] is wanted", "cast=True", str(path)):  # fmt: skip
        assert text in str(e.value)


@pytest.mark.parametrize(
    ("like", "match"),
    [
        ({"w": 0}, r"\['n'\] of it is not wanted; \['s'\] of it is not wanted"),
        ({"w": 0, "n": 0, "s": 0, "x": 0}, r"\['x'\] is not in it"),
        (0, "the tree itself is not in it"),
        ([0, 0, 0], r"\[0\] is not in it"),
        ({"w": "", "n": np.zeros(5, np.int64), "s": 0.0}, r"\['w'\] is float32\[8, 4\], and a str is wanted"),
        ({"w": object(), "n": np.zeros(5, np.int64), "s": 0.0}, "object is no type of such leaves"),
    ],
)
def test_another_structure(path, like, match):
    with pytest.raises(errors.CheckpointMismatchError, match=match):
        checkpoint.restore(path, like)


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"shardings": P("data")}, r"has no devices: give mesh=, or use set_mesh"),
        ({"mesh": lambda: mesh_of((8,), ("data",))}, r"\['w'\] was saved as .*Resource axis: model of"),
        ({"mesh": lambda: mesh_of((1, 8), ("data", "model"))}, r"\['w'\] cannot be split by"),
        ({"shardings": lambda: {"w": "data", "n": None, "s": None}}, "a str is neither a sharding nor"),
    ],
)
def test_shardings_that_do_not_fit(path, how, match):
    how = {k: v() if callable(v) else v for k, v in how.items()}
    with pytest.raises(errors.CheckpointMismatchError, match=match):
        checkpoint.restore(path, **how)


def test_a_mesh_of_other_devices_is_asked_for(path, monkeypatch):
    monkeypatch.setattr("meshrt.runtime.backend.device_count", lambda: 3)
    with pytest.raises(errors.CheckpointMismatchError, match="of 8 devices, and here are 3: give a mesh="):
        checkpoint.restore(path)


def test_sixty_four_bits_are_not_cut(tmp_path):
    with meshrt.enable_x64(True):
        checkpoint.save(tmp_path / "a", jnp.arange(3, dtype="float64"))
    with pytest.raises(errors.CheckpointMismatchError, match=r"dtype float64, which arrays have only .* enable_x64"):
        checkpoint.restore(tmp_path / "a")
    assert checkpoint.restore(tmp_path / "a", as_numpy=True).dtype == np.float64
    like = meshrt.ShapeDtypeStruct((3,), np.float32)
    assert checkpoint.restore(tmp_path / "a", like, cast=True).tolist() == [0, 1, 2]


# --- what cannot be saved


class Thing:
    pass


@pytest.mark.parametrize(
    ("tree", "kind", "match"),
    [
        ({"a": [Thing()]}, errors.CheckpointError, r"the leaf \['a'\]\[0\] is .*Thing, which a checkpoint cannot hold"),
        ({"o": np.array([None])}, errors.CheckpointError, r"the leaf \['o'\] is a NumPy array of object"),
        ({"f": np.zeros(2, [("x", "i4")])}, errors.CheckpointError, "whose elements are not plain bytes"),
        ({"r": lambda x: x}, errors.CheckpointError, "cannot hold"),
    ],
)
def test_leaves_that_cannot_be_saved(tmp_path, tree, kind, match):
    with pytest.raises(kind, match=match):
        checkpoint.save(tmp_path / "a", tree)
    assert os.listdir(tmp_path) == []


def test_values_that_have_none(tmp_path, mesh):
    with pytest.raises(errors.LeakedTracerError, match=r"the leaf .* is traced"):
        meshrt.jit(lambda x: checkpoint.save(tmp_path / "a", x))(1.0)
    gone = jnp.arange(3)
    gone.delete()
    with pytest.raises(errors.DeletedArrayError):
        checkpoint.save(tmp_path / "a", gone)
    explicit = meshrt.make_mesh((8,), ("x",))
    x = meshrt.device_put(np.ones((8, 8), np.float32), NamedSharding(explicit, P(None, "x")))
    partial = meshrt.jit(lambda a: jnp.einsum("ij,jk->ik", a, a.T, out_sharding=P(unreduced={"x"})))(x)
    with pytest.raises(errors.CheckpointError, match=r"is a partial sum over \['x'\]"):
        checkpoint.save(tmp_path / "a", partial)
    with pytest.raises(errors.ArgumentTypeError, match="metadata is what JSON can say"):
        checkpoint.save(tmp_path / "a", 1, metadata={"x": Thing()})
    assert os.listdir(tmp_path) == []


def test_what_is_said_of_a_tree_that_is_one_leaf(tmp_path):
    """It has no path, and is called as its tensor in the file is."""
    refused = (np.ma.masked_array([1], [0]), "masked"), (np.array([object()]), "object"), (object(), "object")
    for value, why in refused:
        with pytest.raises(errors.CheckpointError, match=f"the leaf itself is .*{why}"):
            checkpoint.save(tmp_path / "refused", value)
    path = tmp_path / "one"
    checkpoint.save(path, np.arange(3, dtype=np.float32))
    with pytest.raises(errors.CheckpointMismatchError, match=r"to be restored: value has the shape \[3\]"):
        checkpoint.restore(path, np.ones(4, np.float32))
    file = path / "process_00000.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    with pytest.raises(errors.DamagedCheckpointError, match="of the leaf value"):
        checkpoint.restore(path)
