"""Which libraries are run, and which of their tests."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LIBRARIES", "Library"]


@dataclass(frozen=True)
class Library:
    """A library by its name on PyPI.

    `tests` are files and folders of its source distribution, `left_out` those among them that are not run, with the
    reason; `needs` are packages beside those that every environment has; `environ` is set for both runs.
    """

    name: str
    version: str
    tests: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()


LIBRARIES = (
    Library(
        "optax", "0.2.8", ("optax",),
        left_out=(
            ("optax/_src/alias_test.py", "623 trainings, an hour"),
            ("optax/contrib/_common_test.py", "545 trainings, an hour"),
            ("optax/_src/linesearch_test.py", "240 searches, half an hour"),
            ("optax/assignment", "202 assignments, a quarter of an hour"),
            ("optax/_src/linear_algebra_test.py", "needs flax"),
            ("optax/transforms/_accumulation_test.py", "needs flax"),
        ),
        needs=("scikit-learn",),
    ),
    Library("chex", "0.1.92", ("chex",)),
    Library("einops", "0.8.2", ("einops/tests",), environ=(("EINOPS_TEST_BACKENDS", "numpy,jax"),)),
    Library("distrax", "0.1.9", ("distrax",), needs=("chex",)),
    Library(
        "flax", "0.12.8", ("tests/linen", "tests/core"),
        needs=("optax", "chex", "msgpack", "PyYAML", "treescope", "orbax-checkpoint", "tensorstore", "protobuf"),
    ),
    Library("dm-haiku", "0.0.17", ("haiku/_src",), needs=("jmp", "tabulate", "dill")),
    Library("blackjax", "1.7.1", ("tests",), needs=("optax",)),
)  # fmt: skip
