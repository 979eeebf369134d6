"""What is saved comes back: every kind of leaf, onto other shardings and meshes, reading no more than is needed."""

import collections
import math
import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import checkpoint, errors
from meshrt.checkpoint import folder, reading, shards
from meshrt.checkpoint.progress import Meter
from meshrt.experimental import hijax
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P
from tests.meshrt.checkpoint.trees import arrays, assert_same, host_values, mesh_of, put, same_bits

Pair = collections.namedtuple("Pair", "first second")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "made" / "step"


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_kind_of_leaf(path, mesh, x64, asynchronous):
    with meshrt.enable_x64(x64):
        tree = {"arrays": arrays(mesh), "host": host_values()}
        if asynchronous:
            checkpoint.save_async(path, tree).wait()
        else:
            checkpoint.save(path, tree)
        with meshrt.set_mesh(mesh):
            assert_same(checkpoint.restore(path), tree)  # as it was saved
        assert_same(checkpoint.restore(path, tree), tree)  # as `like` says
        assert checkpoint.verify(path) == []


def test_small_arrays_are_stored_in_one_piece(path, mesh, whole):
    tree = arrays(mesh)
    checkpoint.save(path, tree)
    with folder.Opened(path) as opened:
        assert all(len(a.pieces) == 1 for leaf in opened.manifest.leaves for a in leaf.arrays)
    with meshrt.set_mesh(mesh):
        assert_same(checkpoint.restore(path), tree)


def test_without_a_mesh_one_like_that_which_was_saved_is_made(path):
    mesh = mesh_of((2, 4), ("x", "y"), AxisType.Explicit)
    tree = put(np.arange(16.0, dtype=np.float32).reshape(8, 2), mesh, "y", "x")
    checkpoint.save(path, tree)
    assert_same(checkpoint.restore(path), tree)


@pytest.mark.parametrize("spec", [P("data"), P(None, "model"), P(("model", "data")), P("model", "data"), P()])
@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (8, 1)])
def test_onto_another_mesh_and_another_split(path, mesh, shape, spec, monkeypatch):
    monkeypatch.setattr("meshrt.checkpoint.grid.CHECKPOINT_TILE_BYTES", 40)  # several tiles to a piece
    value = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
    tree = {"w": put(value, mesh, "data", "model"), "r": put(value, mesh), "key": meshrt.random.key(1)}
    checkpoint.save(path, tree)
    other = mesh_of(shape, ("data", "model"))
    wanted = NamedSharding(other, spec)
    struct = lambda x: meshrt.ShapeDtypeStruct(x.shape, x.dtype, sharding=wanted if x.ndim else None)
    by_struct = checkpoint.restore(path, meshrt.tree.map(struct, tree))
    by_tree = checkpoint.restore(path, shardings={"w": wanted, "r": spec, "key": None}, mesh=other)
    by_function = checkpoint.restore(path, mesh=other, shardings=lambda p, s: spec if "key" not in p else None)
    for found in (by_struct, by_tree, by_function):
        for name in ("w", "r"):
            assert found[name].sharding == wanted and same_bits(found[name], value)
        assert (meshrt.random.key_data(found["key"]) == meshrt.random.key_data(tree["key"])).all()
    saved = checkpoint.restore(path, mesh=other)
    assert saved["w"].sharding == NamedSharding(other, P("data", "model")) and same_bits(saved["w"], value)


def test_only_the_tiles_that_are_needed_are_read(path, mesh, monkeypatch):
    monkeypatch.setattr("meshrt.checkpoint.grid.CHECKPOINT_TILE_BYTES", 1 << 10)
    value = np.arange(1 << 14, dtype=np.float32).reshape(128, 128)
    checkpoint.save(path, {"w": put(value, mesh, "data"), "other": value + 1})
    read = []
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: read.append(len(into[0])) or preadv(fd, into, at))
    one = meshrt.sharding.SingleDeviceSharding(meshrt.devices()[1])
    found = checkpoint.restore(path, {"w": meshrt.ShapeDtypeStruct((128, 128), np.float32, sharding=one)}, partial=True)
    assert same_bits(found["w"], value) and sum(read) == value.nbytes
    assert len(read) >= 64  # and each tile once
    read.clear()
    with reading_part(path) as (opened, leaf, pool, meter):
        part = ((0, 128), (96, 128))  # columns, where rows had been split
        (columns,) = reading.read_parts(opened, leaf.path, leaf.arrays[0], [part], pool, meter)
    assert same_bits(columns, value[:, 96:]) and sum(read) <= 2 * columns.nbytes


class reading_part:
    def __init__(self, path):
        self.opened = folder.Opened(path)

    def __enter__(self):
        self.pool = shards.threads()
        leaf = next(leaf for leaf in self.opened.manifest.leaves if leaf.path == "['w']")
        return self.opened, leaf, self.pool, Meter(None, "restore", "", 0)

    def __exit__(self, *_):
        self.pool.shutdown()
        self.opened.close()


def test_equal_parts_are_stored_once(path, mesh):
    value = np.arange(1 << 10, dtype=np.float32)
    checkpoint.save(path, [put(value, mesh), put(value, mesh, "model")])
    assert (path / "process_00000.safetensors").stat().st_size < 2 * value.nbytes + 2000


def test_donated_and_changed_values_are_saved_as_they_were(path, mesh):
    step = meshrt.jit(lambda w: w * 2 + 1, donate_argnums=0)
    w = step(put(np.arange(1 << 12, dtype=np.float32), mesh, "data"))
    host = np.arange(4)
    want = np.asarray(w).copy()
    saving = checkpoint.save_async(path, {"w": w, "host": host, "keys": meshrt.random.key(0)})
    host += 1
    for _ in range(5):
        w = step(w)
    saving.wait()
    found = checkpoint.restore(path, as_numpy=True)
    assert same_bits(found["w"], want) and found["host"].tolist() == [0, 1, 2, 3] and found["keys"].dtype == np.uint32


def test_what_was_restored_may_be_donated(path, mesh):
    value = np.arange(8, dtype=np.float32)
    checkpoint.save(path, {"same": put(value, mesh), "split": put(value, mesh, "data")})
    step = meshrt.jit(lambda t: meshrt.tree.map(lambda x: x + 1, t), donate_argnums=0)
    with meshrt.set_mesh(mesh):
        found = step(step(checkpoint.restore(path)))
    assert all(same_bits(s.data, (value + 2)[s.index]) for x in found.values() for s in x.addressable_shards)


def test_leaves_become_what_like_has_in_their_place(path):
    one = meshrt.sharding.SingleDeviceSharding(meshrt.devices()[2])
    checkpoint.save(path, {"a": jnp.arange(3.0), "n": np.arange(3), "i": 3, "s": jnp.float32(2.0), "t": "x"})
    like = {"a": np.zeros(3, np.float32), "n": np.zeros(3, np.int64), "i": np.float32(0), "s": 0.0, "t": ""}
    found = checkpoint.restore(path, like)
    assert isinstance(found["a"], np.ndarray) and found["a"].tolist() == [0, 1, 2]
    assert type(found["i"]) is np.float32 and type(found["s"]) is float and found["t"] == "x"
    structs = {**like, "i": meshrt.ShapeDtypeStruct((), np.int32, sharding=one)}
    made = checkpoint.restore(path, structs)["i"]
    assert isinstance(made, meshrt.Array) and made.devices() == {meshrt.devices()[2]} and int(made) == 3
    half = {**like, "a": meshrt.ShapeDtypeStruct((3,), jnp.bfloat16)}
    assert checkpoint.restore(path, half, cast=True)["a"].dtype == jnp.bfloat16
    assert checkpoint.restore(path, {"t": ""}, partial=True) == {"t": "x"}
    tree = checkpoint.describe(path).tree
    assert tree["a"].shape == (3,) and tree["i"] == 3 and tree["n"].dtype == np.int64
    assert isinstance(checkpoint.restore(path, tree)["n"], np.ndarray)


@meshrt.tree_util.register_pytree_node_class
class Node:
    def __init__(self, *children):
        self.children = children

    def tree_flatten(self):
        return self.children, None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


def test_classes_that_files_do_not_hold_come_from_like_or_are_dicts(path):
    tree = {"pair": Pair(1, [2]), "node": Node(3, None), 5: collections.OrderedDict(b=4, a=()), "e": Pair((), {})}
    tree = {str(k): v for k, v in tree.items()}
    checkpoint.save(path, tree)
    found = checkpoint.restore(path)
    assert found["pair"] == {"first": 1, "second": [2]} and list(found["node"].values()) == [3, None]
    assert found["5"] == {"b": 4, "a": ()} and found["e"] == {"first": (), "second": {}}
    assert checkpoint.restore(path, tree)["pair"] == Pair(1, [2])


LIBRARIES = """
import sys, numpy as np, meshrt.compat
jax = meshrt.compat.as_jax()
import optax
from flax.training.train_state import TrainState
state = TrainState.create(apply_fn=abs, params={"w": jax.numpy.ones((4, 2))}, tx=optax.adam(1e-3))
state = state.apply_gradients(grads=jax.tree.map(jax.numpy.ones_like, state.params))
jax.checkpoint.save(sys.argv[1], state)
found = jax.checkpoint.restore(sys.argv[1], jax.eval_shape(lambda: state))
assert jax.tree.structure(found) == jax.tree.structure(state) and found.tx is state.tx
assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(state)))
assert list(jax.checkpoint.restore(sys.argv[1])) == ["step", "params", "opt_state"]
"""


def test_states_of_optax_and_flax(path):
    pytest.importorskip("optax"), pytest.importorskip("flax")
    done = subprocess.run([sys.executable, "-c", LIBRARIES, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Scaled:
    values: meshrt.Array
    scale: meshrt.Array


@dataclass(frozen=True)
class ScaledType(hijax.HiType):
    part: object
    scale: object

    def lo_ty(self):
        return [self.part, self.scale]

    def lower_val(self, value):
        return [value.values, value.scale]

    def raise_val(self, values, scale):
        return Scaled(values, scale)


hijax.register_hitype(Scaled, lambda s: ScaledType(s.values.aval, s.scale.aval))


def test_high_values_are_saved_by_what_they_consist_of(path):
    made = Scaled(jnp.arange(-4, 4).astype("int4"), jnp.float32(0.5))
    checkpoint.save(path, {"q": made})
    found = checkpoint.restore(path, {"q": made})["q"]
    assert type(found) is Scaled and same_bits(found.values, made.values) and float(found.scale) == 0.5
    with pytest.raises(errors.CheckpointMismatchError, match="consists of 2 arrays: give one in like="):
        checkpoint.restore(path)
    with pytest.raises(errors.CheckpointMismatchError, match="a Scaled of 2 arrays, and float32"):
        checkpoint.restore(path, {"q": made.scale})


def test_the_files_are_safetensors(path, mesh):
    safetensors = pytest.importorskip("safetensors")
    tree = {"a": {"w": jnp.arange(6.0).reshape(2, 3)}, "split": put(np.arange(8, dtype=np.int16), mesh, "data"),
            "__metadata__": np.arange(2)}  # fmt: skip
    checkpoint.save(path, tree)
    with safetensors.safe_open(path / "process_00000.safetensors", "numpy") as file:
        assert same_bits(file.get_tensor("a/w"), np.asarray(tree["a"]["w"]))
        assert file.get_tensor("split[2:4]").tolist() == [2, 3] and len(file.keys()) == 6


def test_progress_is_told(path):
    told = []
    tree = [np.zeros(1 << 20, np.uint8), jnp.ones(3)]
    checkpoint.save(path, tree, progress=told.append)
    checkpoint.restore(path, progress=told.append)
    checkpoint.verify(path, progress=told.append)
    for doing in ("save", "restore", "verify"):
        rows = [t for t in told if t.doing == doing]
        assert rows[0].done_bytes == 0 and rows[-1].done_bytes == rows[-1].total_bytes == (1 << 20) + 12
    with pytest.raises(errors.ArgumentTypeError, match="progress is a function"):
        checkpoint.restore(path, progress=3)


def test_metadata_and_positions_of_data(path):
    class Data:
        position = 5

        def get_state(self):
            return {"position": self.position}

        def set_state(self, state):
            self.position = state["position"]

    data = Data()
    checkpoint.save(path, 1, metadata={"loss": 0.5, "names": ["a", None]}, data_state=data)
    data.position = 0
    assert checkpoint.restore(path, data_state=data) == 1 and data.position == 5
    found = checkpoint.describe(path)
    assert found.metadata == {"loss": 0.5, "names": ["a", None]} and found.data_states == ({"position": 5},)
    checkpoint.save(path.with_name("b"), 1, data_state=b"\0\1")
    assert checkpoint.describe(path.with_name("b")).data_states == (b"\0\1",)
    with pytest.raises(TypeError, match=r"data_state must have a method set_state\(state\)"):
        checkpoint.restore(path.with_name("b"), data_state=b"\0\1")
    checkpoint.save(path.with_name("c"), {"w": np.zeros(3)})
    with pytest.raises(meshrt.errors.CheckpointMismatchError, match="was saved without the data_state that is to be"):
        checkpoint.restore(path.with_name("c"), data_state=data, progress=lambda done: pytest.fail("it was read first"))


def test_the_name_is_that_of_rematerialisation_too():
    import pickle

    f = meshrt.checkpoint(lambda x: jnp.sin(x) * x, policy=None)
    assert math.isclose(float(meshrt.grad(f)(2.0)), math.sin(2) + 2 * math.cos(2), rel_tol=1e-5)
    assert pickle.loads(pickle.dumps(meshrt.checkpoint)) is meshrt.checkpoint
    with pytest.raises(AttributeError, match="no attribute 'saev'"):
        checkpoint.saev
    assert {"save", "restore", "CheckpointManager"} <= set(dir(checkpoint))
