"""Callbacks: what they get and give, where they run, what their errors become."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshrt
import meshrt.numpy as mnp
from meshrt import P, errors
from meshrt.experimental import io_callback
from meshrt.runtime import events
from tests.meshrt.callbacks.programs import mesh_of, put

X = np.arange(8, dtype=np.float32)


# -- what is printed --------------------------------------------------------------------------------------------------

PRINTS = {
    "position": lambda j, x: j.debug.print("x {} {}", x, x[0]),
    "keyword": lambda j, x: j.debug.print("x={x} n={n}", x=x, n=3),
    "spec": lambda j, x: j.debug.print("{:.3f} and {s!r}", x[1], s="text"),
    "no field": lambda j, x: j.debug.print("nothing"),
    "two calls": lambda j, x: j.debug.print(ordered=True)("{x}", x=x * 2),
    "tree": lambda j, x: j.debug.print("{}", {"a": x[:2], "b": (x[0], None, "s")}),
    "int": lambda j, x: j.debug.print("{:>5d}|{:x}", x.astype("int32")[3], x.astype("int32")[7]),
    "bool": lambda j, x: j.debug.print("{} {}", x > 3, x[0] > 3),
    "bf16": lambda j, x: j.debug.print("{}", x.astype("bfloat16")),
    "complex": lambda j, x: j.debug.print("{}", x[0] + 1j),
    "big": lambda j, x: j.debug.print("{}", (x[:, None] * x[None]).reshape(-1).repeat(20)),
}


@pytest.mark.parametrize("case", PRINTS)
@pytest.mark.parametrize("way", ["eager", "jit", "vmap"])
def test_prints_what_jax_prints(case, way, capsys):
    def printed(j, np_):
        f = lambda x: (PRINTS[case](j, x), x)[1]
        run = {"eager": f, "jit": j.jit(f), "vmap": lambda x: j.vmap(f)(np_.stack([x, x + 1]))}[way]
        try:
            run(np_.array(X))
        except Exception as e:
            return type(e).__mro__[-3] if not isinstance(e, errors.MeshrtError) else errors
        j.effects_barrier()
        return capsys.readouterr().out

    assert printed(meshrt, mnp) == printed(jax, jnp)


def test_braces_that_are_no_field_do_not_hide_those_that_are(capsys):
    meshrt.debug.print("{{}} {}", X[0])  # JAX prints the format string here
    assert capsys.readouterr().out == "{} 0.0\n"


def test_print_refuses_what_jax_refuses():
    for j in (jax, meshrt):
        with pytest.raises(ValueError, match="Unused keyword arguments"):
            j.debug.print("x", x=1)
        with pytest.raises(ValueError, match="Unused positional arguments"):
            j.debug.print("{}", 1, 2)
        with pytest.raises(IndexError):
            j.debug.print("{} {}", 1)
        with pytest.raises(KeyError):
            j.debug.print("{a}")
        with pytest.raises(TypeError, match="must be callable"):
            j.debug.callback("text")
        with pytest.raises(TypeError, match="two-call form"):
            j.debug.callback(None, 1)


def test_log_goes_to_the_logger_with_the_users_line(caplog):
    with caplog.at_level("INFO", "meshrt.debug"):
        meshrt.jit(lambda x: meshrt.debug.log("x is {}", x))(1.0)
    (record,) = caplog.records
    assert record.getMessage() == "x is 1.0" and record.filename == "test_callbacks.py"


# -- what they get and give -------------------------------------------------------------------------------------------

KINDS = ["bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32", "complex64", "float8_e4m3fn", "int4"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["device", "mesh"])
def test_element_types_go_there_and_back(kind, where):
    x = mnp.arange(8).astype(kind)
    x = put(x, mesh_of(4), "x") if where == "mesh" else x
    seen = []

    def back(v):
        seen.append(v)
        return np.asarray(v)

    out = meshrt.jit(lambda x: meshrt.pure_callback(back, meshrt.ShapeDtypeStruct(x.shape, x.dtype), x))(x)
    assert out.dtype == x.dtype and len(seen) == 1
    np.testing.assert_array_equal(np.asarray(out.astype("float32")), np.asarray(x.astype("float32")))


def test_signed_zeros_nans_and_infinities_arrive_bit_by_bit():
    bits = np.array([-0.0, 0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.0], np.float32)
    x = put(X, mesh_of(4), "x")
    f = lambda x: meshrt.pure_callback(lambda v: bits, meshrt.ShapeDtypeStruct((8,), "float32"), x)
    np.testing.assert_array_equal(np.asarray(meshrt.jit(f)(x)).view("uint32"), bits.view("uint32"))


def test_values_outlive_the_call_and_are_on_a_cpu_device():
    kept = []
    meshrt.jit(lambda x: meshrt.debug.callback(lambda **v: kept.append(v), tree={"a": x, "b": [x + 1, "text"]}))(X)
    (tree,) = (k["tree"] for k in kept)
    assert isinstance(tree["a"], meshrt.Array) and tree["b"][1] == "text"
    meshrt.jit(lambda x: x * 3)(X).block_until_ready()
    np.testing.assert_array_equal(tree["b"][0] + 1, X + 2)


def test_large_values_need_no_thread_of_those_that_wait():
    """Copying them on XLA's threads, all of which wait for the callback, would never end."""
    x = np.arange(1 << 20, dtype=np.float32)
    like = meshrt.ShapeDtypeStruct(x.shape, x.dtype)
    f = meshrt.jit(lambda x: meshrt.pure_callback(lambda v: np.asarray(v) + 1, like, x))
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(f(put(x, mesh_of(8), "x"))), x + 1)


def test_large_results_are_added_up_in_parts_bit_by_bit():
    """Numbers become words where one device calls and numbers again in parts: nobody copies the whole for it."""
    bits = np.random.RandomState(0).randint(0, 2**32, 1 << 18, np.uint32)
    bits[:3] = 0x80000000, 1, 0x7F800001  # -0, a subnormal number, a signalling NaN
    host = bits.view(np.float32)
    f = lambda x: meshrt.pure_callback(lambda _: host, meshrt.ShapeDtypeStruct(host.shape, np.float32), x)
    x = put(X, mesh_of(8), "x")
    for shard in meshrt.jit(f)(x).addressable_shards:
        assert np.array_equal(np.asarray(shard.data).view(np.uint32), bits)
    plan = meshrt.jit(f).lower(x).partition().plan
    counts = {e.kind: e.bytes for e in plan.entries if e.bytes > 1000}
    assert set(counts) == {"reduce_scatter", "all_gather"} and sum(counts.values()) == 2 * 7 / 8 * host.nbytes


def test_keys_arrive_as_keys():
    seen = []
    key = meshrt.random.key(3)
    meshrt.jit(lambda k: meshrt.debug.callback(seen.append, k))(key)
    np.testing.assert_array_equal(meshrt.random.key_data(seen[0]), meshrt.random.key_data(key))


def test_64_bit_results_become_what_was_promised():
    f = lambda x: meshrt.pure_callback(lambda v: np.float64(2.5), meshrt.ShapeDtypeStruct((), "float32"), x)
    assert float(meshrt.jit(f)(X)) == float(f(X)) == 2.5
    for j in (jax, meshrt):
        with pytest.raises(ValueError, match="64-bit types when"):
            j.pure_callback(lambda v: v, np.zeros(()), X)


BROKEN = {
    "shape": (lambda v: np.zeros(3, np.float32), "Incorrect output shape for return value #0"),
    "dtype": (lambda v: np.zeros(8, np.int32), "Incorrect output dtype for return value #0"),
    "count": (lambda v: (v, v), "Mismatched number of outputs"),
    "error": (lambda v: 1 // 0, "ZeroDivisionError"),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("where", ["eager", "device", "mesh", "loop on a mesh"])
def test_errors_reach_the_caller(case, where):
    broken, message = BROKEN[case]
    calls = []

    def counted(v):
        calls.append(1)
        return broken(v)

    f = lambda x: meshrt.pure_callback(counted, meshrt.ShapeDtypeStruct((8,), "float32"), x) + 1
    x = put(X, mesh_of(4), "x") if "mesh" in where else X
    g = f if where == "eager" else meshrt.jit(f)
    if "loop" in where:
        g = meshrt.jit(lambda x: meshrt.lax.fori_loop(0, 5, lambda i, c: f(c), x))
    for _ in range(2):
        calls.clear()
        with pytest.raises(errors.CallbackError, match=message) as e:
            g(x)
        assert len(calls) == 1 and e.value.__cause__ is not None and "test_callbacks.py:" in str(e.value)
    if case == "error":
        assert isinstance(e.value.__cause__, ZeroDivisionError)
    np.testing.assert_array_equal(np.asarray(meshrt.jit(lambda x: x + 1)(x)), X + 1)  # devices go on


def test_an_error_in_a_debug_callback_is_raised_too():
    def bad(v):
        raise KeyError("mine")

    for x in (X, put(X, mesh_of(4), "x")):
        with pytest.raises(RuntimeError, match=r"callback bad of debug\.callback .*KeyError: 'mine'"):
            meshrt.jit(lambda x: (meshrt.debug.callback(bad, x), x)[1])(x)
    with pytest.raises(KeyError, match="mine"):  # eagerly it is an ordinary call, as in JAX
        meshrt.debug.callback(bad, X)


# -- where they run ---------------------------------------------------------------------------------------------------

MESHES = {"8": (8,), "4x2": (4, 2), "2x2x2": (2, 2, 2), "6": (6,)}
SPECS = {"8": ("x",), "4x2": (("x", "y"),), "2x2x2": ("x", "z"), "6": (None, "x")}


@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
@pytest.mark.parametrize("name", MESHES)
def test_sharded_operands_arrive_whole_and_once(name, partitioner):
    mesh, seen = mesh_of(*MESHES[name]), []
    x = np.arange(8 * 6, dtype=np.float32).reshape(8, 6)
    put_x = put(x, mesh, *SPECS[name])

    def f(x):
        y = meshrt.pure_callback(lambda v: np.asarray(v) * 2, meshrt.ShapeDtypeStruct(x.shape, x.dtype), x)
        z = io_callback(lambda v: (seen.append(np.asarray(v)), v)[1], meshrt.ShapeDtypeStruct(x.shape, x.dtype), y + x)
        return z @ x.T

    with meshrt.config.override(partitioner=partitioner):
        out = meshrt.jit(f)(put_x)
    np.testing.assert_allclose(np.asarray(out), (3 * x) @ x.T, rtol=1e-6)
    np.testing.assert_array_equal(seen, [3 * x])


def test_partitioned_callbacks_get_each_devices_piece():
    mesh, seen = mesh_of(4), []
    f = lambda x: (meshrt.debug.callback(lambda v: seen.append(np.asarray(v).tolist()), x, partitioned=True), x)[1]
    meshrt.jit(f)(put(X, mesh, "x"))
    assert sorted(seen) == X.reshape(4, 2).tolist()


def test_results_are_needed_only_where_they_are_used():
    mesh = mesh_of(4)
    f = lambda x: meshrt.pure_callback(np.asarray, meshrt.ShapeDtypeStruct((8,), "float32"), x) + x
    plan = meshrt.jit(f, out_shardings=meshrt.NamedSharding(mesh, P("x"))).lower(put(X, mesh, "x")).partition().plan
    assert [e.kind for e in plan.entries] == ["all_gather", "reduce_scatter"]


def test_the_program_moves_to_other_devices():
    seen = []
    f = meshrt.jit(
        lambda x: io_callback(lambda v: (seen.append(1), v + 1)[1], meshrt.ShapeDtypeStruct((8,), "float32"), x)
    )
    first, second = mesh_of(4), mesh_of(4, devices=meshrt.devices()[4:8])
    f(put(X, first, "x"))
    kinds = ("trace", "lower", "propagate", "partition", "compile", "rebind")
    with events.count(*kinds) as n:
        out = f(put(X, second, "x"))
    assert n.as_dict() == {**dict.fromkeys(kinds, 0), "rebind": 1}
    np.testing.assert_array_equal(np.asarray(out), X + 1)
    assert len(seen) == 2


def test_programs_with_callbacks_never_enter_the_cache_on_disk(tmp_path):
    with meshrt.config.override(compilation_cache_dir=str(tmp_path)):
        meshrt.jit(lambda x: (meshrt.debug.print("{}", x), x * 7)[1])(X)
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size > 1000]


def test_callbacks_may_use_meshrt():
    g = meshrt.jit(lambda v: mnp.sin(v) + 1)
    f = lambda x: meshrt.pure_callback(lambda v: g(v) * 2, meshrt.ShapeDtypeStruct((8,), "float32"), x)
    want = (np.sin(X) + 1) * 2
    np.testing.assert_allclose(np.asarray(meshrt.jit(f)(X)), want, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(f(X)), want, rtol=1e-6)


def test_the_mesh_of_an_operand_may_be_another_than_that_in_context():
    """Reference 5.26: what counts are the devices that the program runs on."""
    like = meshrt.ShapeDtypeStruct((8,), "float32")
    f = lambda x: meshrt.pure_callback(lambda v: np.asarray(v) * 2, like, x) + x
    with meshrt.set_mesh(mesh_of(2, 2)):
        for x in (put(X, mesh_of(4), "x"), X):
            np.testing.assert_array_equal(np.asarray(meshrt.jit(f)(x)), 3 * X)
            np.testing.assert_array_equal(np.asarray(f(x)), 3 * X)
    backwards = mesh_of(4, devices=meshrt.devices()[3::-1])
    np.testing.assert_array_equal(np.asarray(meshrt.jit(f)(put(X, backwards, "x"))), 3 * X)


def test_programs_of_several_threads_call_back_apart():
    like, failed = meshrt.ShapeDtypeStruct((8,), "float32"), []

    def work(i):
        f = meshrt.jit(lambda x: io_callback(lambda v: np.asarray(v) + i, like, x, ordered=True))
        x = put(X, mesh_of(2, devices=meshrt.devices()[2 * i : 2 * i + 2]), "x")
        failed.extend(i for _ in range(20) if not np.array_equal(np.asarray(f(x)), X + i))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def test_a_callback_that_would_wait_for_itself_is_refused():
    mesh = mesh_of(4)
    x = put(X, mesh, "x")
    g = meshrt.jit(lambda v: (v * 2).sum())
    g(x)
    f = lambda x: meshrt.pure_callback(lambda v: v + float(g(put(X, mesh, "x"))), like, x)
    like = meshrt.ShapeDtypeStruct((8,), "float32")
    with pytest.raises(errors.CallbackError, match="wait for the callback in the program that called it"):
        meshrt.jit(f)(x)
    np.testing.assert_array_equal(np.asarray(meshrt.jit(f)(X)), X + 56)  # one device does not keep the others waiting


def test_effects_barrier_waits_for_other_threads():
    seen, started, go = [], threading.Event(), threading.Event()

    def slow(v):
        started.set()
        go.wait(10)
        seen.append(1)

    thread = threading.Thread(target=lambda: meshrt.jit(lambda x: meshrt.debug.callback(slow, x))(X))
    thread.start()
    assert started.wait(10)
    threading.Timer(0.1, go.set).start()
    meshrt.effects_barrier()
    assert seen == [1]
    thread.join()


def test_ordered_callbacks_in_a_condition_run_once_per_test():
    def run(j, io):
        seen = []
        go_on = lambda c: io(
            lambda v: (seen.append(("test", float(v))), v < 20)[1], j.ShapeDtypeStruct((), "bool"), c, ordered=True
        )

        def body(c):
            io(lambda v: seen.append(("body", float(v))), None, c, ordered=True)
            return c * 2

        out = j.jit(lambda c: j.lax.while_loop(go_on, body, c))(np.float32(3))
        return float(out), seen

    from jax.experimental import io_callback as theirs

    assert run(meshrt, io_callback) == run(jax, theirs)


# -- transformations --------------------------------------------------------------------------------------------------

METHODS = ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("axes", [(0, None), (1, 0), (None, 1)])
def test_vmap_methods_are_those_of_jax(method, axes):
    x, y = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.arange(6.0, dtype=np.float32).reshape(3, 2)
    size = next(a.shape[d] for a, d in zip((x, y), axes) if d is not None)

    def run(j):
        shapes = []

        def host(a, b):
            shapes.append((np.shape(a), np.shape(b)))
            total = np.float32(np.asarray(a).sum() - np.asarray(b).sum())
            return total if method.startswith("sequential") else total + np.arange(size, dtype=np.float32)

        f = lambda a, b: j.pure_callback(host, j.ShapeDtypeStruct((), "float32"), a, b, vmap_method=method)
        out = j.jit(j.vmap(f, in_axes=axes))(x, y)
        return np.asarray(out).tolist(), shapes

    assert run(meshrt) == run(jax)


def test_vmap_without_a_method_is_refused():
    for j in (jax, meshrt):
        f = lambda x: j.pure_callback(np.sin, j.ShapeDtypeStruct((), "float32"), x)
        with pytest.raises(NotImplementedError, match="vmap is only supported for the pure_callback"):
            j.vmap(f)(X)
        with pytest.raises(ValueError, match="vmap_method must be on"):
            j.pure_callback(np.sin, j.ShapeDtypeStruct((), "float32"), X, vmap_method="other")


def test_derivatives_are_refused_with_advice():
    like = meshrt.ShapeDtypeStruct((8,), "float32")
    for f, text in (
        (lambda x: meshrt.pure_callback(np.sin, like, x).sum(), "Pure callbacks do not support JVP.*custom_jvp"),
        (lambda x: io_callback(np.sin, like, x).sum(), "IO callbacks do not support JVP"),
    ):
        with pytest.raises(ValueError, match=text):
            meshrt.grad(f)(X)
        with pytest.raises(ValueError, match=text):
            meshrt.jit(meshrt.grad(f))(X)


def test_a_debug_callback_in_a_checkpoint_is_called_again_with_the_values():
    def run(j):
        seen = []

        @j.checkpoint
        def f(x):
            y = j.numpy.sin(x) if j is jax else mnp.sin(x)
            j.debug.callback(lambda v: seen.append(round(float(v), 4)), y)
            return (j.numpy if j is jax else mnp).sin(y)

        j.jit(j.grad(f))(np.float32(0.5))
        j.effects_barrier()
        return seen

    assert run(meshrt) == run(jax) and len(run(meshrt)) == 2


def test_effects_that_cannot_be_repeated_are_refused_as_by_jax():
    from jax.experimental import io_callback as theirs

    for j, np_, io in ((jax, jnp, theirs), (meshrt, mnp, io_callback)):
        look = lambda x, io=io: (io(lambda v: None, None, j.lax.stop_gradient(x)), x)[1]
        with pytest.raises(NotImplementedError, match="Effects not supported in partial-eval"):
            j.grad(lambda x: j.checkpoint(lambda x: np_.sin(look(x)))(x).sum())(X)
        with pytest.raises(NotImplementedError, match="vmap-of-cond"):
            j.vmap(lambda x: j.lax.cond(x > 3, look, lambda x: x, x))(X)
        with pytest.raises(ValueError, match="Cannot `vmap` ordered IO callback"):
            j.vmap(lambda x: io(lambda v: None, None, x, ordered=True))(X)
        with pytest.raises(Exception, match="batched predicate"):
            j.vmap(lambda x: j.lax.while_loop(lambda c: c < 5, lambda c: look(c) + 1, x))(X)


def test_effects_are_of_their_classes():
    for ordered, kind in ((False, meshrt.debug.DebugEffect), (True, meshrt.debug.OrderedDebugEffect)):
        (effect,) = meshrt.make_jaxpr(lambda x: meshrt.debug.print("{}", x, ordered=ordered))(1.0).effects
        assert type(effect) is kind and effect == kind()
