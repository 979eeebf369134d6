"""All operations of a program as rows, sorted into trees, and laid out."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import pytest

from meshrt.inspect.model import Report
from meshrt.inspect.page.data import page_data
from meshrt.inspect.page.folding import MOST_MEMBERS, by_function, by_layer, by_line
from meshrt.inspect.page.layout import WIDEST, laid_out
from meshrt.inspect.program_rows import OperationRow, ProgramRow
from meshrt.inspect.schema import report_schema
from meshrt.inspect.scopes import split_scope
from meshrt.inspect.totals import by_layer as sent_by_layer
from tests.meshrt.inspect.page.programs import MESH, lowered, report_with_program


@pytest.fixture(scope="module")
def made() -> Report:
    return report_with_program()


def edges(program: ProgramRow) -> list[tuple[int, int]]:
    makers = {v: i for i, o in enumerate(program.operations) for v in o.results}
    return [(makers[v], i) for i, o in enumerate(program.operations) for v in o.operands if v in makers]


def test_a_program_fits_the_schema_and_comes_back(made):
    data = json.loads(json.dumps(made.as_json()))
    jsonschema.validate(data, report_schema())
    assert Report.from_json(data) == made
    assert made.program is not None and made.version == 2


def test_values_are_made_before_they_are_read(made):
    program = made.program
    makers = {v: i for i, o in enumerate(program.operations) for v in o.results}
    assert set(makers) == set(range(len(program.values)))
    assert all(a < b for a, b in edges(program))
    assert all(o.within is None or o.within < i for i, o in enumerate(program.operations))
    loop = next(i for i, o in enumerate(program.operations) if o.kind == "while")
    inside = [o for o in program.operations if o.within == loop]
    assert {"argument", "sine", "return"} <= {o.kind for o in inside}
    reduce = next(i for i, o in enumerate(program.operations) if o.kind == "reduce")
    assert not [o for o in program.operations if o.within == reduce]  # it adds scalars: part of the operation


def test_the_reasons_of_every_axis_lead_to_an_annotation(made):
    values = made.program.values
    axes = 0
    for value in values:
        assert {(r.dim, r.axis) for r in value.reasons} == {(d, a) for d, each in enumerate(value.axes) for a in each}
        for reason in value.reasons:
            axes, at, steps = axes + 1, reason, 0
            while at.source is not None:
                at = next(r for r in values[at.source].reasons if (r.dim, r.axis) == (at.source_dim, at.axis))
                steps += 1
                assert steps <= len(values)
            assert "is annotated with axis" in at.text
    assert axes > 20


def test_first_steps_are_those_of_the_explanations():
    propagated = lowered().propagate().result
    for value in propagated.program.values:
        if propagated.sharding(value) is not None and value.type.rank:
            assert propagated.first_steps(value) == [chain[0] for chain in propagated.explain(value)]


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("", ("", ())),
        ("jvp()/scan/body/blk", ("forward", ("scan", "body", "blk"))),
        ("transpose(jvp(layer1))/mlp", ("backward", ("layer1", "mlp"))),
        ("jvp(a/b)/c", ("forward", ("a", "b", "c"))),
        ("vmap(a/b)", ("", ("vmap(a/b)",))),
        ("jvp(((", ("", ("jvp(((",))),
    ],
)
def test_scopes(scope, expected):
    assert split_scope(scope) == expected


def test_what_is_sent_is_added_up_by_layer(made):
    totals = {t.key: t.bytes for t in sent_by_layer(made)}
    assert sum(totals.values()) == pytest.approx(made.bytes)
    assert {"layer0", "layer1"} <= set(totals)  # forward and backward are one


def test_trees_have_the_names_of_the_program(made):
    layers, functions, lines = by_layer(made.program), by_function(made.program), by_line(made.program)
    assert {"forward", "backward", "layer0", "layer1"} <= set(layers.names)
    assert {"train", "loss", "mlp"} <= set(functions.names)
    assert any(name.startswith("line ") for name in lines.names)
    loop = next(i for i, o in enumerate(made.program.operations) if o.kind == "while")
    assert loop in layers.parents and loop not in lines.parents


def flat(count: int) -> ProgramRow:
    return ProgramRow(
        tuple(OperationRow("add", "main", None, "", None, (i - 1,) if i else (), (i,)) for i in range(count)), (), ()
    )


@pytest.mark.parametrize("count", [1, MOST_MEMBERS, MOST_MEMBERS + 1, 5000])
def test_no_group_has_many_members(count):
    tree = by_layer(flat(count))
    members = tree.members()
    assert max(map(len, members.values())) <= MOST_MEMBERS
    found, todo = [], [*members[None]]
    while todo:
        node = todo.pop(0)
        todo = [*members.get(node, []), *todo]
        found += [node] if node < count else []
    assert found == [*range(count)]


def test_rows_go_down_and_are_not_wide(made):
    program = made.program
    tree = by_layer(program)
    layout = laid_out(tree, edges(program))
    places: dict[tuple[object, int], list[int]] = {}
    for node, parent in enumerate(tree.parents):
        places.setdefault((parent, layout.rows[node]), []).append(layout.places[node])
    assert all(sorted(p) == [*range(len(p))] and len(p) <= WIDEST for p in places.values())
    for a, b in edges(program):
        if tree.parents[a] == tree.parents[b]:
            assert layout.rows[a] < layout.rows[b]
    assert laid_out(by_layer(flat(3)), [(0, 1), (1, 2)]).rows == (0, 1, 2)


def test_the_page_has_columns_of_one_length(made):
    data = page_data(made)
    program, report = data["reports"][0]["program"], data["reports"][0]["report"]
    for table, rows in (("operations", made.program.operations), ("values", made.program.values)):
        assert {len(column) for column in program[table].values()} == {len(rows)}
    assert program["texts"][program["operations"]["kind"][0]] == "argument"
    assert report["mesh"] == [[name, size] for name, size in MESH.shape_tuple]
    assert report["arguments"][0]["path"] == "x"
    assert data["changes"] is None


def test_nothing_in_a_page_cannot_be_shown(made):
    hostile = report_with_program("a\x1b[31m\u202eb\x00")
    data = json.dumps(page_data(hostile, made), ensure_ascii=False)
    assert data.isprintable() and len(page_data(hostile, made)["reports"]) == 2


MODULE = """
module {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%a: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x4xf32> {
    %0 = stablehlo.add %a, %a : tensor<8x4xf32> loc("/etc/hostname":1:1)
    %1 = stablehlo.tanh %0 : tensor<8x4xf32>
    return %1 : tensor<8x4xf32>
  }
}
"""


def inspect_json(*arguments):
    found = subprocess.run(
        [sys.executable, "-m", "meshrt", "inspect", *arguments, "--json", "--program"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    return Report.from_json(json.loads(found.stdout))


def test_a_foreign_module_shows_its_own_text_and_no_file_that_it_names(tmp_path):
    file = tmp_path / "module.mlir"
    file.write_text(MODULE)
    program = inspect_json(str(file)).program
    assert [s.path for s in program.sources] == [str(file)] and program.sources[0].text == MODULE
    assert [o.where for o in program.operations if o.kind == "add"] == ["/etc/hostname:1"]
    assert [o.kind for o in program.operations] == ["argument", "add", "tanh", "func.return"]


def test_a_script_brings_the_sources_that_it_loaded():
    report = inspect_json("examples/train_lm.py:step", "--mesh", "data=4,model=2")
    assert [s.path.rpartition("/")[2] for s in report.program.sources] == ["train_lm.py"]
