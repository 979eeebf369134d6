"""Every mistake of a user ends in a typed error that names the place, the sizes and a way out."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.dtypes import DTypeError
from meshrt.scipy.linalg import solve_triangular
from meshrt.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from meshrt.sharding import PartitionSpec as P


def put(mesh, shape, *spec):
    return meshrt.device_put(np.ones(shape, np.float32), NamedSharding(mesh, P(*spec)))


@pytest.fixture
def other_mesh():
    devices = np.array(meshrt.devices()[::-1]).reshape(4, 2)
    return Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def check(error, builtin, *fragments):
    assert isinstance(error, errors.MeshrtError) and isinstance(error, builtin), type(error).__mro__
    for fragment in fragments:
        assert fragment in str(error), f"{fragment!r} is missing in: {error}"


def test_wrong_axis_name(mesh):
    with pytest.raises(errors.UnknownAxisError) as e:
        NamedSharding(mesh, P("rows"))
    check(e.value, ValueError, "rows", "data", "model")


def test_axis_used_twice(mesh):
    with pytest.raises(errors.DuplicateAxisError) as e:
        NamedSharding(mesh, P("data", "data"))
    check(e.value, ValueError, "data", "at most one positional dimension")


@pytest.mark.parametrize(
    "spec, kind, words",
    [
        (P("rows"), errors.UnknownAxisError, ["rows", "data", "model", "Use one of its axes"]),
        (P("data", "data"), errors.DuplicateAxisError, ["data", "at most one positional dimension", "Keep one"]),
        (P(None, None, "data"), errors.RankMismatchError, ["rank at least 3", "rank 2", "entr"]),
    ],
    ids=["unknown", "twice", "rank"],
)
def test_wrong_specs_name_the_place(mesh, spec, kind, words):
    tree = {"w": np.ones((8, 8), np.float32)}
    constrain = lambda params: meshrt.lax.with_sharding_constraint(params, spec)
    cases = [
        (lambda: meshrt.jit(lambda params: params["w"], in_shardings=spec)(tree), ["argument params['w'] of <lambda>"]),
        (lambda: meshrt.jit(lambda params: params, out_shardings=spec)(tree), ["result['w'] of <lambda>"]),
        (lambda: meshrt.jit(constrain)(tree), ["with_sharding_constraint of x['w'] at", "test_bad_input.py"]),
        (lambda: constrain(tree), ["with_sharding_constraint of x['w'] at", "test_bad_input.py"]),
        (lambda: meshrt.device_put(tree, spec), ["device_put of x['w']"]),
        (lambda: meshrt.jit(lambda params: meshrt.device_put(params, spec))(tree), ["device_put of x['w']"]),
    ]
    with meshrt.set_mesh(mesh):
        for call, place in cases:
            with pytest.raises(kind) as e:
                call()
            check(e.value, ValueError, *words, *place)


def test_shardings_that_are_no_prefix(mesh):
    with pytest.raises(errors.TreeError) as e:
        meshrt.lax.with_sharding_constraint({"a": np.ones(8)}, {"b": NamedSharding(mesh, P("data"))})
    check(e.value, ValueError, "shardings of with_sharding_constraint", "only the second has 'a'")


def test_rank_mismatch_at_the_boundary(mesh):
    with pytest.raises(errors.RankMismatchError) as e:
        meshrt.jit(lambda x: x, in_shardings=NamedSharding(mesh, P("data", "model")))(np.ones(8, np.float32))
    check(e.value, ValueError, "rank at least 2", "argument x", "rank 1")


def test_rank_mismatch_of_a_constraint(mesh):
    f = lambda x: meshrt.lax.with_sharding_constraint(x, NamedSharding(mesh, P(None, "data")))
    with pytest.raises(errors.RankMismatchError) as e:
        meshrt.jit(f)(np.ones(8, np.float32))
    check(e.value, ValueError, "rank at least 2", "test_bad_input.py")


def test_indivisible_argument_names_its_path(mesh):
    f = meshrt.jit(lambda params: params["w"], in_shardings=NamedSharding(mesh, P("data")))
    with pytest.raises(errors.IndivisibleError) as e:
        f({"w": np.ones((6, 2), np.float32)})
    check(e.value, ValueError, "params['w']", "6", "4 times")


def test_indivisible_device_put_names_its_path(mesh):
    with pytest.raises(errors.IndivisibleError) as e:
        meshrt.device_put({"a": np.ones(6)}, NamedSharding(mesh, P("data")))
    check(e.value, ValueError, "['a']", "6")


def test_manual_axes_outside_of_shard_map():
    kind = AxisType.Manual
    other = meshrt.make_mesh((4, 2), ("data", "model"), axis_types=(kind, AxisType.Auto))
    sharding, x = NamedSharding(other, P("data")), np.ones((8, 8), np.float32)
    on = lambda: meshrt.device_put(x, sharding)
    calls = [
        lambda: meshrt.jit(lambda x: x * 2)(on()),
        lambda: on() + 1,
        lambda: meshrt.jit(lambda x: meshrt.lax.with_sharding_constraint(x, sharding))(x),
        lambda: meshrt.jit(lambda x: x, in_shardings=sharding)(x),
        lambda: meshrt.jit(lambda x: x, out_shardings=sharding)(x),
        lambda: meshrt.jit(lambda x: meshrt.jit(lambda x: x, in_shardings=sharding)(x))(x),
    ]
    for call in [*calls, on]:
        with pytest.raises(errors.MeshrtError, match=rf"{kind!r}.*axis_types=\(AxisType.Auto, \.\.\.\)"):
            call()


def test_mesh_mismatch_names_both_sides(mesh):
    small = meshrt.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    with pytest.raises(errors.MeshMismatchError) as e:
        meshrt.jit(lambda a, b: (a, b))(put(mesh, (8,), "data"), put(small, (8,), "data"))
    check(e.value, ValueError, "argument b", "argument a", "device_put")


def test_device_mismatch_names_both_arguments(mesh, other_mesh):
    with pytest.raises(errors.DeviceAssignmentMismatchError) as e:
        meshrt.jit(jnp.add)(put(mesh, (8,), "data"), put(other_mesh, (8,), "data"))
    check(e.value, ValueError, "Received incompatible devices for jitted computation", "[0, 1, 2", "[7, 6, 5")


def test_arguments_beside_static_ones_have_their_own_names(mesh, other_mesh):
    scale = meshrt.jit(lambda factor, a, b: factor * a + b, static_argnums=0)
    with pytest.raises(errors.DeviceAssignmentMismatchError, match=r"Got argument a of .* and argument b of"):
        scale(2, put(mesh, (8,), "data"), put(other_mesh, (8,), "data"))


def test_compiled_for_other_devices_of_the_same_mesh_shape(mesh, other_mesh):
    compiled = meshrt.jit(lambda x: x * 2).lower(put(mesh, (8,), "data")).compile()
    with pytest.raises(errors.ShardingError) as e:
        compiled(put(other_mesh, (8,), "data"))
    check(e.value, ValueError, "Argument x", "on the devices [0, 1, 2", "on the devices [7, 6, 5")


def test_constraint_with_another_concrete_mesh(mesh, other_mesh):
    f = meshrt.jit(lambda x: meshrt.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P("data"))))
    assert f(put(mesh, (8,), "data")).sharding.mesh is mesh
    with pytest.raises(errors.DeviceAssignmentMismatchError) as e:
        f(put(other_mesh, (8,), "data"))
    check(e.value, ValueError, "with_sharding_constraint at", "test_bad_input.py")


def test_in_shardings_disagree_with_the_argument(mesh):
    f = meshrt.jit(lambda x: x, in_shardings=NamedSharding(mesh, P("model")))
    with pytest.raises(errors.ShardingError) as e:
        f(put(mesh, (8,), "data"))
    check(e.value, ValueError, "does not match the sharding on the respective arg", "argument x", "device_put")


@pytest.mark.parametrize("is_sharded", [False, True])
def test_donated_array_reused(mesh, capfd, is_sharded):
    f = meshrt.jit(lambda state: state + 1, donate_argnums=0)
    x = put(mesh, (8,), "data") if is_sharded else jnp.arange(4.0)
    f(x)
    with pytest.raises(errors.DeletedArrayError) as e:
        f(x)
    check(e.value, RuntimeError, "argument state", "donated as argument state")
    with pytest.raises(errors.DeletedArrayError) as e:
        np.asarray(x)
    check(e.value, RuntimeError, "donated as argument state")
    with pytest.raises(errors.DeletedArrayError):
        x + 1
    assert capfd.readouterr().err == "", "the runtime has printed a line of its own first"


def test_compiled_called_with_other_types():
    compiled = meshrt.jit(lambda x, y: x + y).lower(3, 4).compile()
    assert int(compiled(3, 4)) == 7
    with pytest.raises(errors.ArgumentTypeError) as e:
        compiled(np.ones(3, np.int32), 4)
    check(
        e.value, TypeError, "Argument types differ from the types for which this computation was compiled",
        "Argument 'x' compiled with int32[] and called with int32[3]",
    )  # fmt: skip


def test_compiled_called_with_another_tree():
    compiled = meshrt.jit(lambda x: x).lower(1.0).compile()
    with pytest.raises(errors.ArgumentTypeError) as e:
        compiled((1.0, 2.0))
    check(e.value, TypeError, "does not match the input pytree it was called with", "args[0]")


def test_transforming_a_compiled_function():
    compiled = meshrt.jit(lambda x: x * 2).lower(1.0).compile()
    with pytest.raises(errors.ArgumentTypeError) as e:
        meshrt.grad(compiled)(1.0)
    check(e.value, TypeError, "Detected argument of Tracer type")


def test_unknown_dtype():
    with pytest.raises(DTypeError) as e:
        jnp.zeros(3, dtype="float7")
    check(e.value, TypeError, "zeros: dtype='float7' is not a dtype; pass a dtype such as 'float32'")


def test_leaked_tracer():
    kept = []
    meshrt.jit(lambda x: kept.append(x * 2))(1.0)
    with pytest.raises(errors.LeakedTracerError) as e:
        kept[0] + 1
    check(e.value, TypeError, "after the function that was being traced had returned", "test_bad_input.py")


def test_python_control_flow_on_a_tracer():
    @meshrt.jit
    def f(x):
        if x > 0:
            return x
        return -x

    with pytest.raises(errors.ConcretizationError) as e:
        f(1.0)
    check(e.value, TypeError, "Attempted boolean conversion", "bool[]", "test_bad_input.py", "lax.cond")


@pytest.mark.parametrize("use", [int, float, complex, lambda x: np.asarray(x), lambda x: range(x)])
def test_concrete_value_of_a_tracer(use):
    with pytest.raises(errors.ConcretizationError) as e:
        meshrt.jit(lambda x: use(x))(3)
    check(e.value, TypeError, "traced array", "It is argument x of", "static_argnums")


def test_not_an_array():
    with pytest.raises(errors.ArgumentTypeError) as e:
        meshrt.jit(lambda x: x)("text")
    check(e.value, TypeError, "str", "static")


def test_result_is_not_an_array():
    with pytest.raises(errors.ArgumentTypeError) as e:
        meshrt.jit(lambda x: {"a": "text"})(1.0)
    check(e.value, TypeError, "output component ['a']", "str")


def test_unhashable_static_argument():
    with pytest.raises(ValueError) as e:
        meshrt.jit(lambda x, n: x, static_argnums=1)(1.0, [1])
    check(e.value, ValueError, "Non-hashable static arguments are not supported", "list")


def test_partition_spec_without_a_mesh():
    with pytest.raises(errors.MeshContextError) as e:
        meshrt.jit(lambda x: meshrt.lax.with_sharding_constraint(x, P("data")))(np.ones(8))
    check(e.value, ValueError, "set_mesh")


def test_abstract_mesh_without_devices():
    mesh = AbstractMesh((8,), ("x",))
    spec = meshrt.ShapeDtypeStruct((8,), np.float32, sharding=NamedSharding(mesh, P("x")))
    lowered = meshrt.jit(lambda x: x * 2).lower(spec)
    assert 'sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>' in lowered.as_text()
    with pytest.raises(errors.MeshError) as e:
        lowered.compile()(np.ones(8, np.float32))
    check(e.value, ValueError, "device_assignment")


def test_gradient_of_integers_and_of_arrays():
    with pytest.raises(errors.ArgumentTypeError) as e:
        meshrt.grad(lambda p: p["n"] * 1.0)({"n": 3})
    check(e.value, TypeError, "p['n']", "allow_int=True")
    with pytest.raises(errors.ArgumentTypeError) as e:
        meshrt.grad(lambda x: x)(np.ones(3, np.float32))
    check(e.value, TypeError, "Gradient only defined for scalar-output functions", "(3,)")


def test_vmap_sizes_disagree():
    with pytest.raises(ValueError) as e:
        meshrt.vmap(lambda a, b: a + b)(np.ones(3), np.ones(4))
    check(e.value, ValueError, "inconsistent sizes", "size 3: axis 0 of argument a", "size 4: axis 0 of argument b")


def test_unknown_setting():
    with pytest.raises(errors.UnknownSettingError) as e:
        meshrt.config.update("num_cpu_device", 4)
    check(e.value, ValueError, "num_cpu_devices")
    assert isinstance(e.value, AttributeError)  # as JAX raises


def test_missing_function_says_so():
    with pytest.raises(AttributeError) as e:
        meshrt.lax.no_such_operation
    check(e.value, AttributeError, "no_such_operation")


def test_donated_array_reused_on_a_mesh(mesh):
    f = meshrt.jit(lambda state: state + 1, donate_argnums=0)
    x = put(mesh, (8, 4), "data")
    f(x)
    with pytest.raises(errors.DeletedArrayError) as e:
        f(x)
    check(e.value, RuntimeError, "argument state", "donated as argument state")


@pytest.mark.parametrize("donated", [0, (0, 1)])
def test_donated_array_given_twice(mesh, donated):
    f = meshrt.jit(lambda a, b: (a + 1, b + 2), donate_argnums=donated)
    x = put(mesh, (8, 4), "data")
    with pytest.raises(errors.ArgumentValueError) as e:
        f(x, x)
    check(e.value, ValueError, "argument a", "argument b", "f32[8,4]", "x.copy()")
    assert not x.is_deleted()


def test_donating_an_array_that_shares_memory_leaves_the_other_alone(mesh):
    a = put(mesh, (8, 8), "data", None)
    twin = meshrt.device_put(a, NamedSharding(mesh, P("data")))
    again = meshrt.device_put(a, NamedSharding(Mesh(mesh.devices, ("p", "q")), P("p")))
    assert twin is a or twin.sharding.is_equivalent_to(a.sharding, 2)
    meshrt.jit(lambda x: x + 1, donate_argnums=0)(a)
    with pytest.raises(errors.DeletedArrayError):
        np.asarray(a)
    np.testing.assert_array_equal(np.asarray(meshrt.jit(lambda x: x * 2)(again)), 2 * np.ones((8, 8)))


def test_compiler_options_that_cannot_be():
    with pytest.raises(errors.ArgumentTypeError) as e:
        meshrt.jit(lambda x: x, compiler_options={"a": [1]})
    check(e.value, TypeError, "compiler_options", "'a'")
    with pytest.raises(errors.ArgumentTypeError):
        meshrt.jit(lambda x: x).lower(1.0).compile({"a": [1]})


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: lax.round(jnp.ones(2), rounding_method=-1), ValueError, "-1 is not a valid RoundingMethod"),
        (lambda: lax.select_n(np.uint8(1)), ValueError, "at least one case"),
        (lambda: lax.cummax(np.array([True])), TypeError, "cummax does not accept dtype bool"),
        (lambda: jnp.linalg.svd(np.float32(1)), TypeError, "svd must have rank at least 2"),
        (lambda: jnp.linalg.svdvals(np.float32(1)), TypeError, "svd must have rank at least 2"),
        (lambda: solve_triangular(np.ones(0), np.ones((4, 4))), ValueError, "needs matrices"),
        (lambda: solve_triangular(np.ones((4, 4)), np.float32(1)), ValueError, "right-hand sides of at least one"),
    ],
    ids=["round", "select_n", "cummax", "svd", "svdvals", "matrix", "vector"],
)
def test_arguments_without_what_is_needed(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


@pytest.mark.parametrize("shape", [(2**40, 2**40), (2**62,), (2**64,), (2**40, 0, 2**40), (2**31, 2, 2**31)])
def test_arrays_that_no_compiler_counts_are_refused_before_one_ends_the_process(shape):
    with pytest.raises(errors.DeviceMemoryError, match=r"beyond 2\*\*63 bytes.*made at .*test_bad_input\.py:\d+"):
        jnp.zeros(shape)
    with pytest.raises(MemoryError, match=r"beyond 2\*\*63 bytes"):
        meshrt.jit(lambda x: jnp.sum(jnp.broadcast_to(x, shape)))(1.0)
    size, one = "x".join(map(str, shape)), "x".join(["1" if d else "0" for d in shape])
    text = f"""func.func @main(%0: tensor<f32>) -> tensor<{one}xf32> {{
      %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<{size}xf32>
      %2 = stablehlo.slice %1 [{", ".join(["0:1" if d else "0:0" for d in shape])}]
        : (tensor<{size}xf32>) -> tensor<{one}xf32>
      return %2 : tensor<{one}xf32>
    }}"""
    refused = errors.SavedProgramError if max(shape) >= 2**64 else errors.DeviceMemoryError  # MLIR cannot read 2**64
    with pytest.raises(refused):
        meshrt.export.from_stablehlo(text).call(np.float32(1))
