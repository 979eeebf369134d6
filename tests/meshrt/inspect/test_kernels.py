"""Kernels in a report: what each takes of a core, on one device's pieces."""

import json

import numpy as np
import pytest

import meshrt
from meshrt.experimental.pallas import ops
from meshrt.inspect.markdown import report_markdown
from meshrt.inspect.model import Report
from meshrt.inspect.render import console, render
from meshrt.inspect.schema import report_schema
from meshrt.sharding import AbstractMesh, AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P


def _kind(shape, *spec, mesh):
    return meshrt.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh, P(*spec)))


@pytest.fixture(scope="module")
def report():
    mesh = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    program = meshrt.jit(lambda x, w: ops.matmul(ops.matmul(x, w), w.T, activation="relu"))
    args = _kind((64, 32), "data", mesh=mesh), _kind((32, 16), None, "model", mesh=mesh)
    return meshrt.inspect.report(program.lower(*args))


def test_kernels_are_those_of_one_device(report):
    first, second = report.kernels
    assert first.name == second.name == "matmul" and first.grid == (1, 1, 1) and "test_kernels.py" in first.where
    assert first.operations == 2 * 32 * 32 * 4  # half of the rows, a quarter of the columns
    assert first.held == sum(m.bytes for m in first.memory) and first.memory[0].memory == "vmem"
    assert first.held >= 4 * (32 * 32 + 32 * 4 + 32 * 4) and first.copies == 3 and first.sent == 0


def _two_products(x, w):
    first = ops.matmul(x, w)
    return ops.matmul(first, w)


@pytest.mark.parametrize("sizes", [(1,), (2,)])
def test_each_is_shown_at_the_line_that_calls_it(sizes):
    """Whoever asks for the partition, and though both calls share what was traced."""
    mesh = AbstractMesh(sizes, ("data",), axis_types=(AxisType.Auto,))
    kinds = [_kind((32, 32), "data", mesh=mesh), _kind((32, 32), mesh=mesh)]
    lines = [f"test_kernels.py:{_two_products.__code__.co_firstlineno + n} (_two_products)" for n in (1, 2)]
    for f in (_two_products, meshrt.grad(lambda x, w: _two_products(x, w).sum(), (0, 1))):
        lowered = meshrt.jit(f).lower(*kinds)
        report = eval("report(lowered)", {"report": meshrt.inspect.report, "lowered": lowered})
        found = {k.where[k.where.index("test_kernels") :] for k in report.kernels}
        assert found == set(lines)


def test_they_are_shown_and_kept(report, capsys):
    render(report, console())
    shown = capsys.readouterr().out
    assert "Kernels" in shown and "1x1x1" in shown and "vmem" in shown
    assert "Kernels (2)" in report_markdown(report)
    again = Report.from_json(json.loads(json.dumps(report.as_json())))
    assert again.kernels == report.kernels
    assert "KernelRow" in report_schema()["$defs"]


def test_rings_say_what_they_send():
    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    specs = (P("x"), P(None, "x"))
    ring = lambda x, w: ops.all_gather_matmul(x, w, "x")
    f = meshrt.jit(meshrt.shard_map(ring, mesh=mesh, in_specs=specs, out_specs=specs[1]))
    (kernel,) = meshrt.inspect.report(
        f.lower(_kind((32, 8), "x", mesh=mesh), _kind((8, 16), None, "x", mesh=mesh))
    ).kernels
    assert kernel.name == "all_gather_matmul" and kernel.sent == 3 * 8 * 8 * 4 and kernel.places == 1


def test_programs_without_kernels_have_none():
    assert meshrt.inspect.report(meshrt.jit(lambda x: x + 1).lower(np.ones(3))).kernels == ()
