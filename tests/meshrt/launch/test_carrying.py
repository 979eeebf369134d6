"""The state that a job carries to its next one: what is kept of it, and how each process gets its parts."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import meshrt
from meshrt.distributed import carrying
from meshrt.distributed.carrying import Kept, Leaf, Piece, carry, keep
from meshrt.errors import ArgumentTypeError, ArgumentValueError, DistributedError
from meshrt.sharding import NamedSharding
from meshrt.sharding import PartitionSpec as P


def place(process=0):
    told = {}
    client = types.SimpleNamespace(
        key_value_set_bytes=told.__setitem__, blocking_key_value_get_bytes=lambda key, ms: told[key]
    )
    return types.SimpleNamespace(node_id=process, client=client, member=None, told=told)


def mesh():
    return meshrt.make_mesh((4, 2), ("x", "y"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(8, 4), (4, 0), (200, 256)])
def test_arrays_come_bit_for_bit_in_another_sharding(dtype, shape):
    values = np.random.default_rng(0).integers(0, 2, shape).astype(meshrt.numpy.dtype(dtype))
    state = {"w": meshrt.device_put(values, NamedSharding(mesh(), P("x"))), "host": values, "step": 7, "name": "é"}
    target = NamedSharding(mesh(), P(None, "y"))
    found = carry(keep(state, 0), place(), 1, {"w": target, "host": 0, "step": 0, "name": 0})
    assert found["w"].sharding == target and found["w"].dtype == found["host"].dtype == values.dtype
    for one in (np.asarray(found["w"]), found["host"]):
        assert one.tobytes() == values.tobytes()
    assert (found["step"], found["name"]) == (7, "é")


def test_each_process_gets_its_parts_of_what_several_have(monkeypatch):
    """Two processes own boxes of a leaf that is larger than what is sent at once; this one is the second."""
    values = np.arange(300 * 200, dtype=np.float64).reshape(300, 200)
    boxes = [((0, 100), (0, 200)), ((100, 300), (0, 50)), ((100, 300), (50, 200))]
    owners = [0, 1, 0]
    parts = [values[tuple(slice(*edge) for edge in box)] for box in boxes]
    leaves = (
        Leaf("state['a']", "float64", values.shape, tuple(map(Piece, owners, boxes))),
        Leaf("state['b']", "int32", (), (Piece(1, ()),)),
    )
    b = np.array(5, np.int32)
    sources = [carrying._Source(own) for own in ([parts[0], parts[2]], [parts[1], b])]
    monkeypatch.setattr(carrying.backend, "process_count", lambda: 2)
    calls = []

    def everybodys(row, count):
        calls.append(len(row))
        return np.stack([source.next(len(row)) for source in sources])

    monkeypatch.setattr(carrying, "_everybodys", everybodys)
    monkeypatch.setattr(carrying, "_AT_ONCE", 1 << 16)
    kept = Kept(leaves, ((parts[1],), (b,)))
    found = carry(kept, place(), 3, {"a": 0, "b": 0})
    assert np.array_equal(found["a"], values) and found["b"] == 5 and len(calls) > 3 and len(set(calls)) == 1


def test_others_hear_from_process_0_what_was_kept():
    asking = place()
    carry(keep({"step": 3}, 0), asking, 2, {"step": 0})
    other = place(process=1)
    other.told |= asking.told
    assert carry(None, other, 2, {"step": 0}) == {"step": 3}
    nothing = place()
    assert carry(None, nothing, 4, {"step": 0}) is None


@pytest.mark.parametrize(
    ("like", "error", "text"),
    [
        ({"w": 0}, ArgumentValueError, r"`like` has no state\['step'\]. Give the structure"),
        ({"w": 0, "step": 0, "more": 0}, ArgumentValueError, r"the state has no state\['more'\]"),
        ({"w": P("x"), "step": 0}, ArgumentTypeError, r"state\['w'\] is to be .*: give NamedSharding"),
    ],
)
def test_what_does_not_fit_the_state_is_named(like, error, text):
    with pytest.raises(error, match=text):
        carry(keep({"w": np.ones(4), "step": 1}, 0), place(), 1, like)


def test_arrays_of_another_byte_order_keep_their_values():
    values = np.arange(6, dtype=np.dtype(np.float32).newbyteorder()).reshape(2, 3)
    found = carry(keep({"a": values}, 0), place(), 1, {"a": 0})["a"]
    assert found.dtype == np.float32 and np.array_equal(found, values)


@pytest.mark.parametrize(
    "leaf",
    [object(), meshrt.random.key(0), np.array(["text"]), np.array([None]), np.array(0, "M8[s]")],
    ids=["object", "keys", "texts", "objects", "dates"],
)
def test_what_cannot_be_carried_is_named(leaf):
    with pytest.raises(ArgumentTypeError, match=r"elastic.grows: state\['a'\]\[1\] is a .*, which cannot be carried"):
        keep({"a": [1, leaf]}, 0)


def test_the_state_is_carried_once_into_each_job_also_where_a_script_has_several_blocks(monkeypatch):
    ctx = place()
    ctx.carries, ctx.member = True, types.SimpleNamespace(generation=1, carried=0)
    first, second = meshrt.distributed.elastic(), meshrt.distributed.elastic()
    monkeypatch.setattr(sys.modules[type(first).__module__], "context", lambda: ctx)
    first._kept = keep({"step": 3}, 0)
    assert first.carried({"step": 0}) == {"step": 3}
    told = dict(ctx.told)
    assert first.carried({"step": 0}) is None is second.carried({"step": 0})
    assert ctx.told == told  # the service takes each key once


def test_growing_takes_a_job():
    with pytest.raises(DistributedError, match="in no job"):
        meshrt.distributed.elastic().grows({})
    assert meshrt.distributed.elastic().carried({}) is None
