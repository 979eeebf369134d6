"""The program being written: attributes are values, and print as MLIR does."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

import numpy as np
import pytest
from jaxlib.mlir import ir

import collectives
from collectives.ir import attributes as attributes_
from collectives.ir.attributes import (
    Array,
    Attributes,
    ConvNumbers,
    Dense,
    DeviceLists,
    DotNumbers,
    Enum,
    Flag,
    Flags,
    GatherNumbers,
    Given,
    Integer,
    Integers,
    Pairs,
    ScatterNumbers,
    Splat,
    String,
    Symbol,
    splat_literal,
)
from collectives.ir.operations import WRITTEN, attributes, communication, splat_constant
from collectives.ir.program import ModuleBuilder
from collectives.ir.walker import walk
from collectives.kinds import kinds
from collectives.layouts.given_attributes import typed
from propagation.attributes import ConvDims, DotDims, GatherDims, ScatterDims
from propagation.contexts import new_context

from .text_side import MESH, over

VALUES = [
    Integer(3),
    Integer(-(1 << 63)),
    Flag(True),
    String('a "b"\n'),
    Symbol("f"),
    Symbol("f g"),
    Integers(()),
    Integers((2, -1)),
    Flags((True, False)),
    Enum("comparison_direction", "LT"),
    Array((Enum("precision", "DEFAULT"), Enum("precision", "HIGHEST"))),
    DotNumbers(DotDims((0,), (1,), (2,), (0,))),
    DotNumbers(DotDims((), (), (), ())),
    GatherNumbers(GatherDims((1,), (0,), (), (), (0,), 1)),
    GatherNumbers(GatherDims((), (1,), (0,), (0,), (1,), 2)),
    ScatterNumbers(ScatterDims((1, 2), (), (), (), (0, 1), 1)),
    ScatterNumbers(ScatterDims((), (1,), (0,), (0,), (1,), 0)),
    ConvNumbers(ConvDims(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))),
    ConvNumbers(ConvDims(3, 0, (1, 2), 0, 3, (1, 2), 2, 3, (0, 1))),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: v.text)
def test_what_is_printed_is_read_back_as_the_same_value(value):
    with new_context() as context:
        read = ir.Attribute.parse(value.text, context)
        assert str(read) == value.text
        assert typed(read) == value


DENSE = [
    Pairs(((0, 1), (2, 0))),
    Pairs(()),
    Splat("0.0", (2, 3), "f32"),
    Splat("true", (), "i1"),
    Dense.of(np.array([[1, 2], [3, 4]]), "i32"),
    Dense.of(np.array([True, False]), "i1"),
    Dense.of(np.zeros((0, 2), np.int64), "i64"),
]


@pytest.mark.parametrize("value", DENSE, ids=lambda v: v.text)
def test_constants_are_what_mlir_takes_them_for(value):
    with new_context() as context:
        read = ir.Attribute.parse(value.text, context)
        shape = tuple(ir.ShapedType(ir.DenseElementsAttr(read).type).shape)
        assert shape == getattr(value, "shape", (len(getattr(value, "values", ())), 2))
        assert typed(read) == Given(read)  # printed again as it came


@pytest.mark.parametrize(
    ("text", "literal"),
    [("dense<0.000000e+00> : tensor<4xf32>", "0.000000e+00"), ("dense<[1, 2]> : tensor<2xi32>", None),
     ('dense<"0x01000000020000000300000004000000"> : tensor<4xi32>', None), ("dense<false> : tensor<i1>", "false"),
     ("3 : i64", None)],
)  # fmt: skip
def test_the_one_element_of_a_constant(text, literal):
    with new_context() as context:
        assert splat_literal(Given(ir.Attribute.parse(text, context))) == literal


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_lists_of_devices_are_written_once(rows):
    builder = ModuleBuilder("m", "")
    pairs = np.stack([np.arange(rows), np.arange(rows)[::-1]], axis=1)
    one, again = (builder.dense(("pairs", i), lambda: pairs) for i in range(2))
    other = builder.dense("other", lambda: pairs[:0])
    assert one is again and one != other and (one.alias, other.alias) == ("#groups0", "#groups1")
    assert (one.rows == pairs).all()
    with new_context() as context:
        for lists, expected in ((one, pairs), (other, pairs[:0])):
            read = ir.DenseIntElementsAttr(ir.Attribute.parse(lists.definition, context))
            assert np.array(read).tolist() == expected.tolist()


# -- of an operation -------------------------------------------------------------------------------------------------


def test_equal_attributes_are_one_object():
    a = Attributes.of({"dimension": Integer(1), "is_stable": Flag(True)})
    b = attributes("stablehlo.sort", 1, True)
    assert a is b and hash(a) == hash(b)
    assert a is not attributes("stablehlo.sort", 0, True)
    assert a.without("is_stable") is attributes("stablehlo.concatenate", 1)
    assert a.without("is_stable").also({"is_stable": Flag(True)}) is a
    assert (*a,) == ("dimension", "is_stable") and a["dimension"].value == 1 and a.get("other") is None
    assert not attributes_.NONE and attributes_.NONE.text == ""
    assert splat_constant("0", (), "i32").text == "value = dense<0> : tensor<i32>"


def test_names_that_are_no_words_are_quoted_and_units_have_no_value():
    with new_context() as context:
        unit = Given(ir.UnitAttr.get(context))
    assert Attributes.of({"a-b": Flag(False), "mhlo.x": unit}).text == '"a-b" = false, mhlo.x'


def test_those_of_programs_that_are_gone_are_forgotten():
    before = len(attributes_._INTERNED)
    made = [Attributes.of({f"name{i}": Integer(i)}) for i in range(50)]
    assert len(attributes_._INTERNED) == before + len(made)
    del made
    gc.collect()
    assert len(attributes_._INTERNED) <= before


@pytest.mark.parametrize("kind", [k for k in kinds().values() if k.op is not None], ids=lambda k: k.name)
def test_collectives_name_what_their_kind_names(kind):
    lists = DeviceLists("#groups0", (1, 2), np.arange(2).tobytes())
    numbers = range(len(kind.dimensions) + (kind.counts is not None))
    found = communication(kind, lists, *numbers)
    assert (*found,)[-1] == kind.groups_attribute and found[kind.groups_attribute] == lists
    assert [found[name].value for name in kind.dimensions] == list(numbers)[: len(kind.dimensions)]


PROGRAM = (
    MESH
    + f"""func.func @main(%x: tensor<16x8xf32> {over("x", "")}, %i: tensor<4xi32> {over("")}) -> tensor<4x8xf32> {{
  %0 = stablehlo.slice %x [1:15, 0:8] : (tensor<16x8xf32>) -> tensor<14x8xf32>
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %1 = stablehlo.pad %0, %f, low = [1, 0], high = [1, 0], interior = [0, 0]
    : (tensor<14x8xf32>, tensor<f32>) -> tensor<16x8xf32>
  %2 = stablehlo.dot_general %1, %1, contracting_dims = [0] x [0]
    : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  %3 = "stablehlo.gather"(%x, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [1],
    collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>}}>
    : (tensor<16x8xf32>, tensor<4xi32>) -> tensor<4x8xf32>
  %4 = stablehlo.dot_general %3, %2, contracting_dims = [1] x [0]
    : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  return %4 : tensor<4x8xf32> }}"""
)


def test_operations_have_the_attributes_of_the_table_in_its_order():
    made = collectives.partition(PROGRAM)
    seen = set()
    for function in made._builder.functions:
        for region in walk(function.region):
            for item in (*region.prologue, *region.items):
                table = WRITTEN.get(item.name)
                if table is not None and item.attrs:
                    assert [n for n in table if n in item.attrs] == list(item.attrs), item
                    seen.add(item.name)
                assert all(isinstance(a, attributes_.Attribute) for a in (*item.attrs.values(), *item.extra.values()))
    assert {"stablehlo.constant", "stablehlo.compare", "stablehlo.broadcast_in_dim"} <= seen
    (dot, _) = [i for i in made._builder.functions[0].region.items if i.name == "stablehlo.dot_general"]
    assert dot.attribute("dot_dimension_numbers") == DotNumbers(DotDims((), (), (0,), (0,)))


def test_arguments_in_another_memory_are_not_given_away():
    kept = '%x: tensor<4xf32> {mhlo.memory_kind = "pinned_host"}, %y: tensor<4xf32> {jax.buffer_donor = true}'
    text = MESH + f"func.func @main({kept}) -> tensor<4xf32> {{ return %x : tensor<4xf32> }}"
    (main,) = collectives.partition(text)._builder.functions
    assert main.donated == [main.region.args[1]]
    assert [attrs.text for attrs in main.arg_attrs] == ['mhlo.memory_kind = "pinned_host"', "jax.buffer_donor = true"]


ROOM = Path(collectives.__file__).parent
READERS = sorted([*(ROOM / "passes").rglob("*.py"), *(ROOM / "plan").rglob("*.py"), ROOM / "machine.py"])


@pytest.mark.parametrize("path", READERS, ids=lambda p: str(p.relative_to(ROOM)))
def test_no_pass_reads_text(path):
    tree = ast.parse(path.read_text())
    imported = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    assert "re" not in imported
    asked = [ast.unparse(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "text"]
    assert not [x for x in asked if "attr" in x or "extra" in x], f"{path.name} asks attributes for their text"
