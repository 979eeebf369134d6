"""Programs made straight from what a writer recorded are those that reading the writer's text makes."""

import sys

import pytest

from propagation import read, run
from propagation.annotations import read_shardings
from propagation.asm import ModuleWriter
from propagation.errors import LimitError, ModuleParseError
from propagation.program import location_text
from propagation.write import write_text
from propagation.written import program_of

T, S = "tensor<8x16xf32>", "tensor<f32>"
SHARDED = '#sdy.sharding<@mesh, [{"x"}, {?}]>'


def _writer() -> ModuleWriter:
    """A loop, a reduction, a call, several results, constants, locations, annotations."""
    writer = ModuleWriter("example", "mhlo.num_partitions = 4 : i32")
    writer.preamble.append('sdy.mesh @mesh = <["x"=4]>')
    here = writer.location('"sum"("f.py":3:1)')
    inner = writer.function("inner", [T])
    inner.ret([inner.op("stablehlo.tanh", inner.args, [T], loc=here)])
    f = writer.function("main", [T, T], public=True, loc=here)
    f.arg_attrs = [f"sdy.sharding = {SHARDED}", "tf.aliasing_output = 0 : i32"]
    zero = f.op("stablehlo.constant", (), [S], "value = dense<0.0> : tensor<f32>")
    add = f.body([S, S])
    add.ret([add.op("stablehlo.add", add.args, [S])])
    f.op("stablehlo.reduce", [f.args[0], zero], ["tensor<8xf32>"], "dimensions = array<i64: 1>", [add], here)
    called = f.ops("func.call", [f.args[1]], [T], "callee = @inner", loc=here)
    both = f.ops("stablehlo.optimization_barrier", [f.args[0], called[0]], [T, T])
    marked = f.op("sdy.sharding_constraint", [both[1]], [T], f"sharding = {SHARDED}")
    tags = 'sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}]>]>, mhlo.frontend_attributes = {a = "b"}'
    total = f.op("stablehlo.add", [both[0], marked], [T], loc=here, discardable=tags)
    f.result_attrs = ['jax.result_info = "[0]"', ""]
    f.ret([total, called[0]])
    return writer


def test_the_program_is_that_of_the_text():
    writer = _writer()
    made, parsed = program_of(writer), read(writer.text())
    assert write_text(made, read_shardings(made), False) == write_text(parsed, read_shardings(parsed), False)
    assert made.names == parsed.names and list(made.funcs) == list(parsed.funcs) and made.name == "example"
    assert [(v.type, v.number) for v in made.values] == [(v.type, v.number) for v in parsed.values]
    own = [[p for o in m.ops() if (p := location_text(o.loc)) and p[0] != "-"] for m in (made, parsed)]
    assert own[0] == own[1] and own[0]


def test_propagation_decides_alike():
    writer = _writer()
    made, parsed = run(program_of(writer)), run(writer.text())
    assert made.as_text() == parsed.as_text()
    assert [e.__class__ for e in made.log.events] == [e.__class__ for e in parsed.log.events]
    assert made.program.module.operation.get_asm() == parsed.program.module.operation.get_asm()


def test_programs_of_one_writer_are_independent():
    writer = _writer()
    first = run(program_of(writer)).as_text()
    assert run(program_of(writer)).as_text() == first


def test_a_lowered_step_is_alike():
    meshrt = pytest.importorskip("meshrt")

    def step(w, x):
        def loss(w):
            return meshrt.lax.fori_loop(0, 3, lambda i, v: meshrt.numpy.tanh(v @ w), x).sum()

        return meshrt.grad(loss)(w)

    w = meshrt.ShapeDtypeStruct((8, 8), meshrt.numpy.float32)
    module = meshrt.jit(step).lower(w, w).module
    made, parsed = module.program(), read(module.text)
    assert write_text(made, read_shardings(made), False) == write_text(parsed, read_shardings(parsed), False)


def _attributes(writer):
    """Those of the first operation; attributes and types are read when asked for."""
    return program_of(writer).main.body.ops[0].attrs


def test_what_mlir_cannot_read_has_an_error():
    for attrs, kind in (("value = dense<", T), ("", "tensor<8xnonsense>")):
        writer = ModuleWriter("m")
        f = writer.function("main", [], public=True)
        f.ret([f.op("stablehlo.constant", (), [kind], attrs)])
        with pytest.raises(ModuleParseError):
            _attributes(writer)


def test_deep_regions_have_an_error():
    writer = ModuleWriter("m")
    f = writer.function("main", [], public=True)
    body = f.body([])
    f.ops("test.op", [], [], regions=[body])
    for _ in range(200):
        inner = body.body([])
        body.ops("test.op", [], [], regions=[inner])
        body = inner
    f.ret([])
    with pytest.raises(LimitError):
        program_of(writer)


def test_locations_are_read_without_a_search_for_modules(monkeypatch):
    """MLIR's bindings import a module for every operation of a dialect that they do not know, and find none."""
    writer = ModuleWriter("many")
    f = writer.function("main", [S], public=True)
    x = f.args[0]
    for i in range(50):
        x = f.op("stablehlo.tanh", [x], [S], loc=writer.location(f'"f.py":{i + 1}:1'))
    f.ret([x])
    program = program_of(writer)
    assert location_text(program.main.body.ops[0].loc) == "f.py:1"  # what is loaded once has been loaded
    searched = []
    monkeypatch.setattr(sys, "meta_path", [_Recorder(searched), *sys.meta_path])
    again = program_of(writer)
    assert [location_text(op.loc) for op in again.main.body.ops[:3]] == ["f.py:1", "f.py:2", "f.py:3"]
    assert searched == []


class _Recorder:
    """A finder that finds nothing and notes what was looked for."""

    def __init__(self, names: list[str]):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        self.names.append(name)
