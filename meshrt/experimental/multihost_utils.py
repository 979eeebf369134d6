"""What the processes of a job tell each other, and arrays of one process and of all, as JAX's `multihost_utils`.

Every process must make the same calls in the same order. In a job of one process they return at once. Small values
go through the coordination service, arrays that spread over processes through their devices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import distributed, tree_util
from meshrt.distributed import live_devices, reached_preemption_sync_point
from meshrt.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    ProcessesDisagreeError,
    ProcessFailureError,
)
from meshrt.experimental.exchange import bounds_of, decode, encode, exchange
from meshrt.runtime import backend
from meshrt.runtime.array import Array
from meshrt.runtime.assembly import global_of_host, host_of_global
from meshrt.runtime.transfer import put_leaf
from meshrt.sharding.mesh import Mesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec

__all__ = [
    "ProcessFailureError", "assert_equal", "broadcast_one_to_all", "global_array_to_host_local_array",
    "host_local_array_to_global_array", "live_devices", "process_allgather", "reached_preemption_sync_point",
    "sync_global_devices",
]  # fmt: skip


def sync_global_devices(name: str) -> None:
    """Waits until every process has called this with the same `name`.

    Raises:
      ProcessesDisagreeError: other processes came with another name. DistributedError: not all came within 300 s.

    >>> meshrt.experimental.multihost_utils.sync_global_devices("ready")
    """
    assert_equal(name, f"sync_global_devices name mismatch ({name!r})")


# ---------------------------------------------------------------------------------------------------------------------
# Values


def process_allgather(in_tree: Any, tiled: bool = False) -> Any:
    """Every process's value of each leaf, as numpy arrays that are equal in all processes.

    Arrays that spread over several processes come back whole. Of all other leaves, whose shapes and dtypes must agree
    between processes, the result stacks the values in a new leading axis of size process_count, or, if `tiled`, joins
    them along the existing one; scalars are always stacked.

    >>> meshrt.experimental.multihost_utils.process_allgather(np.arange(2))
    array([[0, 1]])
    """
    return tree_util.tree_map(lambda leaf: _gather(leaf, tiled), in_tree)


def _gather(leaf: Any, tiled: bool) -> np.ndarray:
    if not getattr(leaf, "is_fully_addressable", True):
        return _whole(leaf)
    value = np.asarray(leaf)
    blocks = [decode(block) for block in exchange(encode(value))]
    if any((b.shape, b.dtype) != (value.shape, value.dtype) for b in blocks):
        kinds = ", ".join(f"process {i}: {b.dtype}{list(b.shape)}" for i, b in enumerate(blocks))
        raise ArgumentTypeError(f"process_allgather: the processes hold different kinds of arrays: {kinds}")
    return np.concatenate(blocks) if tiled and value.ndim else np.stack(blocks)


def _whole(array: Array) -> np.ndarray:
    """A global array; its devices send each other what they lack if every process has some of them."""
    sharding = array.sharding
    holders = {d.process_index for d in sharding.device_assignment}
    if isinstance(sharding, NamedSharding) and holders == set(backend.process_indices()):
        everywhere = NamedSharding(sharding.mesh, PartitionSpec(), memory_kind=sharding.memory_kind)
        return np.asarray(put_leaf(array, everywhere, False, None))
    shards = [s for s in array.addressable_shards if s.replica_id == 0]
    parts = [encode(np.asarray(s.data), _bounds(s.index, array.shape)) for s in shards]
    out = np.empty(array.shape, array.dtype)
    for block in exchange(b"".join(len(p).to_bytes(8, "little") + p for p in parts)):
        at = 0
        while at < len(block):
            size = int.from_bytes(block[at : at + 8], "little")
            part = block[at + 8 : at + 8 + size]
            out[tuple(slice(*b) for b in bounds_of(part))] = decode(part)
            at += 8 + size
    return out


def broadcast_one_to_all(in_tree: Any, is_source: bool | None = None) -> Any:
    """The values of one process, by default process 0, in all: numpy arrays in the structure of `in_tree`.

    Args:
      in_tree: arrays, numbers; those of other processes only say what is expected.
      is_source: whether this process's values are sent; True in exactly one process.

    Raises:
      ArgumentValueError: no process, or several, are the source. ArgumentTypeError: what the source sends has another
        structure, shape or dtype than what this process expects.

    >>> meshrt.experimental.multihost_utils.broadcast_one_to_all(np.arange(2))
    array([0, 1])
    """
    leaves, tree = tree_util.tree_flatten(in_tree)
    values = [np.asarray(leaf) for leaf in leaves]
    context = distributed.context()
    if context is None:
        return tree.unflatten(values)
    source = context.node_id == 0 if is_source is None else bool(is_source)
    sent = b"".join(len(b).to_bytes(8, "little") + b for b in map(encode, values))
    blocks = exchange(b"\1" + sent if source else b"")
    sources = [i for i, block in enumerate(blocks) if block]
    if len(sources) != 1:
        raise ArgumentValueError(
            f"broadcast_one_to_all needs exactly one source. Got the processes {sources}: pass is_source=True in "
            "one of them"
        )
    received = _split(blocks[sources[0]][1:])
    if [(v.shape, v.dtype) for v in received] != [(v.shape, v.dtype) for v in values]:
        kinds = lambda vs: ", ".join(f"{v.dtype}{list(v.shape)}" for v in vs)
        raise ArgumentTypeError(
            f"broadcast_one_to_all: process {sources[0]} sends {len(received)} arrays ({kinds(received)}), but this "
            f"process expects {len(values)} ({kinds(values)}); pass the same structure, shapes and dtypes everywhere"
        )
    return tree.unflatten(received)


def _split(data: bytes) -> list[np.ndarray]:
    out, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        out.append(decode(data[at + 8 : at + 8 + size]))
        at += 8 + size
    return out


def assert_equal(in_tree: Any, fail_message: str = "") -> None:
    """Compares a tree of arrays, numbers and texts with that of the other processes; hashes are sent, not values.

    Raises:
      ProcessesDisagreeError (an AssertionError), in every process: names the leaf, and who has what.

    >>> meshrt.experimental.multihost_utils.assert_equal(jnp.ones(2))
    """
    paths = [f"in_tree{tree_util.keystr(p)}" for p, _ in tree_util.tree_leaves_with_path(in_tree)]
    leaves = [leaf if isinstance(leaf, str) else np.asarray(leaf) for leaf in tree_util.tree_leaves(in_tree)]
    digests = [hashlib.sha256(repr(v).encode() if isinstance(v, str) else encode(v)).hexdigest() for v in leaves]
    structure = repr(paths)
    mine = "\n".join([hashlib.sha256(structure.encode()).hexdigest(), *digests]).encode()
    all_of_them = exchange(mine)
    if all(block == all_of_them[0] for block in all_of_them):
        return
    # All see the same hashes, so all come here.
    tables = [block.decode().split("\n") for block in all_of_them]
    if any(t[0] != tables[0][0] for t in tables):
        raise ProcessesDisagreeError(_disagreement(fail_message, "the structure", exchange(structure.encode())))
    first = next(i for i in range(len(leaves)) if any(t[i + 1] != tables[0][i + 1] for t in tables))
    value = leaves[first]
    text = repr(value) if isinstance(value, str) else np.array2string(value, threshold=20)
    raise ProcessesDisagreeError(_disagreement(fail_message, paths[first], exchange(text.encode())))


def _disagreement(message: str, what: str, texts: list[bytes]) -> str:
    here = backend.process_index()
    found = "; ".join(f"process {i} has {t.decode()}" for i, t in enumerate(texts))
    return (
        f"{message}. Expected: {texts[0].decode()}; got: {texts[here].decode()}. {what} differs between processes: "
        f"{found}. Make it the same everywhere, for example with broadcast_one_to_all"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Arrays of one process and of all


def host_local_array_to_global_array(local_inputs: Any, global_mesh: Mesh, pspecs: Any) -> Any:
    """Global arrays over `global_mesh` of which each leaf is this process's part.

    Args:
      local_inputs: a tree of arrays. Along dimensions that are split over axes within a process a leaf is the whole,
        along those that are split between processes it is this process's share. Global arrays stay as they are.
      pspecs: PartitionSpecs, a prefix of `local_inputs`.

    Raises:
      ArgumentValueError: None among the specs. IndivisibleError: a size does not divide into the parts held here.

    >>> from meshrt.experimental import multihost_utils
    >>> mesh = meshrt.make_mesh((8,), ("x",))
    >>> multihost_utils.host_local_array_to_global_array(np.arange(8), mesh, meshrt.P("x")).shape
    (8,)
    """
    leaves, tree = tree_util.tree_flatten(local_inputs)
    specs = _specs(pspecs, local_inputs)
    return tree.unflatten([global_of_host(leaf, global_mesh, spec) for leaf, spec in zip(leaves, specs)])


def _specs(pspecs: Any, tree: Any) -> Sequence[PartitionSpec]:
    is_spec = lambda x: x is None or isinstance(x, PartitionSpec)
    specs = tree_util.broadcast_prefix(pspecs, tree, is_leaf=is_spec)
    for spec in specs:
        if spec is None:
            raise ArgumentValueError(
                "`None` is not a valid input to the pspecs argument. Please use meshrt.sharding.PartitionSpec() if you "
                "wanted to replicate your input."
            )
        if not isinstance(spec, PartitionSpec):
            raise ArgumentTypeError(f"pspecs are PartitionSpecs, a prefix of the arrays. Got {spec!r}")
    return list(specs)


def global_array_to_host_local_array(global_inputs: Any, global_mesh: Mesh, pspecs: Any) -> Any:
    """This process's part of each global array, as an array over `global_mesh.local_mesh`; no data moves between
    processes unless an array has another sharding than its spec says.

    Args:
      global_inputs: a tree of arrays over `global_mesh`; arrays of this process alone stay as they are.
      pspecs: PartitionSpecs, a prefix of `global_inputs`.

    Raises:
      ArgumentValueError: None among the specs.

    >>> from meshrt.experimental import multihost_utils
    >>> mesh = meshrt.make_mesh((8,), ("x",))
    >>> x = meshrt.device_put(jnp.arange(8), meshrt.NamedSharding(mesh, meshrt.P("x")))
    >>> multihost_utils.global_array_to_host_local_array(x, mesh, meshrt.P("x")).shape
    (8,)
    """
    leaves, tree = tree_util.tree_flatten(global_inputs)
    specs = _specs(pspecs, global_inputs)
    return tree.unflatten([host_of_global(leaf, global_mesh, spec) for leaf, spec in zip(leaves, specs)])


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> list[list[int]]:
    return [list(s.indices(size)[:2]) for s, size in zip(index, shape)]
