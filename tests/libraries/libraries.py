"""Which libraries are run, and which of their tests."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LIBRARIES", "Library"]


@dataclass(frozen=True)
class Library:
    """A library by its name on PyPI.

    `tests` are files and folders of its source distribution, `left_out` those among them that are not run, with the
    reason; `needs` are packages beside those that every environment has; `environ` is set for both runs. `distribution`
    is the name on PyPI of one of which this is a part.
    """

    name: str
    version: str
    tests: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    distribution: str = ""

    @property
    def package(self) -> str:
        """What pip installs."""
        return self.distribution or self.name


_FLAX = (
    "optax", "chex", "msgpack", "PyYAML", "treescope", "orbax-checkpoint", "tensorstore", "protobuf", "aiofiles",
    "humanize", "nest_asyncio", "prometheus-client", "psutil", "simplejson",
)  # fmt: skip
_HAIKU_LONG = (
    "checkpoint", "descriptors", "doctest", "float64", "half", "hk_transforms", "jax_transforms", "numpy_inputs",
    "shim_hk",
)  # fmt: skip
_BLACKJAX = ("integrators", "metrics", "proposal", "trajectory", "uturn")

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
    Library("flax.linen", "0.12.8", ("tests/linen", "tests/core"), needs=_FLAX, distribution="flax"),
    Library("flax.nnx", "0.12.8", ("tests/nnx",), needs=_FLAX, distribution="flax"),
    Library(
        "dm-haiku", "0.0.17", ("haiku/_src",),
        left_out=(
            ("haiku/_src/transform_test.py", "needs TensorFlow"),
            ("haiku/_src/integration/jax2tf_test.py", "needs TensorFlow"),
            *((f"haiku/_src/integration/{name}_test.py", "every module in turn, an hour") for name in _HAIKU_LONG),
        ),
        needs=("jmp", "tabulate", "dill"),
    ),
    Library(
        "distrax", "0.1.9",
        ("distrax/_src/utils/transformations_test.py", "distrax/_src/bijectors/shift_test.py",
         "distrax/_src/distributions/deterministic_test.py"),
        left_out=(("the other files of distrax/_src", "4,000 tests, hours; these three are a sample"),),
        needs=("chex", "tfp-nightly", "six", "decorator", "gast"),
    ),
    Library(
        "blackjax", "1.7.1",
        (*(f"tests/mcmc/test_{name}.py" for name in _BLACKJAX), "tests/test_diagnostics.py", "tests/test_util.py",
         "tests/smc/test_resampling.py"),
        left_out=(("the other files of tests", "long chains; these are a sample"),),
        needs=("optax",),
    ),
    Library(
        "numpyro", "0.22.0", ("test/test_distributions_util.py", "test/test_handlers.py"),
        left_out=(("the other files of test", "hours; these two are a sample"),),
        needs=("multipledispatch", "scikit-learn"),
    ),
)  # fmt: skip
