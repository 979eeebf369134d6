"""Compiling, loading on other devices, the caches in memory and on disk, and pending executions."""

import os
import stat
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import meshrt
from meshrt import config, errors
from meshrt.runtime import compile_cache, events
from meshrt.runtime.callbacks import HostCallback
from meshrt.runtime.executable import compile_program
from meshrt.runtime.in_flight import Flight
from meshrt.runtime.results import execute
from meshrt.sharding import NamedSharding, make_mesh
from meshrt.sharding import PartitionSpec as P
from meshrt.xla import jaxlib_api, protobuf

VALUE = np.arange(32, dtype=np.float32).reshape(8, 4)


def text(scale, n=4):
    """Scales its shard and adds all shards' sums over the devices."""
    groups = ",".join(map(str, range(n)))
    return f"""module @m {{ func.func public @main(%a: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) {{
      %c = stablehlo.constant dense<{scale:e}> : tensor<2x4xf32>
      %s = stablehlo.multiply %a, %c : tensor<2x4xf32>
      %r = "stablehlo.all_reduce"(%a) ({{ ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %t = stablehlo.add %x, %y : tensor<f32>
        stablehlo.return %t : tensor<f32> }}) {{replica_groups = dense<[[{groups}]]> : tensor<1x{n}xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>}} : (tensor<2x4xf32>) -> tensor<2x4xf32>
      return %s, %r : tensor<2x4xf32>, tensor<2x4xf32> }} }}"""


def run(program, devices, scale):
    mesh = make_mesh((4,), ("x",), devices=devices)
    x = meshrt.device_put(VALUE, NamedSharding(mesh, P("x")))
    whole = meshrt.device_put(VALUE[:2], NamedSharding(mesh, P()))
    scaled, total = execute(program.load(mesh.flat_devices), [x._buf], [x._sig, whole._sig])
    np.testing.assert_array_equal(np.asarray(scaled), VALUE * scale)
    np.testing.assert_array_equal(np.asarray(total), VALUE.reshape(4, 2, 4).sum(0))


@pytest.mark.smoke
def test_compiled_once_for_all_devices():
    d = meshrt.devices()
    program = compile_program(text(2), num_devices=4)
    with events.count() as n:
        for devices in (d[:4], d[4:], d[::2], d[3::-1], d[:4]):
            run(program, devices, 2)
    assert (n.compile, n.rebind) == (1, 3)
    assert compile_program(text(2), num_devices=4) is program
    assert compile_program(text(3), num_devices=4) is not program
    memory = program.memory_analysis()
    assert memory.argument_size_in_bytes == 32 and memory.output_size_in_bytes >= 64
    assert program.cost_analysis()["flops"] >= 8 and "all-reduce" in program.hlo_text()
    assert len(program.serialize()) > 100


def test_one_device_and_callbacks():
    x = meshrt.device_put(np.ones(4, np.float32))
    program = compile_program(
        """module @m { func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
        %r = stablehlo.custom_call @xla_ffi_python_cpu_callback(%a) {api_version = 4 : i32,
          backend_config = {index = 0 : ui64}, has_side_effect = true} : (tensor<4xf32>) -> tensor<4xf32>
        return %r : tensor<4xf32> } }""",
        num_devices=1,
        host_callbacks=[HostCallback(lambda v: (np.asarray(v) * 3,), "three times", [x.aval], [x.aval], False)],
    )
    (y,) = execute(program.load([x.device]), [x._buf], [x._sig])
    np.testing.assert_array_equal(np.asarray(y), np.full(4, 3))


def test_errors():
    d = meshrt.devices()
    with pytest.raises(errors.MeshMismatchError, match="compiled for 4 devices and cannot be loaded onto 2"):
        compile_program(text(5), num_devices=4).load(d[:2])
    with pytest.raises(errors.CompileError, match="refused the program"):
        compile_program("module @m { func.func public @main() -> tensor<4xf32> { } }", num_devices=1).load(d[:1])
    with pytest.raises(errors.BackendError, match="999 cpu devices, but there are 8"):
        compile_program(text(1, 999), num_devices=999).memory_analysis()
    with pytest.raises(errors.CompileError, match="not a valid MLIR module"):
        jaxlib_api.parse("module { oops }")
    program = compile_program(text(7), num_devices=4)
    mesh = make_mesh((4,), ("x",))
    x = meshrt.device_put(VALUE, NamedSharding(mesh, P("x")))
    wrong = meshrt.device_put(VALUE, mesh.flat_devices[0])
    with pytest.raises(errors.ExecutionError, match="could not be run"):
        execute(program.load(mesh.flat_devices), [wrong._buf], [x._sig, x._sig])


def test_debug_nans():
    import meshrt.numpy as jnp

    log = meshrt.jit(jnp.log)
    x = meshrt.device_put(np.array([-1.0, 0.0, 1.0], np.float32), NamedSharding(make_mesh((1,), ("x",)), P("x")))
    assert np.isnan(np.asarray(log(x))[0])
    with (
        config.override(debug_nans=True),
        pytest.raises(errors.NonFiniteError, match=r"invalid value \(nan\) .* log at .*test_executable"),
    ):
        log(x)
    with config.override(debug_infs=True), pytest.raises(FloatingPointError, match=r"invalid value \(inf\)"):
        log(x)
    log(x)


@pytest.mark.parametrize("dtype, setting, taken", [
    ("float32", "auto", False), ("float32", "always", True), ("bfloat16", "auto", True), ("bfloat16", "never", False),
])  # fmt: skip
def test_who_multiplies_matrices_on_cpus(dtype, setting, taken):
    a = meshrt.ShapeDtypeStruct((64, 64), dtype)
    with config.override(cpu_ynnpack=setting):
        text = meshrt.jit(lambda a, b: meshrt.numpy.tanh(a @ b) + 1).lower(a, a).compile().as_text()
    assert ("ynn" in text) == taken


@pytest.mark.parametrize("devices, setting, features, taken", [
    (1, "auto", 32, 0), (8, "auto", 32, 1), (8, "never", 32, 0), (8, "auto", 1024, 0),
])  # fmt: skip
def test_who_convolves_on_cpus(devices, setting, features, taken):
    """A device for each core: YNNPACK takes convolutions, Eigen the products still; else Eigen spreads them."""
    mesh = meshrt.sharding.AbstractMesh((devices,), ("x",))
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("x"))
    images = meshrt.ShapeDtypeStruct((8, 16, 16, 32), "float32", sharding=split)
    kernel = meshrt.ShapeDtypeStruct((3, 3, 32, features), "float32", sharding=whole)
    weights = meshrt.ShapeDtypeStruct((features, 64), "float32", sharding=whole)
    form = ("NHWC", "HWIO", "NHWC")

    def apply(x, k, w):
        return meshrt.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=form).mean((1, 2)) @ w

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:2])
    try:
        with config.override(cpu_ynnpack=setting):
            text = meshrt.jit(apply).lower(images, kernel, weights).compile().as_text()
    finally:
        os.sched_setaffinity(0, cores)
    assert text.count("__ynn_fusion") == taken  # neither the mean nor the product


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("f, expected", [
    (lambda x: x.max(1), "nan"), (lambda x: x.min(1), "nan"), (lambda x: meshrt.numpy.maximum(x, 0).sum(1), "nan"),
    (lambda x: meshrt.numpy.clip(x, 0, 1).sum(1), "nan"),
    (lambda x: (x[:, 1:] * 300).astype("int8").astype("float32").max(1), 127),
])  # fmt: skip
def test_reductions_keep_nan_and_the_ends_of_integers(dtype, f, expected):
    """Also in programs with narrow types, whose products are YNNPACK's: it loses NaN, and wraps integers around."""
    x = np.ones((64, 256), np.float32)
    x[:, 0] = np.nan
    narrow = meshrt.numpy.asarray(x).astype(dtype)
    np.testing.assert_array_equal(np.asarray(meshrt.jit(f)(narrow)).astype(np.float32), np.full(64, float(expected)))


@pytest.mark.parametrize("f", ["exp2", "exp", "log", "logistic", "erf"])
def test_sums_of_functions_of_rounded_products(f):
    """YNNPACK takes a constant twice that bfloat16 rounds the product by before one of these."""
    x = np.linspace(0.5, 3, 64 * 512, dtype=np.float32).reshape(64, 512)
    scaled = lambda x: getattr(meshrt.lax, f)(x if f == "exp2" else x * 0.7)
    summed = meshrt.jit(lambda x: scaled(x).astype("float32").sum(1))
    narrow = meshrt.numpy.asarray(x).astype("bfloat16")
    with config.override(cpu_ynnpack="never"):
        expected = meshrt.jit(lambda x: scaled(x).sum(1))(narrow.astype("float32"))
    np.testing.assert_allclose(summed(narrow), expected, rtol=0.01, atol=1.5)


def test_a_field_of_a_message_is_changed_or_left_out():
    # 1: 5; 2: bytes "ab"; 3: a message of 1: 300 and 2: a fixed64
    inner = b"\x08\xac\x02" + b"\x11" + bytes(8)
    message = b"\x08\x05" + b"\x12\x02ab" + b"\x1a" + bytes([len(inner)]) + inner
    nothing = lambda value: b""
    assert protobuf.changed(message, (1,), nothing) == message[2:]
    assert protobuf.changed(message, (2,), nothing) == message[:2] + message[6:]
    assert protobuf.changed(message, (2,), lambda value: value[1:] * 3) == b"\x08\x05\x12\x03bbb" + message[6:]
    assert protobuf.changed(message, (3, 1), nothing) == message[:6] + b"\x1a\x09" + inner[3:]
    assert protobuf.changed(message, (7,), nothing) == protobuf.changed(message, (3, 7), nothing) == message
    for broken in (b"\x08", b"\x12\x05a", b"\x0b", b"\x09\x00", b"\xff" * 11):
        with pytest.raises(ValueError):
            protobuf.changed(broken, (1,), lambda value: value)


# --- on disk.


@pytest.fixture
def cache(tmp_path):
    directory = tmp_path / "cache"
    config.update("compilation_cache_dir", str(directory))
    yield directory
    config.update("compilation_cache_dir", None)


def fresh(scale):
    """A program of this text that is not in memory."""
    compile_cache.clear()
    return compile_program(text(scale), num_devices=4)


@pytest.mark.smoke
def test_disk_cache(cache):
    d = meshrt.devices()
    with events.count() as first:
        run(fresh(11), d[:4], 11)
    assert (first.compile, first.persistent_miss, first.persistent_hit) == (1, 1, 0)
    (entry,) = cache.iterdir()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700 and stat.S_IMODE(entry.stat().st_mode) == 0o600
    with events.count() as second:
        run(fresh(11), d[4:], 11)
    assert (second.compile, second.persistent_hit) == (0, 1)


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "directory", "other"])
def test_damaged_entries_are_reported_and_replaced(cache, damage):
    d = meshrt.devices()
    run(fresh(13), d[:4], 13)
    (entry,) = cache.iterdir()
    good = entry.read_bytes()
    before = len(compile_cache.problems())
    if damage == "directory":
        entry.unlink()
        entry.mkdir()
    elif damage == "other":  # a valid entry under another key
        run(fresh(14), d[:4], 14)
        (other,) = [p for p in cache.iterdir() if p != entry]
        entry.write_bytes(other.read_bytes())
    else:
        entry.write_bytes({"truncate": good[:-9], "flip": good[:-1] + bytes([good[-1] ^ 1]), "empty": b""}[damage])
    with events.count() as n:
        run(fresh(13), d[:4], 13)
    assert n.compile == 1 and n.persistent_corrupt >= 1
    problem = compile_cache.problems()[before]
    assert isinstance(problem, errors.CompileCacheError) and isinstance(problem, RuntimeError)
    assert f"the cache entry {entry} " in str(problem) and "the program is compiled again" in str(problem)
    if damage != "directory":
        with events.count() as n:
            run(fresh(13), d[:4], 13)
        assert n.persistent_hit == 1


def test_directories_that_others_can_write_to_are_refused(cache):
    cache.mkdir(mode=0o700)
    cache.chmod(0o777)
    with pytest.raises(errors.CompileCacheError, match=r"others can write.*chmod go-w"):
        run(fresh(17), meshrt.devices()[:4], 17)


def test_no_half_written_entry(cache, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with events.count() as n:
        run(fresh(19), meshrt.devices()[:4], 19)
    assert n.persistent_corrupt == 1 and "disk full" in str(compile_cache.problems()[-1])
    assert list(cache.iterdir()) == []


# --- pending executions.


def test_flight_waits_for_the_oldest():
    class Token:
        waits = 0

        def block_until_ready(self):
            Token.waits += 1

    in_flight = Flight(8)
    due = 0
    for _ in range(100):
        if in_flight.due():
            due += 1
            in_flight.add(Token())
    assert due == 25 and Token.waits == 24 and len(in_flight.tokens) == 1


def test_overlapping_device_sets_share_what_a_device_admits():
    from meshrt.runtime import in_flight

    d = meshrt.devices()
    kept, in_flight._flights = in_flight._flights, {}
    try:
        flights = [in_flight.flight_of(tuple(d[:n])) for n in range(2, 8)]
        assert in_flight.flight_of((d[0],)) is None and in_flight.flight_of((d[1], d[0])) is flights[0]
        assert {2 * f.stride for f in flights} == {24 // 6}
    finally:
        in_flight._flights = kept


def test_many_unawaited_steps_on_eight_devices():
    """Without a bound this loop never ends on two cores."""
    program = textwrap.dedent(
        """
        import numpy as np, meshrt
        from meshrt.runtime.array import arrays
        from meshrt.runtime.executable import compile_program
        from meshrt.runtime.results import runner
        from meshrt.sharding import NamedSharding, PartitionSpec as P, make_mesh
        mesh = make_mesh((8,), ("x",))
        x = meshrt.device_put(np.eye(64, dtype=np.float32), NamedSharding(mesh, P()))
        kind, lines, last = "tensor<64x64xf32>", [], "a"
        for i in range(6):
            lines.append(f'''%d{i} = stablehlo.dot %{last}, %{last} : ({kind}, {kind}) -> {kind}
            %r{i} = "stablehlo.all_reduce"(%d{i}) ({{ ^bb0(%x: tensor<f32>, %y: tensor<f32>):
              %s = stablehlo.maximum %x, %y : tensor<f32>
              stablehlo.return %s : tensor<f32> }}) {{replica_groups = dense<[[0,1,2,3,4,5,6,7]]> : tensor<1x8xi64>,
              channel_handle = #stablehlo.channel_handle<handle = {i + 1}, type = 0>}} : ({kind}) -> {kind}''')
            last = f"r{i}"
        body = "\\n".join(lines)
        text = f"module @m {{ func.func public @main(%a: {kind}) -> {kind} {{ {body}\\nreturn %{last} : {kind} }} }}"
        run = runner(compile_program(text, num_devices=8).load(mesh.flat_devices), [x._sig])
        buffer = x._buf
        for _ in range(300):
            (buffer,) = run([buffer])
        print(np.asarray(arrays([buffer], [x._sig])[0]).trace())
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and done.stdout.strip() == "64.0", done.stderr[-2000:]


def test_functions_within_functions_beyond_what_compilers_nest():
    """XLA inlines calls on its stack, which 200 of them overflow."""
    script = """
        import sys, threading, meshrt
        sys.setrecursionlimit(100_000)
        threading.stack_size(512 * 1024 * 1024)

        def run():
            f = lambda x: x + 1
            for _ in range(210):
                f = meshrt.jit(lambda x, g=f: g(x) + 1)
            assert f(1.0) == 212
            print("done")

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=120, capture_output=True, text=True
    )
    assert found.stdout == "done\n"


def test_an_array_that_no_device_has_room_for_says_what_to_do():
    with pytest.raises(errors.ExecutionError, match=r"RESOURCE_EXHAUSTED(.|\n)* no room for it: split arrays"):
        meshrt.block_until_ready(meshrt.numpy.zeros((1 << 20, 1 << 20, 16)))
