"""What is said of high types, statement by statement (numbers 000-01 to 000-18)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.experimental.hijax as jax_hijax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.core.checking import check
from meshrt.core.jaxpr import Jaxpr
from meshrt.core.trace import EVAL, JaxprTrace, eval_jaxpr
from meshrt.errors import JaxprTypeError
from meshrt.experimental import hijax
from meshrt.experimental.hijax import Box, HiPrimitive, HiType, ShapedArray, VJPHiPrimitive, lower_to_lojax
from meshrt.experimental.hijax.quantized import QArray, QMapping, QSpec, QType, dequantize, quantize, quantized_matmul
from meshrt.experimental.hijax.tuples import TupleMapping, TuplePspec, element, tuple_of
from meshrt.primitives.call import jit_p
from meshrt.primitives.control_scan import scan_p
from meshrt.transforms.batching import BatchTrace, MappedAxis
from meshrt.transforms.jvp import JVPTrace
from meshrt.transforms.linear import LinearTrace

W = np.random.RandomState(0).randn(4, 3).astype(np.float32)
X = np.random.RandomState(1).randn(2, 4).astype(np.float32)
plain_or_jitted = pytest.mark.parametrize("wrap", [lambda f: f, meshrt.jit], ids=["plain", "jit"])


def close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-6)


def test_000_01_programs_without_high_types_are_what_they_were():
    f = lambda x: lax.scan(lambda c, _: (meshrt.jit(jnp.sin)(c), c), x, None, length=2)
    closed = meshrt.make_jaxpr(f)(1.0)
    assert not closed.is_high and lower_to_lojax(closed) is closed and "high" not in str(closed)


def test_000_02_whether_an_application_is_high_is_asked_of_few_primitives(monkeypatch):
    """One attribute of an ordinary primitive: it has no `to_lojax`."""
    from meshrt.core.primitive import Primitive

    asked = []
    ask = Primitive.is_high
    monkeypatch.setattr(Primitive, "is_high", lambda self, *a, **p: asked.append(self) or ask(self, *a, **p))
    meshrt.make_jaxpr(lambda x: jnp.sin(x) * 2 + x)(1.0)
    assert asked == []


@plain_or_jitted
def test_000_03_the_backward_pass_gets_the_box_that_jit_took(wrap):
    box = Box(0.0)
    h = wrap(lambda box, x: (box.set(lax.stop_gradient(3 * x)), box.get() * x)[1])
    assert meshrt.grad(partial(h, box))(2.0) == 6.0 and box.get() == 6.0

    @meshrt.custom_vjp
    def note_cotangent(box, x):
        return x

    note_cotangent.defvjp(lambda box, x: (x, box), lambda box, g: (box.set(g), (None, g))[1])
    meshrt.grad(partial(wrap(lambda box, x: 2 * note_cotangent(box, 3 * x)), box))(1.0)
    assert box.get() == 2.0


def test_000_04_every_trace_says_what_it_requires():
    recording = JaxprTrace(requires_low=False)
    assert EVAL.requires_low and JaxprTrace().requires_low and not recording.requires_low
    for trace in (JVPTrace(EVAL), LinearTrace(EVAL), BatchTrace(EVAL, MappedAxis(2))):
        assert not trace.requires_low


def test_000_05_programs_say_whether_they_are_high_and_are_checked_for_it():
    q = quantize(W)
    closed = meshrt.make_jaxpr(quantized_matmul)(X, q)
    assert closed.is_high and str(closed).startswith("{ high lambda") and "q8[4,3]" in str(closed)
    check(closed)
    low = lower_to_lojax(closed)
    assert not low.is_high and [a.short() for a in low.in_avals] == ["f32[2,4]", "i8[4,3]", "f32[4]"]
    check(low)
    j = closed.jaxpr
    unmarked = Jaxpr((), j.invars, j.outvars, j.eqns, effects=j.effects)
    unmarked.is_high = False
    with pytest.raises(JaxprTypeError, match="not marked as high"):
        check(unmarked)


def test_000_06_a_program_records_the_final_types_of_boxes():
    box = Box(1.0)
    f = meshrt.jit(lambda box, x: box.set({"a": box.get() * x, "b": x}))
    jaxpr = meshrt.make_jaxpr(f)(box, 2.0).jaxpr
    (final,) = jaxpr.mut_types.values()
    assert final.state.treedef == meshrt.tree.structure({"a": 0, "b": 0})
    assert f"leaving a:{final}" in str(jaxpr) and str(final).startswith("Box{f")
    f(box, 2.0)
    assert box.get() == {"a": 2.0, "b": 2.0}


def test_000_07_types_say_whether_their_values_are_mutable():
    assert hijax.BoxTy.mutable and not hijax.HiType.mutable and not ShapedArray((), np.float32).mutable
    assert meshrt.make_jaxpr(lambda x: x)(quantize(W)).jaxpr.mut_types == {}


class TakesTypes(HiPrimitive):
    def is_high(self, *avals, **params):
        return any(a.is_high for a in avals)

    def abstract_eval(self, x):
        return x, set()

    def to_lojax(self, x):
        return x


class TakesParameters(TakesTypes):
    def is_high(self, **params):
        return True


def test_000_08_whether_an_application_is_high_depends_on_its_parameters():
    high = meshrt.make_jaxpr(quantized_matmul)(X, quantize(W)).jaxpr
    low = meshrt.make_jaxpr(lambda x: x * 2)(1.0).jaxpr
    assert jit_p.is_high(jaxpr=high, name="f") and not jit_p.is_high(jaxpr=low, name="f")
    assert scan_p.is_high(jaxpr=high) and not scan_p.is_high(jaxpr=low)
    number, by_types, by_parameters = ShapedArray((), np.float32), TakesTypes("p"), TakesParameters("p")
    assert not by_types.is_high(number) and by_types.is_high(meshrt.typeof(quantize(W)))
    assert by_parameters.is_high(number) and by_parameters.bind(3.0) == 3.0  # the other form of the method


def test_000_09_and_10_applications_are_lowered_where_low_types_are_required():
    q = quantize(W)
    body = lambda c, q: (jnp.tanh(quantized_matmul(c, q)[:, :3] @ np.ones((3, 4), np.float32)), None)
    stack = QArray(jnp.stack([q.values] * 2), jnp.stack([q.scales] * 2))
    program = meshrt.make_jaxpr(lambda x, s: lax.scan(body, x, s, length=2)[0])(X, stack)
    assert [e.primitive.name for e in program.eqns] == ["scan"] and program.is_high
    low = lower_to_lojax(program)
    assert not low.is_high and [e.primitive.name for e in low.eqns] == ["scan"]
    arrays = [X, stack.values, stack.scales]
    close(eval_jaxpr(low.jaxpr, low.consts, arrays)[0], lax.scan(body, X, stack, length=2)[0])


def calls_of_high_functions():
    """By primitive a function of a quantized matrix that applies it to a program over such."""
    twice = lambda q: quantize(2 * dequantize(q))
    own = meshrt.custom_vjp(twice)
    own.defvjp(lambda q: (twice(q), None), lambda _, ct: (2 * ct,))
    forward = meshrt.custom_jvp(twice)
    forward.defjvp(lambda p, t: (twice(*p), 2 * t[0]))
    mesh = meshrt.make_mesh((2,), ("x",), (meshrt.sharding.AxisType.Auto,))
    spec = QSpec("x", None)
    return {
        "jit": meshrt.jit(twice), "checkpoint": meshrt.checkpoint(twice), "custom_vjp_call": own,
        "custom_jvp_call": forward, "cond": lambda q: lax.cond(q.values[0, 0] < 200, twice, lambda q: q, q),
        "while": lambda q: lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, twice(c[1])), (0, q))[1],
        "scan": lambda q: lax.scan(lambda c, _: (twice(c), None), q, None, length=1)[0],
        "shard_map": meshrt.shard_map(twice, mesh=mesh, in_specs=spec, out_specs=spec),
    }  # fmt: skip


PRINTED = {"checkpoint": "remat2"}  # as JAX does
CALLS = ["jit", "checkpoint", "custom_vjp_call", "custom_jvp_call", "cond", "while", "scan", "shard_map"]


@pytest.mark.parametrize("name", CALLS)
def test_000_09_and_16_each_primitive_with_programs_inside_is_high_and_becomes_one_over_arrays(name):
    f, q = calls_of_high_functions()[name], quantize(W)
    pick = lambda q: f(q) if name != "cond" else lax.cond(True, lambda q: quantize(2 * dequantize(q)), lambda q: q, q)
    program = meshrt.make_jaxpr(pick)(q)
    (eqn,) = [e for e in program.eqns if e.primitive.name == PRINTED.get(name, name)] or [None]
    assert program.is_high and program.in_avals == program.out_avals == [meshrt.typeof(q)] and eqn is not None
    low = lower_to_lojax(program)
    kinds = meshrt.typeof(q).lo_ty()
    assert not low.is_high and [a.strong() for a in low.in_avals] == kinds == [a.strong() for a in low.out_avals]
    want = 2 * dequantize(q)
    close(dequantize(QArray(*meshrt.jit(lambda *xs: eval_jaxpr(low.jaxpr, low.consts, xs))(q.values, q.scales))), want)
    for run in (pick, meshrt.jit(pick)):
        close(dequantize(run(q)), want)
        # Twice the straight-through derivative, forward and backward, alone and mapped.
        weigh = lambda q, run=run: (dequantize(run(q)) * W).sum()
        if name != "while":
            close(meshrt.grad(weigh)(q), 2 * W)
        if name != "custom_vjp_call":
            close(meshrt.jvp(weigh, (q,), (jnp.ones_like(W),))[1], 2 * W.sum())
    stack = QArray(jnp.stack([q.values] * 2), jnp.stack([q.scales] * 2))
    mapped = meshrt.vmap(lambda q: dequantize(pick(q)), in_axes=QMapping(), axis_size=2)(stack)
    close(mapped, np.stack([want] * 2))


def test_000_11_a_jitted_function_shows_both_programs():
    traced = meshrt.jit(quantized_matmul).trace(X, quantize(W))
    assert traced.jaxpr.is_high and not traced.lojax.jaxpr.is_high and traced.lojax.lojax.jaxpr is traced.lojax.jaxpr


# What statement 000-12 lists, of all versions.
NAMES = [
    "HiType", "HiPrimitive", "VJPHiPrimitive", "register_hitype", "HiPspec", "MappingSpec", "AbstractValue",
    "ShapedArray", "aval_method", "aval_property", "Zero", "instantiate_zeros", "is_undefined_primal", "GradAccum",
    "NullAccum", "RefAccum", "ValAccum", "jvp_from_lin", "linearize_from_jvp", "vjp_from_jvp", "vjp_from_lin",
    "control_flow_allowed_effects", "AbstractRef", "TransformedRef", "HiPrim", "vmap_rule", "unmap_avals",
    "bdims_at_front", "MutableHiType", "AvalQDD", "AvalMutableQDD", "Box", "BoxTy", "new_box", "box_get", "box_set",
]  # fmt: skip


def test_000_12_names():
    here = {n for n in dir(jax_hijax) if not n.startswith("_")}
    assert {n for n in {*NAMES, *here} if not hasattr(hijax, n)} == set()
    assert set(NAMES) <= set(hijax.__all__) and all(hasattr(hijax, n) for n in hijax.__all__)
    methods = "lo_ty lower_val raise_val to_tangent_aval to_ct_aval vspace_zero vspace_add dec_rank inc_rank "
    methods += "leading_axis_spec shard unshard nospec"
    assert all(callable(getattr(hijax.HiType, m)) for m in methods.split())
    of_mutable = "lo_ty_qdd new_from_loval read_loval update_from_loval"
    assert all(callable(getattr(hijax.MutableHiType, m)) for m in of_mutable.split())
    rules = "expand vjp_fwd vjp_bwd vjp_bwd_retval jvp lin linearized transpose batch dce remat check"
    for kind in (hijax.VJPHiPrimitive, hijax.HiPrim):
        assert all(callable(getattr(kind, m)) for m in rules.split())
    with pytest.raises(AttributeError):
        _ = hijax.no_such_name


def test_000_13_missing_methods_are_named_with_their_type():
    class Bare(HiType):
        pass

    calls = {
        "lo_ty": lambda t: t.lo_ty(), "lower_val": lambda t: t.lower_val(0), "raise_val": lambda t: t.raise_val(),
        "to_tangent_aval": lambda t: t.to_tangent_aval(), "vspace_zero": lambda t: t.vspace_zero(),
        "vspace_add": lambda t: t.vspace_add(0, 0), "dec_rank": lambda t: t.dec_rank(2, None),
        "inc_rank": lambda t: t.inc_rank(2, None), "leading_axis_spec": lambda t: t.leading_axis_spec(),
        "shard": lambda t: t.shard(0, 0, 0, 0), "unshard": lambda t: t.unshard(0, 0, 0),
        "nospec": lambda t: t.nospec(0, 0, 0),
    }  # fmt: skip
    for method, call in calls.items():
        with pytest.raises(NotImplementedError, match=f"Bare.* to implement the `{method}` method"):
            call(Bare())


def test_000_14_vmap_over_high_types_takes_specs():
    pair = tuple_of(jnp.arange(3.0), jnp.ones((2, 3)))
    both = lambda t: element(t, 0) + element(t, 1).sum()
    close(meshrt.vmap(both, in_axes=TupleMapping((0, 1)), axis_size=3)(pair), [2.0, 3.0, 4.0])
    shared = lambda t: tuple_of(element(t, 1), element(t, 0))
    out = meshrt.vmap(shared, in_axes=TupleMapping((0, None)), out_axes=TupleMapping((None, 0)), axis_size=3)(pair)
    close(out.elements[1], jnp.arange(3.0))
    with pytest.raises(ValueError, match="non-array type"):
        meshrt.vmap(both, axis_size=3)(pair)


class Cube(VJPHiPrimitive):
    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        super().__init__()

    def expand(self, x):
        return x**3

    def jvp(self, primals, tangents):
        (x,), (t,) = primals, tangents
        return self(x), 3 * x**2 * hijax.instantiate_zeros(t)

    lin, linearized = hijax.linearize_from_jvp, hijax.apply_derived_linearization
    vjp_fwd, vjp_bwd_retval = hijax.vjp_fwd_from_jvp, hijax.transpose_jvp

    def batch_dim_rule(self, axis_data, dims):
        return dims[0]


@plain_or_jitted
def test_000_15_operations_with_derived_rules(wrap):
    f = wrap(lambda x: Cube(meshrt.typeof(x))(x))
    assert f(2.0) == 8.0 and meshrt.grad(f)(2.0) == 12.0 and meshrt.grad(meshrt.grad(f))(2.0) == 12.0
    assert meshrt.jvp(f, (2.0,), (1.0,)) == (8.0, 12.0) and meshrt.linearize(f, 2.0)[1](1.0) == 12.0
    xs = jnp.arange(3.0)
    close(meshrt.vmap(f)(xs), xs**3)
    close(meshrt.vmap(meshrt.grad(f))(xs), 3 * xs**2)
    close(meshrt.grad(lambda xs: meshrt.vmap(f)(xs).sum())(xs), 3 * xs**2)
    close(meshrt.hessian(f)(2.0), 12.0)
    assert meshrt.grad(meshrt.checkpoint(f))(2.0) == 12.0


def test_000_15_what_a_class_lacks_is_named():
    class Partly(VJPHiPrimitive):
        expand = lambda self, x: x

        def __init__(self, aval):
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            super().__init__()

    call = lambda x: Partly(meshrt.typeof(x))(x)
    for run, words in (
        (meshrt.grad, "Partly'> must implement `vjp_fwd`.*vjp_fwd_from_jvp"),
        (lambda f: lambda x: meshrt.linearize(f, x), "`lin`.*linearize_from_jvp"),
        (lambda f: lambda x: meshrt.jvp(f, (x,), (x,)), "`jvp`"),
        (lambda f: lambda x: meshrt.vmap(f)(x[None]), "`batch`"),
    ):
        with pytest.raises(NotImplementedError, match=words):
            run(call)(jnp.float32(1))

    class Both(Partly):
        def vjp_bwd(self, res, g, acc):
            pass

        def vjp_bwd_retval(self, res, g):
            pass

    class Unset(VJPHiPrimitive):
        pass

    for make, words in ((lambda: Both(meshrt.typeof(1.0)), "both `vjp_bwd`"), (Unset, "in_avals")):
        with pytest.raises(AttributeError, match=words):
            make()


def run_everywhere(f, x):
    """`f` under each of what takes functions."""
    scanned = lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]
    looped = lambda x: lax.fori_loop(0, x.shape[0] // 2, lambda _, c: f(c), x)
    chosen = lambda x: lax.cond(x.sum() > -1e9, f, lambda x: x, x)
    mesh = meshrt.make_mesh((2,), ("x",), (meshrt.sharding.AxisType.Auto,))
    P = meshrt.P
    sharded = meshrt.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    return {"jit": meshrt.jit(f), "checkpoint": meshrt.checkpoint(f), "scan": scanned, "fori": looped, "cond": chosen,
            "shard_map": sharded}  # fmt: skip


def test_000_16_high_types_inside_of_everything():
    through = lambda x: element(tuple_of(jnp.sin(x), x), 0) * 2
    x = np.linspace(0, 1, 2, dtype=np.float32)
    for name, f in run_everywhere(through, x).items():
        for run in (f, meshrt.jit(f)):
            close(run(x), 2 * np.sin(x))
            close(meshrt.grad(lambda x, run=run: run(x).sum())(x), 2 * np.cos(x)), name


def test_000_16_high_arguments_and_results():
    q = quantize(W)
    want = np.asarray(dequantize(q))
    again = lambda q: quantize(dequantize(q))
    for f in (meshrt.jit(again), meshrt.checkpoint(again), lambda q: lax.cond(True, again, lambda q: q, q),
              lambda q: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, again(c[1])), (0, q))[1]):  # fmt: skip
        out = f(q)
        assert type(out) is QArray and meshrt.typeof(out) == meshrt.typeof(q)
        close(dequantize(out), want)
    assert meshrt.eval_shape(again, q) == meshrt.eval_shape(meshrt.jit(again), q) == meshrt.typeof(q)


def test_000_17_boxes_take_tangents_along():
    """Where JAX asks for stop_gradient or has no rule."""
    sine = lambda x: jnp.sin(Box(x).get())
    for f in (sine, meshrt.jit(sine), meshrt.checkpoint(sine), meshrt.jit(lambda x: meshrt.jit(sine)(x))):
        close(meshrt.grad(f)(2.0), np.cos(2.0))
        close(meshrt.vmap(f)(jnp.arange(3.0)), np.sin(np.arange(3.0)))
        close(meshrt.vmap(meshrt.grad(f))(jnp.arange(3.0)), np.cos(np.arange(3.0)))
    outside = Box(0.0)

    def through(x):
        outside.set(x * x)
        return outside.get() * x

    for f in (through, meshrt.jit(through)):
        assert meshrt.grad(f)(2.0) == 12.0 and outside.get() == 4.0


def test_000_18_shardings_of_high_values():
    mesh = meshrt.make_mesh((2, 2), ("x", "y"), (meshrt.sharding.AxisType.Auto,) * 2)
    spec = QSpec("x", "y")
    parts = [meshrt.NamedSharding(mesh, s) for s in spec.to_lo()]
    whole = meshrt.NamedSharding(mesh, meshrt.P())
    q = quantize(np.ones((4, 2), np.float32))
    for put in (meshrt.device_put(q, whole), meshrt.jit(lambda q: q, in_shardings=whole, out_shardings=whole)(q)):
        assert type(put) is QArray and put.values.sharding == put.scales.sharding == whole
    rows = meshrt.jit(meshrt.shard_map(lambda q: q, mesh=mesh, in_specs=spec, out_specs=spec))(q)
    assert [a.sharding for a in (rows.values, rows.scales)] == parts
    close(dequantize(rows), np.ones((4, 2)))
    pair = tuple_of(jnp.arange(4.0), jnp.arange(2.0))
    swapped = meshrt.shard_map(
        lambda t: tuple_of(element(t, 1), element(t, 0)), mesh=mesh,
        in_specs=TuplePspec((meshrt.P("x"), meshrt.P())), out_specs=TuplePspec((meshrt.P(), meshrt.P("x"))),
    )  # fmt: skip
    close(element(swapped(pair), 1), jnp.arange(4.0))


@dataclass(frozen=True)
class WrongSpec(hijax.HiPspec):
    def to_lo(self):
        return (meshrt.P(),)


def test_000_18_specs_that_do_not_fit_are_refused():
    mesh = meshrt.make_mesh((2,), ("x",), (meshrt.sharding.AxisType.Auto,))
    with pytest.raises(ValueError, match="gives 1 PartitionSpecs for a value that consists of 2 arrays"):
        meshrt.shard_map(lambda q: 1.0, mesh=mesh, in_specs=WrongSpec(), out_specs=meshrt.P())(quantize(W))
    assert QType(*meshrt.typeof(quantize(W)).lo_ty()) == meshrt.typeof(quantize(W))
