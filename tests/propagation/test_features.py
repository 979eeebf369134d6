"""Each feature of the `sdy` dialect alone, at every stage, against the text of the real passes."""

from __future__ import annotations

import pytest

import propagation
from propagation.fuzz import oracle
from propagation.fuzz.compare import VERSION

from . import feature_cases
from .test_stages import normal

# What the real passes refuse: named computations in their input get edges that their own verifier rejects, and the
# newest version does not sum over unreduced axes where an operation drops them.
REFUSED = {"named computation"} | ({"unreduced axes"} if VERSION == "0.12" else set())


@pytest.mark.smoke
@pytest.mark.parametrize("stage", ["import", "propagated", "closed", "pipeline"])
def test_features(stage):
    modules = {name: feature_cases.module(name) for name in feature_cases.CASES}
    wrong = []
    for (name, text), expected in zip(modules.items(), oracle.run_batch([(stage, t) for t in modules.values()])):
        assert expected is not None, name
        if expected.startswith("ERROR"):
            assert name in REFUSED, (name, expected)
            continue
        ours = propagation.run(text, stage, version=VERSION, chlo=False, shardy_faults=True).as_text()
        if normal(ours) != normal(expected):
            wrong.append(name)
    assert not wrong


def test_explicit_reshards_of_features():
    passes = "sdy-insert-explicit-reshards{enable-full-version=true}"
    closed = oracle.run_batch([("closed", feature_cases.module(name)) for name in feature_cases.CASES])
    jobs = [(n, t) for n, t in zip(feature_cases.CASES, closed) if t is not None and not t.startswith("ERROR")]
    assert len(jobs) > 20
    for (name, text), expected in zip(jobs, oracle.run_batch([(passes, t) for _, t in jobs])):
        ours = propagation.run(text, "insert_reshards", version=VERSION, chlo=False, shardy_faults=True).as_text()
        assert expected is not None and ours.strip() == expected.strip(), name
