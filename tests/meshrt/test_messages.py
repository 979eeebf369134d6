"""What a beginner's mistakes answer, by text: the function that was called, what it was given, and what to do."""

from __future__ import annotations

import re

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, export, lax
from meshrt.dtypes import DTypeError
from meshrt.sharding import NamedSharding
from meshrt.sharding import PartitionSpec as P

TEXT = "has dtype <U1 (text), which no array can have, so it is not a valid JAX type; encode it as numbers first"
EXAMPLES = "pass a dtype such as 'float32', jnp.bfloat16 or float"

DTYPES = [
    (lambda: jnp.array(["a"]), f"array: 'a' {TEXT}"),
    (lambda: jnp.array([["a"], ["b"]], jnp.int32), f"array: 'a' {TEXT}"),
    (lambda: jnp.arange("a"), f"arange: 'a' {TEXT}"),
    (lambda: jnp.array({1, 2}), "array: {1, 2} has dtype object (Python objects), which no array can have"),
    (lambda: jnp.asarray(np.zeros(2, ">f4")), "has dtype >f4, which no array can have, so it is not a valid JAX type"),
    (lambda: meshrt.device_put({"a": np.array(["x"])}), f"device_put of x['a']: a value of type ndarray {TEXT}"),
    (lambda: jnp.zeros(3, "float7"), f"zeros: dtype='float7' is not a dtype; {EXAMPLES}"),
    (lambda: jnp.ones(3, "U5"), f"ones: dtype <U5 (text) is not one that arrays can have; {EXAMPLES}"),
    (lambda: jnp.empty(3, object), "empty: dtype object (Python objects) is not one that arrays can have"),
    (lambda: jnp.ones_like(jnp.ones(2), dtype="foo"), "ones_like: dtype='foo' is not a dtype"),
    (lambda: jnp.zeros(3, 4), "zeros: dtype=4 is not a dtype. Did you accidentally write `jax.numpy.zeros(3, 4)` "
                              "when you meant `jax.numpy.zeros((3, 4))`, with one tuple for the shape?"),
    (lambda: jnp.ones(3).astype("foo"), f"astype: dtype='foo' is not a dtype; {EXAMPLES}"),
    (lambda: meshrt.ShapeDtypeStruct((3,), "foo"), f"'foo' is not a dtype; {EXAMPLES}"),
]  # fmt: skip

SHAPES = "Shapes must be 1D sequences of concrete values of integer type, got"
OTHERS = [
    (lambda: jnp.array([object()]), DTypeError, "with dtype object is not a valid JAX array type"),
    (lambda: jnp.take(jnp.ones(2), 0, mode="raise"), NotImplementedError, "The 'raise' mode to jnp.take is not"),
    (lambda: jnp.where(jnp.ones(2) > 0, 1), errors.ArgumentTypeError, "got <class 'NoneType'> at position 2"),
    (lambda: jnp.array(None), errors.ArgumentShapeError, "None is not a valid value for jnp.array"),
    (lambda: jnp.array(2**40), errors.IntegerOverflowError, "Python int 1099511627776 too large to convert to int32"),
    (lambda: jnp.array([2**40]), errors.IntegerOverflowError, "array: an element does not fit dtype int32"),
    (lambda: jnp.zeros("ab"), errors.ArgumentTypeError, f"zeros: {SHAPES} 'ab'"),
    (lambda: jnp.ones(3.5), errors.ArgumentTypeError, f"ones: {SHAPES} (3.5,)"),
    (lambda: meshrt.jit(jnp.ones)(3), errors.ConcretizationError, f"ones: {SHAPES} the traced"),
    (lambda: meshrt.jit(lambda n: jnp.tile(jnp.ones(2), n))(3), errors.ConcretizationError, f"{SHAPES} the traced"),
    (lambda: jnp.zeros_like("a"), errors.ArgumentTypeError, "zeros_like requires ndarray or scalar arguments, got"),
    (lambda: jnp.full(3, np.ones(4)), errors.ArgumentValueError, "input type=float32[4] and requested type=float32[3]"),
    (lambda: jnp.where(np.ones(3, bool), np.ones((8, 4)), 0), errors.ArgumentValueError, "shapes=[(3,), (8, 4), ()]"),
    (lambda: jnp.mean(jnp.ones((2, 2)), axis=3), errors.AxisError, "mean: axis 3 is out of bounds for array of "),
    (lambda: jnp.mean(jnp.ones(2), axis="data"), errors.UnboundAxisError, "Found an unbound axis name: data"),
    (lambda: jnp.mean(jnp.ones(2), axis=0.0), errors.ArgumentTypeError, "mean: the axis must be made of integers"),
    (lambda: meshrt.random.key("a"), errors.ArgumentTypeError, "random.key: PRNG key seed must be an integer: "),
    (lambda: meshrt.random.key(1.5), errors.ArgumentTypeError, "random.key: PRNG key seed must be an integer; "),
    (lambda: jnp.split(jnp.ones(2), -1), errors.ArgumentShapeError, "the number of parts must be at least 1, got -1"),
    (lambda: jnp.einsum("ij,jk->ik", np.ones((2, 3)), np.ones((4, 2))), errors.MeshrtError, "of shapes (2, 3), (4, 2) "
     "'j' has size 4 in operand 1, and 3 before"),
    (lambda: lax.bitcast_convert_type(meshrt.random.key(0), np.uint32), errors.ArgumentValueError,
     "Cannot bitcast_convert_type from key<fry> to uint32: meshrt.random.key_data(key) gives the words of keys"),
    (lambda: jnp.zeros(2, np.uint32).view(meshrt.random.key(0).dtype), errors.ArgumentValueError, "wrap_key_data"),
    (lambda: jnp.eye(3, k=1.5), errors.ArgumentValueError, "eye: k must be a scalar integer; got 1.5 as the number of"),
    (lambda: export.SymbolicScope("a >= 8"), errors.ArgumentValueError, "Got 'a >= 8'; write ['a >= 8']"),
    (lambda: meshrt.ShapeDtypeStruct("ab", "float32"), errors.ArgumentTypeError, "such as (8, 4), got 'ab'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), DTYPES)
def test_dtypes(call, text):
    with pytest.raises(DTypeError, match=re.escape(text)) as e:
        call()
    assert isinstance(e.value, TypeError) and isinstance(e.value, errors.MeshrtError)


@pytest.mark.parametrize(("call", "kind", "text"), OTHERS)
def test_values_shapes_and_axes(call, kind, text):
    with pytest.raises(kind, match=re.escape(text)):
        call()


def test_a_jitted_function_names_the_argument_of_a_bad_dtype():
    with pytest.raises(errors.ArgumentTypeError, match=re.escape("passed to the function at path p['w']")) as e:
        meshrt.jit(lambda p: p["w"])({"w": np.array(["x"])})
    assert TEXT in str(e.value)


@pytest.mark.parametrize(
    ("size", "spec", "text"),
    [
        (3, "model", "is partitioned 2 times, but the dimension size is 3"),
        (3, "model", "Make the dimension 2 or 4, or do not shard axis 0."),
        (3, "data", "Make the dimension 4, or do not shard axis 0."),
        (1, ("data", "model"), "Make the dimension 8, or do not shard axis 0."),
        (9, ("data", "model"), "Make the dimension 8 or 16, or do not shard axis 0."),
    ],
)
def test_sizes_that_would_fit_are_named_once(mesh, size, spec, text):
    with pytest.raises(errors.IndivisibleError, match=re.escape(text)):
        meshrt.device_put(np.ones(size), NamedSharding(mesh, P(spec)))


def test_an_error_of_a_first_call_is_not_chained_to_the_look_up_of_its_program():
    def f(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as e:
        meshrt.jit(f)(jnp.ones(3))
    assert e.value.__context__ is None


@pytest.mark.parametrize(
    ("put", "called"),
    [(lax.with_sharding_constraint, "the shardings of with_sharding_constraint"),
     (meshrt.device_put, "device_put device specification must be a tree prefix of the corresponding value;.*")],
)  # fmt: skip
@pytest.mark.parametrize("wrap", [lambda f: f, meshrt.jit])
def test_trees_of_shardings_that_do_not_fit(mesh, put, called, wrap):
    s, x = NamedSharding(mesh, P("data")), {"a": jnp.ones(8), "b": [jnp.ones(8)] * 2}
    for shardings, text in [({"a": s, "b": [s]}, r"\['b'\].*a list of 1 child, the second one of 2"),
                            ({"a": s, "c": s}, "only the first has 'c'; only the second has 'b'"),
                            ([s, s], "a list of 2 children, the second a dict with the keys 'a', 'b'")]:  # fmt: skip
        with pytest.raises(errors.TreeError, match=rf"(?s){called} at .*test_messages.py.*{text}"):
            wrap(lambda x, s=shardings: put(x, s))(x)


def test_none_among_shardings(mesh):
    """device_put leaves it where it is; a constraint that says nothing is refused, as JAX does."""
    s, x = NamedSharding(mesh, P("data")), {"a": jnp.ones(8), "b": jnp.ones(8), "c": None}
    shardings = {"a": s, "b": None, "c": None}
    out = meshrt.device_put(x, shardings)
    assert out["a"].sharding is s and out["b"].sharding == x["b"].sharding and out["c"] is None
    for wrap in (lambda f: f, meshrt.jit):
        with pytest.raises(
            errors.ShardingError, match=r"of x\['b'\] at .*got sharding None which is not allowed.*P.UNCONSTRAINED"
        ):
            wrap(lambda x: lax.with_sharding_constraint(x, shardings))(x)
    out = meshrt.jit(lambda x: meshrt.jit(lambda x: x, in_shardings=(shardings,), out_shardings=shardings)(x))(x)
    assert out["a"].sharding.is_equivalent_to(s, 1)


@pytest.mark.parametrize(
    "module, name, near",
    [(meshrt, "shard_mapp", "shard_map"), (lax, "scann", "scan"), (lax.linalg, "choleski", "cholesky")],
)
def test_names_that_are_not_there_name_the_nearest(module, name, near):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': it is not implemented; did you mean {near}\b"):
        getattr(module, name)
    with pytest.raises(AttributeError, match=r"it is not implemented$"):
        module.qqqqqqqq  # nothing is near


def _branch(params, x, y):
    z = x * 2
    return y if (params["w"] * z).sum() > 0 else x


CONTROL = [
    (_branch, ({"w": 1.0}, 1.0, 1.0), "it depends on the values of the arguments params['w'] and x."),
    (
        lambda x, *rest: x if rest[1] else -x, (1.0, 2.0, True),
        "value of the argument rest[1]. It is argument rest[1] of <lambda>. A traced",
    ),
    (lambda x: meshrt.vmap(lambda v: v if v > 0 else -v)(x), (np.ones(3),), "depends on the value of the argument x."),
    (lambda x: meshrt.grad(lambda v: v if v > 0 else -v)(x), (1.0,), "depends on the value of the argument x."),
]  # fmt: skip


@pytest.mark.parametrize("function, args, text", CONTROL, ids=["branch", "argument", "vmap", "grad"])
def test_control_flow_names_the_arguments_it_depends_on(function, args, text):
    with pytest.raises(errors.TracerBoolConversionError) as error:
        meshrt.jit(function)(*args)
    assert text in str(error.value)


def test_devices_that_differ_name_the_operands_of_an_eager_call():
    first, second = (meshrt.device_put(jnp.ones(4), meshrt.devices()[i]) for i in (0, 1))
    with pytest.raises(errors.DeviceAssignmentMismatchError, match=r"argument x of add .* argument y of add"):
        lax.add(first, second)
    with pytest.raises(errors.DeviceAssignmentMismatchError, match=r"argument 0 of select_n .* argument 1 of select_n"):
        lax.select(first > 0, first, second)
