"""Values of high types at the boundary of exported functions, also of those that were in a file."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import export
from meshrt.experimental import hijax
from meshrt.experimental.hijax import Box, saved
from meshrt.experimental.hijax.padded import filled, padded
from meshrt.experimental.hijax.quantized import QArray, dequantize, quantize, quantized_matmul
from meshrt.experimental.hijax.tuples import box_of, element, tuple_of, unbox

X = jnp.arange(12.0).reshape(3, 4)
W = np.random.RandomState(0).randn(4, 2).astype(np.float32)


def through_a_file(f, *args, **options):
    return export.deserialize(export.export(f)(*args).serialize(**options))


def test_exported_functions_take_and_give_values_of_high_types():
    f, q = meshrt.jit(lambda q, x: quantized_matmul(x, q)), quantize(W)
    for exported in (export.export(f)(q, X), through_a_file(f, q, X, vjp_order=1)):
        for call in (exported.call, meshrt.jit(exported.call)):
            np.testing.assert_array_equal(call(q, X), f(q, X))
        slope = lambda f: meshrt.grad(lambda x: (f(q, x) ** 2).sum())(X)
        np.testing.assert_allclose(slope(exported.call), slope(f), rtol=1e-6)
        with pytest.raises(ValueError, match=r"args\[0\]"):  # scales by columns
            exported.call(quantize(W, axis=1), X)
        with pytest.raises(ValueError, match=r"args\[0\]"):
            exported.call((q.values, q.scales), X)
        with pytest.raises(NotImplementedError, match="derivatives of q8"):
            meshrt.grad(lambda q: exported.call(q, X).sum())(q)
    types = QArray(meshrt.ShapeDtypeStruct((4, 2), np.int8), meshrt.ShapeDtypeStruct((4,), np.float32))
    np.testing.assert_array_equal(export.export(f)(types, X).call(q, X), f(q, X))
    back = through_a_file(meshrt.jit(quantize), X).call(X)
    np.testing.assert_array_equal(dequantize(back), dequantize(quantize(X)))


def test_all_types_that_ship_can_be_in_files():
    pair = tuple_of(X, quantize(W))
    swapped = through_a_file(meshrt.jit(lambda t: tuple_of(element(t, 1), element(t, 0))), pair).call(pair)
    np.testing.assert_array_equal(dequantize(element(swapped, 0)), dequantize(element(pair, 1)))
    np.testing.assert_array_equal(element(swapped, 1), X)
    held = box_of({"a": [X]})
    doubled = meshrt.jit(lambda b: box_of({"u": 2 * unbox(b)["a"][0]}))
    np.testing.assert_array_equal(unbox(through_a_file(doubled, held).call(held))["u"], 2 * X)
    rows = padded(X, 2)
    np.testing.assert_array_equal(through_a_file(meshrt.jit(filled), rows).call(rows), filled(rows))


def test_shardings_of_the_arrays_go_along():
    mesh = meshrt.make_mesh((2,), ("x",), (meshrt.sharding.AxisType.Auto,))
    whole, columns = (meshrt.NamedSharding(mesh, s) for s in (meshrt.P(), meshrt.P(None, "x")))
    f = meshrt.jit(lambda q, x: quantized_matmul(x, q), in_shardings=(whole, columns), out_shardings=whole)
    exported = through_a_file(f, quantize(W), X)
    assert [s.spec for s in exported.in_shardings] == [meshrt.P(), meshrt.P(), meshrt.P(None, "x")]
    placed = [meshrt.device_put(v, s) for v, s in ((quantize(W), whole), (X, columns))]
    np.testing.assert_allclose(exported.call(*placed), f(*placed), rtol=1e-6)


@dataclass(frozen=True, eq=False)
class Two:
    first: Any
    second: Any


@dataclass(frozen=True)
class TwoType(hijax.HiType):
    part: hijax.ShapedArray
    name: str = "two"

    lo_ty = lambda self: [self.part, self.part]
    lower_val = lambda self, value: [value.first, value.second]
    raise_val = lambda self, *parts: Two(*parts)
    to_tangent_aval = lambda self: self.part


class Add(hijax.VJPHiPrimitive):
    def __init__(self, kind):
        self.in_avals, self.out_aval, self.params = (kind,), kind.part, {}
        super().__init__()

    def expand(self, two):
        return two.first + two.second


hijax.register_hitype(Two, lambda two: TwoType(meshrt.typeof(two.first)))


def test_types_of_the_users_own_are_registered_for_files():
    f, two = meshrt.jit(lambda two: Add(meshrt.typeof(two))(two)), Two(X, 2 * X)
    exported = export.export(f)(two)
    np.testing.assert_array_equal(exported.call(two), 3 * X)
    with pytest.raises(ValueError, match=r"TwoType.*register_hitype_serialization"):
        exported.serialize()
    assert hijax.register_hitype_serialization(TwoType, serialized_name="tests.Two") is TwoType
    np.testing.assert_array_equal(export.deserialize(exported.serialize()).call(two), 3 * X)
    for cls, name in ((TwoType, "tests.Other"), (Two, "tests.Two"), (Two, "")):
        with pytest.raises(ValueError):
            hijax.register_hitype_serialization(cls, serialized_name=name)


def test_exported_functions_have_no_boxes():
    box = Box(1.0)
    for f, args in ((lambda b, x: b.set(x), (box, X)), (lambda x: box.set(x), (X,))):
        with pytest.raises(NotImplementedError, match=r"mutable value of type Box\{f32\[\]\}"):
            export.export(meshrt.jit(f))(*args)


HOSTILE = [
    "[1]", "nojson", "[" * 9999, '{"type":3,"of":{}}', '{"type":[],"of":{}}', '{"array":{}}', '{"tree":{}}',
    '{"type":"meshrt.QType"}', '{"type":"meshrt.QType","of":[]}', '{"type":"meshrt.QType","of":{"nope":1}}',
    '{"type":"meshrt.QType","of":{"values":null,"scales":"x","axis":[1]}}',
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:24])
def test_what_is_no_type_in_a_file_is_refused(monkeypatch, text):
    exported = export.export(meshrt.jit(dequantize))(quantize(W))
    with monkeypatch.context() as writing:  # the file says this of the type of its argument
        writing.setattr(saved, "json", SimpleNamespace(dumps=lambda data: text))
        blob = exported.serialize()
    with pytest.raises(meshrt.errors.MeshrtError):
        export.deserialize(blob)
