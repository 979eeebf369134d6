"""The class of test cases, and settings around those of a class."""

from __future__ import annotations

import contextlib
import re
import textwrap
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl.testing import parameterized

from meshrt import config, dtypes, tree_util
from meshrt.compat.layer._src import deprecations, test_warning_util
from meshrt.compat.layer._src.test_util import closeness, counts
from meshrt.compat.layer._src.test_util.samples import is_sequence
from meshrt.core.trace import EVAL, current_trace
from meshrt.jit import jit

__all__ = [
    "JIT_IMPLEMENTATION", "BufferDonationTestCase", "JaxTestCase", "assert_global_configs_unchanged",
    "global_config_context", "thread_local_config_context", "with_config", "with_global_config",
]  # fmt: skip


@contextlib.contextmanager
def global_config_context(**kwds: Any) -> Iterator[None]:
    """Settings of the process within a block."""
    saved = {name: config.settings.read_global(name) for name in kwds}
    try:
        for name, value in kwds.items():
            config.update(name, value)
        yield
    finally:
        for name, value in saved.items():
            config.update(name, value)


def thread_local_config_context(**kwds: Any) -> contextlib.AbstractContextManager[None]:
    """Settings of this thread within a block."""
    return config.settings.override(**kwds)


@contextlib.contextmanager
def assert_global_configs_unchanged() -> Iterator[None]:
    """AssertionError if a block leaves settings of the process changed."""
    before = dict(config.values)
    yield
    after = dict(config.values)
    changed = {k: (before.get(k), after.get(k)) for k in before.keys() | after.keys() if before.get(k) != after.get(k)}
    if changed:
        raise AssertionError(f"Test changed global config values. Differing values are: {changed}")


def _with(attribute: str, values: dict[str, Any]) -> Callable[[type], type]:
    def decorate(cls: type) -> type:
        if not (isinstance(cls, type) and issubclass(cls, JaxTestCase)):
            raise AssertionError("settings are given to classes derived from JaxTestCase")
        inherited: dict[str, Any] = {}
        for base in cls.__bases__:
            inherited.update(getattr(base, attribute, {}))
        setattr(cls, attribute, {**inherited, **values})
        return cls

    return decorate


def with_config(**kwds: Any) -> Callable[[type], type]:
    """Decorates a class of tests: settings of the thread while one of them runs."""
    return _with("_default_thread_local_config", kwds)


def with_global_config(**kwds: Any) -> Callable[[type], type]:
    """Decorates a class of tests: settings of the process while one of them runs."""
    return _with("_default_global_config", kwds)


class JaxTestCase(parameterized.TestCase):
    """A test case with strict settings, its own random numbers, and assertions about arrays, warnings and caches."""

    _default_global_config: dict[str, Any] = {}
    _default_thread_local_config: dict[str, Any] = {
        "jax_enable_checks": True, "jax_numpy_dtype_promotion": "strict", "jax_numpy_rank_promotion": "raise",
        "jax_traceback_filtering": "off", "jax_legacy_prng_key": "error",
    }  # fmt: skip

    def setUp(self) -> None:
        super().setUp()
        self.enterContext(assert_global_configs_unchanged())
        self._rng = np.random.RandomState(zlib.adler32(self._testMethodName.encode()))
        self.enterContext(global_config_context(**self._default_global_config))
        self.enterContext(thread_local_config_context(**self._default_thread_local_config))

    def tearDown(self) -> None:
        assert current_trace() is EVAL, "a trace is still going on"
        super().tearDown()

    def rng(self) -> np.random.RandomState:
        """Random numbers that depend on the test's name only."""
        return self._rng

    # -- arrays --------------------------------------------------------------------------------------------------------

    def assertDtypesMatch(self, actual: Any, desired: Any, *, canonicalize_dtypes: bool = True) -> None:
        found, wanted = closeness.dtype_of(actual), closeness.dtype_of(desired)
        if canonicalize_dtypes and not config.settings.enable_x64:
            found, wanted = dtypes.canonicalize_dtype(found), dtypes.canonicalize_dtype(wanted)
        self.assertEqual(found, wanted)

    def assertArraysEqual(
        self, actual: Any, desired: Any, *, check_dtypes: bool = True, err_msg: str = "",
        allow_object_dtype: bool = False, verbose: bool = True,
    ) -> None:  # fmt: skip
        """Two arrays have the same elements."""
        if check_dtypes:
            self.assertDtypesMatch(actual, desired)
        actual, desired = np.asarray(actual), np.asarray(desired)
        if object in (actual.dtype, desired.dtype) and not allow_object_dtype:
            raise TypeError("arrays of objects may be equal though they differ; pass allow_object_dtype=True")
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(actual, desired, err_msg=err_msg, verbose=verbose)

    def assertArraysAllClose(
        self, actual: Any, desired: Any, *, check_dtypes: bool = True, atol: Any = None, rtol: Any = None,
        err_msg: str = "",
    ) -> None:  # fmt: skip
        """Two arrays have the same shape and near elements."""
        self.assertEqual(actual.shape, desired.shape)
        kinds = closeness.dtype_of(actual), closeness.dtype_of(desired)
        near, far = (max(closeness.tolerance(d, t) for d in kinds) for t in (atol, rtol))
        closeness.assert_numpy_allclose(actual, desired, atol=near, rtol=far, err_msg=err_msg)
        if check_dtypes:
            self.assertDtypesMatch(actual, desired)

    def assertAllClose(
        self, actual: Any, desired: Any, *, check_dtypes: bool = True, atol: Any = None, rtol: Any = None,
        canonicalize_dtypes: bool = True, err_msg: str = "",
    ) -> None:  # fmt: skip
        """Two arrays, numbers, or sequences and dicts of them are near each other."""

        def check(a: Any, d: Any) -> None:
            self.assertAllClose(
                a, d, check_dtypes=check_dtypes, atol=atol, rtol=rtol, canonicalize_dtypes=canonicalize_dtypes,
                err_msg=err_msg,
            )  # fmt: skip

        def is_array(x: Any) -> bool:
            return hasattr(x, "__array__") or bool(np.isscalar(x))

        if isinstance(actual, dict):
            self.assertIsInstance(desired, dict)
            self.assertEqual(actual.keys(), desired.keys())
            for k in actual:
                check(actual[k], desired[k])
        elif is_sequence(actual) and not hasattr(actual, "__array__"):
            if not is_sequence(desired) or hasattr(desired, "__array__"):
                self.fail(f"Expected sequence, got {desired}")
            self.assertEqual(len(actual), len(desired))
            for a, d in zip(actual, desired):
                check(a, d)
        elif is_array(actual):
            if not is_array(desired):
                self.fail(f"Expected array-like, got {desired}")
            if check_dtypes:
                self.assertDtypesMatch(actual, desired, canonicalize_dtypes=canonicalize_dtypes)
            self.assertArraysAllClose(
                np.asarray(actual), np.asarray(desired), check_dtypes=False, atol=atol, rtol=rtol, err_msg=err_msg
            )
        elif actual != desired:
            raise TypeError((type(actual), type(desired)))

    # -- text and warnings ---------------------------------------------------------------------------------------------

    def assertMultiLineStrippedEqual(self, expected: str, what: str) -> None:
        """Two texts are equal but for the white space around their lines."""
        one, other = (
            "\n".join(line.strip() for line in textwrap.dedent(t).strip().split("\n") if line.strip())
            for t in (expected, what)
        )
        if one != other:
            print(f"Found\n{what}\n")
            self.assertMultiLineEqual(one, other, msg=f"Found\n{what}\nExpecting\n{expected}")

    def assertDeprecationWarnsOrRaises(
        self, deprecation_id: str, message: str, *, error_class: type[Exception] = ValueError
    ) -> Any:
        """A block warns of what is deprecated, or raises where the time for that has come."""
        if deprecations.is_accelerated(deprecation_id):
            return self.assertRaisesRegex(error_class, message)
        return self.assertWarnsRegex(DeprecationWarning, message)

    @contextlib.contextmanager
    def assertNoWarnings(self) -> Iterator[None]:
        with test_warning_util.raise_on_warnings():
            yield

    @contextlib.contextmanager
    def assertWarns(  # type: ignore[override]  # a block only, as JAX's
        self, warning: type[Warning], *, msg: str | None = None
    ) -> Iterator[None]:
        with self._warned(warning, msg, lambda text: msg is None or msg in text):
            yield

    @contextlib.contextmanager
    def assertWarnsRegex(self, warning: type[Warning], regex: Any) -> Iterator[None]:  # type: ignore[override]
        with self._warned(warning, regex, lambda text: regex is None or re.search(regex, text) is not None):
            yield

    @contextlib.contextmanager
    def _warned(self, kind: type[Warning], wanted: Any, fits: Callable[[str], bool]) -> Iterator[None]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            yield
        if not any(isinstance(w.message, kind) and fits(str(w.message)) for w in found):
            texts = [str(w.message) for w in found]
            self.fail(f"Expected warning not found {kind}:'{wanted}', got warnings: {texts}")

    # -- compiled functions and caches ---------------------------------------------------------------------------------

    def _CompileAndCheck(
        self, fun: Callable[..., Any], args_maker: Callable[[], Any], *, check_dtypes: bool = True, tol: Any = None,
        rtol: Any = None, atol: Any = None, check_cache_misses: bool = True,
    ) -> None:  # fmt: skip
        """A function gives the same whether it is compiled or not, and runs in Python only for new types."""
        near, far = atol or tol, rtol or tol
        traced: list[bool] = []

        def noting(*args: Any) -> Any:
            traced.append(True)
            return fun(*args)

        args = args_maker()
        plain = fun(*args)
        shapes = tree_util.tree_map(np.shape, plain), tree_util.tree_map(lambda x: np.asarray(x).shape, plain)
        self.assertEqual(*shapes)
        with counts.count_jit_tracing_cache_miss() as misses:
            plain = fun(*args)
        if check_cache_misses:
            self.assertEqual(misses(), 0, f"Compilation detected during second call of {fun} in op-by-op mode.")
        compiled = jit(noting)
        for given in (args, args, args_maker()):
            known = bool(traced)
            count = len(traced)
            got, plain = compiled(*given), fun(*given)
            self.assertTrue(not known or len(traced) == count, f"{fun} was run in Python again for the same types")
            self.assertAllClose(got, plain, check_dtypes=check_dtypes, atol=near, rtol=far)

    def _CheckAgainstNumpy(
        self, numpy_reference_op: Callable[..., Any], lax_op: Callable[..., Any], args_maker: Callable[[], Any],
        check_dtypes: bool = True, tol: Any = None, atol: Any = None, rtol: Any = None,
        canonicalize_dtypes: bool = True,
    ) -> None:  # fmt: skip
        """A function gives what one of NumPy's does."""
        args = args_maker()
        self.assertAllClose(
            lax_op(*args), numpy_reference_op(*args), check_dtypes=check_dtypes, atol=atol or tol, rtol=rtol or tol,
            canonicalize_dtypes=canonicalize_dtypes,
        )  # fmt: skip

    def assertCacheMisses(
        self, func: Callable[[], Any], *, cpp: int | None = None, aot_call: int | None = None,
        tracing: int | None = None, lowering: int | None = None,
        compilation_after_persistent_cache_miss: int | None = None,
    ) -> None:  # fmt: skip
        """A call looks for calls, Compileds, traces, lowerings and compilations that are not there so many times."""
        wanted = {
            counts.count_pjit_cpp_cache_miss: cpp, counts.count_aot_jit_cpp_cache_miss: aot_call,
            counts.count_jit_tracing_cache_miss: tracing, counts.count_jit_and_pmap_lowerings: lowering,
            counts.count_compilation_after_persistent_cache_miss: compilation_after_persistent_cache_miss,
        }  # fmt: skip
        with contextlib.ExitStack() as stack:
            found = [(n, stack.enter_context(counter())) for counter, n in wanted.items()]
            func()
        for n, count in found:
            if n is not None:
                self.assertEqual(n, count())


class BufferDonationTestCase(JaxTestCase):
    """Adds assertions about donated arrays."""

    def assertDeleted(self, x: Any) -> None:
        self.assertTrue(x.is_deleted())

    def assertNotDeleted(self, x: Any) -> None:
        self.assertFalse(x.is_deleted())


def _no_jit(fun: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    return fun


# What tests that are to hold with and without jit are run with, each with a name for them.
JIT_IMPLEMENTATION = (jit, _no_jit)
for _implementation, _name in zip(JIT_IMPLEMENTATION, ("jit", "noop")):
    _implementation._name = _name  # type: ignore[attr-defined]
