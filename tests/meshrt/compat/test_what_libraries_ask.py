"""Small things that libraries ask of arrays, functions and errors: the same answers in JAX."""

import inspect

import jax
import jax.interpreters.ad
import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.compat.layer import core
from meshrt.interpreters import ad as _ad  # noqa: F401  (for meshrt.interpreters.ad)
from meshrt.interpreters import xla

BOTH = pytest.mark.parametrize("lib", [jax, meshrt], ids=["jax", "meshrt"])


@BOTH
def test_compiled_functions_have_a_signature_and_the_name_of_their_type(lib):
    f = lib.jit(lambda x, *, flag=True: x, static_argnames="flag")
    for follow in (True, False):
        assert str(inspect.signature(f, follow_wrapped=follow)) == "(x, *, flag=True)"
    assert "PjitFunction" in str(type(f))


@BOTH
def test_the_sharding_of_a_type_can_be_asked_for(lib):
    x = lib.numpy.ones(3)
    asked = lib.typeof(x).sharding
    sample = lambda: lib.random.normal(lib.random.key(0), (3,), out_sharding=asked)
    np.testing.assert_array_equal(sample(), lib.random.normal(lib.random.key(0), (3,)))
    np.testing.assert_array_equal(lib.jit(sample)(), sample())


@BOTH
def test_words_of_errors(lib):
    with pytest.raises(ValueError, match="Incompatible shapes for broadcasting"):
        lib.numpy.broadcast_shapes((2,), (3,))
    with pytest.raises(RuntimeError, match=r"(failed to initialize)|(Unknown backend)"):
        lib.devices("gpu")


@BOTH
def test_keys_are_compared(lib):
    keys = lib.random.split(lib.random.key(0), 3)
    assert lib.numpy.array_equal(keys, keys, equal_nan=True)
    assert not lib.numpy.array_equal(keys, keys[::-1], equal_nan=True)


def test_a_class_of_a_library_is_made_a_type_of_arrays():
    class Variable:
        def __init__(self, value):
            self.value = value
            self.shape, self.dtype = value.shape, value.dtype

        def __array__(self, dtype=None, copy=None):
            return self.value.astype(dtype or self.dtype)

    handlers, types = xla.canonicalize_dtype_handlers, core.pytype_aval_mappings
    with pytest.raises(KeyError):
        handlers[Variable]
    with pytest.raises(TypeError, match="not a valid JAX type"):
        meshrt.jit(lambda x: x * 2)(Variable(np.arange(3.0)))
    types[Variable] = types[np.ndarray]
    try:
        handlers[Variable] = handlers[np.ndarray]
        with pytest.raises(errors.UnsupportedError, match="NumPy makes arrays"):
            handlers[Variable] = np.sin
        value = Variable(np.arange(3.0))
        for f in (lambda x: meshrt.lax.mul(x, meshrt.numpy.float32(2)), lambda x: meshrt.jit(lambda x: x * 2)(x)):
            assert f(value).dtype == np.float32
            np.testing.assert_array_equal(f(value), [0.0, 2.0, 4.0])
        assert handlers[Variable](value).dtype == np.float32
    finally:
        del types[Variable]


@BOTH
def test_ranges_are_axes(lib):
    x = lib.numpy.arange(6.0).reshape(2, 3)
    assert lib.numpy.expand_dims(x, range(2)).shape == (1, 1, 2, 3)
    assert lib.numpy.sum(x, axis=range(2)) == 15.0


@BOTH
def test_a_zero_without_a_derivative_is_made_an_array(lib):
    zero = lib.interpreters.ad.Zero(lib.typeof(np.arange(3)).to_tangent_aval())
    for made in (zero.instantiate(), lib.interpreters.ad.instantiate_zeros(zero)):
        assert made.dtype == lib.dtypes.float0 and made.shape == (3,)


class _Named:
    """Something callable whose name is no text: libraries make modules with such attributes."""

    def __init__(self):
        self.__name__ = self.__annotations__ = 7

    def __call__(self, x):
        return x * 2.0


@BOTH
def test_what_is_differentiated_may_have_a_name_that_is_no_text(lib):
    for transform in (lib.grad, lib.jacfwd, lib.jacrev, lib.checkpoint):
        assert transform(_Named())(1.0) == 2.0


def test_what_is_mapped_or_staged_may_have_a_name_that_is_no_text():
    np.testing.assert_array_equal(meshrt.vmap(_Named())(np.ones(2, np.float32)), [2.0, 2.0])
    np.testing.assert_array_equal(meshrt.numpy.vectorize(_Named())(np.ones(2, np.float32)), [2.0, 2.0])
    assert meshrt.jit(_Named())(1.0) == 2.0
    assert len(meshrt.make_jaxpr(_Named())(1.0).eqns) == 1


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
def test_rules_see_literals_of_programs_as_values_of_the_trace(kind):
    """Where a call stands in a program; where the function is called now, they see the caller's numbers."""

    def seen(lib):
        told = []

        def rule(*args):
            leaves = lib.tree.leaves(args)[:3]
            told.append([isinstance(x, lib.Array) for x in leaves])
            primals, tangents = args if kind == "custom_jvp" else (args, args)
            return f(*primals), (tangents[0] if kind == "custom_jvp" else args)

        f = getattr(lib, kind)(lambda x, n, flag: x * n + flag)
        if kind == "custom_jvp":
            f.defjvp(rule)
        else:
            f.defvjp(rule, lambda res, ct: (ct, None, None))
        call = lambda x: f(x, 2.0, np.float32(1))
        loop = lambda x: lib.lax.scan(lambda c, _: (call(c), None), x, None, length=2)[0]
        for derivative in (
            lib.jit(lib.grad(call)), lib.grad(lib.jit(call)), lib.grad(loop), lib.grad(lib.checkpoint(call)),
            lib.grad(lambda x: lib.lax.cond(x > 0, call, call, x)),
        ):  # fmt: skip
            told.append(float(derivative(1.0)))
        return [x for i, x in enumerate(told) if x != told[i - 1] or not i]

    assert seen(meshrt) == seen(jax)


def test_what_a_function_closes_over_does_not_depend_on_how_it_was_made():
    def captured(lib):
        found = []

        def inside(x):
            start, table = lib.numpy.array(0), lib.numpy.zeros((4, 2))

            def closing(v):
                return table[(lib.numpy.arange(4) + start) % 4] * v

            found.extend(c.shape for c in lib.make_jaxpr(closing)(x).consts)
            return x

        lib.jit(inside)(1.0)
        return found

    assert captured(meshrt) == captured(jax) == [(), (4, 2)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_names_that_have_moved_from_jax_core():
    moved = [name for name, (_, value) in jax.core._deprecations.items() if value is not None]
    missing = [name for name in moved if hasattr(meshrt.extend.core, name) and not hasattr(core, name)]
    assert len(moved) > 20 and not missing, missing
    assert core.is_concrete(1.0) and core.is_constant_shape((2, 3))
    seen = []
    meshrt.jit(lambda x: seen.append(core.is_concrete(x)) or x)(1.0)
    assert seen == [False]


def test_positions_and_names_follow_from_each_other():
    from jax._src.api_util import infer_argnums_and_argnames as judge

    from meshrt.compat.layer.api_util import infer_argnums_and_argnames as ours

    signature = inspect.signature(lambda a, b, /, c, d=1, *rest, e=2: None)
    for given in [(None, None), (2, None), ((0, 2, 3), None), (None, "d"), (None, ("c", "e")), (1, "c")]:
        assert ours(signature, *given) == judge(signature, *given), given


@BOTH
def test_rules_of_primitives_may_be_methods_of_a_subclass(lib):
    extended = __import__(f"{lib.__name__}.extend.core", fromlist=["Primitive"])

    class Twice(extended.Primitive):
        multiple_results = True

        def impl(self, *operands):
            return [2 * x for x in operands]

        def abstract_eval(self, *kinds):
            return list(kinds), set()

    twice_p = Twice("twice")
    assert isinstance(twice_p, Twice) and not isinstance(lib.lax.add_p, Twice)
    assert isinstance(lib.lax.add_p, extended.Primitive)
    assert twice_p.bind(1.0, 2.0) == [2.0, 4.0]
    assert [out.shape for out in lib.eval_shape(lambda x: twice_p.bind(x, 1.0), lib.numpy.ones(3))] == [(3,), ()]
    kind = lib.core.ShapedArray((3,), np.float32) if lib is jax else core.ShapedArray((3,), np.float32)
    assert twice_p.abstract_eval(kind) == ([kind], set())
    types, effects = lib.lax.add_p.abstract_eval(kind, kind)
    assert types == kind and not effects


@BOTH
def test_a_number_beside_a_boolean_is_one_program_with_it(lib):
    """The compiler sees the conversion, and makes a choice of the product: no NaN of inf * False."""
    flags = lib.numpy.array([True, False])
    np.testing.assert_array_equal(lib.numpy.inf * flags, [np.inf, 0.0])
    np.testing.assert_array_equal(flags * 3, [3, 0])
    assert (2.5 * flags).dtype == np.float32 and (flags + 1).dtype == np.int32


def test_classes_with_layouts_of_their_own_are_refused_where_they_are_mapped():
    batching = meshrt.interpreters.batching

    class Batched:
        def __init__(self, x):
            self.x = x

    register = lambda: batching.register_vmappable(Batched, int, int, None, None, None)
    register()
    try:
        assert batching.is_vmappable(Batched(1))
        for function, argument in ((lambda b: b.x, Batched(np.ones(3))), (Batched, np.ones(3))):
            with pytest.raises(errors.UnsupportedError, match="register_vmappable"):
                meshrt.vmap(function)(argument)
    finally:
        batching.unregister_vmappable(Batched)
    assert not batching.is_vmappable(Batched(1))


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "complex64"])
def test_types_tell_that_of_derivatives_by_both_names(lib, dtype):
    kind = lib.typeof(lib.numpy.zeros(2, dtype))
    assert kind.at_least_vspace() == kind.to_tangent_aval()
    assert (kind.at_least_vspace() == kind) == (dtype in ("float32", "complex64"))
