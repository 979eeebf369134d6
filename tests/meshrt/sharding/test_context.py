"""The mesh of the context, and what shares a trace because of it: statements 002 of the reference, B03 and B24."""

import inspect
import re
import threading

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.runtime import events
from meshrt.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    SingleDeviceSharding,
    get_abstract_mesh,
    get_mesh,
    make_mesh,
    make_single_device_sharding,
    set_mesh,
    use_abstract_mesh,
)
from meshrt.sharding import PartitionSpec as P
from meshrt.sharding.context import context_source

KINDS = ("trace", "lower", "propagate", "partition", "compile", "rebind")
JP = jax.sharding.PartitionSpec


@pytest.fixture(autouse=True)
def no_mesh():
    """Each test begins and ends without a mesh in context."""
    set_mesh(None)
    yield
    set_mesh(None)


def line():
    """The line after that of the caller, as messages spell it."""
    return f"{__file__}:{inspect.currentframe().f_back.f_lineno + 1} "


def of(order, shape=(4,), names=("x",), types=None):
    return Mesh(np.array([meshrt.devices()[i] for i in order]).reshape(shape), names, types)


def on(mesh, value, *spec):
    return meshrt.device_put(value, NamedSharding(mesh, P(*spec)))


ONE, TWO, TURNED = (0, 1, 2, 3), (4, 5, 6, 7), (3, 2, 1, 0)


def test_002_01_values_are_made_on_the_mesh_in_context():
    mesh = of(ONE)
    with meshrt.set_mesh(mesh):
        assert jnp.zeros((8,)).sharding.mesh is mesh
        assert meshrt.jit(lambda: jnp.ones((8,)))().sharding.mesh is mesh
        given = jnp.array([1.0, 2.0])
        assert given.sharding.mesh is jnp.asarray(np.ones(3)).sharding.mesh is mesh and given.committed
    meshrt.set_mesh(mesh)
    assert jnp.arange(8).sharding.mesh is mesh and meshrt.get_mesh() is mesh
    meshrt.set_mesh(None)
    assert get_mesh().empty and jnp.arange(8).sharding.num_devices == 1


@pytest.mark.parametrize(
    ("enter", "salt"), [(meshrt.set_mesh, 1), (lambda mesh: mesh, 2)], ids=["set_mesh", "with mesh"]
)
def test_002_02_the_same_function_under_two_meshes(enter, salt):
    f = meshrt.jit(lambda x: meshrt.lax.with_sharding_constraint(x * 3, P("x")) + salt)
    results = []
    with events.count(*KINDS) as n:
        for order in (ONE, TWO, TURNED):
            with enter(of(order)):
                results.append(f(np.arange(8.0, dtype=np.float32)))
    assert (n.trace, n.lower, n.propagate, n.partition) == (1, 1, 1, 1) and (n.compile, n.rebind) == (1, 2)
    assert [r.sharding.mesh for r in results] == [of(o) for o in (ONE, TWO, TURNED)]
    for r in results:
        np.testing.assert_array_equal(np.asarray(r), np.asarray(results[0]))


def test_b03_with_mesh_is_set_mesh():
    mesh = of(ONE, (2, 2), ("x", "y"))
    f = meshrt.jit(lambda x: meshrt.lax.with_sharding_constraint(x, P("y")) * 2)
    with set_mesh(mesh):
        a = f(np.ones(4, np.float32))
    with events.count(*KINDS, "dispatch_miss") as n, mesh as entered:
        b = f(np.ones(4, np.float32))
        assert entered is mesh and get_mesh() is mesh and get_abstract_mesh() is mesh.abstract_mesh
    assert n.dispatch_miss == 0 and sum(n[k] for k in KINDS) == 0 and a.sharding == b.sharding
    assert get_mesh().empty

    @mesh
    def inside():
        return get_mesh()

    assert inside() is mesh and get_mesh().empty
    other = of(TWO)
    with mesh, other, mesh:
        assert get_mesh() is mesh
    assert get_mesh().empty


def test_arrays_made_under_with_mesh_are_committed_to_nothing():
    """So shardings of arguments may say where they go, as in JAX, whose arrays lie on one device then."""

    def program(lib, numpy, pjit):
        mesh = lib.sharding.Mesh(np.array(lib.devices()[:4]).reshape(2, 2), ("x", "y"))
        double = pjit(lambda x: x * 2, in_shardings=lib.P("x"), out_shardings=lib.P("y"))
        with mesh:
            free = [numpy.arange(8.0), numpy.asarray(np.ones(8)), numpy.sin(numpy.ones(8))]
            out = [double(x) for x in free]
            kept = lib.device_put(free[0], lib.NamedSharding(mesh, lib.P("y")))
            with pytest.raises(ValueError, match="does not match the sharding on the respective arg"):
                double(kept)
            out.append(lib.jit(lambda x: lib.lax.with_sharding_constraint(x, lib.P("y")))(free[0]))
        moved = lib.device_put(free[0], lib.devices()[5]) + free[0]
        return (
            [x.committed for x in free], [(x.committed, x.sharding.spec[0], np.asarray(x).tolist()) for x in out],
            [d.id for d in moved.devices()],
        )  # fmt: skip

    from jax.experimental.pjit import pjit

    from meshrt.experimental.pjit import pjit as own_pjit

    assert program(meshrt, meshrt.numpy, own_pjit) == program(jax, jax.numpy, pjit)


def test_with_mesh_and_set_mesh_commit_their_own_results():
    mesh = of(ONE, (2, 2), ("x", "y"))
    make, double = meshrt.jit(lambda: meshrt.numpy.ones(4)), meshrt.jit(lambda x: x * 2)
    for _ in range(3):  # also by the short way of calls that were seen before
        with mesh:
            loose = make(), double(make())
        with set_mesh(mesh):
            strict = make(), double(make()), double(loose[0])
        assert [x.committed for x in loose] == [False, False] and all(x.committed for x in strict)
        assert {x.sharding for x in (*loose, *strict)} == {NamedSharding(mesh, P())}


@pytest.mark.parametrize("how", ["set_mesh", "with mesh", "use_abstract_mesh", "plain call", "ExitStack"])
def test_the_line_that_set_the_mesh_is_known(how):
    from contextlib import ExitStack

    mesh = of(ONE)
    if how == "plain call":
        where = line()
        set_mesh(mesh)
        assert context_source().startswith(where)
        set_mesh(None)
    elif how == "ExitStack":
        with ExitStack() as stack:
            where = line()
            stack.enter_context(set_mesh(mesh))
            assert context_source().startswith(where)
    else:
        enter = {"set_mesh": set_mesh, "with mesh": lambda m: m}.get(how, lambda m: use_abstract_mesh(m.abstract_mesh))
        where = line()
        with enter(mesh):
            assert context_source().startswith(where)
    assert context_source() is None


def test_002_03_inside_jit_the_mesh_is_that_of_the_trace():
    seen = []
    f = meshrt.jit(lambda x: seen.append(get_abstract_mesh()) or x * 1)
    mesh = of(ONE)
    assert get_abstract_mesh().empty
    f(on(mesh, np.ones(4), "x"))
    with set_mesh(of(TWO, (2, 2), ("a", "b"))):
        f(np.ones(3))
    f(np.ones(5))
    assert seen[0] is mesh.abstract_mesh and seen[1] is AbstractMesh((2, 2), ("a", "b")) and seen[2].empty
    assert get_abstract_mesh().empty


def test_002_04_the_abstract_mesh_is_the_users_to_set():
    four, two = AbstractMesh((4,), ("x",)), AbstractMesh((2, 2), ("a", "b"))
    with use_abstract_mesh(four):
        assert get_abstract_mesh() is four and get_mesh().empty
        with use_abstract_mesh(two):
            assert get_abstract_mesh() is two
        with pytest.raises(ValueError, match="cannot change the size"), use_abstract_mesh(AbstractMesh((8,), ("x",))):
            pass
        assert get_abstract_mesh() is four
        lowered = meshrt.jit(lambda x: meshrt.lax.with_sharding_constraint(x * 2, P("x"))).lower(np.ones(8, np.float32))
        assert lowered.mesh is four and "sdy.sharding_constraint" in lowered.as_text()
    with set_mesh(of(ONE)), use_abstract_mesh(two):
        assert get_mesh() is of(ONE, (2, 2), ("a", "b"))
        assert meshrt.lax.with_sharding_constraint(np.ones(4), P(("a", "b"))).sharding.mesh is get_mesh()
    for bad in (of(ONE), None, 3):
        with pytest.raises(ValueError, match="Expected mesh of type"):
            use_abstract_mesh(bad)


def test_two_abstract_contexts_are_two_calls():
    f = meshrt.jit(lambda x: x * len(get_abstract_mesh().axis_names))
    results = []
    for mesh in (None, AbstractMesh((4,), ("x",)), AbstractMesh((2, 2), ("a", "b")), AbstractMesh((4,), ("x",))):
        if mesh is None:
            results.append(int(f(1)))
            continue
        with use_abstract_mesh(mesh):
            results.append(int(f(1)))
    assert results == [0, 1, 2, 1]


def test_a_program_over_an_abstract_mesh_needs_devices():
    with use_abstract_mesh(AbstractMesh((4,), ("x",))):
        f = meshrt.jit(lambda x: meshrt.lax.with_sharding_constraint(x * 2, P("x")))
        with pytest.raises(errors.MeshContextError, match="not known where to run"):
            f(np.ones(8))
        assert f(on(of(TWO), np.ones(8), "x")).sharding.mesh is of(TWO)


def test_002_06_there_is_no_flag_for_modes():
    with pytest.raises(errors.ConfigError):
        meshrt.config.update("sharding_in_types", True)
    explicit = of(ONE, types=AxisType.Explicit)
    with set_mesh(explicit):
        assert get_abstract_mesh().are_all_axes_explicit


def test_002_07_settings_are_per_thread_and_in_keys():
    f = meshrt.jit(lambda x: x @ x)
    x = np.ones((2, 2), np.float32)
    f(x)
    with events.count("trace", "dispatch_miss") as n:
        with meshrt.default_matmul_precision("highest"):
            f(x)
            other = []
            thread = threading.Thread(target=lambda: other.append(meshrt.config.settings.default_matmul_precision))
            thread.start()
            thread.join()
        f(x)
    assert n.trace == 1 and n.dispatch_miss == 1 and other == [None]


def test_002_10_programs_are_lowered_from_names_and_sizes():
    sharding = NamedSharding(AbstractMesh((4, 2), ("x", "y")), P("x", "y"))
    text = meshrt.jit(lambda a: a * 2).lower(meshrt.ShapeDtypeStruct((8, 8), np.float32, sharding=sharding)).as_text()
    assert "cpu" not in text.lower() and '"x"=4' in text


def test_002_11_one_program_has_one_number_of_devices():
    four, two = of(ONE), of((0, 1), (2,))
    with pytest.raises(ValueError) as e:
        meshrt.jit(lambda a, b: a + b)(on(four, np.ones(4), "x"), on(two, np.ones(4), "x"))
    for part in (
        "argument a of",
        "argument b of",
        "[0, 1, 2, 3]",
        "[0, 1]",
        str(four),
        str(two),
        "made at ",  # by whoever made a mesh like it first
    ):
        assert part in str(e.value), part
    with pytest.raises(ValueError) as e:
        where = line()
        meshrt.set_mesh(two)
        try:
            meshrt.jit(lambda a: a + 1)(on(four, np.ones(4), "x"))
        finally:
            set_mesh(None)
    for part in (f"the mesh in context (set at {where}", str(four), str(two), "argument a of"):
        assert part in str(e.value), part


def test_002_12_the_same_devices_in_another_order():
    for enter in (False, True):
        with pytest.raises(errors.DeviceAssignmentMismatchError) as e:
            if enter:
                with set_mesh(of(ONE)):
                    meshrt.jit(lambda a: a + 1)(on(of(TURNED), np.ones(4), "x"))
            else:
                meshrt.jit(lambda a, b: a + b)(on(of(ONE), np.ones(4), "x"), on(of(TURNED), np.ones(4), "x"))
        assert "Received incompatible devices for jitted computation" in str(e.value)
        assert "same devices in a different order" in str(e.value) and "meshrt.device_put(" in str(e.value)
        assert "with device ids [3, 2, 1, 0] on platform CPU" in str(e.value)
    moved = meshrt.device_put(on(of(TURNED), np.arange(4.0), "x"), NamedSharding(of(ONE), P("x")))
    np.testing.assert_array_equal(np.asarray(moved + on(of(ONE), np.arange(4.0), "x")), 2 * np.arange(4.0))


def test_002_13_an_abstract_constraint_outside_jit():
    wanted = NamedSharding(AbstractMesh((4,), ("x",)), P("x"))
    for order in (ONE, TURNED):
        out = meshrt.lax.with_sharding_constraint(on(of(order), np.arange(8.0)), wanted)
        assert out.sharding == NamedSharding(of(order), P("x"))
    with set_mesh(of(TWO)):
        assert meshrt.lax.with_sharding_constraint(np.ones(8), wanted).sharding.mesh is of(TWO)
    for value, kind, text in (
        (np.ones(8), ValueError, "requires the input to be a `meshrt.Array`"),
        (jnp.ones(8), TypeError, "must be a `NamedSharding`"),
        (on(of((0, 1), (2,)), np.ones(8)), ValueError, r"Mesh shape of the input \(\('x', 2\),\) does not match"),
        (on(of(ONE, (2, 2), ("x", "y")), np.ones(8)), ValueError, "does not match the mesh shape of the target"),
    ):
        with pytest.raises(kind, match=text):
            meshrt.lax.with_sharding_constraint(value, wanted)


def test_002_15_a_concrete_mesh_inside_and_an_array_elsewhere():
    f = meshrt.jit(lambda x: meshrt.lax.with_sharding_constraint(x, NamedSharding(of(ONE), P("x"))))
    f(on(of(ONE), np.ones(4)))
    with pytest.raises(errors.DeviceAssignmentMismatchError, match="with_sharding_constraint at") as e:
        f(on(of(TWO), np.ones(4)))
    assert "AbstractMesh" in str(e.value)


def test_002_16_an_abstract_mesh_inside_serves_all_devices():
    f = meshrt.jit(
        lambda x: meshrt.lax.with_sharding_constraint(jnp.tan(x), NamedSharding(of(ONE).abstract_mesh, P("x")))
    )
    expected = np.asarray(f(on(of(ONE), np.arange(8.0))))
    for order in (TWO, TURNED, (0, 2, 4, 6)):
        with events.count(*KINDS) as n:
            out = f(on(of(order), np.arange(8.0)))
        assert {k: n[k] for k in KINDS} == {**dict.fromkeys(KINDS, 0), "rebind": 1}
        assert out.sharding == NamedSharding(of(order), P("x"))
        np.testing.assert_array_equal(np.asarray(out), expected)


def test_002_18_without_any_device_the_message_says_what_is_missing():
    sharding = NamedSharding(AbstractMesh((4,), ("x",)), P("x"))
    f = meshrt.jit(lambda: jnp.ones(4), out_shardings=sharding)
    with pytest.raises(errors.MeshContextError, match="pass an array placed on a mesh"):
        f()
    compiled = f.lower().compile()
    with pytest.raises(errors.MeshContextError, match="device_assignment"):
        compiled()
    with set_mesh(of(TWO)):
        assert f().sharding.mesh is of(TWO)
    assert f.lower().compile(device_assignment=tuple(of(TURNED).flat_devices))().sharding.mesh is of(TURNED)


def test_002_19_only_named_shardings_constrain():
    single = SingleDeviceSharding(meshrt.devices()[0])
    constrained = meshrt.lax.with_sharding_constraint(jnp.ones(4), single)  # says where, and no more
    assert constrained.sharding is single and constrained.committed
    with pytest.raises(errors.ArgumentTypeError, match="pass a NamedSharding or a PartitionSpec"):
        meshrt.lax.with_sharding_constraint(jnp.ones(4), "x")
    assert make_single_device_sharding(meshrt.devices()[0]) is single
    assert not hasattr(meshrt.sharding, "PositionalSharding")


def test_002_20_concrete_meshes_go_on_working():
    mesh = of(ONE)
    constrained = lambda x: meshrt.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P("x")))
    f = meshrt.jit(constrained, in_shardings=NamedSharding(mesh, P("x")), out_shardings=NamedSharding(mesh, P()))
    assert f(np.ones(8)).sharding == NamedSharding(mesh, P()) and constrained(np.ones(8)).sharding.spec == P("x")


def test_002_21_both_spellings_of_an_abstract_mesh():
    pairs = AbstractMesh((("x", 2), ("y", 4)))
    assert pairs is AbstractMesh((2, 4), ("x", "y")) and AbstractMesh(pairs.shape_tuple) is pairs
    assert make_mesh((2, 4), ("x", "y")).shape_tuple == pairs.shape_tuple
    assert AbstractMesh((("x", 2), ("y", 4)), axis_types=(AxisType.Explicit,) * 2).explicit_axes == ("x", "y")
    for bad in ((("x", 2, 3),), 3, ("x", "y")):
        with pytest.raises(TypeError, match="axis_sizes and axis_names"):
            AbstractMesh(bad)


def test_002_25_the_annotated_text():
    mesh = AbstractMesh((4, 2), ("x", "y"))
    s = lambda *spec: meshrt.ShapeDtypeStruct((8, 8), np.float32, sharding=NamedSharding(mesh, P(*spec)))
    text = (
        meshrt.jit(lambda a, b: a + b, out_shardings=NamedSharding(mesh, P("x")))
        .lower(s("x", "y"), s(None, "y"))
        .as_text()
    )
    assert re.search(r"mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32", text)
    assert text.count("sdy.mesh @") == 1 and 'sdy.mesh @mesh = <["x"=4, "y"=2]>' in text
    assert re.findall(r"sdy.sharding = #sdy.sharding<@mesh, (\[.*?\])>", text) == [
        '[{"x"}, {"y"}]', '[{}, {"y"}]', '[{"x"}, {}]'
    ]  # fmt: skip
    assert 'jax.result_info = "result"' in text


def test_002_28_shardings_share_the_list_of_devices():
    mesh = of(ONE, (2, 2), ("x", "y"))
    one, two = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, "y"))
    assert one._internal_device_list is two._internal_device_list is mesh._internal_device_list
    assert list(mesh._internal_device_list) == list(mesh.flat_devices)
    assert mesh._internal_device_list.default_memory_kind == meshrt.devices()[0].default_memory().kind
    assert NamedSharding(mesh.abstract_mesh, P())._internal_device_list is None


def test_002_29_sizes_are_ints():
    for mesh, theirs in (
        (AbstractMesh((), ()), jax.sharding.AbstractMesh((), ())),
        (Mesh(np.array(meshrt.devices()[0]), ()), jax.sharding.Mesh(np.array(jax.devices()[0]), ())),
        (AbstractMesh((np.int64(4), 2), ("x", "y")), jax.sharding.AbstractMesh((4, 2), ("x", "y"))),
    ):
        assert mesh.size == theirs.size and type(mesh.size) is int and mesh.empty == theirs.empty
    assert all(type(s) is int for s in AbstractMesh((np.int64(4),), ("x",)).axis_sizes)


def test_meshes_of_shapes_without_a_common_one_name_both_lines():
    with pytest.raises(errors.MeshMismatchError) as e:
        meshrt.jit(lambda a: a + 1, out_shardings=NamedSharding(AbstractMesh((8,), ("q",)), P("q")))(
            on(of(ONE), np.ones(8), "x")
        )
    for part in ("AbstractMesh('q': 8", "AbstractMesh('x': 4", "argument a of", "out_shardings of", "its mesh made at"):
        assert part in str(e.value), part


def test_copies_are_the_same_object():
    import copy

    mesh = Mesh(np.array([object(), object()]), ("x",))
    for value in (
        mesh,
        mesh.abstract_mesh,
        P("x", P.UNCONSTRAINED),
        NamedSharding(mesh, P("x")),
        NamedSharding(of(ONE), P("x")),
    ):
        assert copy.copy(value) is value and copy.deepcopy({"a": [value]})["a"][0] is value


def test_a_mesh_of_one_device_without_axes():
    mesh = Mesh(np.array(meshrt.devices()[3]), ())
    x = meshrt.device_put(np.ones(4), NamedSharding(mesh, P()))
    assert mesh.is_scalar and x.devices() == {meshrt.devices()[3]}
    assert meshrt.jit(lambda a: a * 2)(x).devices() == {meshrt.devices()[3]}
    with set_mesh(mesh):
        assert meshrt.jit(lambda: jnp.ones(4))().devices() == {meshrt.devices()[3]}


def test_002_30_meshes_know_nothing_of_arrays():
    import ast
    from pathlib import Path

    import meshrt.sharding.mesh as module

    imported = {
        n.module for n in ast.walk(ast.parse(Path(module.__file__).read_text())) if isinstance(n, ast.ImportFrom)
    }
    assert not {
        m for m in imported if m and m.startswith(("meshrt.runtime.array", "meshrt.core.types", "meshrt.pipeline"))
    }


def test_b24_threads_have_contexts_of_their_own():
    f = meshrt.jit(lambda x: meshrt.lax.with_sharding_constraint(x * 2 + 1, P("x")))
    g = meshrt.jit(lambda x: jnp.sum(x) * len(get_abstract_mesh().axis_names))
    wrong, ready = [], threading.Barrier(4)

    def work(mesh, k):
        x = np.arange(8, dtype=np.float32) + k
        enter = set_mesh if k % 2 else (lambda m: m)
        try:
            with enter(mesh):
                ready.wait(60)
                for i in range(40):
                    out, total = f(x + i), g(x + i)
                    if out.sharding.mesh is not mesh or get_mesh() is not mesh:
                        wrong.append((k, i, out.sharding))
                    np.testing.assert_array_equal(np.asarray(out), (x + i) * 2 + 1)
                    assert float(total) == np.sum(x + i) * len(mesh.axis_names)
            assert get_mesh().empty
        except Exception as e:
            wrong.append(e)

    meshes = [of(ONE), of(TWO), of(TURNED, (2, 2), ("x", "y")), of((6, 7), (2,))]
    threads = [threading.Thread(target=work, args=(m, k)) for k, m in enumerate(meshes)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not wrong and get_mesh().empty
