"""Messages that programs look for: where JAX's has these words, so has ours, in an error of the same class."""

from __future__ import annotations

import dataclasses
import importlib
import operator
import re
from typing import Any

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy
from tests.meshrt.beside import assert_alike, builtin_kinds, outcome

F32 = np.float32


def _double(x, y=0.0):
    return 2 * x + y


def _rows(library):
    return library.numpy.ones(2, F32), library.numpy.ones((3, 4), F32)


class _Convertible:
    def __jax_array__(self):
        raise AssertionError("asked for its value")


def _jit_of_index(library):
    return library.jit(operator.index)(1)


def _vjp(library, backward, forward=lambda x: (x, 1)):
    function = library.custom_vjp(lambda x: x)
    function.defvjp(forward, backward)
    return library.grad(function)(F32(1))


def _bare(library, call=lambda bind: bind(1.0)):
    primitive = importlib.import_module(f"{library.__name__}.extend.core").Primitive("bare")
    primitive.def_abstract_eval(lambda x: x)
    return call(primitive.bind)


def _traced(library, function):
    return library.eval_shape(function, np.ones((5, 4), F32))


REFUSALS = [
    # what jit takes
    (lambda j: j.jit(3), "Expected a callable value"),
    (lambda j: j.jit(classmethod(_double)), "Expected a callable value"),
    (lambda j: j.jit(staticmethod(_double)), "staticmethod arguments are not supported"),
    (lambda j: j.jit(lambda x: (yield x)), "Expected a function, got a generator function"),
    (lambda j: j.jit(lambda x: x, static_argnames="x", donate_argnames="x"),
     "static_argnames and donate_argnames cannot intersect"),
    (lambda j: j.jit(lambda x, /: x, static_argnames="x"), ""),
    (lambda j: j.jit(lambda *xs: xs, donate_argnames="xs"), ""),
    (lambda j: j.jit(_double)("foo"),
     "abstract array. The problematic value is of type <class 'str'> and was passed to the function at path x."),
    (lambda j: j.jit(_double)(_Convertible()), "Triggering __jax_array__() during abstractification is no longer"),
    (lambda j: j.jit(_double, compiler_options={"memory_fitting_efort": 1.0})(1.0), "No such compile option"),
    (lambda j: j.vmap(j.jit(_double).lower(1.0).compile())(np.ones(3)), "Cannot apply JAX transformations to a"),
    (_bare, "Evaluation rule for 'bare' not implemented"),
    (lambda j: _bare(j, lambda bind: j.jit(bind)(1.0)), "MLIR translation rule for primitive 'bare' not found for"),
    # values of tracers
    (lambda j: j.jit(lambda x: float(x))(1.0), "Abstract tracer value encountered where concrete value is expected"),
    (lambda j: j.jit(lambda x: x.item())(1.0), "Abstract tracer value encountered where concrete value is expected"),
    (lambda j: j.jit(lambda x: 1 if x > 0 else 0)(1.0), "with shape bool[]."),
    (lambda j: j.jit(lambda x: 1 if x > 0 else 0)(1.0), "Attempted boolean conversion"),
    (_jit_of_index, "The __index__() method was called on traced array"),
    (lambda j: j.jit(operator.index)(1.5), "Only integer scalar arrays can be converted to a scalar index."),
    (lambda j: j.jit(int)(np.arange(2)), "Only scalar arrays can be converted to Python scalars"),
    (lambda j: j.grad(lambda x: j.numpy.sum(np.exp(x)))(np.ones(3)), "The numpy.ndarray conversion method __array__()"),
    (lambda j: bool(j.numpy.ones(3)), "The truth value of an array with more than one element is ambiguous."),
    (lambda j: j.jit(bool)(np.ones(0)), "The truth value of an empty array is ambiguous."),
    (lambda j: j.jit(lambda x: x.sharding)(1.0), "typeof"),
    (lambda j: j.config.update("jax_num_cpu_devices", 3), "config should be updated before backends are initialized"),
    (lambda j: j.local_devices(process_index=99), "Unknown process_index 99"),
    # derivatives
    (lambda j: j.grad(_double)("foo"), "'foo' of type <class 'str'> is not a valid JAX type"),
    (lambda j: j.grad(lambda x: (x, x))(1.0), "Gradient only defined for scalar-output functions. "),
    (lambda j: j.grad(lambda x: x)(np.ones(3)), "Gradient only defined for scalar-output functions. "),
    (lambda j: j.grad(lambda x: x, has_aux=True)(1.0), "two-element tuple"),
    (lambda j: j.grad(_double)(3), "sub-dtype of np.inexact), but got int"),
    (lambda j: j.grad(lambda x: x + 1j)(3.0), "sub-dtype of np.floating), but got complex"),
    (lambda j: j.grad(_double, holomorphic=True)(3.0), "requires inputs with complex dtype, but got float"),
    (lambda j: j.jacfwd(_double)(3 + 1j), "jacfwd requires real-valued inputs (input dtype that is a sub-dtype of "
     "np.floating), but got complex"),
    (lambda j: j.grad(_double)(x=1.0),
     "requires at least 1 positional arguments to be passed by the caller, but got only 0 positional arguments."),
    (lambda j: j.jvp(_double, (F32(2),), ()), "jax.jvp must have the same tree structure"),
    (lambda j: j.jvp(_double, (F32(2),), [F32(2)]), "jax.jvp must have the same tree structure"),
    (lambda j: j.jvp(_double, (2.0,), (np.float16(2),)), "primal and tangent arguments to jax.jvp do not match"),
    (lambda j: j.jvp(_double, (F32(2),), (np.int32(1),)), "float0.Got primal dtype float32 and so expected tangent "
     "dtype float32, but got tangent dtype int32 instead."),
    (lambda j: j.grad(_double)(np.int32(3)), "sub-dtype of np.inexact), but got int32."),
    (lambda j: j.numpy.stack([np.ones(1), np.ones(2)]), "All input arrays must have the same shape. Got (1,), (2,)."),
    (lambda j: j.random.choice(j.random.key(0), 3, (4,), replace=False), "when 'replace=False'"),
    (lambda j: j.random.randint(j.random.key(0), (3,), 0, 1, dtype=F32),
     "randint only accepts integer dtypes, got float"),
    (lambda j: j.sharding.NamedSharding(j.make_mesh((2,), ("x",)), j.P("x")).shard_shape((3,)),
     "Sharding NamedSharding(mesh=Mesh('x': 2"),
    (lambda j: j.jvp(_double, (2.0,), (1,)), "primal and tangent arguments to jax.jvp do not match"),
    (lambda j: j.jvp(_double, (np.ones(3),), (np.ones(4),)), "jvp called with different primal and tangent shapes"),
    (lambda j: j.jvp(_double, 0.0, (1.0,)), "jax.jvp must be tuples or lists; found float and tuple."),
    (lambda j: j.vjp(_double, 2.0)[1](1.0, 1.0), "applied to _double was called with 2 arguments"),
    (lambda j: j.vjp(_double, 2.0)[1]((1.0, 1.0)), "unexpected tree structure"),
    (lambda j: j.vjp(_double, 2.0)[1](np.ones(3)), "unexpected JAX type"),
    (lambda j: j.linear_transpose(lambda x: [x, x], 1.0)(1.0), "cotangent tree does not match"),
    (lambda j: j.linear_transpose(lambda x: x, 1.0)(1j), "cotangent type does not match"),
    (lambda j: j.linearize(_double, 1.0)[1](1), "linearized function called on tangent values inconsistent with the"),
    # vmap
    (lambda j: j.vmap(lambda x: x["a"], in_axes={"a": 0}), "in_axes must be an int, None, or a tuple of entries"),
    (lambda j: j.vmap(lambda x: x, out_axes=(np.ones(1),))(np.ones(2)), "vmap out_axes must be an int, None, or "),
    (lambda j: j.vmap(lambda x: x, in_axes=([0],))(np.ones(3)), "vmap in_axes specification must be a tree prefix of "),
    (lambda j: j.vmap(lambda x: x, out_axes=(2, 3))(np.ones(3)), "vmap out_axes specification must be a tree prefix"),
    (lambda j: j.vmap(lambda x: x, out_axes=None)(np.ones(3)), "at vmap out_axes"),
    (lambda j: j.vmap(lambda x: x)({}), "got empty *args=({},) and **kwargs={}"),
    (lambda j: j.vmap(lambda x, y: x)(*_rows(j)),
     "array axes to be mapped:\n  * one axis had size 2: axis 0 of argument x of type float32[2];\n"
     "  * one axis had size 3: axis 0 of argument y of type float32[3,4]"),
    (lambda j: j.vmap(lambda x, y, z: x)(*_rows(j), z=j.numpy.ones(3, F32)),
     "  * most axes (2 of them) had size 3, e.g. axis 0 of argument y of type float32[3,4];\n"
     "  * one axis had size 2: axis 0 of argument x of type float32[2]"),
    (lambda j: j.vmap(lambda x: x, axis_size=3)(_rows(j)[0]),
     "  * the `axis_size` argument was 3;\n  * one axis had size 2"),
    (lambda j: j.pmap(lambda x: x)({}), "pmap requires at least one argument with a mapped axis."),
    # control flow
    (lambda j: j.lax.fori_loop(0, 1, 42, 0), "lax.fori_loop"),
    (lambda j: j.lax.scan(42, 0, np.ones(1)), "lax.scan"),
    (lambda j: j.lax.switch(0, [42]), "lax.switch:"),
    (lambda j: j.lax.switch("foo", [_double] * 2, 1.0), "Index type must be an integer, got foo."),
    (lambda j: j.lax.switch((1, 1), [_double] * 2, 1.0), "Branch index must be scalar, got (1, 1) of shape (2,)."),
    (lambda j: j.lax.switch(0, [], 1.0), "Empty branch sequence"),
    (lambda j: j.lax.cond(None, _double, _double, 1.0), "cond predicate is None"),
    (lambda j: j.lax.cond(_double, _double, _double, 1.0), "Pred type must be either boolean or number, got <function"),
    (lambda j: j.lax.while_loop(lambda c: c, lambda c: c, F32(0)),
     "cond_fun must return a boolean scalar, but got output type(s) [ShapedArray(float32[])]."),
    (lambda j: j.lax.while_loop(lambda c: True, lambda c: (c, c), 0.0), "they differ:\n\nThe input carry c is a "),
    (lambda j: j.lax.fori_loop(0, 1, lambda i, x: {"T": x["t"]}, {"t": 1.0}), "with pytree metadata ('T',)"),
    (lambda j: j.lax.scan(lambda c, x: ((0,), x), (0, 0), np.ones(1)), "The input carry c is a tuple of length 2 but"),
    (lambda j: j.lax.scan(lambda c, x: (c + F32(1), x), np.int32(0), np.ones(1)),
     "The input carry c has type int32[] but the corresponding output carry component has type float32[], so the"),
    (lambda j: j.lax.scan(lambda c, x: (c, x), 0, np.ones(1), unroll=-1), "`unroll` must be"),
    (lambda j: j.jit(lambda n: j.lax.fori_loop(0, n, lambda i, c: c, 0, unroll=3))(3), "Can only use `unroll`"),
    # arrays
    (lambda j: j.numpy.zeros(3) + j.numpy.zeros(4), "add got incompatible shapes for broadcasting: (3,), (4,)."),
    (lambda j: j.numpy.dot(np.zeros(3), np.zeros(4)), "dimensions to have the same shape, got (3,) and (4,)."),
    (lambda j: j.lax.add(np.zeros((), j.float0), F32(1)), "float0s do not support any operations by design"),
    (lambda j: j.device_put(j.numpy.ones(3), may_alias=True, donate=True), "may_alias and donate cannot be True at the "
     "same time."),
    (lambda j: j.device_put({"a": 1, "b": 2}, {"a": [None] * 2, "b": (None,) * 2}), "Mismatch details (2 found)"),
    (lambda j: j.tree.map(lambda *x: x, {"a": [1, 2]}, {"a": None}, is_leaf=lambda x: x is None),
     "pytree structure error: different types at key path\n"),
    (lambda j: j.ShapeDtypeStruct(4, "float32"), "'int' object is not iterable"),
    # axes, shapes and dtypes
    (lambda j: j.numpy.max(1.0, axis=0), "axis 0 is out of bounds for array of dimension 0"),
    (lambda j: j.numpy.argsort(np.ones(3), axis=-3), "axis -3 is out of bounds for array of dimension 1"),
    (lambda j: j.numpy.linspace(0, 1, 2.5), "'float' object cannot be interpreted as an integer"),
    (lambda j: j.numpy.triu_indices(3, k=1.0), "'float' object cannot be interpreted as an integer"),
    (lambda j: j.numpy.arctan2(np.ones((2, 3)), np.ones((0, 3))), "atan2 got incompatible shapes for broadcasting: "),
    (lambda j: j.numpy.add(np.ones((2, 3, 4)), np.ones((0, 3))), "for broadcasting: shapes=[(2, 3, 4), (0, 3)]"),
    (lambda j: j.numpy.where(np.ones(3, bool), np.ones(4), 0), "Incompatible shapes for broadcasting: shapes=[(3,), ("),
    (lambda j: j.numpy.broadcast_to(np.ones((2, 3), F32), (3, 2, 2)), "input type=float32[2,3] and requested type="),
    (lambda j: j.ops.segment_sum(np.ones(3, F32), np.array([0, 1]), 3), "input type=float32[3] and requested type="),
    (lambda j: j.numpy.floor(np.ones(3) * 1j), "floor does not accept dtype complex64. Accepted dtypes are subtypes o"),
    (lambda j: j.lax.bitwise_and(F32(1), F32(1)), "at position 0. Accepted dtypes at position 0 are subtypes of integ"),
    (lambda j: j.lax.bitcast_convert_type(np.uint8(1), np.bool_), "does not support bool or complex values unless the"),
    (lambda j: j.numpy.round(np.ones(2, bool)), "data type <class 'numpy.bool'> not inexact"),
    (lambda j: j.numpy.meshgrid(np.ones(2), copy=None), "jax.numpy.meshgrid only supports copy=True"),
    (lambda j: j.numpy.polyadd(np.ones(0), np.ones(3)), "Incompatible types for broadcasting: input type=float32[0]"),
    (lambda j: j.numpy.intersect1d(np.ones(2), np.ones(2), size=0), "zero-size array to reduction operation max"),
    (lambda j: j.scipy.linalg.hilbert(-1), "iota shape must have every element be nonnegative, got (-1, 1)."),
    (lambda j: j.numpy.concatenate([np.ones(3), np.ones((2, 3))]), "different numbers of dimensions: got (3,), (2, 3)"),
    (lambda j: j.lax.clamp(np.ones(3), np.ones((2, 3)), np.ones(3)), "clamp requires min.shape == operand.shape or mi"),
    (lambda j: j.lax.select_n(np.ones(3, bool), *[np.ones(3)] * 3), "select with boolean `which` cannot have > 2 case"),
    (lambda j: j.numpy.sum(np.ones(3), out=1), "The 'out' argument to jnp.sum is not supported."),
    # operations of lax
    (lambda j: j.lax.add(F32(1), np.int32(1)), "lax.add requires arguments to have the same dtypes, got float32, int32."
     " (Tip: jnp.add is a similar function that does automatic type promotion on inputs)."),
    (lambda j: j.lax.mul(np.ones(3, F32), np.ones((2, 3), F32)), "must have the same number of dimensions, got {1, 2}"),
    (lambda j: _traced(j, lambda x: j.lax.slice(x, (1,), (5, 4))), "got indices (1,) for operand shape (5, 4)."),
    (lambda j: _traced(j, lambda x: j.lax.slice(x, (1, 0), (5, 4), (1,))), "strides must have length equal to the num"),
    (lambda j: _traced(j, lambda x: j.lax.slice(x, (1, 0), (6, 4))), "slice limit_indices must be less than or equal "),
    (lambda j: _traced(j, lambda x: j.lax.dynamic_slice(x, (1, 1), (2, 5))), "slice_sizes (2, 5) for operand shape (5"),
    (lambda j: _traced(j, lambda x: j.lax.pad(x, F32(0), [(0, 0, 0)])), "length of padding_config must equal the numb"),
    (lambda j: _traced(j, lambda x: j.lax.pad(x, F32(0), [(-6, 0, 0)] * 2)), "is not at least 0, got result shape (-1"),
    (lambda j: _traced(j, lambda x: j.lax.transpose(x, (0, 0))), "got permutation (0, 0) for operand shape (5, 4)."),
    (lambda j: _traced(j, lambda x: j.lax.rev(x, (0, 0))), "rev dimensions must be unique, got (0, 0)."),
    (lambda j: _traced(j, lambda x: j.lax.broadcast_in_dim(x, (5, 4), (0, 2))), "must be a subset of output dimension"),
    (lambda j: _traced(j, lambda x: j.lax.concatenate([x, x], 2)), "concatenate dimension out of bounds: dimension 2 "),
    (lambda j: _traced(j, lambda x: j.lax.reduce(x, F32(0), j.lax.add, (-1,))), "contains out-of-bounds indices for f"),
    (lambda j: _traced(j, lambda x: j.lax.reduce_window(x, F32(0), j.lax.add, (2,), (1, 1), "SAME")), "wrong number of "
     "window_dimensions"),
    (lambda j: _traced(j, lambda x: j.lax.reduce_window(x, F32(0), j.lax.add, (2, 2), (1, 0), "SAME")),
     "must have every element be strictly positive, got (1, 0)"),
    (lambda j: _traced(j, lambda x: j.lax.dot(x, x)), "dimension_numbers must be specified when not performing simple"),
    (lambda j: _traced(j, lambda x: j.lax.dot_general(x, x, (((1, 1), (0, 0)), ((), ())))),
     "lhs contracting dimensions to be distinct, got lhs_contracting (1, 1)."),
    (lambda j: _traced(j, lambda x: j.lax.dot_general(x, x, (((2,), (0,)), ((), ())))),
     "lhs_contracting of (2,) for lhs of rank 2"),
    (lambda j: _traced(j, lambda x: j.lax.sort((x, x[0]), num_keys=1)), "Arguments to sort must have equal shapes"),
    (lambda j: _traced(j, lambda x: j.lax.top_k(x, 7)), "no larger than size along axis; got k=7 with shape=[5, 4]"),
    (lambda j: _traced(j, lambda x: j.lax.conv(x[None], x[None], (1,), "FOO")), "Unrecognized padding type: expected"),
    (lambda j: _traced(j, lambda x: j.lax.conv(x[None], x[None, 1:], (1,), "SAME")), "size, but 5 // 1 != 4"),
    (lambda j: _traced(j, lambda x: j.lax.select(x > 0, x, x[1:])), "select cases must have the same shapes, got [(4"),
    # rules of derivatives
    (lambda j: _vjp(j, lambda r, g: g), "but got bwd output structure PyTreeDef(*) for primal input structure "),
    (lambda j: _vjp(j, lambda r, g: (np.ones(3, F32),)), "produced an output of type float32[3] corresponding to an i"),
    (lambda j: _vjp(j, lambda r, g: (g,), lambda x: x), "where the first element represents the primal output (equal "),
    (lambda j: j.jvp(_double, (np.ones(3),), (np.ones(4),)), "Got primal shape (3,) and tangent shape as (4,)"),
    (lambda j: j.vjp(_double, 2.0)[1](np.ones(3, F32)), "got float32[3], but expected float32[] because the corresp"),
    (lambda j: j.jit(lambda x: 1 if x > 0 else 0)(1.0), "because it depends on the value of the argument x."),
    (lambda j: j.jit(lambda x: "a")(1.0), "traced for jit returned a value of type <class 'str'>"),
    (lambda j: j.lax.scan(lambda c, x: (c, "a"), 0.0, np.ones(2)), "traced for scan returned a value of type <class '"),
    (lambda j: j.lax.while_loop(lambda c: None, lambda c: c, 0), "must return a boolean scalar, but got pytree PyTree"),
    (lambda j: j.lax.scan(lambda c, x: None, 0.0, np.ones(2)), "scan body output must be a pair, got None."),
    (lambda j: j.lax.map(lambda x: x, 1.0), "scan got value with no leading axis to scan over: 1.0"),
    (lambda j: j.jit(lambda n: j.lax.scan(lambda c, x: (c, c), 0, None, length=n))(3), "For scan-like iteration wi"),
    (lambda j: j.lax.associative_scan(j.numpy.add, (np.ones(2), np.ones(3)))(3), "must have the same first dimension"),
    (lambda j: j.lax.custom_root(lambda x: (x, x), 1.0, lambda f, x: (x, x), lambda g, y: y / g(1.0)),
     "f() output pytree structure must match initial_guess, got PyTreeDef((*, *)) and PyTreeDef(*)"),
    (lambda j: j.grad(lambda b: j.lax.custom_linear_solve(lambda x: x, b, lambda mv, b: b))(1.0),
     "transpose_solve required for backwards mode automatic differentiation of custom_linear_solve"),
    (lambda j: j.linear_transpose(j.numpy.sin, 1.0)(1.0), "Transpose rule (for reverse-mode differentiation) for 's"),
    (lambda j: j.jit(lambda d: d["a"])({"a": 2**40}), "while parsing an argument to a jitted computation, whose a"),
    (lambda j: j.jit(lambda x: x.devices())(1.0), "\nThe devices() method was called on traced array with shape fl"),
    (lambda j: j.jit(lambda x: x.block_until_ready())(1.0), "The 'block_until_ready' method is not available on tr"),
    (lambda j: j.numpy.int8(300), "Python integer 300 out of bounds for int8"),
    (lambda j: j.numpy.zeros(2, "foo"), "data type 'foo' not understood"),
    (lambda j: j.numpy.isdtype(F32, "foo"), "Unrecognized kind='foo' expected one of ["),
    (lambda j: j.tree.reduce_associative(operator.add, ()), "Must specify identity for parallel reduction of empt"),
    (lambda j: j.tree_util.register_pytree_node(list, list, list), "Duplicate custom PyTreeDef type registration f"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "words"), REFUSALS, ids=[f"{i}" for i in range(len(REFUSALS))])
def test_words_and_class(program, words):
    theirs, ours = outcome(program, jax), outcome(program, meshrt)
    assert isinstance(theirs, Exception)
    assert isinstance(ours, Exception), f"JAX raises {theirs}, ours gives {ours}"
    assert words in str(theirs)
    assert words in str(ours)
    assert all(isinstance(ours, k) for k in builtin_kinds(theirs)), (type(ours).__mro__, theirs)


def test_a_leaked_tracer_says_where_it_was_made():
    words = (
        r"(?s)unexpected tracer.*intermediate value with type int32\[4,3\] wrapped in a \w*JaxprTracer to escape the "
        r"scope.*The function being traced when the value leaked was <lambda> at .* traced for jit.*was created on line"
    )
    for library in (jax, meshrt):
        kept = []
        library.jit(lambda x, kept=kept: kept.append(x + 1))(np.ones((4, 3), np.int32))
        with pytest.raises(library.errors.UnexpectedTracerError, match=words):
            kept[0] + 1


def test_mapped_functions_that_leak():
    for library in (jax, meshrt):
        kept = []
        with library.checking_leaks():
            with pytest.raises(Exception, match="Leaked trace"):
                library.vmap(lambda x, kept=kept: (kept.append(x), x)[1])(np.ones(2))
            library.vmap(lambda x: library.custom_gradient(lambda y: (x * y, lambda ct: ct))(1.0))(np.ones(2))


def test_types_made_by_hand_equal_those_of_values():
    for library in (jax, meshrt):
        made = library.make_jaxpr(lambda x: x)(library.ShapeDtypeStruct((2,), F32)).in_avals[0]
        assert library.typeof(library.numpy.ones(2)) == made == library.typeof(np.ones(2, F32))
        assert hash(library.typeof(library.numpy.ones(2))) == hash(made)


def test_an_array_that_was_donated_twice():
    for library in (jax, meshrt):
        x = library.numpy.zeros(10)
        with pytest.raises(RuntimeError):
            library.jit(lambda a, b: a + b, donate_argnums=0)(x, x).block_until_ready()


def test_a_deleted_array_has_no_repr():
    for library in (jax, meshrt):
        x = library.numpy.ones(3)
        x.delete()
        with pytest.raises(RuntimeError, match=r"Array has been deleted"):
            repr(x)


def test_static_arguments_that_cannot_be_compared():
    class Odd:
        def __hash__(self):
            return 1

        def __eq__(self, other):
            raise NotImplementedError

    for library in (jax, meshrt):
        f = library.jit(lambda x, odd: x, static_argnums=1)
        with pytest.raises(ValueError, match="static arguments should be comparable using __eq__"):
            for _ in range(2):
                f(1, Odd())


def test_the_names_of_what_jit_and_vmap_return():
    class Nameless:
        def __call__(self):
            raise AssertionError

        def __repr__(self):
            raise ValueError

    for library in (jax, meshrt):
        assert repr(library.jit(_double)) == f"<PjitFunction of {_double!r}>"
        assert repr(library.jit(Nameless())) == "<PjitFunction>"
        mapped = library.vmap(test_an_array_that_was_donated_twice)
        assert re.match("Vectorized version of test_an_array", mapped.__doc__)


def test_make_jaxpr_with_axes():
    def program(library):
        f = lambda x: library.lax.psum(x, "i") * library.lax.axis_size("i")
        made = library.make_jaxpr(f, axis_env=[("i", 4)], return_shape=True)
        assert made.__name__ == "make_jaxpr(<lambda>)"
        closed, shape = made(F32(2))
        assert "psum" in str(closed)
        return shape.shape, str(shape.dtype)

    assert_alike(program)


@dataclasses.dataclass
class _Pair:
    """A container whose two flattenings have different metadata."""

    x: Any
    y: Any


for _library in (jax, meshrt):
    _library.tree_util.register_pytree_with_keys(
        _Pair,
        lambda p: ((("x", p.x), ("y", p.y)), "with keys"),
        lambda _, parts: _Pair(*parts),
        lambda p: ((p.x, p.y), "without keys"),
    )


@pytest.mark.parametrize(
    "program",
    [
        lambda j: j.lax.while_loop(lambda p: p.x > 0.0, lambda p: _Pair(0.0, 0.0), _Pair(1.0, 1.0)).x,
        lambda j: j.grad(lambda x: j.lax.fori_loop(x, x + 2.0, lambda i, c: c * 3.0, x))(1.0),
        lambda j: j.lax.scan(lambda c, x: (c * x, c), F32(2), np.ones(3, F32), _split_transpose=True),
        lambda j: j.vmap(lambda f, x: f(x), (None, 0))(j.numpy.sin, np.arange(3.0, dtype=F32)),
        lambda j: j.vmap(lambda s, x: x * len(s), (None, 0))("abc", np.arange(3, dtype=F32)),
        lambda j: j.jit(lambda x: __import__("copy").deepcopy(x) + 1)(F32(2)),
        lambda j: j.jit(lambda x: x + 1, compiler_options={"exec_time_optimization_effort": 0.0})(F32(2)),
        lambda j: j.jit(lambda x: x + 1, compiler_options={"optimization_level": 19})(F32(2)),
        lambda j: j.numpy.isscalar(type("A", (), {"__jax_array__": lambda self: j.numpy.ones(())})()),
        lambda j: j.grad(lambda x: x**2 if x.item() > 1 else x)(F32(3)),
    ],
)
def test_programs_that_are_taken(program):
    assert_alike(program)
