"""The state that a job carries to its next one: what is kept of it, and how each process gets its parts."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import meshrt
from meshrt.distributed import gathering, keeping
from meshrt.distributed.carrying import carry
from meshrt.distributed.keeping import keep
from meshrt.distributed.pieces import Kept, Leaf, Piece
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


def together(monkeypatch, *owns):
    """Has this process gather with others that own these; gives how many bytes each sends at once, as that is done."""
    sources, calls = [gathering._Source(own) for own in owns], []
    monkeypatch.setattr(gathering.backend, "process_count", lambda: len(owns))

    def everybodys(row, count):
        calls.append(len(row))
        return np.stack([source.next(len(row)) for source in sources])

    monkeypatch.setattr(gathering, "_everybodys", everybodys)
    monkeypatch.setattr(gathering, "_AT_ONCE", 1 << 16)
    return calls


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
    calls = together(monkeypatch, [parts[0], parts[2]], [parts[1], b])
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


# --- what processes that leave hand over.


def spread(values, holders, process):
    """A leaf whose rows are spread in equal parts over devices; `holders[i]` are the processes that hold part i."""
    size = len(values) // len(holders)
    parts = [(i, p) for i, those in enumerate(holders) for p in those]
    shards = [
        types.SimpleNamespace(
            device=types.SimpleNamespace(process_index=p), index=(slice(i * size, (i + 1) * size), slice(None)),
            data=values[i * size : (i + 1) * size] if p == process else None,
        )
        for i, p in parts
    ]  # fmt: skip
    return types.SimpleNamespace(global_shards=shards, shape=values.shape)


@pytest.mark.parametrize("process", range(4))
def test_what_only_those_hold_that_leave_is_handed_over_and_nothing_else(monkeypatch, process):
    """Process 1 and 2 leave of 4. Of six parts two are theirs alone, and two are others', too."""
    values = np.arange(12 * 3, dtype=np.float32).reshape(12, 3)
    holders, staying = [(0,), (1, 3), (1,), (2,), (2, 0), (3,)], [0, 3]

    def found(process):
        leaf = spread(values, holders, process)
        return keeping._Found("state", values.dtype, values.shape, parts=keeping._parts(leaf, process, staying))

    theirs = [[p.data for p in found(q).parts if p.source == q and q not in staying] for q in range(4)]
    assert [len(own) for own in theirs] == [0, 1, 1, 0]
    calls = together(monkeypatch, *theirs)
    mine = found(process)
    keeping._hand_over([mine], process, staying)
    assert [p.owner for p in mine.parts] == [0, 3, 0, 3, 0, 3] and calls == [2 * 3 * 4]
    for part in mine.parts:
        if part.owner == process:
            assert np.array_equal(part.data, values[slice(*part.box[0])])


def test_where_all_stay_nothing_is_sent(monkeypatch):
    monkeypatch.setattr(keeping, "gather", lambda *_: pytest.fail("somebody sends"))
    kept = keep({"a": np.ones(3), "step": 4}, 1, 2)
    assert kept.data == ((), ()) and kept.leaves[0].pieces == (Piece(0, ((0, 3),)),)


def test_what_each_process_has_for_itself_is_that_of_the_first_that_stays():
    kept = keep({"a": np.full(3, 7)}, 2, 4, without={0, 1})
    assert kept.leaves[0].pieces == (Piece(0, ((0, 3),)),) and kept.data[0][0].tolist() == [7, 7, 7]
    assert keep({"a": np.full(3, 7)}, 0, 4, without={0, 1}).data == ((),)
