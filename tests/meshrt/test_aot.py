"""Ahead of time: statements 003 of the reference, fields of the stages and mismatches; JAX is the judge."""

import collections

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.runtime import events
from meshrt.sharding import AbstractMesh, NamedSharding
from meshrt.sharding import PartitionSpec as P
from meshrt.xla import jaxlib_api, jaxlib_executables


def f(x, y):
    return 2 * x + y


@pytest.fixture(scope="module")
def stages():
    traced = meshrt.jit(f).trace(3, 4)
    lowered = traced.lower()
    return traced, lowered, lowered.compile()


@pytest.fixture(scope="module")
def theirs():
    traced = jax.jit(f).trace(3, 4)
    lowered = traced.lower()
    return traced, lowered, lowered.compile()


def raised(call):
    with pytest.raises(Exception) as e:
        call()
    return e.value


def test_003_01_the_stages_one_by_one(stages):
    traced, lowered, compiled = stages
    assert isinstance(traced, meshrt.stages.Traced) and isinstance(lowered, meshrt.stages.Lowered)
    assert isinstance(compiled, meshrt.stages.Compiled) and isinstance(meshrt.jit(f), meshrt.stages.Wrapped)
    assert int(compiled(3, 4)) == int(compiled.call(3, 4)) == int(traced(3, 4)) == 10


def test_003_02_the_text_of_a_lowering(stages):
    text = stages[1].as_text()
    for part in ("module @jit_f", "func.func public @main", "tensor<i32>", "jax.result_info", "mhlo.num_partitions"):
        assert part in text
    assert "loc(" not in text and "test_aot.py" in stages[1].as_text(debug_info=True)


def test_003_03_costs_by_name_and_by_index(stages, theirs):
    for ours, judge in zip(stages[1:], theirs[1:]):
        costs = ours.cost_analysis()
        assert costs["flops"] == costs[0]["flops"] == judge.cost_analysis()["flops"] == 2.0
        assert isinstance(costs, dict) and 0 not in costs
        with pytest.raises(KeyError):
            costs[1]


def test_003_04_calling(stages):
    assert int(stages[2](3, 4)) == 10 and int(stages[2](x := 3, 4)) == 10 and x == 3


@pytest.mark.parametrize("attributes", ["shape dtype", "with sharding"])
def test_003_05_anything_with_a_shape_and_a_dtype(attributes):
    class Duck:
        shape, dtype = (8,), np.dtype("float32")

    duck = Duck()
    if attributes == "with sharding":
        duck.sharding = NamedSharding(AbstractMesh((4,), ("x",)), P("x"))
    lowered = meshrt.jit(lambda x: x + 1).lower(duck)
    assert "tensor<8xf32>" in lowered.as_text() and ("sdy.sharding" in lowered.as_text()) == hasattr(duck, "sharding")


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((np.arange(3, dtype=np.int32), 4), {}), ((3.0, 4), {}), ((3, np.ones((2, 1), np.float32)), {}),
     ((3,), {}), ((3,), {"y": 4}), (((1, 2), 3), {}), (([1], {"a": 2}), {}), ((None, 3), {})],
)  # fmt: skip
def test_003_06_and_003_12_mismatches(stages, theirs, args, kwargs):
    ours, judge = (raised(lambda c=c: c(*args, **kwargs)) for c in (stages[2], theirs[2]))
    assert isinstance(ours, TypeError) and isinstance(judge, TypeError) and isinstance(ours, errors.MeshrtError)
    for stable in (
        "Argument types differ from the types for which this computation was compiled",
        "The mismatches are:",
        "Function compiled with input pytree does not match the input pytree it was called with. There are",
    ):
        assert (stable in str(ours)) == (stable in str(judge)), stable
    lines = [line for line in str(judge).splitlines() if line.startswith("Argument '")]
    assert lines == [line for line in str(ours).splitlines() if line.startswith("Argument '")]
    for where in ("* at args,", "* at args[0],", "* at args[1],", "* at kwargs,"):
        assert (where in str(ours)) == (where in str(judge)), (where, str(ours))


def test_003_07_no_silent_casts():
    compiled = meshrt.jit(f).lower(np.int32(1), np.int32(1)).compile()
    assert int(compiled(3, 4)) == 10 and compiled(3, 4).dtype == np.int32
    for bad in (3.0, np.float32(3), np.int16(3), True):
        error = raised(lambda bad=bad: compiled(bad, 4))
        assert isinstance(error, TypeError) and "Argument 'x' compiled with int32[]" in str(error), bad


def test_003_08_static_arguments():
    lowered = meshrt.jit(f, static_argnums=0).lower(7, 8)
    assert "dense<14>" in lowered.as_text() and "%arg1" not in lowered.as_text()
    assert int(lowered.compile()(5)) == 19
    assert isinstance(raised(lambda: lowered.compile()(7, 5)), TypeError)


def test_003_09_a_static_argument_must_be_a_value():
    for m in (meshrt, jax):
        error = raised(lambda m=m: m.jit(f, static_argnums=0).lower(m.ShapeDtypeStruct((), np.int32), 8))
        assert isinstance(error, TypeError) and "unsupported operand" in str(error)


def test_003_10_static_beside_a_type():
    lowered = meshrt.jit(f, static_argnums=0).lower(10, meshrt.ShapeDtypeStruct((), np.int32))
    assert int(lowered.compile()(5)) == 25


def test_003_11_compiled_functions_refuse_transformations():
    compiled = meshrt.jit(jnp.sin).lower(np.float32(1)).compile()
    x = np.arange(3, dtype=np.float32)
    one = np.float32(1)
    transforms = (meshrt.grad, meshrt.jit, meshrt.make_jaxpr)
    for apply in (lambda: meshrt.vmap(compiled)(x), *(lambda t=t: t(compiled)(one) for t in transforms)):
        error = raised(apply)
        assert isinstance(error, TypeError)
        assert "lowered and compiled for a particular signature. Detected argument of Tracer type" in str(error)
    g = meshrt.jit(lambda x, y: 2 * x + y)
    got = meshrt.vmap(meshrt.vmap(g, (None, 0)), (0, None))(np.arange(4), np.arange(4))
    np.testing.assert_array_equal(np.asarray(got), 2 * np.arange(4)[:, None] + np.arange(4))


def test_003_13_what_a_platform_lacks_is_none(monkeypatch):
    compiled = meshrt.jit(lambda x: x * 31).lower(1.0).compile()
    assert compiled.as_text() and compiled.memory_analysis() and compiled.cost_analysis()

    def unimplemented(*_):
        raise jaxlib_api.XlaError("UNIMPLEMENTED: not here")

    for name in ("memory_stats", "cost_analysis", "computation_cost"):
        monkeypatch.setattr(jaxlib_executables, name, unimplemented)
    assert compiled.memory_analysis() is None and compiled.cost_analysis() is None
    assert compiled.lowered.cost_analysis() is None
    tpu = meshrt.jit(f).trace(1, 2).lower(lowering_platforms=("tpu",))
    assert tpu.cost_analysis() is None


def test_003_14_the_older_spelling_has_the_same_stages():
    from meshrt.experimental.pjit import pjit, with_sharding_constraint

    mesh = meshrt.make_mesh((8,), ("x",), meshrt.sharding.AxisType.Auto)
    split = NamedSharding(mesh, P("x"))
    f = pjit(
        lambda x: with_sharding_constraint(x * 2, split), in_shardings=split, out_shardings=NamedSharding(mesh, P())
    )
    compiled = f.trace(np.arange(8.0, dtype=np.float32)).lower().compile()
    np.testing.assert_array_equal(np.asarray(compiled(np.arange(8.0, dtype=np.float32))), 2 * np.arange(8.0))
    with pytest.raises(AttributeError, match="xmap"):
        meshrt.xmap


def test_the_older_spelling_takes_shardings_by_position():
    from meshrt.experimental.pjit import pjit

    mesh = meshrt.make_mesh((8,), ("x",), meshrt.sharding.AxisType.Auto)
    x = np.arange(8.0, dtype=np.float32)
    with mesh:
        assert pjit(lambda x, y: x + y, P("x"), P())(x, x).sharding.spec == P()
        wrong = r"prefix of its positional arguments.* wrong length: a tuple or list of length 3 .* length 2"
        with pytest.raises(ValueError, match=wrong):
            pjit(lambda x, y: x, [None, None, None], None)(x, x)
        one = collections.namedtuple("One", ["x"])
        with pytest.raises(ValueError, match=r"in_shardings is not a tuple.*might need to be wrapped"):
            pjit(lambda one: one, one(None), one(None))(one(x))
        assert pjit(lambda one: one, (one(None),), one(None))(one(x)).x.shape == (8,)


def test_003_15_the_staged_view(stages):
    traced = stages[0]
    assert str(traced.jaxpr) == str(meshrt.make_jaxpr(f)(3, 4)) and traced.lojax.jaxpr is traced.jaxpr


def test_003_16_dialects_and_options(stages, theirs):
    _, lowered, _ = stages
    assert "module @jit_f" in str(lowered.compiler_ir()) and "module @jit_f" in str(lowered.compiler_ir("stablehlo"))
    computation = lowered.compiler_ir("hlo")
    assert type(computation) is type(theirs[1].compiler_ir("hlo")) and "HloModule jit_f" in computation.as_hlo_text()
    assert "HloModule jit_f" in lowered.as_text("hlo") and "metadata" not in lowered.as_text("hlo")
    assert "metadata" in lowered.as_text("hlo", debug_info=True) and lowered.as_text("stablehlo") == lowered.as_text()
    for call in (lambda d: lowered.as_text(d), lambda d: lowered.compiler_ir(d)):
        with pytest.raises(ValueError, match="unknown dialect: mhlo"):
            call("mhlo")
    assert int(lowered.compile(compiler_options={"xla_embed_ir_in_executable": True})(3, 4)) == 10
    with pytest.raises(errors.CompileError, match="xla_no_such_option"):
        lowered.compile(compiler_options={"xla_no_such_option": True})


def test_hlo_of_a_program_that_xla_translates_when_it_compiles():
    lowered = meshrt.jit(lambda x: jnp.arcsinh(x) + meshrt.lax.erf(x)).lower(np.ones(3, np.float32))
    try:
        assert "HloModule" in lowered.as_text("hlo")
    except errors.UnsupportedError as e:
        assert "as_text()" in str(e)


def test_fields_equal_jax():
    step = lambda state, x, *, scale: ({"w": state["w"] * scale}, (x @ state["w"]).sum())
    args = ({"w": np.ones((4, 2), np.float32)}, np.ones((3, 4), np.float32))
    for ours, theirs in zip(_stages_of(meshrt, step, args), _stages_of(jax, step, args)):
        shapes = lambda tree, m: [(x.shape, np.dtype(x.dtype)) for x in m.tree.leaves(tree)]
        assert str(ours.in_tree) == str(theirs.in_tree) and str(ours.out_tree) == str(theirs.out_tree)
        assert ours.donate_argnums == theirs.donate_argnums == (0,)
        assert shapes(ours.in_avals, meshrt) == shapes(theirs.in_avals, jax)
        infos = meshrt.tree.leaves(ours.args_info), jax.tree.leaves(theirs.args_info)
        assert [(i.shape, i.donated) for i in infos[0]] == [(i.shape, i.donated) for i in infos[1]]
        assert shapes(ours.out_info, meshrt) == shapes(theirs.out_info, jax)
        assert str(meshrt.tree.structure(ours.in_avals)) == str(jax.tree.structure(theirs.in_avals))
    traced = _stages_of(meshrt, step, args)[0]
    assert traced.fun_name == "<lambda>" and traced.out_avals[0]["w"].shape == (4, 2)


def _stages_of(m, step, args):
    traced = m.jit(step, donate_argnums=0).trace(*args, scale=2.0)
    lowered = traced.lower()
    return traced, lowered, lowered.compile()


def test_shardings_of_a_compiled_program_that_disagree(mesh):
    put = lambda *spec: meshrt.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P(*spec)))
    compiled = meshrt.jit(lambda state, y: state["w"] + y).lower({"w": put("data")}, put("data")).compile()
    with pytest.raises(ValueError, match="input shardings that disagree with the shardings of arguments") as e:
        compiled({"w": put("model")}, put("data", "model"))
    assert "2 mismatches" in str(e.value) and "state['w']" in str(e.value) and "Argument y" in str(e.value)


@pytest.mark.parametrize("sharded", [False, True])
def test_b06_a_program_for_another_platform_is_not_compiled_here(sharded):
    x = np.ones(8, np.float32)
    if sharded:
        x = meshrt.device_put(x, NamedSharding(meshrt.make_mesh((4,), ("x",)), P("x")))
    lowered = meshrt.jit(lambda x: x + 1).trace(x).lower(lowering_platforms=("tpu",))
    with pytest.raises(errors.CompileError, match="was lowered for 'tpu', but the devices are 'cpu'") as e:
        lowered.compile()
    assert "lowering_platforms=('cpu',)" in str(e.value) and "topology=" in str(e.value)
    abstract = meshrt.ShapeDtypeStruct((8,), np.float32, sharding=NamedSharding(AbstractMesh((4,), ("x",)), P("x")))
    with pytest.raises(errors.CompileError, match="was lowered for 'tpu'"):
        meshrt.jit(lambda x: x + 1).trace(abstract).lower(lowering_platforms=("tpu",)).compile()


def _by_platform(lib):
    return lambda x: lib.lax.platform_dependent(x, cpu=lib.numpy.sin, tpu=lib.numpy.cos, default=lib.numpy.tan)


def test_004_05_b07_a_program_for_several_platforms_runs_as_that_of_the_local_one():
    traced = meshrt.jit(_by_platform(meshrt)).trace(np.float32(1))
    lowered = traced.lower(lowering_platforms=("tpu", "cpu"))
    text = lowered.as_text()
    assert '{jax.global_constant = "_platform_index"}' in text and "cosine" in text and "sine" in text
    theirs = jax.jit(_by_platform(jax)).trace(np.float32(1)).lower(lowering_platforms=("tpu", "cpu")).as_text()
    assert "_platform_index" in theirs
    assert float(lowered.compile()(np.float32(1))) == float(jnp.sin(np.float32(1)))
    with pytest.raises(errors.CompileError, match=r"was lowered for \('tpu', 'cuda'\), but the devices are 'cpu'"):
        traced.lower(lowering_platforms=("tpu", "cuda")).compile()
    with pytest.raises(errors.UnsupportedError, match="runs on one"):
        lowered.propagate()
    for wrong in ((), ("cpu", "cpu")):
        with pytest.raises(errors.ArgumentValueError, match="different platforms"):
            traced.lower(lowering_platforms=wrong)


def test_004_05_a_split_program_for_several_platforms():
    mesh = meshrt.make_mesh((4,), ("x",))
    x = meshrt.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, P("x")))
    lowered = meshrt.jit(lambda x: _by_platform(meshrt)(x).sum()).trace(x).lower(lowering_platforms=("cuda", "cpu"))
    np.testing.assert_allclose(lowered.compile()(x), np.sin(np.arange(8)).sum(), rtol=1e-5)


def test_004_04_calls_take_no_platforms():
    with pytest.raises(TypeError):
        meshrt.jit(lambda x: x).lower(np.float32(1), lowering_platforms=("cpu",))


def test_001_08_004_02_programs_are_lowered_for_platforms_that_are_not_here():
    key = meshrt.random.key(0)
    for platform in ("cuda", "tpu", "rocm"):
        lowered = meshrt.jit(lambda key: meshrt.random.bits(key, (4,))).trace(key).lower(lowering_platforms=(platform,))
        assert "stablehlo" in lowered.as_text()


def test_executables_are_loaded_under_a_name_of_their_own(tmp_path):
    meshrt.jit(lambda x: x + 1).lower(np.float32(1)).compile().save(tmp_path / "f.aot")
    assert float(meshrt.load_executable(tmp_path / "f.aot")(np.float32(1))) == 2


def test_device_assignments_must_fit():
    abstract = meshrt.ShapeDtypeStruct((8,), np.float32, sharding=NamedSharding(AbstractMesh((4,), ("x",)), P("x")))
    lowered = meshrt.jit(lambda x: x + 1).lower(abstract)
    wrong = pytest.raises(errors.MeshMismatchError, match=r"size of abstract mesh 4 .* length of device assignment: 3")
    with events.count("propagate", "partition", "compile") as made, wrong:
        lowered.compile(device_assignment=tuple(meshrt.devices()[:3]))
    assert not any(made[k] for k in ("propagate", "partition", "compile")), "nothing is made before devices are checked"
    out = lowered.compile(device_assignment=tuple(meshrt.devices()[4:]))(np.ones(8, np.float32))
    assert out.sharding.device_set == set(meshrt.devices()[4:])


def test_types_are_arguments_without_a_mesh():
    for x in (np.ones(3, np.float32), meshrt.random.key(0)):
        lowered = meshrt.jit(lambda x: x).trace(meshrt.typeof(x)).lower()
        assert lowered.mesh is None and "num_partitions = 1" in lowered.as_text()


APART = {
    "devices": lambda lib, mesh, put: ((lambda x, y: x + y), {}, put(0), put(1)),
    "meshes": lambda lib, mesh, put: ((lambda x, y: x + y), {}, put(mesh(0)), put(mesh(4))),
    "sizes": lambda lib, mesh, put: ((lambda x, y: x + y), {}, put(mesh(0)), put(mesh(0, 8))),
    "a device and a mesh": lambda lib, mesh, put: ((lambda x, y: x + y), {}, put(7), put(mesh(0))),
    "constraint": lambda lib, mesh, put: (
        (lambda x: lib.lax.with_sharding_constraint(x, mesh(4))), {}, put(mesh(0))
    ),
    "out_shardings": lambda lib, mesh, put: ((lambda x: x * 2), {"out_shardings": mesh(4)}, put(mesh(0))),
    "structs": lambda lib, mesh, put: (
        (lambda x, y: x + y), {}, *(lib.ShapeDtypeStruct((8,), np.float32, sharding=mesh(i)) for i in (0, 4))
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("case", APART)
def test_arguments_that_lie_apart_are_traced_and_not_lowered(case, kind):
    """Types need no devices; what comes after says which two places do not agree. Both from one run of the function."""

    def outcome(lib):
        def mesh(first, n=4):
            types = (getattr(lib.sharding.AxisType, kind),)
            made = lib.make_mesh((n,), ("x",), axis_types=types, devices=lib.devices()[first : first + n])
            return lib.NamedSharding(made, lib.P("x"))

        def put(where):
            return lib.device_put(np.ones(8, np.float32), lib.devices()[where] if isinstance(where, int) else where)

        runs = []
        fun, options, *args = APART[case](lib, mesh, put)
        try:
            jitted = lib.jit(lambda *args: runs.append(None) or fun(*args), **options)
            traced = jitted.trace(*args)
            shown = str(traced.jaxpr), [a.shape for a in lib.tree.leaves(traced.out_info)]
        except (ValueError, AssertionError):
            return "refused", None, 0
        for _ in range(2):
            with pytest.raises(ValueError, match=r"devices|mesh") as found:
                traced.lower()
        return shown[1], found.value, len(runs)

    if case == "constraint" and kind == "Explicit":
        pytest.skip("along Explicit axes a constraint is an assertion, and names no place")
    ours, theirs = outcome(meshrt), outcome(jax)
    assert ours[0] == theirs[0] and ours[2] == theirs[2]
    if ours[0] != "refused":
        assert isinstance(ours[1], errors.DeviceAssignmentMismatchError | errors.MeshMismatchError), ours[1]


def test_structs_stand_for_references():
    """As in JAX: a function over references is traced, and compiled, for what says of itself that it is one."""

    def double(r, k):
        r[...] = k * r[...]

    struct = meshrt.ShapeDtypeStruct((3,), np.float32, is_ref=True)
    assert (
        repr(struct) == repr(jax.ShapeDtypeStruct((3,), np.float32, is_ref=True)) and struct.update(shape=(2,)).is_ref
    )
    theirs = jax.make_jaxpr(double)(jax.ShapeDtypeStruct((3,), np.float32, is_ref=True), np.float32(2))
    assert str(meshrt.make_jaxpr(double)(struct, np.float32(2))) == str(theirs)
    r = meshrt.new_ref(jnp.arange(3.0))
    assert meshrt.ShapeDtypeStruct.like(r).is_ref and meshrt.typeof(r).manual_axis_type.empty
    meshrt.jit(double).lower(struct, np.float32(2)).compile()(r, np.float32(2))
    np.testing.assert_array_equal(r[...], [0, 2, 4])


@pytest.mark.parametrize("lib", [jax, meshrt], ids=["jax", "meshrt"])
def test_structs_are_not_changed(lib):
    with pytest.raises(RuntimeError, match=r"Cannot reassign attributes \(shape\) of immutable ShapeDtypeStruct"):
        lib.ShapeDtypeStruct((3,), np.float32).shape = (2,)


@pytest.mark.parametrize("lib", [jax, meshrt], ids=["jax", "meshrt"])
def test_a_struct_lies_where_in_shardings_say(lib):
    mesh = lib.make_mesh((4, 2), ("x", "y"), axis_types=(lib.sharding.AxisType.Auto,) * 2)
    along = lambda axis: lib.NamedSharding(mesh, lib.P(axis))
    f = lib.jit(lambda x: x, in_shardings=along("y"))
    struct = lib.ShapeDtypeStruct((8,), np.float32)
    assert f.lower(struct).compile().input_shardings[0][0].spec == lib.P("y")
    with pytest.raises(ValueError, match="Sharding passed to jit does not match the sharding on the respective arg"):
        f.lower(struct.update(sharding=along("x")))
