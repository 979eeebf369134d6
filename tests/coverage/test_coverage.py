"""docs/jax-coverage.md says what is there."""

import jax
import pytest

import meshrt
from meshrt import errors
from tests.coverage.document import PATH, text
from tests.coverage.names import compare
from tests.coverage.reasons import REASONS


def test_the_document_is_up_to_date():
    written = PATH.read_text()
    if f"JAX {jax.__version__}," not in written:
        pytest.skip("written for another JAX")
    assert written == text(), "run python -m tests.coverage"


def test_reasons_are_of_names_that_jax_has():
    names = {f"{r.module}.{r.name}" for r in compare()}
    assert names >= REASONS.keys(), sorted(REASONS.keys() - names)


def test_absent_names_say_so_at_the_attribute():
    rooms = {"jax": meshrt, "jax.numpy": meshrt.numpy, "jax.lax": meshrt.lax}
    for row in [r for r in compare() if r.kind in ("missing", "not planned") and r.module in rooms]:
        room = rooms[row.module]
        with pytest.raises(errors.MissingFunctionError, match="not implemented"):
            getattr(room, row.name)
