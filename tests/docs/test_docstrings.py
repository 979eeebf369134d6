"""The examples in docstrings run as they stand, and every public function has one, but for a list that only shrinks."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.experimental import sparse
from tests.docs.examples import run_examples
from tests.docs.public import functions

# What examples take as imported, as docs/site/reference.py says on each page.
GIVEN = {"meshrt": meshrt, "jnp": jnp, "np": np, "lax": lax, "sparse": sparse, "random": meshrt.random, "nn": meshrt.nn}
FUNCTIONS = dict(functions())
WITHOUT = Path(__file__).with_name("without_example.txt")


def documented(value) -> str:
    return inspect.getdoc(value) or ""


def is_ours(value) -> bool:
    """Whether it is defined here: some modules also have functions of NumPy's and types of jaxlib's."""
    return (getattr(value, "__module__", None) or "").startswith(("meshrt", "propagation", "collectives"))


WITH = [name for name, value in FUNCTIONS.items() if is_ours(value) and ">>>" in documented(value)]


@pytest.mark.sweep(12)
@pytest.mark.parametrize("name", WITH)
def test_examples(name):
    value = FUNCTIONS[name]
    around = vars(sys.modules.get(getattr(value, "__module__", ""), meshrt))  # as for `python -m doctest`
    failures = run_examples(documented(value), {**around, **GIVEN}, name)
    assert failures == "", failures


def test_every_public_function_has_an_example_but_for_a_list_that_shrinks():
    listed = WITHOUT.read_text().split()
    lacking = [name for name, value in FUNCTIONS.items() if is_ours(value) and name not in WITH and is_function(value)]
    assert [name for name in lacking if name not in listed] == [], "write examples into their docstrings"
    assert [name for name in listed if name not in lacking] == [], f"they have examples now: drop them from {WITHOUT}"


def is_function(value) -> bool:
    return inspect.isroutine(inspect.unwrap(value)) or type(value).__name__ == "PjitFunction"


def test_every_public_name_is_documented():
    assert [name for name, value in FUNCTIONS.items() if is_ours(value) and not documented(value)] == []
