"""Reports as JSON, Markdown and tables; two reports compared; budgets; the functions for notebooks and tests."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import jsonschema
import pytest
from rich.console import Console

import meshrt
import meshrt.numpy as jnp
from meshrt.errors import InspectError
from meshrt.inspect import assert_communication, compare, report
from meshrt.inspect.budget import Budget, budget_of, check, read_budgets, write_budget
from meshrt.inspect.changes import read_report
from meshrt.inspect.files import require_writable, toml_text, writable
from meshrt.inspect.guard import inspect_file
from meshrt.inspect.markdown import comparison_markdown, report_markdown
from meshrt.inspect.model import Report
from meshrt.inspect.render import render, render_changes
from meshrt.inspect.schema import report_schema
from meshrt.inspect.totals import by_axes, by_kind, by_line
from meshrt.sharding import AbstractMesh, AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P
from tests.collectives.test_alternatives import case

ROOT = Path(__file__).resolve().parents[3]
MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def struct(shape, *spec):
    return meshrt.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, P(*spec)))


@meshrt.jit
def layers(x, w):
    h = jnp.tanh(x @ w)
    return (h @ w.T).sum(0)


def of_layers(*spec) -> Report:
    return report(layers.lower(struct((64, 32), "data"), struct((32, 128), *spec)), name="layers.py:layers")


@pytest.mark.smoke
def test_a_report_fits_the_schema_and_comes_back():
    made = of_layers(None, "model")
    data = json.loads(json.dumps(made.as_json()))
    jsonschema.Draft202012Validator.check_schema(report_schema())
    assert ">>>" not in json.dumps(report_schema()) and report_schema()["description"].startswith("A whole program.")
    jsonschema.validate(data, report_schema())
    assert Report.from_json(data).as_json() == made.as_json()
    assert [v.device_type for v in made.arguments] == ["f32[16,32]", "f32[32,64]"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "collectives": [{}]}, report_schema())


def test_totals_add_up():
    made = of_layers(None, "model")
    for totals in (by_kind(made), by_axes(made), by_line(made)):
        assert sum(t.bytes for t in totals) == pytest.approx(made.bytes)
        assert [t.bytes for t in totals] == sorted((t.bytes for t in totals), reverse=True)
    assert {t.key for t in by_axes(made)} == {c.axes for c in made.collectives}
    assert all(t.key.partition(":")[0] == __file__ for t in by_line(made))


def test_memory_is_in_the_names_of_the_program():
    memory = of_layers(None, "model").memory
    assert memory is not None and {"x", "w", "result"} <= {h.what for h in memory.alive} | {"result"}
    assert memory.peak_bytes == sum(h.bytes for h in memory.alive)
    assert memory.peak_bytes == max(m.bytes for m in memory.moments)
    assert memory.argument_bytes == 4 * (16 * 32 + 32 * 64)


def test_equal_reports_differ_in_nothing():
    changes = compare(of_layers(None, "model"), of_layers(None, "model"))
    assert changes.is_equal and "are those of" in comparison_markdown(changes)


def test_another_annotation_shows_what_it_changed():
    before, after = of_layers(None, "model"), of_layers("data")
    changes = compare(before, after)
    assert [(c.what, c.before, c.after) for c in changes.shardings] == [
        ("w", "f32[32,128] (-, model)", "f32[32,128] (data, -)")
    ]
    kinds = {(c.kind, c.axes): c.count for c in changes.collectives}
    assert any(kind == "all_gather" and count[0] < count[1] for (kind, _), count in kinds.items())
    assert sum(c.growth for c in changes.collectives) == pytest.approx(after.bytes - before.bytes)
    back = compare(after, before)
    assert sorted(c.growth for c in back.collectives) == sorted(-c.growth for c in changes.collectives)


def test_lines_that_moved_are_the_same_collective():
    before = of_layers(None, "model")
    down = lambda c: dataclasses.replace(c, where=c.where.rpartition(":")[0] + ":99")
    moved = Report(**{
        **{f.name: getattr(before, f.name) for f in dataclasses.fields(Report)},
        "collectives": tuple(map(down, before.collectives)),
    })  # fmt: skip
    assert compare(before, moved).is_equal


def test_markdown_shows_names_as_they_are():
    made = report(meshrt.jit(lambda x: x["<b>|*"].sum(0)).lower({"<b>|*": struct((8, 4), "data")}), name="a|b")
    text = report_markdown(made)
    assert r"\<b\>\|\*" in text and r"### a\|b" in text and "<b>" not in text
    assert text.count("<details>") == text.count("</details>") >= 3
    assert made._repr_markdown_() == text


def test_nobody_is_called_by_a_comment():
    made = report(meshrt.jit(lambda x: x["@octocat #7"].sum(0)).lower({"@octocat #7": struct((8, 4), "data")}))
    text = report_markdown(made)
    assert "@octocat" not in text and "#7" not in text and "@&#8203;octocat #&#8203;7" in text


def test_sizes_that_differ_never_look_alike():
    before = of_layers(None, "model")
    after = dataclasses.replace(before, bytes=before.bytes + 1e6, least_bytes=4.0)
    before = dataclasses.replace(after, bytes=after.bytes - 3)
    both = [f"{r.bytes:,.0f} B" for r in (before, after)]
    assert "sent per device and run (4 B at least, by which branches it takes)" in report_markdown(after)
    assert "at least, by which" not in report_markdown(of_layers(None, "model"))
    assert f"{both[0]} | {both[1]}" in comparison_markdown(compare(before, after))
    (excess,) = check(after, Budget(bytes_sent=before.bytes))
    assert str(excess).startswith(f"bytes sent: {both[1]}, budget {both[0]}")


@pytest.mark.parametrize("width", [80, 120])
def test_tables_of_changes_and_memory_fit(width):
    out = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width, highlight=False)
    render(of_layers(None, "model"), out)
    render_changes(compare(of_layers(None, "model"), of_layers("data")), out)
    lines = out.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert any("Memory per device" in line for line in lines) and any("before" in line for line in lines)


def test_a_budget_is_kept_until_something_grows(tmp_path):
    path, small = tmp_path / "budget.toml", of_layers(None, "model")
    write_budget(path, small.name, budget_of(small))
    write_budget(path, 'other "program"', Budget(bytes_sent=1.5))
    assert check(small, read_budgets(path)[small.name]) == ()
    assert read_budgets(path)['other "program"'] == Budget(bytes_sent=1.5)
    excess = check(of_layers("data"), read_budgets(path)[small.name])
    assert {e.what for e in excess} >= {"all_gather"}
    assert all(f"{__file__}:" in line for e in excess if e.what == "all_gather" for line in e.lines)
    assert "budget 0" in str(next(e for e in excess if e.what == "all_gather"))


@pytest.mark.parametrize(("text", "message"), [
    ("[x", "not TOML"), ("x = 1", "is no table"), ("[x]\nbytes = 1", "is no limit; there are"),
    ("[x]\nbytes_sent = -1", "not negative"), ("[x]\nbytes_sent = true", "not negative"),
    ("[x]\nbytes_sent = nan", "not negative"), ("[x.collectives]\ngather = 1", "is no collective"),
])  # fmt: skip
def test_bad_budgets(tmp_path, text, message):
    path = tmp_path / "budget.toml"
    path.write_text(text)
    with pytest.raises(InspectError, match=message):
        read_budgets(path)
    with pytest.raises(InspectError, match=message):
        write_budget(path, "y", Budget())
    assert path.read_text() == text and [*tmp_path.iterdir()] == [path]


def test_budgets_that_cannot_be_read_or_written(tmp_path):
    deep, pipe, folder = tmp_path / "deep.toml", tmp_path / "pipe.toml", tmp_path / "folder"
    deep.write_text("a = " + "[" * 200_000)
    os.mkfifo(pipe)
    folder.mkdir()
    for path, message in [(deep, "nested too deeply"), (pipe, "is a pipe"), (folder, "is a directory")]:
        with pytest.raises(InspectError, match=message):
            read_budgets(path)
    with pytest.raises(InspectError, match="give --check a file that can be written"):
        write_budget(tmp_path / "none" / "budget.toml", "y", Budget())
    for path, message in [(folder, "is a directory"), (folder / "none" / "a", "its directory is not there")]:
        with pytest.raises(InspectError, match=f"{message}; give -o a file"):
            require_writable(str(path), "-o")
    require_writable(str(folder / "a"), "-o")
    require_writable(str(deep), "-o")
    path, name = tmp_path / "budget.toml", 'a \N{GRINNING FACE} "b" \x7f\\'
    write_budget(path, name, Budget(bytes_sent=1))
    assert [*read_budgets(path)] == [name]


def test_bad_reports(tmp_path):
    path = tmp_path / "report.json"
    for text in ("{", "[]", "{}", '{"name": 1}'):
        path.write_text(text)
        with pytest.raises(InspectError, match=str(path)):
            read_report(path)
    with pytest.raises(InspectError, match="No such file"):
        read_report(tmp_path / "none.json")


@pytest.mark.smoke
def test_communication_is_asserted():
    x, w = struct((64, 32), "data"), struct((32, 128), None, "model")
    assert_communication(layers, (x, w), all_gather=0, max_bytes=1 << 20, max_memory=1 << 20)
    assert_communication(lambda x: x * 2, (x,), all_reduce=0)
    with pytest.raises(AssertionError, match=rf"all_gather runs \d times, expected 0\n  {__file__}:\d+: all_gather"):
        assert_communication(layers, (x, struct((32, 128), "data")), all_gather=0)
    with pytest.raises(AssertionError, match="a device sends"):
        assert_communication(layers, (x, w), max_bytes=1)
    with pytest.raises(AssertionError, match="a device holds"):
        assert_communication(layers, (x, w), max_memory=1)
    with pytest.raises(InspectError, match=r"allgather is none of .* did you mean all_gather"):
        assert_communication(layers, (x, w), allgather=0)


def test_reports_of_every_stage_and_of_text():
    lowered = layers.lower(struct((64, 32), "data"), struct((32, 128), None, "model"))
    propagated = lowered.propagate()
    stages = [report(s) for s in (lowered, propagated, propagated.partition(), lowered.as_text(debug_info=True))]
    assert all(s.collectives == stages[0].collectives for s in stages[1:3])
    assert [(c.kind, c.bytes) for c in stages[3].collectives] == [(c.kind, c.bytes) for c in stages[0].collectives]
    traced = report(layers.trace(struct((64, 32), "data"), struct((32, 128), None, "model")))
    assert traced.collectives == stages[0].collectives
    with pytest.raises(InspectError, match="takes a stage"):
        report(layers)
    with pytest.raises(InspectError, match=r"`meshrt inspect train.py:step` reads it"):
        report("train.py:step")


def test_where_there_is_no_page_a_report_is_its_tables():
    shown = repr(of_layers(None, "model"))
    assert shown.startswith("layers.py:layers: 8 devices") and "Collectives" in shown
    assert max(map(len, shown.splitlines())) <= 100 and shown.isascii() is False and "\x1b" not in shown


def test_reports_of_exports_and_of_what_jax_lowered():
    args = struct((64, 32), "data"), struct((32, 128), None, "model")
    ours = report(layers.lower(*args))
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    theirs = [
        jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=jax.NamedSharding(mesh, jax.P(*a.sharding.spec))) for a in args
    ]
    exported, foreign = meshrt.export.export(layers)(*args), jax.jit(lambda x, w: (jax.numpy.tanh(x @ w) @ w.T).sum(0))
    lowered = foreign.trace(*theirs).lower(lowering_platforms=("cpu",))
    given = [exported, exported.serialize(), lowered, jax.export.export(foreign, platforms=["cpu"])(*theirs)]
    for program in [*given, given[-1].serialize()]:
        found = report(program)
        assert sorted((c.kind, c.bytes) for c in found.collectives) == sorted(
            (c.kind, c.bytes) for c in ours.collectives
        )


def test_budgets_and_comparisons_on_the_command_line(tmp_path):
    program = tmp_path / "m.mlir"
    program.write_text(layers.lower(struct((64, 32), "data"), struct((32, 128), None, "model")).as_text())

    def run(*arguments):
        command = [sys.executable, "-m", "meshrt", "inspect", str(program), *arguments]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        return ran.returncode, ran.stdout, ran.stderr

    budget = str(tmp_path / "budget.toml")
    assert run("--check", budget)[0] == 2
    assert run("--check", budget, "--update")[0] == 0
    assert run("--check", budget)[:2] == (0, f"{program}: within its budget\n")
    text = Path(budget).read_text()
    Path(budget).write_text(text.replace("bytes_sent = ", "bytes_sent = 0.5 # "))
    code, out, _ = run("--check", budget)
    assert code == 1 and out.startswith("bytes sent: ")
    (tmp_path / "main.json").write_text(run("--json")[1])
    assert "are those of" in run("--markdown", "--against", str(tmp_path / "main.json"))[1]
    assert json.loads(run("--json", "--against", str(tmp_path / "main.json"))[1])["collectives"] == []
    assert run("--update")[0] == 2


def test_a_topology_predicts_the_time_of_a_run():
    lowered = layers.lower(struct((64, 32), "data"), struct((32, 128), None, "model"))
    made, slower = (report(lowered, name="f", topology=name) for name in ("v5p:2x2x2", "v5e:2x4"))
    data = json.loads(json.dumps(made.as_json()))
    jsonschema.validate(data, report_schema())
    assert Report.from_json(data).as_json() == made.as_json()
    timing = made.timing
    assert timing is not None and timing.seconds == pytest.approx(timing.computing + timing.waiting)
    out = Console(file=io.StringIO(), width=200)
    render(made, out)
    assert "per run predicted: " in out.file.getvalue() and "per run (predicted)" in report_markdown(made)
    (change,) = [c for c in compare(made, slower).figures if c.what == "predicted time per run"]
    assert str(change.before).endswith("us") and change.before != change.after
    assert "predicted time per run" in comparison_markdown(compare(made, slower))
    assert of_layers(None, "model").timing is None


def test_layouts_that_were_compared_are_in_the_report():
    """Weights are split where the batch is, which had better have the axis."""
    found = report(case().text)
    assert [a.taken for a in found.alternatives] == [False, True]
    tried, taken = found.alternatives
    assert taken.bytes == found.bytes < tried.bytes
    data = json.loads(json.dumps(found.as_json()))
    jsonschema.validate(data, report_schema())
    assert Report.from_json(data).alternatives == found.alternatives
    out = io.StringIO()
    render(found, Console(file=out, width=100))
    assert f"taken: {taken.what}: " in out.getvalue() and "tried: layouts as they were propagated: " in out.getvalue()


def test_texts_that_utf_8_cannot_have(tmp_path):
    """A file's name that is no UTF-8 is read, shown and written into budgets; names of axes may be any characters."""
    path = tmp_path / os.fsdecode(b"b\xffd.mlir")
    path.write_text("func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }")
    found = Report.from_json(inspect_file(str(path))["report"])
    write_budget(tmp_path / "budget.toml", found.name, budget_of(found))
    assert check(found, read_budgets(tmp_path / "budget.toml")[writable(found.name)]) == ()
    for value in ("a\ud800b\x7f", ["\N{GRINNING FACE}", ["", '"\\']]):
        back = tomllib.loads(f"key = {toml_text(value)}".encode().decode())["key"]
        assert back == (writable(value) if isinstance(value, str) else value)
