"""What libraries that keep state of their own beside traces rely on."""

import weakref

import jax
import jax.extend.core
import numpy as np
import pytest

import meshrt
import meshrt.compat.layer.core
import meshrt.experimental.hijax
import meshrt.extend.core
from tests.meshrt.library.test_declared_primitives import BOTH

ROW = np.arange(3.0, dtype=np.float32)


@pytest.mark.parametrize(
    "how", ["jit", "make_jaxpr", "eval_shape", "grad", "vmap", "checkpoint", "scan", "cond", "while"]
)
@BOTH
def test_nodes_are_made_in_the_trace_of_the_function_that_gets_them(lib, how):
    def state():
        return lib.extend.core.get_opaque_trace_state(convention="test")

    class Noted:
        def __init__(self, x):
            self.x, self.made = x, state()

    lib.tree_util.register_pytree_node(Noted, lambda n: ((n.x,), None), lambda _, children: Noted(*children))
    seen = []

    def f(n):
        seen.append(n.made == state())
        return lib.tree.map(lib.numpy.sin, n)

    one = Noted(1.0)
    calls = {
        "jit": lambda: lib.jit(f)(one),
        "make_jaxpr": lambda: lib.make_jaxpr(f)(one),
        "eval_shape": lambda: lib.eval_shape(f, one),
        "grad": lambda: lib.grad(lambda n: f(n).x)(one),
        "vmap": lambda: lib.vmap(f)(Noted(lib.numpy.asarray(ROW))),
        "checkpoint": lambda: lib.checkpoint(f)(one),
        "scan": lambda: lib.lax.scan(lambda c, _: (f(c), None), one, None, length=2),
        "cond": lambda: lib.lax.cond(True, f, f, one),
        "while": lambda: lib.lax.while_loop(lambda n: n.x < 0, f, one),
    }
    calls[how]()
    assert seen and all(seen)


@BOTH
def test_a_function_that_was_called_by_itself_is_not_traced_again_inside_another(lib):
    traced = []

    @lib.jit
    def f(x):
        traced.append(x)
        return lib.numpy.sin(x)

    f.lower(1.0), f(1.0), lib.eval_shape(f, 1.0)
    np.testing.assert_allclose(lib.jit(lambda x: f(x) * 2)(1.0), 2 * np.sin(1.0), rtol=1e-6)
    assert len(traced) == 1
    lib.jit(lambda x: f.lower(x).out_info and f(x))(ROW)
    assert len(traced) == 2


@BOTH
def test_what_no_branch_changes_is_not_mapped_by_the_choice(lib):
    def f(p, x, y):
        return lib.lax.cond(p, lambda x, y: (x, y + 1, x), lambda x, y: (x, y, y), x, y)

    out = lib.vmap(f, in_axes=(0, None, 0), out_axes=(None, 0, 0))(np.array([True, False, True]), 1.0, ROW)
    assert out[0].shape == () and out[0].weak_type
    np.testing.assert_array_equal(out[1], ROW + [1, 0, 1])
    assert len(lib.make_jaxpr(f)(True, 1.0, 2.0).eqns[-1].outvars) == 2
    kept = lib.lax.cond(True, lambda a, b: (a, b), lambda a, b: (a, b), 2, np.float32(3))
    assert [v.dtype.name for v in kept] == ["int32", "float32"] and kept[0].weak_type
    np.testing.assert_allclose(lib.grad(lambda x: lib.lax.cond(x > 0, lambda x: x, lambda x: x, x))(2.0), 1.0)
    assert lib.jit(lambda p, x: lib.lax.cond(p, lambda: x, lambda: x))(True, 2.0) == 2.0


@BOTH
def test_traces_of_a_librarys_own_look_at_operations(lib):
    core = lib.extend.core
    jax_core = jax.core if lib is jax else meshrt.compat.layer.core

    class Looker(jax_core.Tracer):
        def __init__(self, trace, value):
            super().__init__(trace, lib.typeof(value))
            self.value = value

        def full_lower(self):
            return self

    class Looking(jax_core.Trace):
        def __init__(self, parent):
            super().__init__()
            self.parent, self.seen = parent, []

        def process_primitive(self, primitive, tracers, params):
            self.seen.append(primitive.name)
            values = [t.value if isinstance(t, Looker) else t for t in tracers]
            out = primitive.bind_with_trace(self.parent, values, [lib.typeof(t) for t in tracers], params)
            return lib.tree.map(lambda v: Looker(self, v), out)

    def look(f, x):
        with core.take_current_trace() as parent:
            trace = Looking(parent)
            with core.set_current_trace(trace):
                out = f(Looker(trace, x))
            return out.value, trace.seen

    f = lambda x: lib.lax.mul(lib.lax.sin(x), x)
    out, seen = look(f, ROW)
    np.testing.assert_allclose(out, np.sin(ROW) * ROW, rtol=1e-6)
    assert seen == ["sin", "mul"]
    np.testing.assert_allclose(lib.jit(lambda x: look(f, x)[0])(ROW), out, rtol=1e-6)
    slope = lib.grad(lambda x: look(f, x)[0].sum())(ROW)
    np.testing.assert_allclose(slope, np.sin(ROW) + ROW * np.cos(ROW), rtol=1e-6)


@BOTH
def test_traced_values_can_be_referred_to_weakly(lib):
    seen = []

    def f(x):
        seen.append(weakref.ref(x)() is x)
        return x * 2.0

    lib.jit(f)(ROW), lib.vmap(f)(ROW), lib.jvp(f, (1.0,), (1.0,)), lib.grad(f)(1.0), lib.checkpoint(f)(1.0)
    assert len(seen) == 5 and all(seen)


@BOTH
def test_programs_that_walk_over_jaxprs_find_what_they_ask_for(lib):
    closed = lib.make_jaxpr(
        lambda x: lib.lax.scan(lambda c, _: (lib.jit(lib.numpy.sin)(c), None), x * ROW, None, 2)[0]
    )(1.0)
    assert (closed.invars, closed.outvars, closed.constvars) == tuple(
        getattr(closed.jaxpr, name) for name in ("invars", "outvars", "constvars")
    )
    assert closed.literals is closed.consts
    names = []

    def walk(jaxpr):
        for eqn in jaxpr.eqns:
            assert not eqn.primitive.call_primitive and not getattr(eqn.primitive, "map_primitive", False)
            names.append(eqn.primitive.name)
            inner = eqn.params.get("jaxpr")
            if inner is not None:
                assert list(inner.consts) == []
                walk(inner.jaxpr)

    walk(closed.jaxpr)
    assert names[-3:] == ["scan", "jit", "sin"]


@BOTH
def test_results_that_have_no_axis_and_differ_are_named(lib):
    f = lambda x: {"a": x, "b": (x,)}
    with pytest.raises(
        ValueError, match=r"at vmap out_axes\['b'\]\[0\], got axis spec None but output was batched on axis 0"
    ):
        lib.vmap(f, out_axes={"a": 0, "b": None})(ROW)
    with pytest.raises(ValueError, match=r"vmap has mapped output \(axis_name=k\) but out_axes is None"):
        lib.vmap(f, out_axes=None, axis_name="k")(ROW)
    assert lib.vmap(f, out_axes=None, sum_match=True)(ROW)["b"][0] == 3.0


@BOTH
def test_what_wraps_a_reference_is_none(lib):
    class Box:
        def __init__(self, value):
            self.value = value

        def __getattr__(self, name):
            return getattr(object.__getattribute__(self, "value"), name)

        def __jax_array__(self):
            return self.value[...]

    ref, seen = lib.new_ref(1.0), []
    lib.jit(lambda r: seen.append([isinstance(x, lib.Ref) for x in (r, Box(r))]))(ref)
    seen.append([isinstance(x, lib.Ref) for x in (ref, Box(ref))])
    assert seen == [[True, False], [True, False]]
    assert not isinstance(lib.typeof(1.0), lib.ref.AbstractRef) and isinstance(lib.typeof(ref), lib.ref.AbstractRef)


def test_the_type_state_of_a_mutable_value_can_be_asked_for():
    box, seen = meshrt.experimental.hijax.Box(1.0), []
    ask = meshrt.experimental.cur_qdd

    def write(box, x):
        seen.append(ask(box).leaf_avals)
        box.set((x, x))
        seen.append(ask(box).leaf_avals)

    meshrt.jit(write)(box, ROW)
    assert [[a.shape for a in avals] for avals in (*seen, ask(box).leaf_avals)] == [[()], [(3,)] * 2, [(3,)] * 2]
    with pytest.raises(TypeError, match="mutable types"):
        ask(1.0)
