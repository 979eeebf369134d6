"""Compares a function of ours with JAX's on the same operands: values, dtype, weak type and shape."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jj
import ml_dtypes
import numpy as np

import meshrt
import meshrt.numpy as mj


@dataclasses.dataclass(frozen=True)
class Weak:
    """An operand that is a weakly typed array on both sides."""

    value: Any

    def ours(self):
        return mj.asarray(self.value)

    def theirs(self):
        return jj.asarray(self.value)


class Static(tuple):
    """A sequence passed as it is."""


def ours(x: Any) -> Any:
    """An operand for our function."""
    if isinstance(x, Weak):
        return x.ours()
    if isinstance(x, np.ndarray):
        return mj.asarray(x)
    if isinstance(x, list) and any(isinstance(e, (np.ndarray, Weak)) for e in x):
        return [ours(e) for e in x]
    return x


def theirs(x: Any) -> Any:
    """The same operand for JAX's."""
    if isinstance(x, Weak):
        return x.theirs()
    if isinstance(x, np.ndarray):
        return jj.asarray(x)
    if isinstance(x, list) and any(isinstance(e, (np.ndarray, Weak)) for e in x):
        return [theirs(e) for e in x]
    return x


TOLERANCE = {
    np.dtype(ml_dtypes.bfloat16): 2e-2, np.dtype("float16"): 2e-3, np.dtype("float32"): 3e-6,
    np.dtype("complex64"): 3e-6, np.dtype("float64"): 1e-12, np.dtype("complex128"): 1e-12,
}  # fmt: skip


def leaves(x: Any) -> list[Any]:
    """Arrays of a result that may be a tuple or list."""
    return [leaf for e in x for leaf in leaves(e)] if isinstance(x, (tuple, list)) else [x]


def assert_same(got: Any, want: Any, tol: float | None = None, weak: bool = True) -> None:
    """Fails unless both results are equal in type and close in value."""
    got, want = leaves(got), leaves(want)
    assert len(got) == len(want), f"{len(got)} results, JAX has {len(want)}"
    for g, w in zip(got, want):
        w = jj.asarray(w)
        assert hasattr(g, "shape"), f"result {g!r} is no array"
        assert g.shape == w.shape, f"shape {g.shape}, JAX has {w.shape}"
        assert g.dtype == w.dtype, f"dtype {g.dtype}, JAX has {w.dtype}"
        if weak and g.dtype != bool:  # weak booleans mean nothing
            assert g.aval.weak_type == w.aval.weak_type, f"weak_type {g.aval.weak_type}, JAX has {w.aval.weak_type}"
        a, b = np.asarray(g), np.asarray(w)
        t = TOLERANCE.get(b.dtype, 0) if tol is None else tol
        if t == 0 or b.dtype == bool:
            np.testing.assert_array_equal(a, b)
        else:
            wide = np.complex128 if b.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=t, atol=t)


REFUSALS = (TypeError, ValueError, IndexError, NotImplementedError, OverflowError)


@dataclasses.dataclass(frozen=True)
class Case:
    """One call of a pair of functions."""

    ours: Callable
    theirs: Callable
    args: tuple
    kwargs: dict
    tol: float | None

    def __repr__(self) -> str:
        shown = [f"{a.dtype}{list(a.shape)}" if isinstance(a, np.ndarray) else repr(a) for a in self.args]
        shown += [f"{k}={v!r}" for k, v in self.kwargs.items()]
        return f"{getattr(self.theirs, '__name__', 'f')}({', '.join(shown)})"


class Cases:
    """Calls to compare, all in one compiled program for each side.

    What JAX refuses to trace, ours must refuse too.
    """

    def __init__(self):
        self.cases: list[Case] = []

    def add(self, f: Callable, g: Callable, *args: Any, tol: float | None = None, **kwargs: Any) -> None:
        """Adds a call of our ``f`` and JAX's ``g`` on the same operands."""
        self.cases.append(Case(f, g, args, kwargs, tol))

    def run(self, weak: bool = True) -> None:
        """Traces, runs and compares everything."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._run(weak)

    def _run(self, weak: bool) -> None:
        kept = [c for c in self.cases if not self._refused(c)]
        ours_args = [([ours(a) for a in c.args], {k: ours(v) for k, v in c.kwargs.items()}) for c in kept]
        their_args = [([theirs(a) for a in c.args], {k: theirs(v) for k, v in c.kwargs.items()}) for c in kept]
        got = _at_once(meshrt, mj.ndarray, [c.ours for c in kept], ours_args)
        want = _at_once(jax, jax.Array, [c.theirs for c in kept], their_args)
        wrong = []
        for c, g, w in zip(kept, got, want):
            try:
                assert_same(g, w, c.tol, weak)
            except AssertionError as e:
                wrong.append(f"{c!r}: {str(e).strip()[:400]}")
        assert not wrong, "\n".join(wrong)

    def _refused(self, c: Case) -> bool:
        args, kwargs = [theirs(a) for a in c.args], {k: theirs(v) for k, v in c.kwargs.items()}
        try:
            _shape(jax, jax.Array, c.theirs, args, kwargs)
        except REFUSALS as e:
            args, kwargs = [ours(a) for a in c.args], {k: ours(v) for k, v in c.kwargs.items()}
            try:
                _shape(meshrt, mj.ndarray, c.ours, args, kwargs)
            except REFUSALS:
                return True
            raise AssertionError(f"{c!r}: JAX raises {type(e).__name__}: {str(e)[:200]}; ours does not") from e
        return False


def _split(array_type: type, args: list, kwargs: dict) -> tuple[list, Callable]:
    """The array operands, and a function that puts them back."""
    arrays = []

    def take(x: Any) -> Any:
        if isinstance(x, array_type):
            arrays.append(x)
            return _Hole(len(arrays) - 1)
        return [take(e) for e in x] if isinstance(x, list) else x

    shape = ([take(a) for a in args], {k: take(v) for k, v in kwargs.items()})

    def fill(values: list) -> tuple[list, dict]:
        def put(x: Any) -> Any:
            return values[x.n] if isinstance(x, _Hole) else [put(e) for e in x] if isinstance(x, list) else x

        return [put(a) for a in shape[0]], {k: put(v) for k, v in shape[1].items()}

    return arrays, fill


@dataclasses.dataclass(frozen=True)
class _Hole:
    n: int


def _shape(library: Any, array_type: type, f: Callable, args: list, kwargs: dict) -> None:
    arrays, fill = _split(array_type, args, kwargs)

    def call(values):
        a, k = fill(values)
        return f(*a, **k)

    library.eval_shape(call, arrays)


def _at_once(library: Any, array_type: type, functions: list, calls: list) -> list:
    """All results, from one program."""
    parts = [_split(array_type, args, kwargs) for args, kwargs in calls]

    def program(values):
        out = []
        for f, (_, fill), v in zip(functions, parts, values):
            args, kwargs = fill(v)
            out.append(f(*args, **kwargs))
        return out

    return library.jit(program)([arrays for arrays, _ in parts])


def check(f: Callable, g: Callable, *args: Any, tol: float | None = None, weak: bool = True, **kwargs: Any) -> None:
    """One call, run eagerly on both sides."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        c = Case(f, g, args, kwargs, tol)
        try:
            want = g(*map(theirs, args), **{k: theirs(v) for k, v in kwargs.items()})
        except REFUSALS as e:
            try:
                out = f(*map(ours, args), **{k: ours(v) for k, v in kwargs.items()})
            except REFUSALS:
                return
            raise AssertionError(f"{c!r}: JAX raises {type(e).__name__}: {str(e)[:200]}; ours gives {out}") from e
        got = f(*map(ours, args), **{k: ours(v) for k, v in kwargs.items()})
    assert_same(got, want, tol, weak)


rng = np.random.default_rng(0)


def sample(shape: tuple, dtype: Any, low: float = -3, high: float = 3) -> np.ndarray:
    """Random values of a dtype; the same for the same call order."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return rng.integers(max(low, 0) if dtype.kind == "u" else low, high + 1, shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.uniform(low, high, shape) + 1j * rng.uniform(low, high, shape)).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)
