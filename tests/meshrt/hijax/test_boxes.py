"""Boxes: counters, statistics and lists of what functions do, inside of all that takes functions."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.experimental.hijax import Box, box_get, new_box
from meshrt.experimental.hijax.quantized import quantize

plain_or_jitted = pytest.mark.parametrize("wrap", [lambda f: f, meshrt.jit], ids=["plain", "jit"])


def test_a_jitted_function_is_traced_once_per_state():
    box, traced = Box(None), []

    @meshrt.jit
    def grow():
        traced.append(1)
        held = box.get()
        box.set(0 if held is None else held + 1)

    for want in (0, 1, 2, 3):
        grow()
        assert box.get() == want
    count = len(traced)
    box.set(None)
    grow()
    grow()
    assert box.get() == 1 and len(traced) == count
    box.set(0.5)
    grow()
    assert box.get() == 1.5 and len(traced) == count + 1


def test_lists_grow_while_a_function_is_traced():
    log = Box([])

    def layer(x):
        x = jnp.tanh(x)
        log.set([*log.get(), x])
        return x

    deep = meshrt.jit(lambda x: meshrt.jit(layer)(meshrt.jit(layer)(x)))
    y = deep(0.5)
    np.testing.assert_allclose(log.get(), [np.tanh(0.5), y], rtol=1e-6)


@plain_or_jitted
def test_loops_carry_what_boxes_hold(wrap):
    total = Box(0.0)

    def body(c, x):
        total.set(total.get() + x * c)
        return c * 2, x

    last, _ = wrap(lambda xs: lax.scan(body, 1.0, xs))(jnp.arange(3.0))
    assert last == 8.0 and total.get() == 10.0
    wrap(lambda: lax.while_loop(lambda i: i < 2, lambda i: (total.set(total.get() / 2), i + 1)[1], 0))()
    assert total.get() == 2.5
    wrap(lambda: lax.fori_loop(0, 2, lambda i, c: (total.set(total.get() + i), c)[1], 0))()
    assert total.get() == 3.5
    seen = wrap(
        lambda limit: lax.while_loop(lambda i: total.get() < limit, lambda i: (total.set(total.get() * 2), i + 1)[1], 0)
    )
    assert seen(20.0) == 3 and total.get() == 28.0


def test_the_derivative_of_a_loop_goes_through_boxes():
    def f(x):
        state = Box(x)
        lax.scan(lambda c, _: (state.set(state.get() * x), (c, None))[1], 0, None, length=2)
        return state.get()

    for run in (f, meshrt.jit(f), meshrt.checkpoint(f)):
        assert meshrt.grad(run)(2.0) == 12.0  # of x**3
        np.testing.assert_allclose(meshrt.vmap(run)(jnp.arange(3.0)), [0, 1, 8])
        np.testing.assert_allclose(meshrt.vmap(meshrt.grad(run))(jnp.arange(3.0)), [0, 3, 12])


@plain_or_jitted
def test_branches(wrap):
    box = Box(1.0)
    f = wrap(lambda p: lax.cond(p, lambda: box.set(box.get() + 1), lambda: None))
    f(True)
    f(False)
    assert box.get() == 2.0
    different = wrap(lambda p: lax.cond(p, lambda: box.set(jnp.ones(3)), lambda: None))
    with pytest.raises(TypeError, match=r"branches of a cond.*f(32|64)\[3\]"):
        different(True)


def test_loops_keep_the_types_of_what_boxes_hold():
    box = Box([1.0])
    with pytest.raises(TypeError, match="type-changing mutations not allowed in the body of while_loop"):
        lax.while_loop(lambda i: i < 5, lambda i: (box.set(box.get() * 2), i + 1)[1], 0)
    with pytest.raises(TypeError, match="type-changing mutations not allowed in the body of scan"):
        lax.scan(lambda c, _: (box.set([*box.get(), 2.0]), (c, None))[1], 0, None, length=2)


@plain_or_jitted
def test_tangents_go_to_tangent_boxes(wrap):
    box, tangent = Box(5.0), Box(1.0)
    f = wrap(lambda box, x: (box.set(box.get() * x), x)[1])
    assert meshrt.jvp(f, (box, 2.0), (tangent, 1.0)) == (2.0, 1.0)
    assert box.get() == 10.0 and tangent.get() == 7.0


def test_boxes_under_vmap():
    shared = Box(0.0)
    meshrt.vmap(lambda x: shared.set(1.0))(jnp.arange(3.0))
    assert shared.get() == 1.0
    with pytest.raises(ValueError, match="differs between the 3 members"):
        meshrt.vmap(lambda x: shared.set(x))(jnp.arange(3.0))
    nested = meshrt.vmap(meshrt.vmap(lambda x: Box({"a": x}).get()["a"] * 2))
    np.testing.assert_allclose(nested(jnp.ones((2, 3))), 2 * np.ones((2, 3)))


def test_boxes_in_manual_regions():
    mesh = meshrt.make_mesh((2,), ("x",), (meshrt.sharding.AxisType.Auto,))
    P, total = meshrt.P, Box(0.0)

    def body(x):
        total.set(total.get() + lax.psum(x.sum(), "x"))
        return 2 * x

    f = meshrt.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    for run, want in ((f, 6.0), (meshrt.jit(f), 12.0)):
        np.testing.assert_allclose(run(jnp.arange(4.0)), [0, 2, 4, 6])
        assert total.get() == want
    with pytest.raises(ValueError, match="differs between devices along 'x'"):
        meshrt.shard_map(lambda x: (total.set(x.sum()), x)[1], mesh=mesh, in_specs=P("x"), out_specs=P("x"))(
            jnp.ones(2)
        )


def test_one_box_is_one_argument():
    box = Box(1.0)
    with pytest.raises(ValueError, match=r"twice, as args\[0\] and as args\[1\]\['b'\]"):
        meshrt.jit(lambda a, d: a.set(d["b"].get()))(box, {"b": box})
    with pytest.raises(ValueError, match="and as a value that the function closes over"):
        meshrt.jit(lambda a: a.set(box.get()))(box)


def test_stages_take_boxes():
    box = Box(1.0)
    f = meshrt.jit(lambda box, x: box.set(box.get() + x))
    compiled = f.lower(box, 2.0).compile()
    compiled(box, 2.0)
    compiled(box, 3.0)
    assert box.get() == 6.0 and "stablehlo.add" in f.lower(box, 2.0).as_text()
    closed = meshrt.jit(lambda x: box.set(box.get() * x))
    closed.lower(2.0).compile()(2.0)
    assert box.get() == 12.0


def test_a_box_is_one_wherever_it_is():
    assert isinstance(Box(), Box) and not isinstance(1.0, Box)
    meshrt.jit(lambda: None if isinstance(new_box(), Box) else 1 / 0)()
    assert box_get(Box({"a": 1.0})) == {"a": 1.0} and repr(Box(1)) == "Box(1)"


@plain_or_jitted
def test_backward_rules_may_grow_lists(wrap):
    """Each call finds the box in another state, and no program of an earlier one is taken for it."""
    seen = Box([])

    @meshrt.custom_vjp
    def watch(x):
        return x

    watch.defvjp(lambda x: (x, None), lambda _, g: (seen.set([*seen.get(), g]), (g,))[1])
    slope = wrap(meshrt.grad(meshrt.jit(lambda x: 2 * watch(x))))
    for count in (1, 2, 3):
        assert slope(1.0) == 2.0 and seen.get() == [2.0] * count


def test_second_derivatives_through_a_compiled_write():
    def cubed(x):
        box = Box(x)
        meshrt.jit(lambda b, y: b.set(b.get() * y * y))(box, x)
        return box.get()

    tangent = lambda f: lambda x: meshrt.jvp(f, (x,), (1.0,))[1]
    assert tangent(cubed)(2.0) == 12
    assert tangent(tangent(cubed))(2.0) == meshrt.jit(tangent(tangent(cubed)))(2.0) == 12
    assert tangent(tangent(tangent(cubed)))(2.0) == 6


@pytest.mark.parametrize(
    ("run", "where"),
    [
        (lambda box: meshrt.jit(lambda: box)(), "traced for jit returned a mutable value of type Box .*path result,"),
        (lambda box: meshrt.jit(lambda b: {"box": b})(box), r"path result\['box'\]"),
        (lambda box: meshrt.jit(lambda x: Box(x))(2.0), "traced for jit"),
        (lambda box: meshrt.jit(lambda x: meshrt.jit(lambda y: Box(y))(x).get() * 2)(3.0), "traced for jit"),
        (lambda box: lax.cond(True, lambda: Box(1.0), lambda: Box(2.0)), "traced for cond"),
        (lambda box: lax.scan(lambda c, x: (c, Box(x)), 0, jnp.arange(3.0)), r"traced for scan .*path result\[1\]"),
        (lambda box: meshrt.checkpoint(lambda x: Box(x))(1.0), "traced for checkpoint"),
        (lambda box: manual(lambda x: Box(x))(jnp.arange(4.0)), "traced for shard_map"),
    ],
)  # fmt: skip
def test_boxes_are_no_results_of_programs(run, where):
    """What came back would be another box than the one that the caller has, or than the one that was returned twice."""
    with pytest.raises(ValueError, match=where):
        run(Box(1.0))


def manual(f, in_specs=None):
    mesh = meshrt.make_mesh((2,), ("x",), (meshrt.sharding.AxisType.Auto,))
    return meshrt.shard_map(f, mesh=mesh, in_specs=in_specs or meshrt.P("x"), out_specs=meshrt.P("x"))


@plain_or_jitted
def test_loops_carry_boxes_themselves(wrap):
    add = lambda box, n: (box.set(box.get() + n), box)[1]
    loops = [
        lambda box: lax.scan(lambda c, n: ((c[0] + 1, add(c[1], n)), None), (0, box), jnp.arange(3))[0],
        lambda box: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, add(c[1], c[0])), (0, box)),
        lambda box: (3, lax.fori_loop(0, 3, lambda i, b: add(b, i), box)),
    ]
    for loop in loops:
        box = Box(0)
        f = lambda box, loop=loop: (lambda count, carried: (count, carried is box, carried.get()))(*loop(box))
        count, same, held = wrap(f)(box)
        assert (count, same, held, box.get()) == (3, True, 3, 3)
    other = Box(1.0)
    with pytest.raises(ValueError, match=r"scan: the body returns .* where it was given .*Box"):
        lax.scan(lambda c, _: (other, None), Box(0.0), None, length=2)


def test_a_manual_region_takes_boxes_as_those_it_closes_over():
    box, whole = Box(0.0), (meshrt.P(), meshrt.P("x"))
    body = lambda b, x: (b.set(b.get() + lax.psum(x.sum(), "x")), x)[1]
    for run, want in ((manual(body, whole), 6.0), (meshrt.jit(manual(body, whole)), 12.0)):
        np.testing.assert_allclose(run(box, jnp.arange(4.0)), np.arange(4.0))
        assert box.get() == want
    with pytest.raises(ValueError, match=r"args\[0\] .* mutable value of type Box\{f32\[\]\}, and in_specs split it"):
        manual(body, (meshrt.P("x"), meshrt.P("x")))(box, jnp.arange(4.0))


def test_shardings_of_arguments_say_nothing_of_boxes_that_are_closed_over():
    mesh = meshrt.make_mesh((2,), ("x",), (meshrt.sharding.AxisType.Auto,))
    count, rows = Box(0), meshrt.NamedSharding(mesh, meshrt.P("x"))
    f = meshrt.jit(lambda x: (count.set(count.get() + 1), 2 * x)[1], in_shardings=(rows,), out_shardings=rows)
    f(f(jnp.arange(4.0)))
    assert count.get() == 2
    meshrt.pmap(lambda x: (count.set(count.get() + 1), x)[1])(jnp.arange(2.0))
    assert count.get() == 3


def test_a_box_in_a_box_is_written_to_under_its_own_name():
    inner = Box(1.0)
    outer = Box([inner])
    assert meshrt.jit(lambda: outer.get()[0].get() * 2)() == 2.0
    with pytest.raises(NotImplementedError, match="pass the inner Box as an argument"):
        meshrt.jit(lambda: outer.get()[0].set(5.0))()
    outer.get()[0].set(3.0)
    meshrt.jit(lambda: inner.set(inner.get() * 2))()
    assert outer.get()[0].get() == 6.0
    with pytest.raises(ValueError, match="put into itself"):
        inner.set([outer])


def test_structures_that_branches_leave_are_told_apart():
    with pytest.raises(TypeError, match=r"Box\{f32\[\]\} in PyTreeDef.* and Box\{f32\[\]\} in PyTreeDef"):
        box = Box(1.0)
        lax.cond(True, lambda: box.set((1.0,)), lambda: box.set([1.0]))


def test_messages_tell_types_apart_that_look_alike():
    def loop(x):
        box = Box(x)
        lax.while_loop(lambda c: c < 3, lambda c: (box.set({"a": 1}), c + 1)[1], 0)

    with pytest.raises(errors.ArgumentTypeError) as caught:
        meshrt.jit(loop)({"b": 1})
    for one in ("enters it as Box{i32[]} in PyTreeDef({'b': *})", "leaves it as Box{i32[]} in PyTreeDef({'a': *})"):
        assert one in str(caught.value)
    with meshrt.set_mesh(meshrt.make_mesh((8,), ("x",))):
        plain = quantize(jnp.ones((8, 8)))
        split = quantize(meshrt.device_put(jnp.ones((8, 8)), meshrt.P("x")))
        calls = (
            lambda: lax.scan(lambda c, _: (split, None), plain, length=2),
            lambda: lax.cond(True, lambda: plain, lambda: split),
        )
        for call in calls:
            with pytest.raises(errors.ArgumentTypeError) as caught:
                call()
            assert "q8[8,8] of int8[8,8], float32[8] but" in str(caught.value)
            assert "q8[8,8] of int8[8@x,8], float32[8@x], so the types do not match" in str(caught.value)


@pytest.mark.parametrize("name", ["checkpoint", "jit", "cond", "scan"])
def test_a_box_of_a_mapped_function_is_one_member_s_for_the_functions_that_close_over_it(name):
    """Also where the mapped function is traced, so that the box is a variable of the program around."""

    def apply(f, x):
        if name == "cond":
            return lax.cond(x.sum() > -9, f, f, x)
        if name == "scan":
            return lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]
        return {"checkpoint": meshrt.checkpoint, "jit": meshrt.jit}[name](f)(x)

    def member(x):
        box = Box(x / 2)

        def f(x):
            box.set(box.get() + x)
            return x + box.get() / 10

        return apply(f, x) + box.get()

    x = jnp.arange(6.0).reshape(2, 3)
    want = x + 1.5 * x / 10 + 1.5 * x
    for run in (meshrt.vmap(member), meshrt.jit(meshrt.vmap(member))):
        np.testing.assert_allclose(run(x), want, rtol=1e-6)
        np.testing.assert_allclose(meshrt.jit(meshrt.grad(lambda x, run=run: run(x).sum()))(x), np.full((2, 3), 2.65))
        np.testing.assert_allclose(meshrt.jit(lambda x, run=run: meshrt.jvp(run, (x,), (x,))[1])(x), want, rtol=1e-6)
