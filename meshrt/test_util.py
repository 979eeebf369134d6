"""Derivatives against finite differences. Names and signatures are ``jax.test_util``'s."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import api, dtypes, errors, tree_util
from meshrt.core.types import aval_of

__all__ = ["check_grads", "check_jvp", "check_vjp"]

# The step of finite differences. Its best value is the cube root of a float32's precision, times the arguments' size.
EPS = 1e-4
# How near derivatives must be to differences, by dtype and per element: rounding errors of the latter are divided by
# the step. As in JAX, so that what is near enough for the one is so for the other.
_TOLERANCE = {
    np.dtype(np.float16): 1e-2, np.dtype(np.float32): 2e-3, np.dtype(np.float64): 1e-5,
    np.dtype(np.complex64): 1e-3, np.dtype(np.complex128): 1e-5,
}  # fmt: skip


def _tolerance(given: Any, dtype: Any, size: int) -> float:
    """How far an array of so many elements may be off, which is as much as if one of them had all errors."""
    if given is not None and not isinstance(given, dict):
        return float(given) * size
    table = {np.dtype(k): v for k, v in (given or {}).items()}
    real = np.empty((), dtype).real.dtype if np.dtype(dtype).kind == "c" else np.dtype(dtype)
    default = _TOLERANCE.get(np.dtype(dtype), 0.1 if dtypes.issubdtype(real, np.floating) else 0.0)
    return float(table.get(np.dtype(dtype), table.get(real, default))) * size


def _smooth(dtype: Any) -> bool:
    return bool(dtypes.issubdtype(dtype, np.inexact))


def _random_like(rng: np.random.RandomState, x: Any) -> Any:
    """A normal array like x, of its tangent type."""
    aval = aval_of(x)
    if not _smooth(aval.dtype):
        return np.zeros(aval.shape, dtypes.float0)
    value = rng.randn(*aval.shape)
    if np.dtype(aval.dtype).kind == "c":
        value = value + 1j * rng.randn(*aval.shape)
    return np.asarray(value).astype(aval.dtype)[()]


def _moved(x: Any, t: Any, step: float) -> Any:
    array = np.asarray(x)
    return x if not _smooth(array.dtype) else (array + step * np.asarray(t, array.dtype)).astype(array.dtype)[()]


def _slope(high: Any, low: Any, eps: float) -> Any:
    high, low = np.asarray(high), np.asarray(low)
    if not _smooth(high.dtype):
        return np.zeros(high.shape, dtypes.float0)
    with np.errstate(invalid="ignore"):  # between equal infinities nothing changes
        step = np.where(np.equal(high, low), np.zeros((), high.dtype), high - low)
    return (step * (0.5 / eps)).astype(high.dtype)


def numeric_jvp(f: Callable[..., Any], primals: Any, tangents: Any, eps: float) -> Any:
    """The derivative of `f` along `tangents` as central differences with the step `eps`."""
    high, low = (f(*tree_util.tree_map(lambda x, t, s=s: _moved(x, t, s * eps), primals, tangents)) for s in (1, -1))
    return tree_util.tree_map(lambda a, b: _slope(a, b, eps), high, low)


def _check_close(got: Any, wanted: Any, atol: Any, rtol: Any, what: str) -> None:
    mine, judge = tree_util.tree_flatten_with_path(got)[0], tree_util.tree_leaves(wanted)
    if len(mine) != len(judge):
        raise AssertionError(f"{what}: {len(mine)} leaves beside {len(judge)} of the finite differences")
    for (path, a), b in zip(mine, judge):
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype == dtypes.float0:
            continue
        # dtypes that NumPy does not know are compared as float32
        absolute, relative = (_tolerance(given, a.dtype, a.size) for given in (atol, rtol))
        first, second = (v if v.dtype.kind in "biufc" else v.astype(np.float32) for v in (a, b))
        np.testing.assert_allclose(first, second, relative, absolute, err_msg=f"{what}{tree_util.keystr(path)}")


def _check_dtypes(values: Any, tangents: Any, what: str) -> None:
    for x, t in zip(tree_util.tree_leaves(values), tree_util.tree_leaves(tangents)):
        wanted = aval_of(x).dtype if _smooth(aval_of(x).dtype) else dtypes.float0
        if aval_of(t).dtype != wanted:
            raise AssertionError(f"{what}: a tangent of dtype {aval_of(t).dtype} beside a value of {aval_of(x).dtype}")


def check_jvp(
    f: Callable[..., Any],
    f_jvp: Callable[..., Any],
    args: Sequence[Any],
    atol: Any = None,
    rtol: Any = None,
    eps: float = EPS,
    err_msg: str = "",
) -> None:
    """Compares a forward derivative of `f` at `args`, in one random direction, with central differences.

    Args:
      f_jvp: (primals, tangents) -> (values, tangents), as functools.partial(meshrt.jvp, f).
      atol, rtol: tolerances per element, or a dict of them by dtype.
      eps: the step of the differences.

    Raises:
      AssertionError: values, tangents or their dtypes differ.

    >>> meshrt.test_util.check_jvp(jnp.sin, lambda p, t: meshrt.jvp(jnp.sin, p, t), (0.3,))
    """
    args = tuple(args)
    rng = np.random.RandomState(0)
    direction = tree_util.tree_map(functools.partial(_random_like, rng), args)
    values, tangents = f_jvp(args, direction)
    _check_dtypes(values, tangents, f"{err_msg} tangent".strip())
    _check_close(values, f(*args), atol, rtol, f"{err_msg} primal".strip())
    _check_close(tangents, numeric_jvp(f, args, direction, eps), atol, rtol, f"{err_msg} tangent".strip())


def inner(x: Any, y: Any) -> Any:
    """The real part of the inner product of two trees: complex numbers count as pairs of real ones, as derivatives of
    functions that are not holomorphic are linear in no other sense."""
    pairs = zip(tree_util.tree_leaves(x), tree_util.tree_leaves(y))
    products = [np.vdot(np.asarray(a), np.asarray(b)).real for a, b in pairs if np.asarray(a).dtype != dtypes.float0]
    return np.asarray(sum(products[1:], products[0])) if products else np.zeros(())


def conjugate(tree: Any) -> Any:
    """A tree with its complex leaves conjugated."""
    return tree_util.tree_map(lambda x: np.conj(x) if np.asarray(x).dtype.kind == "c" else x, tree)


def check_vjp(
    f: Callable[..., Any],
    f_vjp: Callable[..., Any],
    args: Sequence[Any],
    atol: Any = None,
    rtol: Any = None,
    eps: float = EPS,
    err_msg: str = "",
) -> None:
    """Compares a reverse derivative of `f` at `args` with central differences: <ct, df(t)> with <vjp(ct), t> for one
    random direction t and cotangent ct.

    Arguments are those of `check_jvp`, but for `f_vjp`: functools.partial(meshrt.vjp, f).

    Raises:
      AssertionError: values or products differ.

    >>> meshrt.test_util.check_vjp(jnp.sin, lambda x: meshrt.vjp(jnp.sin, x), (0.3,))
    """
    args = tuple(args)
    random = functools.partial(_random_like, np.random.RandomState(0))
    values, pull = f_vjp(*args)
    _check_close(values, f(*args), atol, rtol, f"{err_msg} primal".strip())
    direction = tree_util.tree_map(random, args)
    moved = numeric_jvp(f, args, direction, eps)
    cotangent = tree_util.tree_map(random, values)
    pulled = conjugate(pull(conjugate(cotangent)))
    what = f"{err_msg} cotangent projection".strip()
    _check_close(inner(direction, pulled), inner(moved, cotangent), atol, rtol, what)


def _jvp_by_linearize(f: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    value, linear = api.linearize(f, *primals)
    return value, linear(*tangents)


_MODES = ("fwd", "rev", "lin")


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int,
    modes: Sequence[str] = ("fwd", "rev"),
    atol: Any = None,
    rtol: Any = None,
    eps: float | None = None,
) -> None:
    """Compares derivatives of `f` up to `order` with central differences, each in one random direction.

    Args:
      modes: of "fwd" (jvp), "rev" (vjp) and "lin" (linearize).
      atol, rtol: tolerances per element, or a dict of them by dtype.
      eps: the step of the differences.

    Raises:
      AssertionError: derivatives differ.
      ArgumentValueError: an unknown mode.

    >>> check_grads(jnp.sin, (0.5,), order=2)  # doctest: +SKIP
    """
    if unknown := [m for m in ([modes] if isinstance(modes, str) else modes) if m not in _MODES]:
        raise errors.ArgumentValueError(f"check_grads: unknown modes {unknown}; there are {', '.join(_MODES)}")
    near: dict[str, Any] = {"atol": atol, "rtol": rtol, "eps": eps or EPS}

    def check(f: Callable[..., Any], args: Any, order: int, around: str) -> None:
        def then(derivative: Callable[..., Any], args: Any, what: str) -> None:
            if order > 1:
                check(derivative, args, order - 1, what)

        if "fwd" in modes:
            what, forward = f"JVP of {around}".removesuffix(" of "), functools.partial(api.jvp, f)
            check_jvp(f, forward, args, err_msg=what, **near)
            then(forward, (args, args), what)
        if "rev" in modes:
            what = f"VJP of {around}".removesuffix(" of ")
            check_vjp(f, functools.partial(api.vjp, f), args, err_msg=what, **near)

            def pulled(*args: Any) -> Any:
                value, pull = api.vjp(f, *args)
                return pull(value)

            then(pulled, args, what)
        if "lin" in modes:
            what, linear = f"LIN of {around}".removesuffix(" of "), functools.partial(_jvp_by_linearize, f)
            check_jvp(f, linear, args, err_msg=what, **near)
            then(linear, (args, args), what)

    check(f, tuple(args), order, "")
