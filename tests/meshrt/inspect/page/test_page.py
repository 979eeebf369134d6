"""The page in a real browser."""

from __future__ import annotations

from dataclasses import replace

import pytest

import meshrt.inspect
from meshrt.inspect.model import FindingRow, LintRow, RemedyRow
from meshrt.inspect.page.document import document
from meshrt.inspect.program_rows import OperationRow, ProgramRow, TensorRow
from tests.meshrt.inspect.page.programs import lowered, report_with_program
from tests.meshrt.inspect.page.test_document import HOSTILE

VIEW = "meshrt.views[0]"
FOCUS = "document.querySelector({!r}).focus()"


@pytest.fixture(scope="module")
def report():
    return report_with_program()


@pytest.fixture
def page(tab, report, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(document(report))
    tab.open(file.as_uri())
    return tab


def texts(tab, selector):
    return tab.run(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")


def test_it_opens_on_the_graph(page, report):
    assert texts(page, "[role=tab]") == ["Graph", "Collectives", "Sent", "Memory", "Parameters", "Findings (0)"]
    assert page.run("document.title") == "train"
    assert page.run(f"{VIEW}.program.count") == len(report.program.operations)
    rows = texts(page, "[role=treeitem] .name")
    assert {"arguments", "forward", "backward"} <= set(rows)
    page.until(f"{VIEW}.graph.drawn > 0")
    page.shot("graph")
    page.dark(True)
    page.shot("graph_dark")


def test_the_outline_is_read_and_folded_with_keys(page):
    page.run(FOCUS.format("[role=tree]"))
    before = page.run("document.querySelectorAll('[role=treeitem]').length")
    active = "document.getElementById(document.querySelector('[role=tree]').getAttribute('aria-activedescendant'))"
    page.key("Home", "ArrowDown", "ArrowRight")
    assert page.run(f"{active}.getAttribute('aria-expanded')") == "true"
    assert page.run("document.querySelectorAll('[role=treeitem]').length") > before
    page.key("ArrowDown")
    assert page.run(f"{active}.getAttribute('aria-level')") == "2"
    page.key("ArrowLeft", "ArrowLeft")
    assert page.run(f"{active}.getAttribute('aria-expanded')") == "false"
    page.key("End", "Enter")
    assert page.run(f"{VIEW}.folding.selected >= 0")
    assert page.run(f"{active}.getAttribute('aria-selected')") == "true"


def test_an_operation_shows_its_sharding_over_the_mesh_and_why(page, report):
    program = report.program
    op, value = next(
        (i, o.results[0]) for i, o in enumerate(program.operations)
        if o.kind == "tanh" and program.values[o.results[0]].axes == (("data",), ("model",))
    )  # fmt: skip
    page.run(f"{VIEW}.folding.select({op})")
    facts = texts(page, ".details dd")
    assert {"f32[64,128]", "(data, model)", "f32[16,64]", "32 KiB, 4 KiB per device"} <= set(facts)
    cells = page.run("[...document.querySelectorAll('.mesh rect title')].map((e) => e.textContent)")
    assert cells[0] == "device 0 holds [0:16, 0:64]" and cells[7] == "device 7 holds [48:64, 64:128]"
    why = texts(page, ".why summary")
    assert [w.split(" (")[0] for w in why] == [
        "Why dimension 0 is split over data",
        "Why dimension 1 is split over model",
    ]
    last = page.run(
        "[...document.querySelectorAll('.why')].map((w) => [...w.querySelectorAll('li')].pop().textContent)"
    )
    assert all("is annotated with axis" in text for text in last)
    assert program.values[value].reasons[0].text in page.run(f"{VIEW}.program.why({value})[0].steps[0].text")
    assert (
        page.run("document.querySelector('.code .marked .text').textContent").strip() == "return jnp.tanh(x @ w) @ w.T"
    )
    page.shot("details")


def test_folding_by_function_and_line(page, report):
    for name, expected in (("function", "loss"), ("line", "line ")):
        page.run(f"{VIEW}.folding.use({name!r})")
        page.run(f"{VIEW}.folding.all(true)")
        assert [n for n in page.run(f"{VIEW}.folding.tree.names") if expected in n]
        assert page.run(f"{VIEW}.graph.boxes.of.every((b) => b && b.node < {VIEW}.program.count)")
    page.run(f"{VIEW}.folding.all(false)")
    assert page.run(f"{VIEW}.graph.boxes.of.every((b) => b)")  # what is folded is in the box of its group


def test_boxes_lie_in_their_groups_and_not_on_each_other(page):
    page.run(f"{VIEW}.folding.all(true)")
    assert page.run(f"""(() => {{
      const all = [...{VIEW}.graph.boxes.all.values()];
      const [right, bottom] = [(b) => b.x + b.width, (b) => b.y + b.height];
      const inside = (a, b) => a.x >= b.x && a.y >= b.y && right(a) <= right(b) + 1e-6 && bottom(a) <= bottom(b) + 1e-6;
      const apart = (a, b) => right(a) <= b.x || right(b) <= a.x || bottom(a) <= b.y || bottom(b) <= a.y;
      const fits = (a, b) => a === b || a.parent !== b.parent || apart(a, b);
      return all.every((a) => (!a.parent || inside(a, a.parent)) && all.every((b) => fits(a, b)));
    }})()""")
    page.shot("unfolded")


def test_the_graph_is_moved_zoomed_and_clicked(page):
    page.run(FOCUS.format("canvas"))
    before = page.run(f"{VIEW}.graph.transform.k")
    page.key("+", "+")
    assert page.run(f"{VIEW}.graph.transform.k") > before
    page.key("ArrowDown", "0")
    assert page.run(f"{VIEW}.graph.transform.k") == before
    x, y = page.run(f"""(() => {{
      const graph = {VIEW}.graph, box = graph.boxes.top[0], bounds = graph.canvas.getBoundingClientRect();
      const [x, y] = graph.transform.apply([box.x + box.width / 2, box.y + box.height / 2]);
      return [x + bounds.left, y + bounds.top];
    }})()""")
    page.click(x, y)
    first = page.run(f"{VIEW}.folding.selected")
    assert first == page.run(f"{VIEW}.graph.boxes.top[0].node")
    page.click(x, y, count=2)
    assert page.run(f"{VIEW}.folding.open.has({first})")
    page.key("Enter")
    assert not page.run(f"{VIEW}.folding.open.has({first})")


def test_search_finds_and_goes_through_what_it_found(page):
    page.run(FOCUS.format(".search"))
    page.key(*"tanh")
    note = "document.querySelector('.searching .note').textContent"
    count = int(page.run(note).split()[0])
    assert count >= 2
    page.key("Enter", "Enter")
    assert page.run(note) == f"2 of {count}"
    assert page.run(f"{VIEW}.program.kind({VIEW}.folding.selected)") == "tanh"


def test_collectives_are_sorted_filtered_and_lead_to_their_operation(page, report):
    page.run(f"{VIEW}.turn(1)")
    rows = "[...document.querySelectorAll('[role=tabpanel]:not([hidden]) tbody tr:not(.space)')]"
    totals = page.run(f"{rows}.map((r) => r.cells[5].textContent)")
    assert len(totals) == len(report.collectives)
    head = "[...document.querySelectorAll('[role=tabpanel]:not([hidden]) th')]"
    page.run(f"{head}[0].querySelector('button').click()")
    kinds = page.run(f"{rows}.map((r) => r.cells[0].textContent)")
    assert kinds == sorted(kinds) and page.run(f"{head}[0].getAttribute('aria-sort')") == "ascending"
    page.run("""(() => { const s = document.querySelector('[role=tabpanel]:not([hidden]) select');
      s.value = '=all_reduce'; s.dispatchEvent(new Event('change')); })()""")
    assert set(page.run(f"{rows}.map((r) => r.cells[0].textContent)")) == {"all_reduce"}
    page.shot("collectives")
    page.run("document.querySelector('[role=tabpanel]:not([hidden]) tbody tr[tabindex=\"0\"]').focus()")
    page.key("ArrowDown", "ArrowUp", "Enter")
    assert page.run(f"{VIEW}.current") == 0
    assert page.run(f"{VIEW}.program.kind({VIEW}.folding.selected)") in {
        c.cause.partition(":")[0].removeprefix("stablehlo.") for c in report.collectives
    }


def test_memory_and_parameters(page, report):
    page.run(f"{VIEW}.turn(3)")
    assert "the peak" in page.run("document.querySelector('.moment').textContent")
    page.run(FOCUS.format("input[type=range]"))
    page.key("Home")
    assert report.memory.moments[0].what in page.run("document.querySelector('.moment').textContent")
    page.shot("memory")
    page.run(f"{VIEW}.turn(4)")
    assert [t for t in texts(page, ".tree tbody td:first-child") if t.strip() in ("x", "w")]
    page.run(f"{VIEW}.turn(2)")
    assert page.run("document.querySelectorAll('[role=tabpanel]:not([hidden]) h3').length") == 3
    page.shot("sent")


def test_every_part_has_a_name_for_screen_readers(page):
    for number in range(6):
        page.run(f"{VIEW}.turn({number})")
        named = "(e) => e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim()"
        parts = "button, input, select, [role=img], [role=tree], table, canvas"
        assert page.run(f"[...document.querySelectorAll({parts!r})].every({named})")
    page.run("document.querySelector('[role=tab]').focus()")
    page.key("ArrowRight")
    assert page.run("document.activeElement.getAttribute('aria-selected')") == "true"


def test_hostile_names_are_shown_and_not_run(tab, tmp_path):
    file = tmp_path / "hostile.html"
    file.write_text(document(report_with_program(HOSTILE), report_with_program(HOSTILE * 3)))
    tab.open(file.as_uri())
    assert tab.run("document.images.length") == 0 and tab.run("document.scripts.length") == 0
    assert "</script>" in texts(tab, ".head h2")[0]


def test_the_policy_stops_what_is_put_into_the_page(browser, report, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(document(report))
    with browser.tab() as tab:
        tab.open(file.as_uri())
        tab.run("""(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';
          document.body.append(s); fetch('http://127.0.0.1:9/').catch(() => 0); })()""")
        tab.until("true")
        assert tab.run("window.ran === undefined")
        assert any("Content Security Policy" in error for error in tab.errors)


def test_two_reports_stand_beside_each_other_and_go_together(tab, report, tmp_path):
    file = tmp_path / "two.html"
    file.write_text(document(report, report_with_program("before")))
    tab.open(file.as_uri())
    assert texts(tab, ".head h2") == ["before", "train"]
    assert "the same" in texts(tab, ".changes p")[0]
    op = next(i for i, o in enumerate(report.program.operations) if o.kind == "tanh")
    tab.run(f"meshrt.views[0].folding.select({op})")
    assert tab.run("meshrt.views[1].folding.selected") == op
    tab.run("meshrt.views[1].turn(3)")
    assert tab.run("meshrt.views[0].current") == 3
    tab.run("meshrt.views[0].turn(0)")
    tab.shot("two")


def test_the_frame_of_a_notebook_draws(tab, tmp_path):
    file = tmp_path / "notebook.html"
    file.write_text(meshrt.inspect.report(lowered())._repr_html_())
    tab.send("Page.navigate", url=file.as_uri())
    tab.until("document.querySelector('iframe') !== null")
    tab.until("document.readyState === 'complete'")
    tab.shot("notebook")


def test_of_a_large_program_only_what_is_in_sight_is_drawn(tab, report, tmp_path):
    count = 10_000
    tensor = TensorRow("", "f32[8,8]", "f32[2,8]", (("data",), ()), (), 256.0, 64.0, ())
    operations = tuple(
        OperationRow("add", "main", None, f"layer{i // 80}", f"big.py:{i % 300 + 1}", (i - 1,) if i else (), (i,))
        for i in range(count)
    )
    file = tmp_path / "large.html"
    file.write_text(document(replace(report, program=ProgramRow(operations, (tensor,) * count, ()))))
    tab.open(file.as_uri())
    assert tab.run(f"{VIEW}.program.count") == count
    tab.run(f"{VIEW}.folding.all(true)")
    assert tab.run(f"{VIEW}.graph.boxes.all.size") > count
    for scale in (1, 0.3, 0.02):
        tab.run(f"{VIEW}.graph.moves('scaleTo', {scale}); {VIEW}.graph.paint()")
        assert tab.run(f"{VIEW}.graph.drawn") < 1500
    assert tab.run("document.querySelectorAll('*').length") < 1000
    tab.run(f"{VIEW}.folding.select({count - 1}); {VIEW}.graph.paint()")
    assert tab.run(f"{VIEW}.graph.drawn") > 0
    assert len(texts(tab, ".outline [aria-selected=true]")) == 1
    tab.shot("large")


def test_findings_tell_a_place_and_a_cost_where_there_are_such(tab, report, tmp_path):
    placed, placeless = (
        FindingRow("gather", "w is gathered", "train.py:7", 2048),
        FindingRow("note", "x is read", None, 0),
    )
    remedy = RemedyRow("remove it", 4096, 2048, 512, 512)
    made = replace(
        report, findings=(placed, placeless), lint=(LintRow("redundant", "it says nothing", None, 0, remedy),)
    )
    file = tmp_path / "found.html"
    file.write_text(document(made))
    tab.open(file.as_uri())
    tab.run(f"{VIEW}.turn({VIEW}.names.findIndex((name) => name.startsWith('Findings')))")
    assert texts(tab, ".findings > li") == [
        "gather train.py:7: w is gathered (2 KiB per device)",
        "note: x is read",
        "redundant: it says nothingremove it: sent 4 KiB → 2 KiB, held 512 B as before",
    ]
