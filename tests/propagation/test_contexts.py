"""MLIR keeps all constants that a context has seen, so the context of modules that are read is replaced."""

from __future__ import annotations

import gc
import weakref

import pytest

import propagation
from propagation import contexts
from propagation.asm import ModuleWriter
from propagation.fuzz import module
from propagation.written import program_of


@pytest.fixture
def last_context():
    """A fresh context in front of the test and behind it."""
    contexts._shared.context = None
    yield
    contexts._shared.context = None


def test_the_context_is_renewed_by_what_was_read(last_context, monkeypatch):
    text = module(3)
    monkeypatch.setattr(contexts, "CONTEXT_BYTES", 2 * len(text))
    seen = [propagation.read(text).context for _ in range(6)]
    assert seen[0] is seen[1] is not seen[2] is seen[3] is not seen[4] is seen[5]
    assert contexts.context() is seen[5]


def test_results_outlive_their_context(last_context, monkeypatch):
    monkeypatch.setattr(contexts, "CONTEXT_MODULES", 1)
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
    monkeypatch.setattr(contexts, "CONTEXT_MODULES", 1)
    writer = ModuleWriter("m")
    recorded = program_of(writer)
    propagation.read(module(3))
    assert contexts.context() is not recorded.context
    assert recorded.module.context is recorded.context


def test_replaced_contexts_are_freed(last_context, monkeypatch):
    """Nothing that outlives a result, such as what was decoded of attributes, keeps its context alive."""
    monkeypatch.setattr(contexts, "CONTEXT_MODULES", 1)
    replaced = [weakref.ref(propagation.run(module(seed), "pipeline").program.context) for seed in (2, 3, 5, 8)]
    propagation.read(module(1))
    gc.collect()
    assert [c() for c in replaced] == [None] * 4
