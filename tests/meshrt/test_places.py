"""A program runs where the shardings inside it say, whoever runs it: JAX's placements are the judge.

Each program names a concrete mesh only inside (in a loop's body, a branch, a rule of derivatives, a recorded tape) and
is called on arrays without a place.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

import meshrt
from meshrt import errors

X = np.linspace(-1, 1, 8, dtype=np.float32)


class Library:
    """meshrt or jax behind the same names, with a mesh of its devices."""

    def __init__(self, lib, numpy, sharding, linear):
        self.lib, self.lax, self.np, self.sharding, self.linear_transpose = lib, lib.lax, numpy, sharding, linear
        auto = (sharding.AxisType.Auto,) * 2
        self.mesh = sharding.Mesh(np.array(lib.devices()[:8]).reshape(4, 2), ("x", "y"), axis_types=auto)

    def named(self, *spec):
        return self.sharding.NamedSharding(self.mesh, self.sharding.PartitionSpec(*spec))

    def spread(self, value, *spec):
        return self.lax.with_sharding_constraint(value, self.named(*(spec or ("x",))))


def _libraries():
    import jax.numpy
    import jax.sharding

    import meshrt.numpy
    import meshrt.sharding

    return (
        Library(meshrt, meshrt.numpy, meshrt.sharding, meshrt.linear_transpose),
        Library(jax, jax.numpy, jax.sharding, jax.linear_transpose),
    )


def scan(l, x):
    return l.lax.scan(lambda c, _: (l.spread(c * 2), c.sum()), x, None, length=3)


def while_loop(l, x):
    return l.lax.while_loop(lambda c: c[0] < 3, lambda c: l.spread(c + 1), x)


def fori_loop(l, x):
    return l.lax.fori_loop(0, 3, lambda i, c: l.spread(c + i), x)


def fori_loop_with_traced_bounds(l, x):
    return l.lax.fori_loop(0, l.np.int32(3), lambda i, c: l.spread(c + 1), x)


def cond(l, x):
    return l.lax.cond(x[0] < 3, lambda c: l.spread(c + 1), lambda c: c, x)


def switch(l, x):
    return l.lax.switch(1, [lambda c: c, lambda c: l.spread(c * 3)], x)


def checkpoint(l, x):
    return l.lib.checkpoint(lambda c: l.spread(l.np.sin(c)))(x)


def mapped(l, x):
    return l.lax.map(lambda c: l.spread(x) * c, x)


def vmapped_scan(l, x):
    return l.lib.vmap(lambda c: scan(l, c)[0])(l.np.stack([x, x + 1, x + 2]))


def _custom_jvp(l):
    @l.lib.custom_jvp
    def f(c):
        return l.spread(l.np.sin(c))

    f.defjvp(lambda p, t: (f(p[0]), l.spread(t[0] * 2)))
    return f


def _custom_vjp(l):
    @l.lib.custom_vjp
    def f(c):
        return l.np.sin(c)

    f.defvjp(lambda c: (f(c), c), lambda c, ct: (l.spread(ct * c),))
    return f


def custom_jvp(l, x):
    return _custom_jvp(l)(x), l.lib.jvp(_custom_jvp(l), (x,), (x,))


def custom_vjp(l, x):
    _, pullback = l.lib.vjp(_custom_vjp(l), x)
    return pullback(x)


def grad_of_scan(l, x):
    return l.lib.grad(lambda c: (scan(l, c)[0] ** 2).sum())(x)


def grad_of_checkpoint(l, x):
    return l.lib.grad(lambda c: checkpoint(l, c).sum())(x)


def tape_in_jit(l, x):
    _, pullback = l.lib.vjp(lambda c: l.spread(l.np.sin(c)), x)
    return l.lib.jit(lambda ct: pullback(ct))(x)


def tape_of_a_scan_in_jit(l, x):
    _, pullback = l.lib.vjp(lambda c: scan(l, c)[0], x)
    return pullback(x), l.lib.jit(lambda ct: pullback(ct))(x)


def tape_of_custom_vjp_in_jit(l, x):
    _, pullback = l.lib.vjp(_custom_vjp(l), x)
    return l.lib.jit(lambda ct: pullback(ct))(x)


def linearized(l, x):
    out, tangent = l.lib.linearize(lambda c: l.spread(l.np.sin(c)), x)
    return out, tangent(x), l.lib.jit(tangent)(x)


def transposed(l, x):
    return l.linear_transpose(lambda c: l.spread(c * 2), x)(x)


def staged_twice(l, x):
    body = lambda c, _: (l.spread(c + 1), None)
    first = l.lax.scan(body, x, None, length=2)[0]
    return first, l.lib.jit(lambda c: l.lax.scan(body, c, None, length=2)[0])(x)


def jit_in_jit(l, x):
    inner = l.lib.jit(lambda c: l.spread(c + 1))
    inner(x)
    return l.lib.jit(lambda c: inner(c) * 2)(x), l.lib.jit(lambda c: inner(c) * 3)(x)


def in_shardings_of_an_inner_jit(l, x):
    return l.lib.jit(l.lib.jit(lambda c: c + 1, in_shardings=l.named("x"), out_shardings=l.named("x")))(x)


def device_put_in_jit(l, x):
    return l.lib.jit(lambda c: l.lib.device_put(c * 2, l.named("x")))(x)


def device_put_of_what_jit_captures(l, x):
    numbers = np.arange(8, dtype=np.float32)
    placed = l.lib.jit(lambda c: l.lib.device_put(numbers, l.named("x")) + c)
    return (
        placed(x),
        l.lib.jit(lambda c: l.lib.device_put(x, l.named("x")) * c)(x),
        l.lib.jit(l.lib.device_put)(numbers),
    )


def device_put_of_what_grad_captures(l, x):
    return l.lib.grad(lambda c: (l.lib.device_put(X, l.named("x")) * l.lib.device_put(c, l.named("x"))).sum())(x)


def device_put_in_a_loop(l, x):
    return l.lax.scan(lambda c, _: (l.lib.device_put(c * 2, l.named("x")), None), x, None, length=3)[0]


def device_put_differentiated(l, x):
    return l.lib.grad(lambda c: (l.lib.device_put(c * 2, l.named("x")) ** 2).sum())(x)


def device_put_onto_a_device_differentiated(l, x):
    return l.lib.grad(lambda c: (l.lib.device_put(c, l.lib.devices()[3]) ** 2).sum())(x)


def dead(l, x):
    def f(c):
        l.spread(c * 2)
        return c + 1

    return l.lib.jit(f)(x)


PROGRAMS = [
    scan, while_loop, fori_loop, fori_loop_with_traced_bounds, cond, switch, checkpoint, mapped, vmapped_scan,
    custom_jvp, custom_vjp, grad_of_scan, grad_of_checkpoint, tape_in_jit, tape_of_a_scan_in_jit,
    tape_of_custom_vjp_in_jit, linearized, transposed, staged_twice, jit_in_jit, in_shardings_of_an_inner_jit,
    device_put_in_jit, device_put_of_what_jit_captures, device_put_of_what_grad_captures, device_put_in_a_loop,
    device_put_differentiated,
    device_put_onto_a_device_differentiated, dead,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_devices_and_values(program):
    ours, theirs = _libraries()
    got = meshrt.tree.leaves(program(ours, ours.np.asarray(X)))
    want = jax.tree.leaves(program(theirs, theirs.np.asarray(X)))
    assert len(got) == len(want)
    for a, b in zip(got, want):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)
        assert {d.id for d in a.sharding.device_set} == {d.id for d in b.sharding.device_set}
        assert (a.dtype, a.weak_type) == (b.dtype, b.weak_type)


def test_the_constraint_itself_decides_the_layout():
    ours, theirs = _libraries()
    for program in (scan, while_loop, fori_loop, cond, switch, checkpoint, tape_in_jit, linearized):
        got = meshrt.tree.leaves(program(ours, ours.np.asarray(X)))[0]
        want = jax.tree.leaves(program(theirs, theirs.np.asarray(X)))[0]
        assert tuple(got.sharding.spec) == tuple(want.sharding.spec) == ("x",), program.__name__


def test_a_moved_program_still_names_its_mesh():
    """The axes alone are lowered: the text is the same for every mesh of the shape."""
    ours, _ = _libraries()
    other = meshrt.sharding.Mesh(ours.mesh.devices[::-1], ("x", "y"), axis_types=ours.mesh.axis_types)
    text = lambda mesh: (
        meshrt.jit(lambda c: meshrt.lax.with_sharding_constraint(c, meshrt.NamedSharding(mesh, meshrt.P("x"))))
        .lower(X)
        .as_text()
    )
    assert text(ours.mesh) == text(other)


def test_device_put_onto_another_mesh_in_jit_says_what_to_do():
    ours, _ = _libraries()
    small = meshrt.sharding.Mesh(np.array(meshrt.devices()[:4]), ("x",))
    spread = meshrt.device_put(X, ours.named("x"))
    f = meshrt.jit(lambda c: meshrt.device_put(c, meshrt.NamedSharding(small, meshrt.P("x"))) + 1)
    with pytest.raises(errors.MeshMismatchError) as e:
        f(spread)
    text = str(e.value)
    assert "device_put at" in text and "test_places.py" in text and "argument c of" in text
    assert "before the call or its result after it" in text and "with_sharding_constraint" not in text
    single = meshrt.sharding.SingleDeviceSharding(meshrt.devices()[3])
    with pytest.raises(errors.DeviceAssignmentMismatchError) as e:
        meshrt.jit(lambda c: meshrt.device_put(c, single))(spread)
    assert "device_put at" in str(e.value) and "test_places.py" in str(e.value)


def test_device_put_with_a_sharding_of_one_device_in_jit_runs_the_program_there():
    single = meshrt.sharding.SingleDeviceSharding(meshrt.devices()[3])
    f = meshrt.jit(lambda c: meshrt.device_put(c, single) + 1)
    assert f(X).devices() == {meshrt.devices()[3]}
    assert f(meshrt.device_put(X, meshrt.devices()[3])).devices() == {meshrt.devices()[3]}
    with pytest.raises(errors.DeviceAssignmentMismatchError, match=r"argument c of .*device_put at"):
        f(meshrt.device_put(X, meshrt.devices()[2]))


def test_the_way_back_of_device_put_is_an_advice_in_jit():
    """Value by value the cotangent goes back to where the argument was; a program stays where its arguments are."""
    ours, _ = _libraries()
    _, pullback = meshrt.vjp(lambda c: meshrt.device_put(c * 2, ours.named("x")), meshrt.numpy.asarray(X))
    ct = meshrt.device_put(X, ours.named("x"))
    (eager,), (jitted,) = pullback(ct), meshrt.jit(lambda ct: pullback(ct))(ct)
    assert eager.devices() == {meshrt.devices()[0]} and len(jitted.devices()) == 8
    np.testing.assert_array_equal(np.asarray(eager), np.asarray(jitted))


def over_abstract_mesh(l, x, *spec):
    spec = l.sharding.PartitionSpec(*(spec or ("x",)))
    return l.lax.with_sharding_constraint(x, l.sharding.NamedSharding(l.mesh.abstract_mesh, spec))


def test_an_abstract_mesh_value_by_value():
    """It takes the devices from the value, under derivatives and maps too; of a value on no mesh it is an error."""

    def program(l, transform):
        f = lambda c: over_abstract_mesh(l, c * 2, *([None] if transform == "vmap" else []))
        run = {
            "grad": l.lib.grad(lambda c: (f(c) ** 2).sum()),
            "vmap": l.lib.vmap(f),
            "jvp": lambda c: l.lib.jvp(f, (c,), (c,))[1],
            "linearize": lambda c: l.lib.linearize(f, c)[1](c),
        }[transform]
        x = X if transform != "vmap" else np.stack([X] * 8)
        out = run(l.lib.device_put(x, l.named("x")))
        with pytest.raises(TypeError) as e:
            run(l.np.asarray(x))
        assert l.lib is jax or ("AbstractMesh" in str(e.value) and "test_places.py" in str(e.value))
        return np.asarray(out), len(out.devices())

    for transform in ("grad", "vmap", "jvp", "linearize"):
        (ours, n), (theirs, m) = [program(l, transform) for l in _libraries()]
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        assert n == m == 8, transform


def test_cotangents_on_no_mesh_are_left_alone():
    """JAX refuses this gradient, whose cotangent (ones) nobody has put on the mesh."""
    ours, _ = _libraries()
    x = meshrt.device_put(X, ours.named("x"))
    g = meshrt.grad(lambda c: over_abstract_mesh(ours, c * 2).sum())(x)
    np.testing.assert_array_equal(np.asarray(g), np.full(8, 2.0))


@pytest.mark.parametrize("sizes", [(4, 2), (2, 4), (8,), (2, 2, 2)])
def test_an_abstract_mesh_of_other_axes_is_over_the_same_devices(sizes):
    """Constraints, the mesh in context and results may call the axes what they like, as along Auto axes in JAX."""

    def program(l):
        names = "pqr"[: len(sizes)]
        there = l.sharding.AbstractMesh(sizes, tuple(names), axis_types=(l.sharding.AxisType.Auto,) * len(sizes))
        split = l.sharding.NamedSharding(there, l.sharding.PartitionSpec(tuple(names)))
        x = l.lib.device_put(X, l.named("x"))

        def in_context(c):
            with l.sharding.use_abstract_mesh(there):
                return l.lax.with_sharding_constraint(c * 2, l.sharding.PartitionSpec(tuple(names)))

        constrained = l.lib.jit(lambda c: l.lax.with_sharding_constraint(c * 2, split))
        out = [f(x) for f in (constrained, l.lib.jit(in_context), l.lib.jit(lambda c: c * 2, out_shardings=split))]
        return [np.asarray(v) for v in out], [[s.index for s in v.addressable_shards] for v in out]

    (ours, parts), (theirs, wanted) = [program(l) for l in _libraries()]
    np.testing.assert_array_equal(ours, theirs)
    assert parts == wanted


def test_an_abstract_mesh_of_another_size_names_both_places():
    ours, _ = _libraries()
    other = meshrt.sharding.Mesh(ours.mesh.devices.ravel()[:4].reshape(2, 2), ("p", "q"))
    with pytest.raises(errors.MeshMismatchError) as e:
        meshrt.jit(lambda c: over_abstract_mesh(ours, c))(
            meshrt.device_put(X, meshrt.NamedSharding(other, meshrt.P("p")))
        )
    for part in ("with_sharding_constraint at", "test_places.py", "argument c of", "'p': 2", "'x': 4"):
        assert part in str(e.value)


def test_device_put_in_jit_must_divide():
    ours, _ = _libraries()
    with pytest.raises(errors.IndivisibleError, match=r"device_put of x: .* dimension size is 5"):
        meshrt.jit(lambda c: meshrt.device_put(c[:5], ours.named("x")).sum())(X)


def _on_mesh(l, x):
    return l.lib.device_put(x, l.named("x"))


@pytest.mark.parametrize(
    "place",
    [lambda l, x: x, lambda l, x: l.lib.device_put(x, l.lib.devices()[1]), _on_mesh],
    ids=["host", "one", "mesh"],
)
@pytest.mark.parametrize("wrap", ["jit", "shard_map", "vmap", "grad", "scan", "eager"])
def test_a_bare_device_says_nothing_in_a_program(place, wrap):
    def program(l):
        moved = lambda x: l.lib.device_put(x, l.lib.devices()[3]) * 2
        spec = l.sharding.PartitionSpec("x")
        wrapped = {
            "jit": lambda: l.lib.jit(moved),
            "shard_map": lambda: l.lib.jit(l.lib.shard_map(moved, mesh=l.mesh, in_specs=spec, out_specs=spec)),
            "vmap": lambda: l.lib.jit(l.lib.vmap(moved)),
            "grad": lambda: l.lib.jit(l.lib.grad(lambda x: (moved(x) ** 2).sum())),
            "scan": lambda: l.lib.jit(lambda x: l.lax.scan(lambda c, _: (moved(c), 0), x, length=2)[0]),
            "eager": lambda: l.lib.vmap(moved),  # moves one by one
        }[wrap]()
        try:
            y = wrapped(place(l, X))
        except ValueError as e:
            return "incompatible devices" in str(e)
        return sorted(d.id for d in y.devices()), np.asarray(y).tolist()

    ours, theirs = map(program, _libraries())
    assert ours == theirs


def test_local_devices_by_the_old_name():
    for lib in (meshrt, jax):
        with pytest.warns(UserWarning, match="renamed from `host_id`"):
            assert lib.local_devices(host_id=0) == lib.local_devices(0)


def _moved(lib, kind):
    """What becomes of arguments of each sharding for which in_shardings say each other: the devices, or None."""
    sharding = lib.sharding
    devices, spec = lib.devices(), sharding.PartitionSpec
    kind = getattr(sharding.AxisType, kind)
    mesh = lambda sizes, names, devices: lib.make_mesh(sizes, names, axis_types=(kind,) * len(sizes), devices=devices)
    first, second = mesh((2,), ("x",), devices[:2]), mesh((2,), ("x",), devices[2:4])
    both = mesh((2, 2), ("x", "y"), devices[:4])
    shardings = [
        sharding.NamedSharding(first, spec("x")), sharding.NamedSharding(second, spec("x")),
        sharding.NamedSharding(both, spec("x")), sharding.NamedSharding(first, spec()),
        sharding.NamedSharding(both, spec()), sharding.SingleDeviceSharding(devices[3]),
    ]  # fmt: skip
    found, x = [], np.arange(8, dtype=np.float32).reshape(4, 2)
    for own in shardings:
        for asked in shardings:
            try:
                y = lib.jit(lambda x: x + 1, in_shardings=asked)(lib.device_put(x, own))
            except ValueError:
                found.append(None)
            else:
                np.testing.assert_array_equal(np.asarray(y), x + 1)
                found.append(sorted(d.id for d in y.sharding.device_set))
    return found


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_in_shardings_move_what_lies_alike_on_other_devices(kind):
    assert _moved(meshrt, kind) == _moved(jax, kind)
