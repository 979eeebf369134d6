"""What shard_map and smap say of specs, meshes and arguments that do not fit: JAX's classes, and more in the text."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
from meshrt import P, errors, lax
from meshrt.sharding import NamedSharding
from tests.meshrt.shard_map.libraries import ours, theirs

A = np.ones((8, 4), np.float32)
W = np.ones((4, 4), np.float32)


def call(L, body=lambda a, w: a, args=(A, W), **changes):
    settings = {"mesh": L.mesh((4, 2), ("x", "y")), "in_specs": (L.P("x"), L.P()), "out_specs": L.P("x"), **changes}
    return L.shard_map(body, **settings)(*args)


# name -> (the call, built-in class, fragments of our text)
WRONG = {
    "an unknown axis": (
        lambda L: call(L, in_specs=(L.P("z"), L.P())),
        ValueError,
        ["shard_map in_specs argument must refer to an axis marked as manual", "in_specs[0] refers to 'z'"],
    ),
    "a spec that is none": (
        lambda L: call(L, in_specs=("x", L.P())),
        TypeError,
        ["in_specs argument must be a pytree of `meshrt.sharding.PartitionSpec`", "in_specs[0] is 'x' of type str"],
    ),
    "an out_spec that is none": (lambda L: call(L, out_specs="x"), TypeError, ["out_specs is 'x' of type str"]),
    "specs left out over Auto axes": (
        lambda L: L.shard_map(lambda a: a, mesh=L.mesh((8,), ("x",)), out_specs=L.P("x"))(A),
        TypeError,
        ["shard_map in_specs argument", "['x'] are of type AxisType.Auto"],
    ),
    "a device inside": (
        lambda L: call(L, lambda a, w: a + L.device_put(1.0, L.devices()[0])),
        ValueError,
        ["device_put with explicit device not allowed within shard_map-decorated functions", "test_errors.py"],
    ),
    "too few specs": (lambda L: call(L, in_specs=(L.P(),)), ValueError, ["in_specs of <lambda>", "pytree prefix"]),
    "too few specs in a list": (
        lambda L: call(L, lambda a: a[0], args=([A, A],), in_specs=([L.P("x")],)),
        ValueError,
        ["shard_map in_specs[0] of <lambda>", "a list of 1 child, the second one of 2"],
    ),
    "too few out_specs": (
        lambda L: call(L, lambda a, w: (a, a), out_specs=(L.P("x"),)),
        ValueError,
        ["out_specs of <lambda>", "tuple of 1 child"],
    ),
    "too long a spec": (
        lambda L: call(L, in_specs=(L.P("x", None, "y"), L.P())),
        ValueError,
        [
            "in_specs[0] is P('x', None, 'y') which has length 3",
            "bound to <lambda>'s parameter 'a'",
            "rank 2 (and 2 < 3)",
        ],
    ),
    "a spec for a scalar": (
        lambda L: call(L, lambda a, w: a.sum()),
        ValueError,
        ["<lambda>(*args) has shape f32[]{V:x}", "return x[None]"],
    ),
    "a spec for a scalar argument": (
        lambda L: call(L, args=(A, 3.0), in_specs=(L.P("x"), L.P(None))),
        ValueError,
        ["args[1]", "consider using an in_specs entry of `P()`"],
    ),
    "sizes that do not divide": (
        lambda L: call(L, args=(A[:7], W)),
        ValueError,
        ["not evenly divisible", "array axis 0 (of size 7)", "4 does not evenly divide 7", "4 or 8", "parameter 'a'"],
    ),
    "two axes that do not divide": (
        lambda L: call(L, args=(A[:4], W), in_specs=(L.P(("x", "y")), L.P())),
        ValueError,
        ["axes ('x', 'y') (of total size 8)", "8 does not evenly divide 4"],
    ),
    "a result that differs": (
        lambda L: call(L, out_specs=L.P()),
        ValueError,
        [
            "which require replication which can't be statically inferred given the mesh",
            "is only varying across mesh axes {} and not {x}, but it was inferred to be possibly varying over {x}",
            "args[0], which enters with P('x',)",
        ],
    ),
    "a result that differs along two axes": (
        lambda L: call(
            L, lambda a, w: {"r": a * 2}, in_specs=(L.P("x", "y"), L.P()), out_specs={"r": L.P()}, args=(A, W)
        ),
        ValueError,
        [
            "out_specs['r'] is P() which implies that the corresponding output value is only varying across mesh "
            "axes {} and not {x,y}, but it was inferred to be possibly varying over {x,y}",
            "It is <lambda>(*args)['r']",
        ],
    ),
    "a result that differs along the only axis": (
        lambda L: call(L, mesh=L.mesh((4,), ("x",)), out_specs=L.P()),
        ValueError,
        ["is replicated across mesh axis 'x'"],
    ),
    "a constraint over Manual axes of a mesh of Auto ones": (
        lambda L: call(
            L,
            lambda a, w: L.lax.with_sharding_constraint(
                a, L.sharding.NamedSharding(L.mesh((4, 2), ("x", "y")), L.P("x"))
            ),
            check_vma=False,
        ),
        ValueError,
        ["manual axes 'x' of mesh", "test_errors.py"],
    ),
    "a cotangent that varies": (
        lambda L: call(L, lambda a, w: L.vjp(lambda w: L.np.sin(w), w[0])[1](a[0])[0]),
        ValueError,
        [
            "has type f32[4]{V:x} where its output has type f32[4]",
            "applying `meshrt.lax.pcast(..., ('x',), to='varying')` to the primal value passed",
        ],
    ),
    "a carry that varies": (
        lambda L: call(L, lambda a, w: L.lax.scan(lambda c, _: (c + a[0], None), w[0], None, length=2)[0]),
        TypeError,
        ["This might be fixed by applying `meshrt.lax.pcast(..., ('x',), to='varying')` to the initial carry value c"],
    ),
    "two carries that vary": (
        lambda L: call(
            L, lambda a, w: L.lax.scan(lambda c, _: ((c[1] + a[0], c[0] + a[1]), None), (w[0], w[1]), None, length=2)
        ),
        TypeError,
        ["This might be fixed by:\n  * applying `meshrt.lax.pcast(..., ('x',), to='varying')`", "c[0];\n  * applying"],
    ),
    "axis_names in a list": (
        lambda L: call(L, axis_names=["x"]),
        TypeError,
        ["should be of type `frozenset` or `set`"],
    ),
    "axis_names of another mesh": (
        lambda L: call(L, axis_names={"z"}),
        ValueError,
        ["to be a subset of mesh.axis_names"],
    ),
    "a spec of an axis that stays": (lambda L: call(L, axis_names={"y"}), ValueError, ["marked as manual ('y')"]),
    "no mesh": (lambda L: call(L, mesh=None), ValueError, ["The context mesh cannot be empty", "test_errors.py"]),
    "no mesh at all": (lambda L: call(L, mesh="m"), TypeError, ["requires a `meshrt.sharding.Mesh`", "'m'"]),
    "no function": (lambda L: L.shard_map(3, mesh=L.mesh((8,), ("x",)), out_specs=L.P()), TypeError, ["callable"]),
    "keyword arguments": (
        lambda L: L.shard_map(lambda a: a, mesh=L.mesh((8,), ("x",)), in_specs=L.P(), out_specs=L.P())(a=A),
        TypeError,
        ["unexpected keyword argument"],
    ),
    "an axis that nothing binds": (
        lambda L: L.jit(lambda a: L.lax.psum(a, "q"))(A),
        NameError,
        ["unbound axis name: q"],
    ),
    "set_mesh inside": (
        lambda L: call(L, lambda a, w: L.set_mesh(L.mesh((8,), ("x",))) and a),
        ValueError,
        ["set_mesh"],
    ),
    "a result that is no array": (lambda L: call(L, lambda a, w: "s"), TypeError, ["str"]),
    "a mapped dimension along a used axis": (
        lambda L: L.vmap(
            L.shard_map(lambda a: a, mesh=L.mesh((8,), ("x",)), in_specs=L.P("x"), out_specs=L.P("x")),
            spmd_axis_name="x",
        )(A[None]),
        ValueError,
        ["vmap spmd_axis_name cannot appear in shard_map in_specs", "'x'"],
    ),
    "smap of two axes": (
        lambda L: L.smap(lambda a: a, in_axes=0, out_axes=0, axis_name=("x",)),
        TypeError,
        ["smap axis_name"],
    ),
    "smap of a name": (
        lambda L: L.smap(lambda a: a, in_axes="x", out_axes=0, axis_name="x"),
        TypeError,
        ["smap in_axes"],
    ),
    "smap to a name": (
        lambda L: L.smap(lambda a: a, in_axes=0, out_axes="p", axis_name="x"),
        TypeError,
        ["smap out_axes"],
    ),
    "smap without a mesh": (
        lambda L: L.smap(lambda a: a, in_axes=0, out_axes=0, axis_name="x")(A),
        ValueError,
        ["context mesh"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_classes_are_those_of_jax_and_texts_name_what_is_wrong(name):
    make, kind, fragments = WRONG[name]
    with pytest.raises(kind):
        make(theirs())
    with pytest.raises(kind) as e:
        make(ours())
    for fragment in fragments:
        assert fragment in str(e.value)


def test_no_specs_at_all_pass_every_argument_as_it_is():
    class Unhashable:
        def __hash__(self):
            raise RuntimeError("no hash")

    for L in (theirs(), ours()):
        settings = {"mesh": L.mesh((4,), ("x",)), "in_specs": None, "out_specs": L.P()}
        f = L.shard_map(lambda a, w: a * w, **settings)
        for run in (f, L.jit(f)):
            np.testing.assert_array_equal(run(A, 3.0), A * 3)
        assert L.shard_map(lambda a, o: a if isinstance(o, Unhashable) else None, **settings)(3.0, Unhashable()) == 3


def test_a_device_inside_is_advice_where_the_call_is_in_a_program():
    for L in (ours(), theirs()):
        mesh = L.mesh((4, 2), ("x", "y"))
        f = L.shard_map(
            lambda a: a + L.device_put(1.0, L.devices()[0]), mesh=mesh, in_specs=L.P("x"), out_specs=L.P("x")
        )
        np.testing.assert_array_equal(L.jit(f)(A), A + 1)


def test_what_jax_lets_pass():
    L = ours()
    with pytest.raises(errors.DuplicateAxisError, match="duplicate entries for 'x'"):
        call(L, in_specs=(P("x", "x"), P()))
    with pytest.raises(errors.ShardingError, match="cannot be left open"):
        call(L, in_specs=(P(P.UNCONSTRAINED), P()))
    inner = lambda a: meshrt.shard_map(lambda a: a, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})(a)
    with pytest.raises(ValueError, match="an enclosing shard_map has done already"):
        call(L, lambda a, w: inner(a))
    with pytest.raises(ValueError, match="from 0"):
        meshrt.smap(lambda a: a, in_axes=0, out_axes=-1, axis_name="x")


def test_a_mesh_other_than_that_in_context_is_named_with_both_lines():
    L = ours()
    with meshrt.set_mesh(L.mesh((8,), ("q",))):
        for run in (lambda: call(L), lambda: meshrt.jit(lambda a: call(L, args=(a, W)))(A)):
            with pytest.raises(errors.MeshMismatchError) as e:
                run()
            text = str(e.value)
            assert "AbstractMesh('q': 8" in text and "Mesh('x': 4, 'y': 2" in text
            assert text.count(__file__) == 2 and "should match the mesh passed to shard_map" in text


def test_in_specs_that_contradict_the_types_of_arguments():
    found = {}
    for L in (theirs(), ours()):
        mesh = L.mesh((4, 2), ("x", "y"), "Explicit")
        a = L.device_put(A, L.sharding.NamedSharding(mesh, L.P("x", "y")))
        with L.set_mesh(mesh), pytest.raises(ValueError) as e:
            L.shard_map(lambda a: a, in_specs=L.P("y", None), out_specs=L.P("y"))(a)
        found[L.api.__name__] = str(e.value).split(" `in_specs`")[0].split(" (args")[0].rstrip(".")
    assert found["meshrt"] == found["jax"]


def test_a_dimension_mapped_along_an_explicit_axis_that_specs_name():
    for L in (theirs(), ours()):
        mesh = L.mesh((4, 2), ("x", "y"), "Explicit")
        a = L.device_put(np.stack([A, A]), L.sharding.NamedSharding(mesh, L.P("y")))
        f = L.shard_map(lambda a: a, mesh=mesh, in_specs=L.P("y"), out_specs=L.P("y"), axis_names={"y"})
        with L.set_mesh(mesh), pytest.raises(ValueError) as e:
            L.jit(L.vmap(f))(a)
    assert "vmapped away explicit mesh axis cannot appear in shard_map in_specs" in str(e.value)


def test_002_14_an_abstract_mesh_takes_its_devices_from_arrays():
    L = ours()
    mesh = L.mesh((4, 2), ("x", "y"))
    f = meshrt.shard_map(lambda a: a * 2, mesh=mesh.abstract_mesh, in_specs=P("x"), out_specs=P("x"))
    for wrong in (A, meshrt.numpy.asarray(A)):
        with pytest.raises(
            ValueError, match=r"Please pass `meshrt.Array`s with a `NamedSharding` as input to `shard_map`"
        ):
            f(wrong)
    with pytest.raises(errors.MeshMismatchError, match="Mesh shape of the input"):
        f(meshrt.device_put(A, NamedSharding(L.mesh((8,), ("x",)), P("x"))))
    with pytest.raises(ValueError, match="AbstractMesh"):
        meshrt.jit(f)(A)
    assert f(meshrt.device_put(A, NamedSharding(mesh, P("x")))).sharding.mesh is mesh
    with meshrt.set_mesh(mesh):
        assert f(A).sharding.mesh is mesh


def test_other_devices_than_those_of_the_mesh():
    L = ours()
    f = meshrt.shard_map(lambda a: a, mesh=L.mesh((4, 2), ("x", "y")), in_specs=P("x"), out_specs=P("x"))
    with pytest.raises(errors.DeviceAssignmentMismatchError, match="shard_map at"):
        f(meshrt.device_put(A, meshrt.devices()[3]))


def test_an_argument_that_is_no_array_is_named():
    with pytest.raises(TypeError, match="passed to the function at path w"):
        call(ours(), args=(A, "s"))
    with pytest.raises(TypeError, match=r"args\[1\].*its entry of in_specs is None"):
        meshrt.jit(lambda a: call(ours(), args=(a, "s")))(A)


def test_constraints_inside_cannot_name_manual_axes():
    body = lambda a, w: lax.with_sharding_constraint(a, P(None, "y"))
    with pytest.raises(errors.ShardingError, match="'y' is Manual"):
        call(ours(), body)
    assert call(ours(), body, axis_names={"x"}).shape == A.shape


COLLECTIVES = {
    "sizes": (
        lambda L, a: L.lax.all_to_all(a, "x", 0, 0),
        ["split_axis 0 of f32[2,4]{V:x}, 2", "a split_axis of size 4"],
    ),
    "tiles": (lambda L, a: L.lax.psum_scatter(a, "x", tiled=True), ["scatter_dimension 0", "pad the dimension to 4"]),
    "parts": (
        lambda L, a: L.lax.psum_scatter(a @ np.ones((4, 8), np.float32), "x", scatter_dimension=1),
        ["tiled=True"],
    ),
    "split_axis": (lambda L, a: L.lax.all_to_all(a, "x", 3, 0), ["split_axis of all_to_all", "from -2 to 1"]),
    "axis": (lambda L, a: L.lax.all_gather(a, "x", axis=5), ["axis of all_gather", "from -3 to 2"]),
    "scatter_dimension": (lambda L, a: L.lax.psum_scatter(a, "x", scatter_dimension=4), ["scatter_dimension of psum"]),
    "twice": (lambda L, a: L.lax.ppermute(a, "x", [(0, 1), (0, 2)]), ["must be unique", "several permutations"]),
    "no cast": (lambda L, a: L.lax.pcast(a, "x", to="varying"), ["Unsupported pcast", "invarying to varying"]),
    "states": (lambda L, a: L.lax.psum(a, ("x", "y")), ["psum can", "f32[2,4]{V:x} is invarying and varying", "pcast"]),
    "mean": (lambda L, a: L.lax.pmean(a, ("y", "x")), ["f32[2,4]{V:x} is invarying and varying"]),
    "scattered": (
        lambda L, a: L.lax.psum_scatter(a @ np.ones((4, 8), np.float32), ("x", "y"), scatter_dimension=1, tiled=True),
        ["psum_scatter can", "f32[2,8]{V:x} is invarying and varying"],
    ),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_that_do_not_fit_name_line_sizes_and_fix(name):
    body, fragments = COLLECTIVES[name]
    found = []
    for L in (theirs(), ours()):
        with pytest.raises((ValueError, TypeError, IndexError)) as error:
            call(L, body=lambda a, w, L=L: body(L, a))
        found.append(error.value)
    text = str(found[1])
    assert isinstance(found[1], errors.MeshrtError) and isinstance(found[1], ValueError)
    assert "test_errors.py:" in text and all(f in text for f in fragments), text
