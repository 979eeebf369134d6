"""run_state, run_scoped, core_map and the pass that discharges references."""

from __future__ import annotations

import threading

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import P
from meshrt.core.references import AccumEffect, ReadEffect, RefEffect, WriteEffect, effects_by_position
from meshrt.experimental import pallas as pl
from meshrt.experimental.kernels import core_map, discharge_state, run_scoped, run_state
from meshrt.experimental.pallas import tpu as pltpu
from meshrt.sharding import AxisType, NamedSharding

TYPES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def mesh_of(kind, count=4):
    return meshrt.make_mesh((count,), ("x",), axis_types=(TYPES[kind],), devices=meshrt.devices()[:count])


def placed(mesh, x, spec):
    return meshrt.device_put(x, NamedSharding(mesh, spec))


# ----------------------------------------------------------------------------------------------------------------------
# core_map


@pytest.mark.parametrize("kind", TYPES)
def test_002_08_a_body_without_arguments_works_on_captured_references(kind):
    mesh = mesh_of(kind)
    r, total = (meshrt.new_ref(placed(mesh, x, s)) for x, s in ((jnp.arange(8.0), P("x")), (jnp.zeros(2), P())))

    @core_map(mesh)
    def _():
        r[...] = r[...] * 2 + meshrt.lax.axis_index("x")
        total[...] = meshrt.lax.psum(r[...], "x")

    expected = np.arange(8.0) * 2 + np.repeat(np.arange(4), 2)
    np.testing.assert_array_equal(r[...], expected)
    np.testing.assert_array_equal(total[...], expected.reshape(4, 2).sum(0))
    assert (r.sharding, total.sharding) == (NamedSharding(mesh, P("x")), NamedSharding(mesh, P()))


@pytest.mark.parametrize("kind", TYPES)
def test_002_09_core_map_over_a_device_mesh_is_shard_map_of_the_body(kind):
    mesh = mesh_of(kind)

    def body(r, scale):
        r[...] = r[...] * scale[...] + meshrt.lax.psum(r[...].sum(), "x") + meshrt.lax.axis_index("x")

    def mapped(r, scale):
        meshrt.shard_map(body, mesh=mesh, in_specs=(P("x"), P()), out_specs=None)(r, scale)

    def over_cores(r, scale):
        core_map(mesh)(lambda: body(r, scale))

    found = []
    for program in (mapped, over_cores):
        r = meshrt.new_ref(placed(mesh, jnp.arange(8.0), P("x")))
        scale = meshrt.new_ref(placed(mesh, jnp.float32(3), P()))
        with meshrt.set_mesh(mesh):
            program(r, scale)
        found.append(np.asarray(r[...]))
        assert r.sharding == NamedSharding(mesh, P("x"))
    np.testing.assert_array_equal(*found)


def test_core_map_inside_of_jit():
    """Of a traced reference the type says how it is split: along Explicit axes. It is written in place."""
    mesh = mesh_of("explicit")

    @meshrt.jit
    def step(r):
        core_map(mesh)(lambda: r.__setitem__(..., r[...] + meshrt.lax.axis_index("x")))
        return r[...]

    with meshrt.set_mesh(mesh):
        r = meshrt.new_ref(placed(mesh, jnp.zeros(8), P("x")))
        np.testing.assert_array_equal(step(r), np.repeat(np.arange(4.0), 2))
        assert "alias" in step.lower(r).compile().as_text()
    assert str(meshrt.typeof(r)) == "Ref{float32[8@x]}"


def _sum_over_devices(mesh, r, out):
    core_map(mesh)(lambda: out.__setitem__(..., meshrt.lax.psum(r[...].sum(), "x")))


def _sums(mesh, how):
    r = meshrt.new_ref(placed(mesh, jnp.arange(8.0), P("x")))
    out = meshrt.new_ref(placed(mesh, jnp.zeros(()), P()))
    with meshrt.set_mesh(mesh):
        if how == "eager":
            _sum_over_devices(mesh, r, out)
        elif how == "captured":
            meshrt.jit(lambda: _sum_over_devices(mesh, r, out))()
        elif how == "argument":
            meshrt.jit(lambda r, out: _sum_over_devices(mesh, r, out))(r, out)
        elif how == "made":
            meshrt.jit(lambda x: _sum_over_devices(mesh, meshrt.new_ref(x), out))(r[...])
        elif how == "computed":
            meshrt.jit(lambda x: _sum_over_devices(mesh, meshrt.new_ref(x + 0), out))(r[...])
        else:
            meshrt.lax.cond(True, lambda r: _sum_over_devices(mesh, r, out), lambda r: None, r)
    return float(out[...])


@pytest.mark.parametrize("how", ["eager", "captured", "argument", "made", "computed", "branch"])
def test_core_map_means_the_same_however_its_references_come_over_explicit_axes(how):
    assert _sums(mesh_of("explicit"), how) == 28


@pytest.mark.parametrize("how", ["eager", "captured", "argument", "made", "branch"])
def test_core_map_knows_how_auto_axes_split_a_reference_that_is_given(how):
    assert _sums(mesh_of("auto"), how) == 28


def test_what_core_map_does_with_arguments_over_auto_axes_is_traced_once_for_a_split():
    """Other devices, and a call with the same split, find the trace; another split is another one. Functions within are
    told, too, and nobody else's types say how Auto axes split a reference."""
    mesh = mesh_of("auto")
    other = mesh.update(devices=np.array(meshrt.devices()[4:]))
    traced = []

    @meshrt.jit
    @meshrt.jit
    def step(r):
        traced.append(r.aval.placed)
        core_map(mesh.abstract_mesh)(lambda: r.__setitem__(..., r[...] + meshrt.lax.axis_index("x")))

    found = []
    for over in (mesh, mesh, other):
        r = meshrt.new_ref(placed(over, jnp.zeros(8), P("x")))
        step(r)
        found.append(np.asarray(r[...]))
        assert r.sharding == NamedSharding(over, P("x"))
    np.testing.assert_array_equal(found, [np.repeat(np.arange(4.0), 2)] * 3)
    # (Once without, which is when it asks.)
    assert traced == [None, NamedSharding(mesh.abstract_mesh, P("x"))]
    assert str(meshrt.typeof(r)) == str(meshrt.make_jaxpr(step)(r).in_avals[0]) == "Ref{float32[8]}"
    columns = meshrt.new_ref(placed(mesh, jnp.zeros((2, 8)), P(None, "x")))
    assert "in_specs=(P(None, 'x'),)" in str(meshrt.make_jaxpr(lambda r: core_map(mesh)(lambda: _double(r)))(columns))
    meshrt.jit(lambda r: core_map(mesh)(lambda: _double(r)))(columns)


@pytest.mark.parametrize("jitted", [False, True])
def test_members_of_a_batch_that_no_auto_axis_splits_are_placed_as_it_is(jitted):
    mesh = mesh_of("auto")
    rows = meshrt.vmap(lambda r: core_map(mesh)(lambda: _add_number_to(r)))
    r = meshrt.new_ref(placed(mesh, jnp.zeros((3, 8)), P(None, "x")))
    (meshrt.jit(rows) if jitted else rows)(r)
    np.testing.assert_array_equal(r[...], [np.repeat(np.arange(4.0), 2)] * 3)
    split = meshrt.new_ref(placed(mesh, jnp.zeros((4, 8)), P("x")))
    with pytest.raises(meshrt.errors.UnplacedReferenceError, match="a batch that vmap takes apart along dimension 0"):
        (meshrt.jit(rows) if jitted else rows)(split)


def test_types_of_references_keep_how_they_are_placed_where_that_stays_true():
    sharding = NamedSharding(mesh_of("auto").abstract_mesh, P(None, "x"))
    held = meshrt.core.types.ShapedArray((3, 8), np.dtype(np.float32))
    kind = meshrt.core.references.AbstractRef(held, placed=sharding)
    for changes in (
        {"kind": "no_grad_no_remat"},
        {"memory_space": meshrt.memory.Space.Host},
        {"dtype": np.dtype("i4")},
    ):
        assert kind.update(**changes).placed == sharding
    assert kind.update(shape=(8, 8)).placed is None
    assert kind.update(placed=None).placed is None
    assert kind.without(0).placed.spec == P("x")
    assert kind.without(1).placed is None


def _add_number_to(r):
    r[...] += meshrt.lax.axis_index("x")


def _double(r):
    assert r[...].shape == (2, 2)
    r[...] = 2 * r[...]


def test_a_jaxpr_of_a_traced_reference_is_made_again_with_the_function_around():
    mesh = mesh_of("auto")
    seen = []

    def body(r):
        core_map(mesh)(lambda: r.__setitem__(..., r[...] + meshrt.lax.axis_index("x")))

    def program(r):
        seen.append(str(meshrt.make_jaxpr(body)(r)))
        body(r)

    r = meshrt.new_ref(placed(mesh, jnp.zeros(8), P("x")))
    meshrt.jit(program)(r)
    np.testing.assert_array_equal(r[...], np.repeat(np.arange(4.0), 2))
    assert len(seen) == 1 and "in_specs=(P('x',),)" in seen[0]


def test_threads_that_call_at_once_all_hear_how_references_are_split():
    mesh, failed = mesh_of("auto"), []
    step = meshrt.jit(lambda r: core_map(mesh)(lambda: r.__setitem__(..., r[...] + meshrt.lax.axis_index("x"))))

    def call():
        r = meshrt.new_ref(placed(mesh, jnp.zeros(8), P("x")))
        try:
            step(r)
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_core_map_refuses_traced_references_that_auto_axes_may_split():
    said = r"(?s)Ref\{float32\[8\]\}.*'x' \(size 4\).*Explicit.*in_specs"
    with pytest.raises(meshrt.errors.ShardingError, match=said):
        _sums(mesh_of("auto"), "computed")


@pytest.mark.parametrize("how", ["eager", "captured", "argument"])
@pytest.mark.parametrize(("spec", "parts"), [(P("x", "y"), 1), (P(("x", "y")), 1), (P("y"), 2), (P(), 4)])
def test_core_map_over_a_mesh_of_both_types_takes_what_both_split(spec, parts, how):
    """The type of a reference says one half of how it is split."""
    types = meshrt.sharding.AxisType.Explicit, meshrt.sharding.AxisType.Auto
    mesh = meshrt.make_mesh((2, 2), ("x", "y"), axis_types=types)
    r, out = (meshrt.new_ref(placed(mesh, x, s)) for x, s in ((jnp.ones((4, 4)), spec), (jnp.zeros(()), P())))

    def total(r):
        part = r[...].sum()
        alike = tuple(sorted({"x", "y"} - meshrt.typeof(part).vma))  # counted as often as there are copies
        return meshrt.lax.psum(meshrt.lax.pcast(part, alike, to="varying") if alike else part, ("x", "y"))

    def program(r, out):
        core_map(mesh)(lambda: out.__setitem__(..., total(r)))

    if how == "argument":
        meshrt.jit(program)(r, out)
    else:
        program(r, out) if how == "eager" else meshrt.jit(lambda: program(r, out))()
    assert out[...] == 16 * parts


@pytest.mark.parametrize("around", [lambda f: f, meshrt.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("types", ["explicit", "auto"])
def test_shard_map_closes_over_references_as_over_arrays(types, around):
    """Each device has the whole, whatever axes split it outside; JAX has no answer."""
    mesh = mesh_of(types)
    r = meshrt.new_ref(placed(mesh, jnp.arange(8.0), P("x")))

    def body():
        r[...] = 2 * r[...] + r[...].size

    around(meshrt.shard_map(body, mesh=mesh, in_specs=(), out_specs=P()))()
    np.testing.assert_array_equal(r[...], 2 * np.arange(8.0) + 8)
    assert r.sharding.spec == P("x")


def test_core_map_names_the_argument_that_auto_axes_may_split():
    mesh = mesh_of("auto")

    def program(values, out):
        _sum_over_devices(mesh, values, out)

    with pytest.raises(ValueError, match="argument values of program"):
        meshrt.jit(lambda x: meshrt.jit(program)(meshrt.new_ref(x + 1), meshrt.new_ref(0.0)))(jnp.arange(8.0))


@pytest.mark.parametrize(("count", "size"), [(4, 3), (1, 8)])
def test_core_map_takes_traced_references_that_auto_axes_cannot_split(count, size):
    mesh = mesh_of("auto", count)
    r, out = (meshrt.new_ref(placed(mesh, x, P())) for x in (jnp.arange(float(size)), jnp.zeros(())))
    meshrt.jit(lambda r, out: _sum_over_devices(mesh, r, out))(r, out)
    assert out[...] == count * sum(range(size))


@pytest.mark.parametrize("how", ["eager", "jit", "disabled"])
def test_references_of_run_state_are_whole_in_core_map(how):
    mesh = mesh_of("auto")
    run = run_state(lambda refs: _sum_over_devices(mesh, *refs))
    with meshrt.disable_jit(how == "disabled"):
        found = (meshrt.jit(run) if how == "jit" else run)((placed(mesh, jnp.arange(8.0), P("x")), jnp.zeros(())))
    assert found[1] == 4 * 28


@pytest.mark.parametrize("around", [lambda f: f, meshrt.jit], ids=["eager", "jit"])
def test_references_of_run_scoped_are_whole_in_core_map(around):
    mesh = mesh_of("auto")
    out = meshrt.new_ref(placed(mesh, jnp.zeros(()), P()))

    def with_scratch(scratch):
        scratch[...] = jnp.arange(8.0)
        _sum_over_devices(mesh, scratch, out)

    around(lambda: run_scoped(with_scratch, meshrt.ShapeDtypeStruct((8,), np.float32)))()
    assert out[...] == 4 * 28


def test_002_22_run_state_core_map_and_run_scoped_compose():
    mesh = mesh_of("auto")

    def program(refs):
        x, y = refs

        @core_map(mesh)
        def _():
            def with_scratch(scratch):
                scratch[...] = x[...] * 2
                y[...] = scratch[...] + meshrt.lax.axis_size("x")

            run_scoped(with_scratch, meshrt.ShapeDtypeStruct((3,), np.float32))

    x, y = run_state(program)((jnp.arange(3.0), jnp.zeros(3)))
    np.testing.assert_array_equal(x, [0, 1, 2])
    np.testing.assert_array_equal(y, [4, 6, 8])


@pytest.mark.parametrize("interpret", [False, pltpu.InterpretParams()], ids=["loop", "simulator"])
def test_002_22_the_parts_of_a_kernel_compose_on_cores(interpret):
    """References out of arrays, cores in parallel, scratch and semaphores, copies, a pipeline: each is needed for the
    result, and the simulator refuses one that is not waited for."""
    cores = pltpu.create_tensorcore_mesh("core", num_cores=2)

    def program(refs):
        x, y = refs

        @core_map(cores, interpret=interpret)
        def _():
            core = meshrt.lax.axis_index("core")
            mine = pl.ds(4 * core, 4)

            def with_scratch(scratch, sem):
                pltpu.async_copy(x.at[mine], scratch, sem).wait()

                def body(block, out):
                    out[...] = block[...] * 10 + core + pl.program_id(0) * 100

                block = pl.BlockSpec((2,), lambda i: (i,))
                pltpu.emit_pipeline(body, grid=(2,), in_specs=[block], out_specs=[block])(scratch, y.at[mine])

            run_scoped(with_scratch, pltpu.VMEM((4,), np.float32), pltpu.SemaphoreType.DMA(()))

    jaxpr = str(meshrt.make_jaxpr(run_state(program))((jnp.arange(8.0), jnp.zeros(8))))
    assert all(f"{name}" in jaxpr for name in ("pallas_call", "dma_start", "dma_wait", "empty_ref"))
    x, y = run_state(program)((jnp.arange(8.0), jnp.zeros(8)))
    np.testing.assert_array_equal(x, np.arange(8.0))
    np.testing.assert_array_equal(y, np.arange(8.0) * 10 + [0, 0, 100, 100, 1, 1, 101, 101])


def test_core_map_gives_scratch():
    mesh = mesh_of("auto", 2)
    r = meshrt.new_ref(jnp.zeros(3))

    @core_map(mesh, scratch_shapes=[meshrt.ShapeDtypeStruct((3,), np.float32)])
    def _(scratch):
        scratch[1] = 5.0
        r[...] = scratch[...]

    np.testing.assert_array_equal(r[...], [0, 5, 0])


def test_what_core_map_refuses():
    mesh = mesh_of("auto", 2)
    r = meshrt.new_ref(jnp.zeros(3))
    with pytest.raises(ValueError, match="should not return anything"):
        core_map(mesh)(lambda: r[...])
    with pytest.raises(ValueError, match="captured no reference"):
        core_map(mesh)(lambda: None)
    with pytest.raises(TypeError, match="takes a meshrt"):
        core_map("cores")
    with pytest.raises(ValueError, match=r"varies over 'x'.*psum"):
        core_map(mesh)(lambda: r.__setitem__(0, meshrt.lax.axis_index("x").astype("float32")))


def test_references_keep_their_sharding():
    mesh = mesh_of("auto")
    r = meshrt.new_ref(placed(mesh, jnp.arange(8.0), P("x")))
    meshrt.jit(lambda r: r.__setitem__(..., r[...] + 1))(r)
    r[0] = 100.0
    meshrt.ref.addupdate(r, meshrt.ds(2, 2), jnp.ones(2))
    np.testing.assert_array_equal(r[...], [100, 2, 4, 5, 5, 6, 7, 8])
    assert r.sharding == r[...].sharding == NamedSharding(mesh, P("x"))


def test_along_explicit_axes_whole_slices_only():
    mesh = mesh_of("explicit")
    with meshrt.set_mesh(mesh):
        r = meshrt.new_ref(placed(mesh, jnp.zeros((8, 4)), P("x")))
        np.testing.assert_array_equal(r[:, 1:3].shape, (8, 2))
        with pytest.raises(TypeError, match="only be indexed by slices"):
            r[0]
        with pytest.raises(ValueError, match="sliced on axis 0, which is sharded like x"):
            r[1:3]


# ----------------------------------------------------------------------------------------------------------------------
# Scopes


def test_run_state_is_differentiated_and_mapped():
    def body(refs):
        x, y = refs
        meshrt.lax.fori_loop(0, 3, lambda i, _: y.__setitem__(i, x[i] * jnp.sin(y[i - 1] + x[i])), None)

    f = lambda x: run_state(body)((x, jnp.zeros(3)))[1].sum()

    def pure(x):
        y = jnp.zeros(3)
        for i in range(3):
            y = y.at[i].set(x[i] * jnp.sin(y[i - 1] + x[i]))
        return y.sum()

    x = jnp.array([0.3, 0.7, 1.1])
    np.testing.assert_allclose(meshrt.grad(f)(x), meshrt.grad(pure)(x), rtol=1e-5)
    np.testing.assert_allclose(meshrt.vmap(f)(jnp.stack([x, 2 * x])), [pure(x), pure(2 * x)], rtol=1e-5)


def test_what_scopes_refuse():
    with pytest.raises(ValueError, match="must return None"):
        run_state(lambda r: r[...])(jnp.zeros(3))
    with pytest.raises(ValueError, match="returned a mutable array reference"):
        run_scoped(lambda r: r, meshrt.ShapeDtypeStruct((3,), np.float32))
    with pytest.raises(NotImplementedError, match="instances of a kernel"):
        run_scoped(lambda: None, collective_axes="x")
    kept = meshrt.new_ref(1.0)
    with pytest.raises(ValueError, match=r"mutable array was made at \S+test_scopes.py:\d+ \(\w+\)\. Return"):
        meshrt.lax.scan(lambda c, x: (c, kept), 0.0, jnp.arange(3))


# ----------------------------------------------------------------------------------------------------------------------
# Programs as they are printed, their effects, and the pass


def program(r, i, x):
    r[...] = r[...] * 2
    meshrt.ref.addupdate(r, i, x)
    old = meshrt.ref.swap(r, meshrt.ds(i, 2), r[1:3])
    return old, r.at[0:2].reshape(2, 1)[...]


def test_programs_print_as_jax_prints_them():
    closed = meshrt.make_jaxpr(program)(meshrt.new_ref(jnp.zeros(4)), 1, 3.0)
    text = str(closed)
    for line in ("a:Ref{f32[4]}", "<- a[...]", "a[...] <- ", "a[b] += c", "<- a[1:3]", "<- a[:2]{reshape([2, 1])}"):
        assert line in text, text
    assert ", a[b:b+2] <- a[b:b+2], " in text
    assert effects_by_position(closed.jaxpr) == {ReadEffect(0), WriteEffect(0), AccumEffect(0)}
    assert str(sorted(effects_by_position(closed.jaxpr), key=str)) == "[Accum<0>, Read<0>, Write<0>]"
    assert any(isinstance(e, RefEffect) for e in closed.effects)


def test_accesses_print_as_in_jax():
    def accesses(library):
        def touch(r, i, x):
            library.ref.addupdate(r, i, x)
            r[1:] = r[: r.shape[0] - 1]
            r[library.ds(i, 2)] = library.ref.swap(r, library.ds(i, 2), r[0:2])
            return r[...], r.at[1:3][...], r[i]

        r = library.new_ref(np.zeros(4, np.float32))
        text = str(library.make_jaxpr(touch)(r, np.int32(1), np.float32(3)))
        return [line.strip() for line in text.split("\n") if "<-" in line or "+=" in line]

    assert accesses(meshrt) == accesses(jax)


def test_references_of_its_own_are_no_effect_of_a_program():
    closed = meshrt.make_jaxpr(lambda x: (lambda r: (r.__setitem__(0, 1.0), r[...])[1])(meshrt.new_ref(x)))(
        jnp.zeros(3)
    )
    assert effects_by_position(closed.jaxpr) == set()
    assert not any(isinstance(e, ReadEffect | WriteEffect) for e in closed.effects)


def test_the_pass_gives_a_program_over_values():
    closed = meshrt.make_jaxpr(program)(meshrt.new_ref(jnp.zeros(4)), 1, 3.0)
    pure = discharge_state(closed)
    assert "Ref" not in str(pure) and not pure.effects
    x = jnp.arange(4.0)
    old, view, final = meshrt.core.trace.eval_jaxpr(pure.jaxpr, pure.consts, [x, 1, 3.0])
    r = meshrt.new_ref(x)
    expected = program(r, 1, 3.0)
    for got, want in zip((old, view, final), (*expected, r[...])):
        np.testing.assert_array_equal(got, want)


def test_the_pass_leaves_references_that_it_is_told_to_leave():
    def copy(a, b):
        b[...] = a[...]

    refs = meshrt.new_ref(jnp.zeros(3)), meshrt.new_ref(jnp.zeros(3))
    closed = meshrt.make_jaxpr(copy)(*refs)
    assert str(discharge_state(closed, [True, False])) == (
        "{ lambda ; a:f32[3] b:Ref{f32[3]}. let b[...] <- a in (a,) }"
    )
    with pytest.raises(ValueError, match="1 flags for the 2 arguments"):
        discharge_state(closed, [True])


@pytest.mark.parametrize("caught", [ValueError, Exception, BaseException])
@pytest.mark.parametrize("inside", [lambda f: f, meshrt.jit, lambda f: lambda r: meshrt.lax.cond(True, f, f, r)])
def test_a_function_that_catches_errors_is_traced_again_all_the_same(caught, inside):
    """What is asked for of its caller is none of its errors: no handler keeps it, and no cache what handlers made."""
    mesh = mesh_of("auto")

    @inside
    def written(r):
        try:
            core_map(mesh)(lambda: r.__setitem__(..., 2 * r[...]))
        except caught:
            return 0.0
        return 1.0

    for f in (meshrt.jit(written), meshrt.jit(lambda r: written(r) + 1)):
        r = meshrt.new_ref(placed(mesh, jnp.arange(8.0), P("x")))
        assert f(r) > 0
        np.testing.assert_array_equal(r[...], 2 * np.arange(8.0))
    assert "shard_map" in str(meshrt.make_jaxpr(written)(r))


def test_a_function_may_catch_that_nobody_knows_how_a_reference_is_split():
    mesh = mesh_of("auto")

    def made_within(x, given):
        r = meshrt.new_ref(x + 1)
        try:
            core_map(mesh)(lambda: r.__setitem__(..., 2 * r[...]))
        except meshrt.errors.UnplacedReferenceError:
            return x + given[...]

    x = jnp.arange(8.0)
    np.testing.assert_array_equal(meshrt.jit(made_within)(x, meshrt.new_ref(x)), 2 * x)
