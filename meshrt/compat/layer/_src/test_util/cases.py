"""The class of test cases, and settings around those of a class."""

from __future__ import annotations

import contextlib
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl.testing import parameterized

from meshrt import config, dispatch, dtypes, tree_util
from meshrt.compat.layer._src import deprecations, test_warning_util
from meshrt.compat.layer._src.test_loader import TEST_NUM_THREADS
from meshrt.compat.layer._src.test_util import closeness, counts
from meshrt.compat.layer._src.test_util.samples import TEST_WITH_PERSISTENT_COMPILATION_CACHE, is_sequence
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
        raise AssertionError(f"settings of the process, before and after: {changed}")


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


# Settings by which everything that is compiled is kept on disk.
_KEEPS_ALL = {
    "jax_enable_compilation_cache": True, "jax_raise_persistent_cache_errors": True,
    "jax_persistent_cache_min_compile_time_secs": 0, "jax_persistent_cache_min_entry_size_bytes": 0,
}  # fmt: skip


def _kind(x: Any) -> str | None:
    """What `assertAllClose` compares a value as: arrays, dicts of values, sequences of them, and all else by ==."""
    if isinstance(x, dict):
        return "dict"
    if hasattr(x, "__array__") or np.isscalar(x):
        return "array"
    return "sequence" if is_sequence(x) else None


class JaxTestCase(parameterized.TestCase):
    """A test case with strict settings, its own random numbers, and assertions about arrays, warnings and caches."""

    _default_global_config: dict[str, Any] = {}
    _default_thread_local_config: dict[str, Any] = {
        "jax_enable_checks": True, "jax_numpy_dtype_promotion": "strict", "jax_numpy_rank_promotion": "raise",
        "jax_traceback_filtering": "off", "jax_legacy_prng_key": "error",
    }  # fmt: skip

    def setUp(self) -> None:
        super().setUp()
        self._rng = np.random.RandomState(zlib.adler32(self._testMethodName.encode()))
        for around in (
            assert_global_configs_unchanged(), global_config_context(**self._default_global_config),
            thread_local_config_context(**self._default_thread_local_config),
        ):  # fmt: skip
            self.enterContext(around)
        if TEST_WITH_PERSISTENT_COMPILATION_CACHE.value:
            folder = self.enterContext(tempfile.TemporaryDirectory())
            self.enterContext(global_config_context(jax_compilation_cache_dir=folder, **_KEEPS_ALL))

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
            raise TypeError("an array of objects may equal what it differs from; allow_object_dtype=True compares it")
        with np.errstate(over="ignore"):  # NumPy subtracts them to say how far they are apart
            np.testing.assert_array_equal(actual, desired, err_msg=err_msg, verbose=verbose)

    def assertArraysAllClose(
        self, actual: Any, desired: Any, *, check_dtypes: bool = True, atol: Any = None, rtol: Any = None,
        err_msg: str = "",
    ) -> None:  # fmt: skip
        """Two arrays have the same shape and near elements."""
        self.assertEqual(actual.shape, desired.shape)
        closeness.assert_numpy_allclose(actual, desired, *closeness.limits(actual, desired, atol, rtol), err_msg)
        if check_dtypes:
            self.assertDtypesMatch(actual, desired)

    def assertAllClose(
        self, actual: Any, desired: Any, *, check_dtypes: bool = True, atol: Any = None, rtol: Any = None,
        canonicalize_dtypes: bool = True, err_msg: str = "",
    ) -> None:  # fmt: skip
        """Two arrays, numbers, or sequences and dicts of them are near each other."""

        options = {
            "check_dtypes": check_dtypes, "atol": atol, "rtol": rtol, "canonicalize_dtypes": canonicalize_dtypes,
            "err_msg": err_msg,
        }  # fmt: skip
        kind = _kind(actual)
        if kind is None:
            if actual != desired:
                raise TypeError(f"{type(actual)} and {type(desired)} are neither equal nor arrays")
            return
        if kind != _kind(desired):
            self.fail(f"{kind} on one side, {desired!r} on the other. {err_msg}")
        if kind == "array":
            if check_dtypes:
                self.assertDtypesMatch(actual, desired, canonicalize_dtypes=canonicalize_dtypes)
            near = {"check_dtypes": False, "atol": atol, "rtol": rtol, "err_msg": err_msg}
            self.assertArraysAllClose(np.asarray(actual), np.asarray(desired), **near)
            return
        if kind == "dict":
            self.assertEqual(actual.keys(), desired.keys())
            desired = [desired[key] for key in actual]
            actual = actual.values()
        self.assertEqual(len(actual), len(desired))
        for a, d in zip(actual, desired):
            self.assertAllClose(a, d, **options)

    # -- text and warnings ---------------------------------------------------------------------------------------------

    def assertMultiLineStrippedEqual(self, expected: str, what: str) -> None:
        """Two texts are equal but for the white space around their lines."""
        wanted, found = ("\n".join(filter(None, map(str.strip, text.strip().split("\n")))) for text in (expected, what))
        if wanted != found:
            print(what)  # to be copied into the test
            self.assertMultiLineEqual(wanted, found, msg=f"wanted:\n{expected}\nfound:\n{what}")

    def assertDeprecationWarnsOrRaises(
        self, deprecation_id: str, message: str, *, error_class: type[Exception] = ValueError
    ) -> Any:
        """A block warns of what is deprecated, or raises where the time for that has come."""
        check: Any = self.assertWarnsRegex
        kind: type[Exception] = DeprecationWarning
        if deprecations.is_accelerated(deprecation_id):
            check, kind = self.assertRaisesRegex, error_class
        return check(kind, message)

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
    def assertWarnsRegex(  # type: ignore[override]  # a block only, as JAX's
        self, warning: type[Warning], regex: Any
    ) -> Iterator[None]:
        with self._warned(warning, regex, lambda text: regex is None or re.search(regex, text) is not None):
            yield

    @contextlib.contextmanager
    def _warned(self, kind: type[Warning], wanted: Any, fits: Callable[[str], bool]) -> Iterator[None]:
        with test_warning_util.record_warnings() as found:
            yield
        if not any(isinstance(w.message, kind) and fits(str(w.message)) for w in found):
            texts = [str(w.message) for w in found]
            self.fail(f"no {kind.__name__} about {wanted!r} among the warnings {texts}")

    # -- compiled functions and caches ---------------------------------------------------------------------------------

    def _CompileAndCheck(
        self, fun: Callable[..., Any], args_maker: Callable[[], Any], *, check_dtypes: bool = True, tol: Any = None,
        rtol: Any = None, atol: Any = None, check_cache_misses: bool = True,
    ) -> None:  # fmt: skip
        """A function gives the same whether it is compiled or not, and runs in Python only for new types."""
        runs: list[Any] = []

        def noting(*args: Any) -> Any:
            runs.append(args)
            return fun(*args)

        first = args_maker()
        said = fun(*first)
        self.assertEqual(*(tree_util.tree_map(of, said) for of in (np.shape, lambda x: np.asarray(x).shape)))
        ready = dispatch.primitives_ready()
        said = fun(*first)
        if check_cache_misses and TEST_NUM_THREADS.value <= 1:
            self.assertEqual(ready, dispatch.primitives_ready(), f"{fun} compiled operations again when called again")
        compiled = jit(noting)
        pairs = [(compiled(*first), said)]
        count = len(runs)
        pairs.append((compiled(*first), said))
        second = args_maker()
        pairs.append((compiled(*second), fun(*second)))
        self.assertLen(runs, count, f"{fun} was run in Python again for the same types")
        for got, wanted in pairs:
            self.assertAllClose(got, wanted, check_dtypes=check_dtypes, atol=atol or tol, rtol=rtol or tol)

    def _CheckAgainstNumpy(
        self, numpy_reference_op: Callable[..., Any], lax_op: Callable[..., Any], args_maker: Callable[[], Any],
        check_dtypes: bool = True, tol: Any = None, atol: Any = None, rtol: Any = None,
        canonicalize_dtypes: bool = True,
    ) -> None:  # fmt: skip
        """A function gives what one of NumPy's does."""
        given = args_maker()
        near = {"atol": atol or tol, "rtol": rtol or tol, "canonicalize_dtypes": canonicalize_dtypes}
        self.assertAllClose(lax_op(*given), numpy_reference_op(*given), check_dtypes=check_dtypes, **near)

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


def _named(transform: Any, name: str) -> Any:
    transform._name = name
    return transform


# What tests that are to hold with and without jit are run with. Their names are attributes of the functions, of `jit`
# itself too: tests compare it with the one that they import.
JIT_IMPLEMENTATION = (_named(jit, "jit"), _named(_no_jit, "noop"))
