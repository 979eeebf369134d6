"""JAX's harnesses of primitives, run with both libraries: values, types, derivatives, mapped and compiled.

`make test` draws a sample, `make test-all` runs all. Where JAX refuses a transformation there is nothing to
compare; where it gives a result, ours must be that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import meshrt

pytest.importorskip("absl")

from tests.meshrt.lax.harnesses import Pair, pairs  # where absl is

SAMPLE = 12
_ROUNDING = {"float16": 4e-3, "bfloat16": 4e-2, "float32": 1e-4, "complex64": 1e-4}
# Primitives of ours take other parameters than JAX's here, on purpose: their functions are judged by rows instead.
OTHER_PARAMETERS = ("random_", "cholesky", "eig", "lu_", "qr_", "svd", "triangular", "tridiagonal", "rng_")


def _judged() -> list[Pair]:
    return [p for p in pairs() if not p.name.startswith(OTHER_PARAMETERS)]


def _moving(args: list[Any]) -> list[int]:
    return [i for i, x in enumerate(args) if hasattr(x, "dtype") and np.dtype(x.dtype).kind in "fcV" and np.size(x)]


def _eager(library: Any, fun: Callable[..., Any], args: list[Any]) -> Any:
    return fun(*args)


def _compiled(library: Any, fun: Callable[..., Any], args: list[Any]) -> Any:
    return library.jit(fun)(*args)


def _mapped(library: Any, fun: Callable[..., Any], args: list[Any]) -> Any:
    axes = tuple(0 if hasattr(x, "dtype") else None for x in args)
    stacked = [x if a is None else np.stack([x, x[..., ::-1] if np.ndim(x) else x]) for x, a in zip(args, axes)]
    return library.jit(library.vmap(fun, axes))(*stacked)


def _moved(library: Any, fun: Callable[..., Any], args: list[Any]) -> Any:
    """Values and tangents, where some argument is floating."""
    places = _moving(args)
    if not places:
        return ()
    some = lambda *xs: fun(*_with(args, places, xs))
    points = [args[i] for i in places]
    return library.jit(lambda *xs: library.jvp(some, xs, tuple(0.5 * np.ones_like(x) for x in xs)))(*points)


def _pulled(library: Any, fun: Callable[..., Any], args: list[Any]) -> Any:
    """Cotangents of floating arguments."""
    places = _moving(args)
    if not places:
        return ()

    def pull(*points: Any) -> Any:
        out, back = library.vjp(lambda *xs: fun(*_with(args, places, xs)), *points)
        return back(library.tree.map(lambda o: library.numpy.full_like(o, 0.5), out))

    return library.jit(pull)(*[args[i] for i in places])


def _with(args: list[Any], places: list[int], values: Any) -> list[Any]:
    new = list(args)
    for i, x in zip(places, values):
        new[i] = x
    return new


WAYS = {"eager": _eager, "jit": _compiled, "vmap": _mapped, "jvp": _moved, "vjp": _pulled}


def _outcome(way: Callable[..., Any], library: Any, harness: Any, args: list[Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return way(library, harness.dyn_fun, args)
        except Exception as e:  # whatever JAX raises is no case
            return e


def difference(pair: Pair, way: str, args: list[Any]) -> str:
    """What ours does otherwise than JAX, in words; nothing if results agree, or JAX has none."""
    theirs = _outcome(WAYS[way], jax, pair.theirs, args)
    if isinstance(theirs, Exception):
        return ""
    ours = _outcome(WAYS[way], meshrt, pair.ours, args)
    if isinstance(ours, Exception):
        return f"{type(ours).__name__}: {str(ours)[:300]}"
    got, want = meshrt.tree_util.tree_leaves(ours), jax.tree_util.tree_leaves(theirs)
    if len(got) != len(want):
        return f"{len(got)} results, JAX has {len(want)}"
    return next(filter(None, map(_leaf_difference, got, want)), "")


def _leaf_difference(got: Any, want: Any) -> str:
    kinds = [(str(x.dtype), x.shape) for x in (got, want)]
    if kinds[0] != kinds[1]:
        return f"type {kinds[0]}, JAX has {kinds[1]}"
    if want.dtype == jax.dtypes.float0 or kinds[1][0].startswith("key"):
        return ""
    if want.dtype != bool and getattr(got, "weak_type", False) != getattr(want, "weak_type", False):
        return f"weak type {got.weak_type}, JAX has {want.weak_type}"
    a, b = np.asarray(got), np.asarray(want)
    if b.dtype.kind in "biu":
        return "" if np.array_equal(a, b) else f"values {a.ravel()[:8]}, JAX has {b.ravel()[:8]}"
    wide = np.complex128 if b.dtype.kind == "c" else np.float64
    eps = _ROUNDING.get(str(b.dtype), 0.2 if b.dtype.itemsize == 1 else 1e-9)
    with np.errstate(all="ignore"):
        a, b = a.astype(wide), b.astype(wide)
        close = np.isclose(a, b, rtol=eps, atol=eps * max(1.0, float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))))
    close |= (np.isnan(a) & np.isnan(b)) | (a == b)
    return "" if close.all() else f"values {a[~close][:6]}, JAX has {b[~close][:6]}"


def differences(chosen: list[tuple[int, Pair]]) -> list[str]:
    """All of them, one line each."""
    found = []
    for seed, pair in chosen:
        args = pair.arguments(seed)
        for way in WAYS:
            said = difference(pair, way, args)
            if said:
                found.append(f"{pair.name} {way}: {said}")
                break
    return found


def test_a_sample_of_harnesses() -> None:
    judged = list(enumerate(_judged()))
    rng = np.random.default_rng(0)
    chosen = [judged[i] for i in sorted(rng.choice(len(judged), SAMPLE, replace=False))]
    assert not differences(chosen)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(100))
def test_all_harnesses(chunk: int) -> None:
    """Every hundredth of them."""
    assert not differences(list(enumerate(_judged()))[chunk::100])
