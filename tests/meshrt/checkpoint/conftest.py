"""Small arrays are cut as large ones are."""

import pytest


@pytest.fixture(autouse=True)
def small_arrays_are_cut(request, monkeypatch):
    """Unless a test has the fixture `whole`."""
    if "whole" not in request.fixturenames:
        monkeypatch.setattr("meshrt.checkpoint.plan.CHECKPOINT_WHOLE_BYTES", 0)


@pytest.fixture
def whole():
    """Small arrays are stored in one piece, as they are by default."""
