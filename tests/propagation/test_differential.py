"""Every value's sharding against the real Shardy passes of the installed jaxlib."""

from __future__ import annotations

from pathlib import Path

import pytest

from propagation.fuzz import Case, Oracle, Tally, compare, generate, module, shrink_case, sweep
from propagation.fuzz import __main__ as cli
from propagation.fuzz.operations import DRAWS, annotated

CASES = sorted((Path(__file__).parent / "cases").glob("*.mlir"))
CHUNK = 250


def _check(tally: Tally, stage="closed") -> None:
    if tally.failures:
        case = tally.failures[0]
        pytest.fail(
            f"{len(tally.failures)} of {tally.compared} modules differ, seeds {[c.seed for c in tally.failures]}; "
            f"{case.found.detail}\nminimal module of seed {case.seed}:\n{shrink_case(case, stage)}"
        )


def _compare_all(jobs, stage="closed", dedup=False) -> Tally:
    tally = Tally()
    with Oracle() as oracle:
        for number, text in enumerate(jobs):
            expected = oracle(f"dedup-{stage}" if dedup else stage, text)
            found = compare(text, expected, stage, dedup_functions_fully=dedup)
            tally.add(Case(number, text, frozenset(), found))
    return tally


@pytest.mark.smoke
@pytest.mark.parametrize("stage", ["import", "closed", "pipeline"])
def test_shrunk_cases(stage):
    """Minimal modules on which we once differed."""
    tally = _compare_all([path.read_text() for path in CASES], stage)
    _check(tally, stage)
    # The pipeline of the newest version refuses modules that drop unreduced axes.
    assert tally.compared == len(CASES) or (stage == "pipeline" and tally.compared > len(CASES) // 2)


@pytest.mark.parametrize(("stage", "dedup"), [("basic", False), ("closed", True)])
def test_shrunk_cases_without_edges_and_without_inlining(stage, dedup):
    tally = _compare_all([path.read_text() for path in CASES], stage, dedup)
    _check(tally, stage)
    assert tally.compared > len(CASES) // 2  # Shardy's own passes refuse some of them at these stages


def test_programs_from_jax():
    from . import programs

    jobs = [text for _, text in programs.programs(quick=True)]
    tally = _compare_all(jobs)
    _check(tally)
    assert tally.compared == len(jobs)


@pytest.mark.slow
def test_more_programs_from_jax():
    from . import programs

    jobs = [text for _, text in programs.programs(quick=False)]
    tally = _compare_all(jobs)
    _check(tally)
    assert tally.compared == len(jobs)


@pytest.mark.parametrize("stage", ["basic", "aggressive", "op_priority", "user_priority"])
def test_strategies_alone(stage):
    tally = sweep(range(40), stage, features=False)
    _check(tally, stage)
    assert tally.compared == 40
    _check(sweep(range(180, 190), stage), stage)  # groups over arguments of manual computations are among them


@pytest.mark.smoke
def test_random_plain_modules():
    tally = sweep(range(60), features=False)
    _check(tally)
    assert tally.compared == 60


@pytest.mark.smoke
def test_some_random_modules():
    _check(sweep(range(100)))


@pytest.mark.parametrize("start", range(0, 2000, CHUNK))
def test_random_modules(start):
    """2,000 modules of fixed seeds, in parts so that they spread over the cores."""
    tally = sweep(range(start, start + CHUNK))
    _check(tally)
    assert tally.compared > 0.85 * CHUNK


@pytest.mark.slow
@pytest.mark.parametrize("start", range(2000, 8000, 1000))
def test_more_random_modules(start):
    _check(sweep(range(start, start + 1000)))


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_annotated_operations(draw):
    """One operation with drawn attributes, between annotations."""
    tally = _compare_all([annotated(seed, draw) for seed in range(12)])
    _check(tally)
    assert tally.compared >= 10


@pytest.mark.slow
@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_more_annotated_operations(draw):
    tally = _compare_all([annotated(seed, draw) for seed in range(12, 300)])
    _check(tally)
    assert tally.compared > 270


def test_the_generator_covers_the_dialects():
    """Every operation with a rule of its own, and every feature of annotations and structure, appears."""
    from propagation import program
    from propagation.rules import table

    names, features = set(), set()
    for seed in range(600):
        text, used = generate(seed)
        features |= used
        names |= {op.name for op in program.read(text).ops()}
    missing = {n for n in table() if n.startswith("stablehlo.")} - names - {"stablehlo.cross-replica-sum"}
    assert not missing
    assert features == {
        "asynchronous operation", "call", "call in manual computation", "case", "closed dimension", "constraint",
        "constraint chain", "device ids", "inlined mesh", "manual_computation", "maximal mesh", "mesh of other axes",
        "named_computation", "nested manual computation", "open dimension", "optimization_barrier", "priority",
        "propagation barrier", "repeated call", "replicated axis", "rule of the user", "several meshes",
        "sharding group", "size-one axis", "sub-axis", "token", "unreduced axis", "while",
    }  # fmt: skip


def test_seeds_are_deterministic():
    assert module(7) == module(7) != module(8)


def test_shrinking_keeps_the_failure(capsys):
    """A module is shrunk while a stand-in for a failure persists: it contains a transpose of a sharded value."""
    from propagation.fuzz import shrink

    def fails(text: str) -> bool:
        return "stablehlo.transpose" in text and "sdy.sharding" in text

    seed = next(s for s in range(100) if fails(module(s)))
    small = shrink(module(seed), fails)
    assert fails(small)
    assert sum("stablehlo." in line for line in small.splitlines()) == 1


def test_command(capsys, tmp_path):
    assert cli.main(["--cases", "5", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "5 modules in" in out and "of 5 modules agree" in out and "open dimension" in out
    assert cli.main(["--print", "3"]) == 0
    file = tmp_path / "m.mlir"
    file.write_text(capsys.readouterr().out)
    assert cli.main(["--file", str(file)]) == 0
    assert cli.main(["--file", str(tmp_path / "none")]) == 2
