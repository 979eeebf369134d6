"""Judges for the partitioner: twelve virtual CPU devices, one device, XLA's partitioner.

`run_replicas` runs a per-device module on as many CPU devices as it has replicas; `hlo_bytes` counts what an
optimised HLO module sends, so that our program and XLA's are counted by the same code.
"""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
from jaxlib import _jax as J
from jaxlib import xla_client as xc

__all__ = ["Compiled", "hlo_bytes", "one_device", "pieces", "unshard"]

_client = None


def client():
    global _client
    if _client is None:
        _client = xc.make_cpu_client(num_devices=12)
    return _client


class _Aval:
    def __init__(self, shape, dtype):
        self.shape, self.dtype, self.weak_type = shape, np.dtype(dtype), False


class _Sharding(J.GSPMDSharding):
    memory_kind = None

    def _to_xla_hlo_sharding(self, ndim):
        return self._hlo_sharding

    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__


class Compiled:
    """A module compiled for `n` replicas; with `by_xla` one that XLA's partitioner splits over `n` devices."""

    def __init__(self, text, n: int, by_xla: bool = False):
        devices = client().devices()[:n]
        options = xc.CompileOptions()
        options.num_replicas, options.num_partitions = (1, n) if by_xla else (n, 1)
        ids = np.array([[d.id] for d in devices])
        options.device_assignment = xc.DeviceAssignment.create(ids.T if by_xla else ids)
        build = options.executable_build_options
        build.use_spmd_partitioning = build.use_shardy_partitioner = by_xla
        build.num_replicas, build.num_partitions = options.num_replicas, options.num_partitions
        self.devices = devices
        self.n = n
        self.exe = client().compile_and_load(text, xc.DeviceList(tuple(devices)), options)

    def __call__(self, per_device):
        """`per_device[i]` are the pieces of argument i; returns the same for results."""
        arrays = []
        for shards in per_device:
            shape = shards[0].shape
            whole = (self.n * shape[0], *shape[1:]) if shape else ()
            if shape:
                hlo = xc.HloSharding.iota_tile((self.n, *[1] * (len(shape) - 1)))
            else:
                hlo = xc.HloSharding.replicate()
            sharding = _Sharding(xc.DeviceList(tuple(self.devices)), hlo)
            aval = _Aval(whole, shards[0].dtype)
            shards = [np.ascontiguousarray(s) for s in shards]
            arrays.append(xc.batched_device_put(aval, sharding, shards, list(self.devices), True, enable_x64=True))
        out = self.exe.execute_sharded(arrays).disassemble_into_single_device_arrays()
        return [[np.asarray(p._single_device_array_to_np_array_did_copy()[0]) for p in result] for result in out]

    def hlo(self) -> str:
        return self.exe.hlo_modules()[0].to_string()


def one_device(text, args):
    """Runs an unpartitioned module on one device."""
    return [r[0] for r in Compiled(text, 1)([[a] for a in args])]


def _box(shape, sharding, device: int):
    """The slices of the piece a device holds (ceil division)."""
    coords, rest = {}, device
    for name, size in reversed(sharding.mesh.axes):
        coords[name] = rest % size
        rest //= size
    box = []
    for n, dim in zip(shape, sharding.dims):
        index, parts = 0, 1
        for a in dim.axes:
            full = sharding.mesh.axis_size(a.name)
            index = index * a.size + coords[a.name] // (full // a.end) % a.size
            parts *= a.size
        s = -(-n // parts)
        box.append(slice(index * s, min((index + 1) * s, n)))
    return tuple(box)


def pieces(array, sharding):
    """One array per device."""
    return [array[_box(array.shape, sharding, d)] for d in range(sharding.mesh.size)]


def comparable(array):
    """The same numbers in a type of NumPy's own: among others it does not know NaNs when it sees them."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def unshard(shards, shape, sharding):
    """Reassembles a global array and checks that replicas agree."""
    out = np.zeros(shape, shards[0].dtype)
    seen = np.zeros(shape, bool)
    for d, piece in enumerate(shards):
        box = _box(shape, sharding, d)
        assert piece.shape == out[box].shape, (piece.shape, out[box].shape)
        if seen[box].any():
            where = f"replicas differ on device {d}"
            np.testing.assert_array_equal(comparable(out[box]), comparable(piece), err_msg=where)
        out[box] = piece
        seen[box] = True
    assert seen.all()
    return out


def run_partitioned(partitioned, args, shapes):
    """Runs a `PartitionedProgram` on global arrays; returns global results."""
    compiled = Compiled(partitioned.as_text(), partitioned.mesh.size)
    shards = compiled([pieces(np.asarray(a), s) for a, s in zip(args, partitioned.arg_shardings)])
    return [unshard(s, shape, sh) for s, shape, sh in zip(shards, shapes, partitioned.result_shardings)], compiled


# -- counting ------------------------------------------------------------------------------------------------

_KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute")
_BITS = dict(pred=8, s8=8, u8=8, s16=16, u16=16, bf16=16, f16=16, s32=32, u32=32, f32=32, s64=64, u64=64, f64=64,
             c64=64, c128=128)  # fmt: skip


def _type_bytes(text: str) -> float:
    total = 0.0
    for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", text):
        total += math.prod(int(n) for n in dims.split(",") if n) * _BITS.get(dtype, 32) / 8
    return total


def _mesh_groups(text: str):
    """Groups written over mesh axes: mesh['a'=2,'b'=4] {'b'} and sub-axes 'b':(2)2."""
    axes = [(a, int(k)) for a, k in re.findall(r"'([^']*)'=(\d+)", text[: text.index("]")])]
    wanted = re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", text[text.index("{") : text.index("}")])
    shape, chosen = [], []
    for name, size in axes:
        cuts = {1, size}
        for other, pre, k in wanted:
            if other == name and pre:
                cuts |= {int(pre), int(pre) * int(k)}
        for low, high in itertools.pairwise(sorted(cuts)):
            for other, pre, k in wanted:
                if other == name and (not pre or int(pre) <= low < int(pre) * int(k)):
                    chosen.append(len(shape))
            shape.append(high // low)
    ids = np.arange(math.prod(shape)).reshape(shape)
    order = [i for i in range(len(shape)) if i not in chosen] + chosen
    return ids.transpose(order).reshape(-1, math.prod(shape[i] for i in chosen)).tolist()


def _groups(attrs: str, n: int):
    m = re.search(r"replica_groups=(mesh\[[^{]*\{[^}]*\})", attrs)
    if m is not None:
        return _mesh_groups(m[1])
    m = re.search(r"replica_groups=(\{\{[^=]*?\}\}|\{\}|\[[^\s]*)", attrs)
    if m is None or m[1].startswith("{}"):
        return [list(range(n))]
    if m[1].startswith("{{"):
        return [[int(v) for v in g.split(",")] for g in re.findall(r"\{([\d,]+)\}", m[1][1:])]
    shape, source, order = re.match(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", m[1]).groups()
    ids = np.arange(n).reshape([int(v) for v in source.split(",")])
    if order:
        ids = ids.transpose([int(v) for v in order.split(",")])
    return ids.reshape([int(v) for v in shape.split(",")]).tolist()


def hlo_bytes(text: str, n: int):
    """(bytes sent by the busiest device, {kind: times}) of optimised HLO; loops count their known trip count, of
    branches each device takes the one for which it sends most."""
    computations, entry, current = {}, None, None
    for line in text.splitlines():
        line = re.sub(r"/\*.*?\*/", "", line)
        m = re.match(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$", line)
        if m and not line.startswith(" "):
            current = computations.setdefault(m[2], [])
            entry = m[2] if m[1] else entry
        elif current is not None:
            m = re.match(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$", line)
            if m:
                current.append(m.groups())
    sent = np.zeros(n)
    counts: dict[str, int] = {}

    def walk(name, times):
        types = {i[0]: i[1] for i in computations.get(name, ())}
        for _, _, op, rest in computations.get(name, ()):
            kind = op.removesuffix("-start")
            if kind in _KINDS:
                operands = rest[: rest.index(")")]
                size = sum(_type_bytes(types[o]) for o in re.findall(r"%([\w.\-]+)", operands))
                counts[kind] = counts.get(kind, 0) + times
                if kind == "collective-permute":
                    text_ = rest[rest.index("source_target_pairs") :].split("}}")[0]
                    for a, b in re.findall(r"\{(\d+),(\d+)", text_):
                        if a != b:
                            sent[int(a)] += size * times
                    continue
                for g in _groups(rest, n):
                    k = len(g)
                    factor = {"all-reduce": 2 * (k - 1) / k, "all-gather": k - 1}.get(kind, (k - 1) / k)
                    sent[g] += factor * size * times
            if op == "while":
                trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', rest)
                t = times * (int(trips[1]) if trips else 1)
                walk(re.search(r"body=%?([\w.\-]+)", rest)[1], t)
                walk(re.search(r"condition=%?([\w.\-]+)", rest)[1], t)
            elif op in ("call", "fusion", "async-start"):
                m = re.search(r"(?:calls|to_apply)=%?([\w.\-]+)", rest)
                if m:
                    walk(m[1], times)
            elif op == "conditional":
                m = re.search(r"branch_computations=\{([^}]*)\}", rest)
                names = m[1] if m else " ".join(re.findall(r"(?:true|false)_computation=(%?[\w.\-]+)", rest))
                before, most = sent.copy(), sent.copy()
                for branch in re.findall(r"%?([\w.\-]+)", names):
                    sent[:] = before
                    walk(branch, times)
                    np.maximum(most, sent, out=most)
                sent[:] = most

    walk(entry, 1)
    return float(sent.max()) if n else 0.0, counts
