"""Cases of tests: samples of products, names for them, the dtypes of a platform, what Jaxprs of functions hold."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from absl.testing import parameterized

from meshrt import config, contexts, dtypes, lax, tree_util
from meshrt.api import vjp
from meshrt.compat.layer._src.config import bool_flag, int_flag
from meshrt.compat.layer._src.core import subjaxprs
from meshrt.compat.layer._src.test_util.devices import device_under_test
from meshrt.numpy.operands import in_one_dtype
from meshrt.staging import make_jaxpr

__all__ = [
    "NUM_GENERATED_CASES", "SKIP_SLOW_TESTS", "TEST_WITH_PERSISTENT_COMPILATION_CACHE", "assert_dot_precision",
    "assert_dot_preferred_element_type", "cases_from_gens", "check_raises", "check_raises_regexp",
    "complex_plane_sample", "every_dtype", "fwd_bwd_jaxprs", "is_sequence", "iter_eqns", "kSanitizeNameRE",
    "named_cases_from_sampler", "num_float_bits", "parameterized_filterable", "promote_like_jnp", "sample_product",
    "sample_product_testcases", "sanitize_test_name", "strict_promotion_if_dtypes_match", "supported_dtypes",
    "to_default_dtype", "with_jax_dtype_defaults",
]  # fmt: skip

NUM_GENERATED_CASES = int_flag("jax_num_generated_cases", int(os.environ.get("JAX_NUM_GENERATED_CASES", "10")))
SKIP_SLOW_TESTS = bool_flag("jax_skip_slow_tests", os.environ.get("JAX_SKIP_SLOW_TESTS", "0").lower() in ("1", "true"))
# Whether every test compiles into an empty folder of its own.
TEST_WITH_PERSISTENT_COMPILATION_CACHE = bool_flag(
    "jax_test_with_persistent_compilation_cache",
    os.environ.get("JAX_TEST_WITH_PERSISTENT_COMPILATION_CACHE", "0").lower() in ("1", "true"),
)
# How often a sampler is asked in vain for a case that has not been before it is taken to have no more.
_TRIES = int_flag("max_cases_sampling_retries", int(os.environ.get("JAX_MAX_CASES_SAMPLING_RETRIES", "100")))
# The seed by which cases are chosen: the same in every run.
_SEED = 42


kSanitizeNameRE = re.compile("[" + re.escape(" \"'[](){}<>=,._") + "]+")


def sanitize_test_name(s: str) -> str:
    """A name that `pytest -k` and `unittest -k` can be given: brackets, points and the like become one underscore."""
    return kSanitizeNameRE.sub("_", s)


@functools.cache
def _chosen(count: int, wanted: int) -> np.ndarray:
    return np.random.RandomState(_SEED).choice(count, size=wanted, replace=False)


def sample_product_testcases(*args: Any, **kw: Any) -> list[dict[str, Any]]:
    """Some of the combinations of an element of each: of lists of dicts, and of lists of values by name."""
    axes = [list(choices) for choices in args] + [[{name: v} for v in values] for name, values in kw.items()]
    sizes = [len(axis) for axis in axes]
    numbers = _chosen(math.prod(sizes), min(math.prod(sizes), NUM_GENERATED_CASES.value))
    # The first axis moves fastest.
    places = [np.unravel_index(n, sizes, order="F") for n in numbers] if sizes else [()] * len(numbers)
    return [{k: v for axis, i in zip(axes, at) for k, v in axis[i].items()} for at in places]


def sample_product(*args: Any, **kw: Any) -> Any:
    """Decorates a test that is run with some of the combinations (`sample_product_testcases`)."""
    return parameterized.parameters(*sample_product_testcases(*args, **kw))


def parameterized_filterable(
    *, kwargs: Sequence[dict[str, Any]], testcase_name: Callable[[dict[str, Any]], str] | None = None,
    one_containing: str | None = None,
) -> Any:  # fmt: skip
    """Decorates a test that is run with each dict of arguments, under names that filters can be given.

    `testcase_name` makes a name of a dict; else its entry of that name does, or all of it. `one_containing`: only the
    first whose name has this in it, under the test's own name.
    """
    named = []
    for case in kwargs:
        given = testcase_name(case) if testcase_name is not None else case.get("testcase_name")
        name = "_".join(f"{k}={case[k]}" for k in sorted(case)) if given is None else str(given)
        named.append({**case, "testcase_name": sanitize_test_name(name)})
    if one_containing is None:
        return parameterized.named_parameters(*named)
    found = [case for case in named if one_containing in case["testcase_name"]]
    if not found:
        raise AssertionError(f"no testcase_name contains {one_containing!r}: {[c['testcase_name'] for c in named]}")
    return parameterized.named_parameters({**found[0], "testcase_name": ""})


def cases_from_gens(*gens: Callable[[int], Any]) -> Iterator[tuple[Any, ...]]:
    """Cases of growing sizes, each a name and what every generator gives for the size."""
    each = range(1 + NUM_GENERATED_CASES.value // 3)
    return ((f"_{size}_{i}", *(gen(size) for gen in gens)) for size in (1, 3, 10) for i in each)


def named_cases_from_sampler(gen: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Different cases of a generator of one case, which is given a function that chooses one of several values."""
    rng = np.random.RandomState(_SEED)

    def choose(values: Any) -> list[Any]:
        values = list(values)
        return [values[rng.randint(len(values))]]

    seen: set[str] = set()
    failed = 0
    while len(seen) < NUM_GENERATED_CASES.value and failed < _TRIES.value:
        fresh = [case for case in gen(choose) if case["testcase_name"] not in seen]
        failed = 0 if fresh else failed + 1
        for case in fresh:
            seen.add(case["testcase_name"])
            yield case


def num_float_bits(dtype: Any) -> int:
    return int(dtypes.finfo(dtypes.canonicalize_dtype(dtype)).bits)


def to_default_dtype(arr: Any) -> np.ndarray:
    """As an array of NumPy's of the dtype that numbers of its kind have by default."""
    array: np.ndarray = np.asarray(arr)
    wide = {"b": "bool", "i": "int64", "u": "uint64", "f": "float64", "c": "complex128"}.get(array.dtype.kind)
    return array if wide is None else array.astype(dtypes.canonicalize_dtype(np.dtype(wide)))


def with_jax_dtype_defaults(func: Callable[..., Any], use_defaults: Any = True) -> Callable[..., Any]:
    """A function of NumPy's whose results have default dtypes, all or those of a tree of booleans."""

    def converted(x: Any, use: bool) -> Any:
        return to_default_dtype(x) if use else x

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        one = isinstance(use_defaults, bool)
        return tree_util.tree_map(
            converted, out, tree_util.tree_map(lambda _: use_defaults, out) if one else use_defaults
        )

    return wrapped


def promote_like_jnp(fun: Callable[..., Any], inexact: bool = False) -> Callable[..., Any]:
    """A function of NumPy's whose arguments are promoted together as ours are."""

    def promoted(*args: Any, **options: Any) -> Any:
        together = iter(in_one_dtype("promote_like_jnp", tree_util.tree_leaves(args), inexact))
        return fun(*tree_util.tree_map(lambda _: next(together), args), **options)

    return promoted


def is_sequence(x: Any) -> bool:
    """Whether a value gives elements; 0-d arrays do not."""
    with contextlib.suppress(TypeError):
        return iter(x) is not None
    return False


def strict_promotion_if_dtypes_match(dtypes: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """Strict promotion in a block where all dtypes are one, the usual one else."""
    return contexts.numpy_dtype_promotion("strict" if all(d == dtypes[0] for d in dtypes) else "standard")


def check_raises(thunk: Callable[[], Any], err_type: type[Exception], msg: str) -> None:
    """AssertionError unless a call raises an error whose words begin so."""
    _check_raised(thunk, err_type, lambda text: text.startswith(msg), msg)


def check_raises_regexp(thunk: Callable[[], Any], err_type: type[Exception], pattern: str) -> None:
    """AssertionError unless a call raises an error whose words begin as a regular expression says."""
    _check_raised(thunk, err_type, lambda text: re.match(pattern, text) is not None, pattern)


def _check_raised(thunk: Any, kind: type[Exception], fits: Callable[[str], bool], wanted: str) -> None:
    try:
        thunk()
    except kind as e:
        if not fits(str(e)):
            raise AssertionError(f"raised {str(e)!r} and not {wanted!r}") from e
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def iter_eqns(jaxpr: Any) -> Iterator[Any]:
    """The equations of a Jaxpr and, behind them, of those inside it."""
    pending = [jaxpr]
    while pending:
        inner = pending.pop()
        yield from inner.eqns
        pending.extend(reversed([*subjaxprs(inner)]))


def _check_dots(what: str, wanted: Any, fun: Callable[..., Any], args: Any) -> None:
    for eqn in iter_eqns(make_jaxpr(fun)(*args).jaxpr):
        if eqn.primitive is lax.dot_general_p:
            found = eqn.params[what]
            each = set(found if isinstance(found, tuple) else (found,))
            if each != {wanted}:
                raise AssertionError(f"{eqn} has the {what} {found}, not {wanted}")


def assert_dot_precision(expected_precision: Any, fun: Callable[..., Any], *args: Any) -> None:
    """AssertionError unless all products of a function have a precision."""
    _check_dots("precision", expected_precision, fun, args)


def assert_dot_preferred_element_type(expected: Any, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """AssertionError unless all products of a function give an element type."""
    _check_dots("preferred_element_type", expected, functools.partial(fun, **kwargs), args)


def fwd_bwd_jaxprs(f: Callable[..., Any], *example_args: Any) -> tuple[Any, Any]:
    """The Jaxprs of the forward and the backward pass of a function."""
    forward, (out, pull) = make_jaxpr(functools.partial(vjp, f), return_shape=True)(*example_args)
    return forward, make_jaxpr(lambda back, cotangent: back(cotangent))(pull, out)


_NARROW_TPU = ("int4", "uint4", "bfloat16", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e5m2")
_NARROW = {
    "tpu": _NARROW_TPU,
    "gpu": ("bfloat16", "float8_e4m3fn", "float8_e5m2"),
    "cpu": ("int4", "uint4", "bfloat16"),
}
_ORDINARY = "bool_ int8 int16 int32 uint8 uint16 uint32 float16 float32 complex64"
_WIDE = (np.int64, np.uint64, np.float64, np.complex128)


def supported_dtypes() -> set[Any]:
    """The scalar types that the platform under test computes with, as wide as the settings have them."""
    platform = device_under_test()
    common = {getattr(np, name) for name in _ORDINARY.split()}
    narrow = {getattr(ml_dtypes, name) for name in _NARROW.get(platform, _NARROW["cpu"])}
    return common | narrow | (set(_WIDE) if config.settings.enable_x64 and platform != "tpu" else set())


class _Dtypes:
    """Lists of scalar types by kind, those that the platform supports."""

    _LISTS = {
        "floating": "float32 float64", "all_floating": "bfloat16 float16 float32 float64",
        "integer": "int32 int64", "all_integer": "int8 int16 int32 int64",
        "unsigned": "uint32 uint64", "all_unsigned": "uint8 uint16 uint32 uint64",
        "complex": "complex64 complex128", "boolean": "bool_",
        "custom_floats": "bfloat16 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
        "float8_e3m4 float8_e4m3 float8_e8m0fnu float4_e2m1fn",
    }  # fmt: skip
    # Lists of the lists above, one behind the other.
    _JOINED = {
        "inexact": "floating complex", "all_inexact": "all_floating complex",
        "numeric": "floating integer unsigned complex",
        "all": "all_floating all_integer all_unsigned complex boolean",
    }  # fmt: skip

    def supported(self, dtypes: Sequence[Any]) -> list[Any]:
        """Those of scalar types that the platform computes with."""
        known = supported_dtypes()
        return [d for d in dtypes if d in known]

    def __getattr__(self, name: str) -> list[Any]:
        if name in self._JOINED:
            return [kind for part in self._JOINED[name].split() for kind in getattr(self, part)]
        if name not in self._LISTS:
            raise AttributeError(f"no list of dtypes is called {name!r}")
        return self.supported([getattr(np, n, None) or getattr(ml_dtypes, n) for n in self._LISTS[name].split()])


every_dtype = _Dtypes()


def complex_plane_sample(dtype: Any, size_re: int = 10, size_im: int | None = None) -> np.ndarray:
    """A grid over the complex plane: real parts along the rows, imaginary ones down the columns.

    On each axis lie both infinities, zero and, on either side of it, `size` numbers from the smallest normal one to the
    greatest, evenly spaced in their logarithms.
    """
    info = np.finfo(dtype)

    def axis(size: int) -> np.ndarray:
        digits = math.log10(2)
        with np.errstate(over="ignore"):
            side = np.logspace(info.minexp * digits, info.maxexp * digits, size, dtype=info.dtype)
        if size > 1:
            side[-1] = info.max
        if size:
            side[0] = info.tiny
        return np.concatenate([[-np.inf], -side[::-1], [0], side, [np.inf]]).astype(info.dtype)

    re_, im = axis(size_re), axis(size_re if size_im is None else size_im)
    grid = np.empty((len(im), len(re_)), dtype)
    grid.real, grid.imag = re_[None, :], im[:, None]
    return grid
