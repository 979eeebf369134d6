"""Extended dtypes that a user defines by rules, beside JAX: pairs of numbers, whose derivatives take the larger one."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax._src import dtypes as jax_dtypes

import meshrt
import meshrt.checkpoint
import meshrt.dtypes
import meshrt.export
import meshrt.numpy
from meshrt.sharding import NamedSharding, PartitionSpec
from tests.meshrt.beside import assert_alike

W = np.arange(4.0, dtype=np.float32).reshape(2, 2)
X = np.arange(3.0, dtype=np.float32)


def pair_dtype(m: Any) -> Any:
    """The dtype of pairs of float32, over the library `m`."""
    base = meshrt.dtypes if m is meshrt else jax_dtypes
    convert, numpy = m.lax.convert_element_type, m.numpy

    class Rules:
        allow_conversion = True

        @staticmethod
        def physical_element_aval(dtype: Any) -> Any:
            return m.ShapeDtypeStruct((2,), np.float32)

        @staticmethod
        def tangent_dtype(dtype: Any) -> Any:
            return dtype

        @staticmethod
        def add(dtype: Any, x: Any, y: Any) -> Any:
            return convert(numpy.maximum(convert(x, np.float32), convert(y, np.float32)), dtype)

        @staticmethod
        def zero(dtype: Any) -> Any:
            return convert(numpy.full(2, -np.inf, np.float32), dtype)

        @staticmethod
        def full(shape: Any, value: Any, dtype: Any) -> Any:
            return convert(numpy.full((*shape, 2), value, np.float32), dtype)

    class Scalar(base.extended):
        pass

    class Pair(base.ExtendedDType):
        type = Scalar
        name = "pair"
        _rules = Rules

        def __repr__(self) -> str:
            return self.name

        def __eq__(self, other: object) -> bool:
            return type(other) is type(self)

        def __hash__(self) -> int:
            return hash(self.name)

    return Pair()


def _seen(m: Any) -> tuple[Any, Any, Any]:
    """The dtype, conversion to and from it, and a function whose cotangent of pairs is the pair plus a sum."""
    pair, convert = pair_dtype(m), m.lax.convert_element_type
    to, numbers = (lambda x: convert(x, pair)), (lambda p: convert(p, np.float32))

    @m.custom_vjp
    def noted(x: Any, p: Any) -> Any:
        return x

    noted.defvjp(lambda x, p: (x, numbers(p)), lambda held, ct: (ct, to(held + ct.sum())))
    return to, numbers, noted


def _twice(m: Any, x: Any, w: Any) -> Any:
    to, _, noted = _seen(m)
    p = to(w)
    return noted(x * x, p).sum() + (noted(3 * x, p) * m.numpy.asarray([1.0, 5.0, 1.0])).sum()


def _scanned(m: Any, x: Any, w: Any) -> Any:
    to, _, noted = _seen(m)
    p = to(w)
    return m.lax.scan(lambda c, _: (noted(c * c, p), None), x, None, length=3)[0].sum()


def _branching(m: Any, x: Any, w: Any) -> Any:
    to, _, noted = _seen(m)
    p = to(w)
    return m.lax.cond(x[0] > 1, lambda x, p: noted(x, p).sum() * 2, lambda x, p: x.sum(), x, p) + noted(x, p).sum()


# What is added to a derivative of pairs takes the larger one; where a branch does not use them, `zero` is added.
@pytest.mark.parametrize("loss", [_twice, _scanned, _branching])
def test_derivatives_add_up_by_the_rules(loss):
    assert_alike(lambda m: m.jit(m.grad(lambda x, w: loss(m, x, w), (0, 1)))(X, W))


def _turned(m: Any, p: Any) -> Any:
    ref = m.new_ref(p)

    def body(i: Any, last: Any) -> Any:
        ref[i] = p[1 - i]
        return last

    m.lax.fori_loop(0, 2, body, p[0])
    return ref[...]


STRUCTURAL = {
    "broadcast": lambda m, p: m.lax.broadcast_in_dim(p, (3, 2), (1,)),
    "transpose": lambda m, p: m.numpy.stack([p, p, p]).T,
    "concatenate": lambda m, p: m.lax.concatenate([p, p], 0),
    "reshape": lambda m, p: p.reshape(2, 1),
    "slice": lambda m, p: p[1:],
    "dynamic index": lambda m, p: m.lax.dynamic_index_in_dim(p, 1),
    "gather": lambda m, p: p[m.numpy.asarray([1, 1, 0])],
    "select": lambda m, p: m.numpy.where(m.numpy.asarray([True, False]), p, p[::-1]),
    "scan": lambda m, p: m.lax.scan(lambda c, q: (q, c), p[0], p)[1],
    "vmap": lambda m, p: m.vmap(lambda q: q)(p),
    "take": lambda m, p: m.numpy.take(p, np.array([0, 5]), mode="clip"),
    "references": lambda m, p: _turned(m, p),
    "full": lambda m, p: m.lax.full((3,), 2.0, p.dtype),
    "zeros": lambda m, p: m.numpy.zeros((3,), p.dtype),
}


@pytest.mark.parametrize("name", ["eq", "ne"])
@pytest.mark.parametrize("shape", [(2,), (3, 2), (0,)])
def test_pairs_are_compared_whole(name, shape):
    def program(m: Any) -> Any:
        to = _seen(m)[0]

        def compared(w: Any) -> Any:
            p = m.numpy.broadcast_to(to(w), shape)
            other = m.numpy.broadcast_to(to(w * np.float32([[1, 1], [1, 2]])), shape)
            operator = m.numpy.equal if name == "eq" else m.numpy.not_equal
            return operator(p, other), getattr(m.lax, name)(p, other), operator(p, to(w)[0])

        return m.jit(compared)(W)

    assert_alike(program)


@pytest.mark.parametrize("name", STRUCTURAL)
def test_arrays_of_pairs_are_moved_whole(name):
    def program(m: Any) -> Any:
        to, numbers, _ = _seen(m)
        return m.jit(lambda w: numbers(STRUCTURAL[name](m, to(w))))(W)

    assert_alike(program)


REFUSED = {
    "another dtype": lambda m, to, w: to(m.numpy.asarray(w).astype(np.int32)),
    "another shape": lambda m, to, w: to(m.numpy.ones((2, 3))),
    "a scalar": lambda m, to, w: to(1.0),
    "back to another dtype": lambda m, to, w: m.lax.convert_element_type(to(w), np.int32),
    "bounds": lambda m, to, w: m.lax.clamp(to(w), to(w), to(w)),
    "what is out of bounds": lambda m, to, w: m.numpy.take(to(w), m.numpy.asarray([5])),
    "gradients": lambda m, to, w: m.grad(lambda p: m.lax.convert_element_type(p, np.float32).sum())(to(w)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_pair_is_refused(name):
    assert_alike(lambda m: m.jit(lambda w: REFUSED[name](m, _seen(m)[0], w))(W))


# In JAX the error is the compiler's, an assertion or of another class.
OF_NUMBERS = {
    "sort": lambda p: meshrt.numpy.sort(p),
    "top_k": lambda p: meshrt.lax.top_k(p, 1),
    "pad": lambda p: meshrt.lax.pad(p, p[0], [(1, 0, 0)]),
    "dot_general": lambda p: p @ p,
    "argmax": lambda p: meshrt.numpy.argmax(p),
}


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_no_compiler_is_asked_for_what_numbers_alone_have(name):
    with pytest.raises(meshrt.errors.ArgumentTypeError, match=f"{name}.* does not accept dtype pair"):
        meshrt.eval_shape(lambda w: OF_NUMBERS[name](_seen(meshrt)[0](w)), W)


def test_programs_print_as_jax_prints_them():
    printed = [
        str(m.make_jaxpr(lambda w, m=m: _seen(m)[1](_seen(m)[0](w)))(np.asarray(W))).replace(" ", "")
        for m in (jax, meshrt)
    ]
    assert printed[0] == printed[1] and "from_edtype[dtype=float32]" in printed[0]


def test_arrays_outside_of_programs():
    # JAX has them only where the rules say how an array is made; here they are arrays like others.
    to, numbers, _ = _seen(meshrt)
    p = to(W)
    assert p.shape == (2,) and p.nbytes == 16 and str(p.dtype) == "pair"
    np.testing.assert_array_equal(np.asarray(numbers(p[::-1])), W[::-1])
    np.testing.assert_array_equal(np.asarray(meshrt.jit(lambda p: numbers(p).sum())(p)), W.sum())


def test_arrays_of_pairs_are_split():
    to, numbers, _ = _seen(meshrt)
    split = NamedSharding(meshrt.sharding.Mesh(np.array(meshrt.devices()[:2]), ("x",)), PartitionSpec("x"))
    p = meshrt.jit(to)(meshrt.device_put(W, split))
    assert p.sharding.is_equivalent_to(split, 1) and p.addressable_shards[0].data.shape == (1,)
    np.testing.assert_array_equal(np.asarray(meshrt.jit(numbers)(p)), W)


def test_a_missing_rule_is_named():
    class Unsaid(meshrt.dtypes.ExtendedDType):
        type = meshrt.dtypes.extended
        name = "unsaid"

        def __repr__(self) -> str:
            return self.name

    with pytest.raises(meshrt.errors.UnsupportedError, match="unsaid says nothing of 'physical_element_aval'"):
        _ = Unsaid().itemsize
    with pytest.raises(meshrt.errors.ArgumentTypeError, match=r"\(allow_conversion\)"):
        meshrt.lax.convert_element_type(np.ones(2), Unsaid())


def test_files_hold_no_arrays_of_pairs(tmp_path):
    to, numbers, _ = _seen(meshrt)
    with pytest.raises(meshrt.errors.CheckpointError, match="extended dtype pair"):
        meshrt.checkpoint.save(tmp_path / "kept", {"p": to(W)})
    exported = meshrt.export.export(meshrt.jit(numbers))(to(W))
    with pytest.raises(meshrt.errors.UnsupportedError, match=r"pair\[2\] in a file"):
        exported.serialize()


def test_references_hold_elements_whatever_says_how_they_are_held():
    class Bare(meshrt.dtypes.ExtendedDType):
        type = meshrt.dtypes.extended
        name = "bare"
        physical_dtype, physical_suffix = np.dtype(np.float32), (2,)

        def __repr__(self) -> str:
            return self.name

        def is_converted(self, number_dtype: Any, back: bool) -> bool:
            return True

    def turned(w: Any) -> Any:
        return meshrt.lax.convert_element_type(_turned(meshrt, meshrt.lax.convert_element_type(w, bare)), np.float32)

    bare = Bare()
    np.testing.assert_array_equal(meshrt.jit(turned)(W), W[::-1])
