"""MLIR keeps all constants that a context has seen, so the context of modules that are read is replaced."""

from __future__ import annotations

import gc
import weakref

import pytest

import propagation
from propagation import program
from propagation.asm import ModuleWriter
from propagation.fuzz import module
from propagation.written import program_of


@pytest.fixture
def last_context():
    """A fresh context in front of the test and behind it."""
    program._shared.context = None
    yield
    program._shared.context = None


def test_the_context_is_renewed_by_what_was_read(last_context, monkeypatch):
    text = module(3)
    monkeypatch.setattr(program, "CONTEXT_BYTES", 2 * len(text))
    contexts = [propagation.read(text).context for _ in range(6)]
    assert contexts[0] is contexts[1] is not contexts[2] is contexts[3] is not contexts[4] is contexts[5]
    assert program.context() is contexts[5]


def test_results_outlive_their_context(last_context, monkeypatch):
    monkeypatch.setattr(program, "CONTEXT_MODULES", 1)
    texts = [module(seed) for seed in (2, 3, 5)]
    alone = [propagation.run(text, "pipeline") for text in texts]
    results = [propagation.run(text, "pipeline") for text in texts]
    assert len({id(r.program.context) for r in results}) == len(texts)
    for r, before in zip(results, alone):
        assert r.as_text() == before.as_text()
        assert [*map(str, r.missing())] == [*map(str, before.missing())]
        r.module.operation.verify()
        assert r.module.context is r.program.context


def test_recorded_programs_keep_theirs(last_context, monkeypatch):
    monkeypatch.setattr(program, "CONTEXT_MODULES", 1)
    writer = ModuleWriter("m")
    recorded = program_of(writer)
    propagation.read(module(3))
    assert program.context() is not recorded.context
    assert recorded.module.context is recorded.context


def test_replaced_contexts_are_freed(last_context, monkeypatch):
    """Nothing that outlives a result, such as what was decoded of attributes, keeps its context alive."""
    monkeypatch.setattr(program, "CONTEXT_MODULES", 1)
    contexts = [weakref.ref(propagation.run(module(seed), "pipeline").program.context) for seed in (2, 3, 5, 8)]
    propagation.read(module(1))
    gc.collect()
    assert [c() for c in contexts] == [None] * 4
