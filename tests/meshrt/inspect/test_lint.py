"""`meshrt inspect --lint`: each rule on a program that it is about, silence on programs that are well annotated, and
that what is suggested is what happens when a user does it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import meshrt as jax
import meshrt.numpy as jnp
from meshrt.errors import InspectError
from meshrt.inspect import report
from meshrt.inspect.budget import budget_of, check, read_budgets, write_budget
from meshrt.inspect.guard import inspect_file
from meshrt.inspect.lint import rule_names
from meshrt.inspect.lint.suppress import is_ignored
from meshrt.inspect.model import Report
from meshrt.inspect.schema import report_schema
from meshrt.sharding import AbstractMesh, AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

ROOT = Path(__file__).resolve().parents[3]
MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def held(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, P(*spec)))


def bare(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def at(x, *spec):
    return jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P(*spec)))


def linted(function, *args, rules=True, **options):
    with jax.sharding.use_abstract_mesh(MESH):
        return report(jax.jit(function).lower(*args), lint=rules, **options)


def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def reduced_every_turn(w, xs):
    def body(total, x):
        return total + at(jax.grad(loss)(w, x)), None

    return jax.lax.scan(body, jnp.zeros_like(w), xs)[0]


def moved_every_turn(x):
    def body(c, _):
        return jnp.sort(c, 0) + jnp.sin(c), None

    return jax.lax.scan(body, x, None, length=7)[0]


def to_and_fro(x):
    turned = jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P(None, "data")))
    return at(jnp.cumsum(jnp.tanh(turned), 1), "data")


def two_products(x, w, v):
    return x @ w, jnp.tanh(v)


TABLE = np.arange(1024 * 512, dtype=np.float32).reshape(1024, 512)


def made_whole(x, w):
    return at(x @ w) * 2.0


def turned_and_back(x):
    there = at(jnp.tanh(x), None, "data")
    return at(jnp.cos(there), "data")


X = held((64, 64), "data")
ROWS, FULL = held((64, 256), "data"), held((64, 64), "data", "model")
BATCHES = held((5, 128, 64), None, "data")

# What a program is, its rule, and the change that mends it.
CASES = {
    "conflict": (lambda x, w: x @ w, [X, held((64, 64), None, "data")], "conflict", " as P() "),
    "constraints": (to_and_fro, [X], "conflict", 'remove the constraint P(None, "data")'),
    "sort": (moved_every_turn, [X], "loop-reshard", 'x as P(None, "data") in place of P("data")'),
    "accumulated": (reduced_every_turn, [held((64, 64)), BATCHES], "loop-gradient", "remove the constraint"),
    "weights": (two_products, [ROWS, bare(256, 512), FULL], "replicated", 'w as P(None, "model")'),
    "axis": (jnp.tanh, [X], "unused-axis", '"model"'),
    "constraint": (lambda x: at(jnp.tanh(x), "data", "model") * 2, [FULL], "redundant", "remove the constraint"),
    "not kept": (turned_and_back, [X], "redundant", 'remove the constraint P(None, "data")'),
    "gathered in two steps": (
        made_whole,
        [held((256, 64), "data"), held((64, 64), None, "model")],
        "whole-gather",
        "remove the constraint P()",
    ),
    "captured": (lambda x: x.sum() * jnp.asarray(TABLE), [FULL], "constant", 'captured0 as P("data")'),
}


@pytest.mark.parametrize("case", CASES)
def test_each_rule_finds_what_it_is_about(case):
    function, args, rule, remedy = CASES[case]
    found = linted(function, *args)
    row = next(r for r in found.lint if r.rule == rule and r.remedy is not None and remedy in r.remedy.text)
    before, after = row.remedy, row.remedy
    assert (before.bytes_before, before.peak_before) == (found.bytes, found.memory.peak_bytes)
    assert after.bytes_after <= after.bytes_before or rule == "unused-axis"
    if rule in ("conflict", "loop-reshard", "loop-gradient"):
        assert after.bytes_after < after.bytes_before and row.bytes > 0
    if rule == "replicated":
        assert after.peak_after < after.peak_before


def test_what_a_constraint_holds_whole_is_asked_for():
    def program(x):
        whole = at(jnp.tanh(x))
        return (
            at(jnp.cumsum(x, 0), ("data", "model")), at(jnp.cumsum(whole, 0), "data", "model"),
            jnp.concatenate([whole, x], 0),
        )  # fmt: skip

    found = linted(program, held((96, 64)))
    assert [r.rule for r in found.lint] == ["conflict"]


def placed(x, number, without, *spec):
    return x if number in without else at(x, *spec)


def helped(x, without=()):
    h = placed(jnp.tanh(x), 0, without, "data")
    h = placed(h, 1, without, None, "data")
    return placed(jnp.cos(h), 2, without, "data")


def test_a_constraint_that_a_helper_makes_is_named_by_the_line_that_calls_it():
    """What is said of a constraint is what happens when that call is taken out, not the line of the helper."""
    found = linted(helped, X)
    first, tried = helped.__code__.co_firstlineno + 1, set()
    for row in (r for r in found.lint if r.rule == "redundant"):
        (line,) = re.findall(r"test_lint\.py:(\d+) through .*test_lint\.py:", row.remedy.text)
        number = int(line) - first
        after = linted(lambda x, number=number: helped(x, {number}), X, rules=False)
        assert (row.remedy.bytes_after, row.remedy.peak_after) == (after.bytes, after.memory.peak_bytes)
        assert f"on f32[64,64] of {('tanh', 'tanh', 'cosine')[number]} (" in row.remedy.text
        tried.add(number)
    assert tried


def test_why_chains_name_the_call_of_a_helper():
    with jax.sharding.use_abstract_mesh(MESH):
        chain = jax.jit(helped).lower(X).propagate().explain("result:0").splitlines()
    line = helped.__code__.co_firstlineno + 3
    assert any(f"test_lint.py:{line})" in step and "called at" in step for step in chain)


def test_constraints_of_one_line_are_one_finding_and_are_numbered_where_nothing_tells_them_apart():
    def alike(x):
        for _ in range(3):
            x = at(jnp.tanh(x), "data")
        return x

    (row,) = [r for r in linted(alike, X).lint if r.rule == "redundant"]
    assert "number 1 of 3 there), and 2 more like it" in row.remedy.text


def test_a_constraint_that_is_not_kept_is_no_constraint_that_propagation_finds():
    texts = {r.remedy.text: r.message for r in linted(turned_and_back, X).lint if r.rule == "redundant"}
    (turned,) = [m for text, m in texts.items() if 'P(None, "data")' in text]
    assert " nothing: values lie otherwise there" in turned
    (kept,) = [r.message for r in linted(*CASES["constraint"][:1], FULL).lint if r.rule == "redundant"]
    assert "says what propagation finds anyway" in kept


@pytest.mark.parametrize(
    "case, function, args",
    [
        ("conflict", CASES["conflict"][0], [held((64, 64)), held((64, 64), None, "data")]),
        ("constraints", lambda x: at(jnp.cumsum(jnp.tanh(x), 1), "data"), [X]),
        ("sort", moved_every_turn, [held((64, 64), None, "data")]),
        ("weights", CASES["weights"][0], [ROWS, held((256, 512), None, "model"), FULL]),
        (
            "accumulated",
            lambda w, xs: jax.lax.scan(lambda g, x: (g + jax.grad(loss)(w, x), None), jnp.zeros_like(w), xs)[0],
            CASES["accumulated"][1],
        ),
    ],
)
def test_the_suggested_change_does_what_was_said(case, function, args):
    """A user who makes it sees the figures that were given, and lint is silent about it."""
    original, given, rule, _ = CASES[case]
    (row,) = [r for r in linted(original, *given).lint if r.rule == rule]
    after = linted(function, *args)
    assert after.bytes == row.remedy.bytes_after
    assert after.memory.peak_bytes == pytest.approx(row.remedy.peak_after, rel=0.02)
    assert rule not in [r.rule for r in after.lint]


def mlp(params, x):
    for w1, w2 in params:
        x = jnp.tanh(x @ w1) @ w2
    return (x**2).mean()


def trained(params, x):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(mlp)(params, x))


def layers(first, second):
    return [(held((256, 512), *first), held((512, 256), *second)) for _ in range(3)]


@pytest.mark.parametrize(
    "args",
    [
        [layers((None, "model"), ("model",)), held((64, 256), "data")],
        [layers(("data", "model"), ("model", "data")), held((64, 256), "data")],
        [layers(("model",), (None, "model")), held((64, 256), "data", "model")],
    ],
    ids=["Megatron", "ZeRO-3 with tensors", "rows first"],
)
def test_layouts_of_experts_are_left_alone(args):
    found = linted(trained, *args).lint
    assert all(row.remedy is not None for row in found), found
    assert {row.rule for row in found} <= {"conflict"}, found


def test_sums_that_are_needed_inside_of_the_loop_are_left_alone():
    def clipped(w, xs):
        def body(total, x):
            grad = jax.grad(loss)(w, x)
            return total + grad / jnp.maximum(1.0, jnp.linalg.norm(grad)), None

        return jax.lax.scan(body, jnp.zeros_like(w), xs)[0]

    def applied(w, xs):
        return jax.lax.scan(lambda w, x: (w - 0.1 * jax.grad(loss)(w, x), None), w, xs)[0]

    for function in (clipped, applied):
        found = linted(function, held((64, 64)), held((5, 128, 64), None, ("data", "model")))
        assert "loop-gradient" not in [row.rule for row in found.lint]


UNEVEN = """sdy.mesh @mesh = <["data"=4, "model"=2]>
func.func @main(%x: tensor<6x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>}) -> tensor<6x16xf32> {
  %0 = stablehlo.tanh %x : tensor<6x16xf32>
  return %0 : tensor<6x16xf32> }"""
WRITTEN = """sdy.mesh @mesh = <["data"=4]>
func.func @main(%x: tensor<1024x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
    -> tensor<1024x512xf32> {
  %c = stablehlo.constant dense<"0xTEXT"> : tensor<1024x512xf32>
  %0 = stablehlo.add %x, %c : tensor<1024x512xf32>
  return %0 : tensor<1024x512xf32> }"""


def test_a_result_is_named_by_its_number_not_by_its_size():
    """The second argument is only moved, and has as many bytes as the third, which is gathered."""
    module = """sdy.mesh @m = <["a"=4]>
      func.func @main(%x: tensor<32x16xi8> {sdy.sharding = #sdy.sharding<@m, [{"a"}, {}]>},
                      %y: tensor<32x16xi8> {sdy.sharding = #sdy.sharding<@m, [{"a"}, {}]>})
          -> (tensor<32x16xi8> {sdy.sharding = #sdy.sharding<@m, [{}, {"a"}]>},
              tensor<32x16xi8> {sdy.sharding = #sdy.sharding<@m, [{}, {}]>}) {
        return %x, %y : tensor<32x16xi8>, tensor<32x16xi8> }"""
    (found,) = report(module, lint=["whole-gather"]).lint
    assert found.message.startswith("arg1 ") and "annotate arg1 " in found.remedy.text


def test_files(tmp_path):
    path = tmp_path / "uneven.mlir"
    path.write_text(UNEVEN)
    found = Report.from_json(inspect_file(str(path), rules=rule_names())["report"])
    rows = [r for r in found.lint if r.rule == "indivisible"]
    assert rows and "6 does not divide by 4" in rows[0].message and rows[0].bytes > 0
    assert rows[0].where.startswith(str(path))
    path.write_text(WRITTEN.replace("TEXT", TABLE.tobytes().hex().upper()))
    found = Report.from_json(inspect_file(str(path), rules=["constant"])["report"])
    (row,) = found.lint
    assert row.bytes == TABLE.nbytes and "take it as an argument" in row.remedy.text
    assert row.remedy.peak_after < row.remedy.peak_before
    jsonschema.validate(json.loads(json.dumps(found.as_json())), report_schema())
    assert Report.from_json(json.loads(json.dumps(found.as_json()))) == found


def test_rules_by_name_and_reports_without(tmp_path):
    function, args, *_ = CASES["conflict"]
    assert linted(function, *args, rules=False).lint is None
    assert [r.rule for r in linted(function, *args, rules=["unused-axis"]).lint] == ["unused-axis"]
    with pytest.raises(InspectError, match=r"no rule 'conflicts'; did you mean conflict"):
        linted(function, *args, rules=["conflicts"])
    with pytest.raises(InspectError, match=r"no rule 'zzz'; there are conflict, constant"):
        linted(function, *args, rules=["zzz"])
    named = linted(function, *args, rules=["conflict"], topology="v5e:2x4").lint[0].remedy
    assert named.seconds_after < named.seconds_before
    assert "conflict" in linted(function, *args)._repr_markdown_()


SCRIPT = """
import meshrt as jax, meshrt.numpy as jnp
from meshrt.sharding import NamedSharding, PartitionSpec as P

def example_arguments(mesh):
    held = lambda *spec: jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, P(*spec)))
    return held("data"), held(None, "data")

def told(x, w):
    return x @ w

def ignored(x, w):
    # meshrt: ignore=conflict
    return x @ w
"""


def inspect(*arguments, cwd=ROOT):
    command = [sys.executable, "-m", "meshrt", "inspect", *arguments]
    return subprocess.run(command, cwd=cwd, check=False, capture_output=True, timeout=300, text=True)


def test_the_command_line(tmp_path):
    script, budget = tmp_path / "script.py", tmp_path / "budget.toml"
    script.write_text(SCRIPT)
    told = inspect("--lint", f"{script}:told", "--mesh", "data=4")
    assert (
        told.returncode == 0 and "script.py:10: the annotation" in told.stdout and "12 KiB -> 0 B sent" in told.stdout
    )
    assert "lint: nothing found" in inspect(f"{script}:ignored", "--mesh", "data=4", "--lint=conflict").stdout
    wrong = inspect(f"{script}:told", "--mesh", "data=4", "--lint=conflicts")
    assert wrong.returncode == 2 and "did you mean conflict" in wrong.stderr and len(wrong.stderr.splitlines()) == 1
    budget.write_text(f"[{json.dumps(f'{script}:told')}]\nlint = {{}}\n")
    above = inspect(f"{script}:told", "--mesh", "data=4", "--check", str(budget))
    assert above.returncode == 1 and above.stdout.startswith("conflict: 1, budget 0")
    rules = inspect("--lint-rules").stdout
    assert all(name in rules for name in rule_names())


def test_budgets_count_what_lint_finds(tmp_path):
    function, args, *_ = CASES["conflict"]
    found, path = linted(function, *args), tmp_path / "budget.toml"
    write_budget(path, "f", budget_of(found))
    budget = read_budgets(path)["f"]
    assert dict(budget.lint) == {"conflict": 1, "unused-axis": 1} and check(found, budget) == ()
    path.write_text("[f]\nlint = { conflict = 1 }\n")
    (excess,) = check(found, read_budgets(path)["f"])
    assert excess.what == "unused-axis" and "1, budget 0" in str(excess)
    for text, message in [("lint = { gather = 1 }", "is no rule"), ("lint = 3", "is no table")]:
        path.write_text(f"[f]\n{text}\n")
        with pytest.raises(InspectError, match=message):
            read_budgets(path)


def test_comments_are_looked_for_in_sources_only(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("x = 1  # meshrt: ignore\n# meshrt: ignore = conflict, redundant\ny = 2\nz = 3 # meshrt: ignored\n")
    asked = lambda rule, line: is_ignored(rule, f"{path}:{line}")
    assert asked("conflict", 1) and asked("conflict", 3) and not asked("whole-gather", 3)
    assert not asked("conflict", 9) and not asked("conflict", 0)
    assert not any(
        is_ignored("conflict", where) for where in (None, "", "-:3", "/dev/zero:1", f"{tmp_path}:1", "a\0b:1")
    )
