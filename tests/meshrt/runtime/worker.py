"""One of several processes: arrays, reshards, rebinding and unawaited steps over the devices of all of them.

worker.py PROCESS PROCESSES DEVICES_EACH PORT
"""

import os
import sys

import numpy as np

import meshrt
from meshrt import config, errors, lax
from meshrt.runtime import backend
from meshrt.runtime.array import Array
from meshrt.runtime.executable import compile_program
from meshrt.runtime.results import runner
from meshrt.sharding import AxisType, Mesh, NamedSharding, make_mesh
from meshrt.sharding import PartitionSpec as P
from meshrt.xla import jaxlib_distributed

KIND = "tensor<8x8xf32>"
VALUE = np.arange(64, dtype=np.float32).reshape(8, 8)


def check(x, value=VALUE):
    assert x.addressable_shards
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), value[shard.index])


def arrays(mesh, me, n):
    x = meshrt.device_put(VALUE, NamedSharding(mesh, P("x", "y")))
    check(x)
    assert not x.is_fully_addressable and repr(x).startswith("Array(shape=(8, 8), dtype=float32), of which process ")
    assert len(repr(x).splitlines()) == 1 + len(x.addressable_shards) and str(x) == repr(x)
    try:
        np.asarray(x)
    except errors.NonAddressableError as e:
        assert "spans non-addressable" in str(e)
    else:
        raise AssertionError("fetched parts of another process")
    swapped = Mesh(mesh.devices.T, ("a", "b"))
    for target in (NamedSharding(mesh, P("y")), NamedSharding(swapped, P(("a", "b"))), NamedSharding(mesh, P())):
        check(meshrt.device_put(x, target))
    whole = meshrt.device_put(x, NamedSharding(mesh, P()))
    np.testing.assert_array_equal(np.asarray(whole), VALUE)
    mine = backend.local_devices()[-1]
    np.testing.assert_array_equal(np.asarray(meshrt.device_put(whole, mine)), VALUE)
    rows = 8 // n
    part = meshrt.make_array_from_process_local_data(NamedSharding(mesh, P("x")), VALUE[me * rows : (me + 1) * rows])
    assert part.shape == (8, 8)
    check(part)


def steps(mesh, count):
    """Unawaited steps with communication in each; with more than 31 pending they would deadlock."""
    n = mesh.size
    group = ",".join(map(str, range(n)))
    lines, last = [], "a"
    for i in range(6):
        lines.append(
            f"""%r{i} = "stablehlo.all_reduce"(%{last}) ({{ ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %s = stablehlo.maximum %x, %y : tensor<f32>
            stablehlo.return %s : tensor<f32> }}) {{replica_groups = dense<[[{group}]]> : tensor<1x{n}xi64>,
            channel_handle = #stablehlo.channel_handle<handle = {i + 1}, type = 0>}} : ({KIND}) -> {KIND}"""
        )
        last = f"r{i}"
    body = "\n".join(lines)
    text = f"module @m {{ func.func public @main(%a: {KIND}) -> {KIND} {{\n{body}\nreturn %{last} : {KIND} }} }}"
    program = compile_program(text, num_devices=n)
    x = meshrt.device_put(VALUE, NamedSharding(mesh, P()))
    run = runner(program.load(mesh.flat_devices), [x._sig])
    buffer = x._buf
    for _ in range(count):
        (buffer,) = run([buffer])
    np.testing.assert_array_equal(np.asarray(Array(buffer, x._sig)), VALUE)


def by_hand(mesh):
    """Collectives written in shard_map, along the axis that goes across processes, and their derivatives."""
    n = mesh.shape["x"]
    blocks = VALUE.reshape(n, 8 // n, 8)
    x = meshrt.device_put(VALUE, NamedSharding(mesh, P("x", "y")))

    def body(x):
        ring = [(i, (i + 1) % n) for i in range(n)]
        return (
            lax.psum(x, "x"),
            lax.pmax(x, "x"),
            lax.ppermute(x, "x", ring),
            lax.all_gather(x, "x", tiled=True, to="invarying"),
            lax.all_to_all(x, "x", 1, 0, tiled=True),
            lax.psum_scatter(lax.all_gather(x, "x", tiled=True), "x", tiled=True),
            lax.pbroadcast(x, "x", n - 1),
            x + lax.axis_index("x"),
        )

    rows, columns, both = P("x", "y"), P(None, "y"), P(None, ("y", "x"))
    specs = (columns, columns, rows, columns, both, rows, rows, rows)
    run = meshrt.shard_map(body, mesh=mesh, in_specs=rows, out_specs=specs)
    wanted = (
        blocks.sum(0), blocks.max(0), np.roll(blocks, 1, 0), VALUE, VALUE, n * VALUE,
        np.broadcast_to(blocks[-1], blocks.shape), blocks + np.arange(n, dtype=np.float32)[:, None, None],
    )  # fmt: skip
    for partitioner in ("meshrt", "xla"):
        config.update("partitioner", partitioner)
        for out, want in zip(meshrt.jit(run)(x), wanted, strict=True):
            check(out, np.asarray(want).reshape(out.shape))
        grad = meshrt.jit(meshrt.grad(lambda x: sum((o * o).sum() for o in run(x)[:1])))(x)
        check(grad, np.tile(2 * blocks.sum(0), (n, 1)))
    config.update("partitioner", "meshrt")


def mapped(me, n, local):
    """pmap: each process gives and gets its own elements, and collectives go over those of all."""
    mine = np.arange(local, dtype=np.float32) + local * me
    total = meshrt.pmap(lambda x, k: (x + lax.psum(x, "i"), k), "i", in_axes=(0, None), out_axes=(0, None))
    sums, scale = total(mine, np.float32(3))
    assert sums.is_fully_addressable and scale.is_fully_addressable
    np.testing.assert_array_equal(np.asarray(sums), mine + sum(range(n * local)))
    again, _ = total(sums, scale)
    assert again.shape == (local,) and float(scale) == 3


def on_one_device():
    """A platform stands for a device of this process, not of the job."""
    mine = set(backend.local_devices()[:1])
    double = meshrt.jit(lambda x: 2 * x, backend="cpu")
    x, inside = double(VALUE), meshrt.jit(lambda x: double(x) + 1)(VALUE)
    assert x.devices() == inside.devices() == mine
    check(x, 2 * VALUE)


def saved(mesh):
    """A program written by each process runs where processes share devices in the same way."""
    put = lambda mesh: meshrt.device_put(VALUE, NamedSharding(mesh, P("x", "y")))
    content = meshrt.jit(lambda x: x @ x).lower(put(mesh)).compile().serialize()
    turned = Mesh(mesh.devices[::-1], mesh.axis_names)
    check(meshrt.stages.load(content, devices=turned)(put(turned)), VALUE @ VALUE)
    mixed = Mesh(mesh.devices.T, mesh.axis_names)
    try:
        meshrt.stages.load(content, devices=mixed)
    except errors.IncompatibleProgramError as e:
        assert "processes [0, 0, 1, 1], here [0, 1, 0, 1]" in str(e), e
    else:
        raise AssertionError("loaded a program onto processes that share devices otherwise")


def main(me, n, local, port):
    config.update("num_cpu_devices", local)
    client = jaxlib_distributed.distributed_client(f"127.0.0.1:{port}", me, init_timeout_s=60)
    client.connect()
    backend.set_process_info(backend.ProcessInfo(client, me, n, "127.0.0.1"))
    assert (backend.process_index(), backend.process_count(), backend.device_count()) == (me, n, n * local)
    assert backend.local_device_count() == local and backend.process_indices() == list(range(n))
    mesh = make_mesh((n, local), ("x", "y"), AxisType.Auto)
    arrays(mesh, me, n)
    saved(mesh)
    by_hand(mesh)
    mapped(me, n, local)
    on_one_device()
    steps(mesh, 200)
    assert "jax" not in sys.modules
    client.wait_at_barrier("done", 60_000)
    os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
