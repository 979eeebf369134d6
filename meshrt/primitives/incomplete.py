"""Incomplete gamma and beta functions, calculated by series and continued fractions.

Formulas are numbered as in the NIST Digital Library of Mathematical Functions (DLMF), chapter 8. All functions take
float32 or float64 arrays of one shape. Elements iterate together: each is kept as it is once it has converged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt import dtypes
from meshrt.core.basic.shapes import broadcast_in_dim_p, constant
from meshrt.core.types import aval_of
from meshrt.primitives import elementwise as e
from meshrt.primitives import gamma
from meshrt.primitives.control_loops import while_loop
from meshrt.primitives.elementwise import add, div, mul, sub
from meshrt.primitives.reduce import reduce_or_p
from meshrt.primitives.selection import select_n
from meshrt.transforms.jvp import jvp_flat

__all__: list[str] = []


def _most_steps(eps: float) -> int:
    """How often an iteration is applied at most: one element that does not converge holds up all others.

    Derived: the terms of the series at x = a fall like exp(-n^2 / 2a), below `eps` from n = sqrt(2 a log(1 / eps)) on,
    and 2 / eps is the largest a that can be told from a + 1; twice that, as slopes and fractions converge somewhat
    later. Chosen: 2^20 where that is more (for float64), which is enough for a up to 1e9.
    """
    return min(1 << 20, round(2 * np.sqrt(4 / eps * np.log(1 / eps))))


def like(x: Any, value: float) -> Any:
    """`value` in the type of `x`."""
    aval = aval_of(x)
    scalar = constant(value, aval.dtype, aval.weak_type)
    return broadcast_in_dim_p.bind(scalar, shape=aval.shape, broadcast_dimensions=())


def _or(*flags: Any) -> Any:
    return functools.reduce(e.or_p.bind, flags)


def _is(x: Any, value: float) -> Any:
    return e.eq_p.bind(x, like(x, value))


def _below(x: Any, value: float) -> Any:
    return e.lt_p.bind(x, like(x, value))


def _is_nan(x: Any) -> Any:
    return e.ne_p.bind(x, x)


def _choose(value: Any, *cases: tuple[Any, float]) -> Any:
    """`value`, but a constant where a case's flag is set; later cases go before earlier ones."""
    for flag, instead in cases:
        value = select_n(flag, value, like(value, instead))
    return value


# ---------------------------------------------------------------------------------------------------------------------
# Iterations


class _Limit(NamedTuple):
    """The limit of an iteration, and its derivative in the parameter if that was asked for."""

    value: Any
    slope: Any


def _iterate(
    step: Callable[..., Sequence[Any]],
    estimate: Callable[..., Any],
    start: Sequence[Any],
    slopes: Sequence[Any] | None,
    active: Any,
) -> _Limit:
    """Applies `step` to a state until `estimate` of it changes by less than the precision where `active` is set.

    `slopes` are the derivatives of the states in a parameter: they are carried along by forward differentiation of
    `step`, and have to converge too.
    """
    eps = float(dtypes.finfo(aval_of(start[0]).dtype).eps)
    count = len(start)

    def both(fun: Callable[..., Sequence[Any]], state: Sequence[Any]) -> list[Any]:
        """Values and, where asked for, slopes of a function of the state."""
        if slopes is None:
            return list(fun(*state))
        outs, tangents = jvp_flat(fun, state[:count], state[count:])
        return [*outs, *(like(o, 0) if t is None else t for o, t in zip(outs, tangents))]

    def estimates(state: Sequence[Any]) -> list[Any]:
        return both(lambda *values: [estimate(*values)], state)

    def goes_on(carry: Any) -> Any:
        k, active, _ = carry
        return e.and_p.bind(_any(active), e.lt_p.bind(k, np.int32(_most_steps(eps))))

    def body(carry: Any) -> Any:
        k, active, state = carry
        new = both(step, state)
        moved = _or(*(_moved(a, b, eps) for a, b in zip(estimates(state), estimates(new))))
        kept = [select_n(active, old, now) for old, now in zip(state, new)]
        return add(k, 1), e.and_p.bind(active, moved), kept

    first = [*start, *(slopes or ())]
    _, _, state = while_loop(goes_on, body, (np.int32(0), active, first))
    found = estimates(state)
    return _Limit(found[0], found[1] if slopes is not None else None)


def _any(flags: Any) -> Any:
    return reduce_or_p.bind(flags, axes=tuple(range(aval_of(flags).ndim)))


def _moved(old: Any, new: Any, eps: float) -> Any:
    return e.gt_p.bind(e.abs_p.bind(sub(new, old)), mul(e.abs_p.bind(new), eps))


def _gamma_series(a: Any, x: Any, active: Any, with_slope: bool) -> _Limit:
    """The sum of x^n / ((a + 1) ... (a + n)) over n = 0, 1, ... (DLMF 8.7.1): converges fast where x < a + 1."""

    def step(r: Any, term: Any, total: Any) -> list[Any]:
        r = add(r, 1.0)
        term = mul(term, div(x, r))
        return [r, term, add(total, term)]

    one, zero = like(a, 1), like(a, 0)
    slopes = [one, zero, zero] if with_slope else None
    return _iterate(step, lambda r, term, total: total, [a, one, one], slopes, active)


def _gamma_fraction(a: Any, x: Any, active: Any, with_slope: bool) -> _Limit:
    """exp(x) x^-a Gamma(a, x), as the limit of the even part of a continued fraction (DLMF 8.9.2): converges fast
    where x > a + 1."""
    eps = float(dtypes.finfo(aval_of(a).dtype).eps)

    def step(c: Any, y: Any, z: Any, *convergents: Any) -> list[Any]:
        p, q, last_p, last_q = convergents
        c, y, z = add(c, 1.0), add(y, 1.0), add(z, 2.0)
        yc = mul(y, c)
        new_p, new_q = sub(mul(p, z), mul(last_p, yc)), sub(mul(q, z), mul(last_q, yc))
        # Numerators and denominators grow together: only their ratio matters.
        scale = select_n(e.gt_p.bind(e.abs_p.bind(new_p), like(x, 1 / eps)), like(x, 1), like(x, eps))
        return [c, y, z, *(mul(v, scale) for v in (new_p, new_q, p, q))]

    zero, one = like(a, 0), like(a, 1)
    y = sub(1.0, a)
    z = add(add(x, y), 1.0)
    start = [zero, y, z, add(x, 1.0), mul(z, x), one, x]
    slopes = [zero, e.neg_p.bind(one), e.neg_p.bind(one), zero, e.neg_p.bind(x), zero, zero] if with_slope else None
    return _iterate(step, lambda c, y, z, p, q, *last: div(p, q), start, slopes, active)


# ---------------------------------------------------------------------------------------------------------------------
# Gamma functions


class _Cases(NamedTuple):
    """Which elements are calculated how."""

    invalid: Any
    upper: Any  # by the continued fraction, for the upper function; the others by the series, for the lower one
    active: Any
    weight: Any  # x^a exp(-x) / Gamma(a)


def _cases(a: Any, x: Any) -> _Cases:
    logarithm = sub(mul(a, e.log_p.bind(x)), add(x, gamma.lgamma_p.bind(a)))
    vanishes = e.lt_p.bind(logarithm, like(x, -float(np.log(dtypes.finfo(aval_of(x).dtype).max))))
    invalid = _or(_is_nan(a), _is_nan(x), _below(x, 0), _below(a, 0), e.and_p.bind(_is(a, 0), _is(x, 0)))
    trivial = _or(invalid, vanishes, _is(x, 0), _is(x, np.inf), _is(a, 0))
    upper = e.and_p.bind(e.ge_p.bind(x, like(x, 1)), e.gt_p.bind(x, a))
    return _Cases(invalid, upper, e.not_p.bind(trivial), e.exp_p.bind(logarithm))


def _halves(a: Any, x: Any, with_slope: bool = False) -> tuple[_Cases, _Limit, _Limit]:
    cases = _cases(a, x)
    series = _gamma_series(a, x, e.and_p.bind(cases.active, e.not_p.bind(cases.upper)), with_slope)
    fraction = _gamma_fraction(a, x, e.and_p.bind(cases.active, cases.upper), with_slope)
    return cases, series, fraction


def igamma(a: Any, x: Any) -> Any:
    """The regularised lower incomplete gamma function P(a, x)."""
    cases, series, fraction = _halves(a, x)
    lower, upper = div(mul(series.value, cases.weight), a), mul(fraction.value, cases.weight)
    found = select_n(cases.upper, lower, sub(1.0, upper))
    none = _or(_is(x, 0), _is(a, np.inf))
    return _choose(found, (_is(a, 0), 1), (none, 0), (_is(x, np.inf), 1), (cases.invalid, np.nan))


def igammac(a: Any, x: Any) -> Any:
    """The regularised upper incomplete gamma function Q(a, x)."""
    cases, series, fraction = _halves(a, x)
    lower, upper = div(mul(series.value, cases.weight), a), mul(fraction.value, cases.weight)
    found = select_n(cases.upper, sub(1.0, lower), upper)
    whole, none = _or(_is(x, 0), _is(a, np.inf)), _or(_is(x, np.inf), _is(a, 0))
    return _choose(found, (whole, 1), (none, 0), (cases.invalid, np.nan))


def _growth(a: Any, x: Any, found: tuple[_Cases, _Limit, _Limit]) -> Any:
    """The slope of P(a, x) in a, as a multiple of `weight`."""
    cases, series, fraction = found
    log_x = e.log_p.bind(x)
    lower = div(add(mul(series.value, sub(log_x, gamma.digamma_p.bind(add(a, 1.0)))), series.slope), a)
    upper = add(mul(fraction.value, sub(log_x, gamma.digamma_p.bind(a))), fraction.slope)
    return select_n(cases.upper, lower, e.neg_p.bind(upper))


def _slope_cases(a: Any, x: Any, value: Any, cases: _Cases) -> Any:
    return _choose(value, (_is(x, 0), 0), (_or(cases.invalid, _is(a, 0)), np.nan))


def igamma_grad_a(a: Any, x: Any) -> Any:
    """The derivative of P(a, x) in a."""
    found = _halves(a, x, with_slope=True)
    return _slope_cases(a, x, mul(found[0].weight, _growth(a, x, found)), found[0])


def gamma_sample_grad(a: Any, x: Any) -> Any:
    """The derivative in a of x at constant P(a, x): minus the slope in a by that in x, which is weight / x."""
    found = _halves(a, x, with_slope=True)
    return _slope_cases(a, x, e.neg_p.bind(mul(x, _growth(a, x, found))), found[0])


# ---------------------------------------------------------------------------------------------------------------------
# Beta function


def _beta_fraction(a: Any, b: Any, x: Any, active: Any) -> Any:
    """The continued fraction of I_x(a, b) (DLMF 8.17.22), two terms a step, by the modified Lentz algorithm (Thompson
    and Barnett 1986): converges fast where x < (a + 1) / (a + b + 2)."""
    dtype = aval_of(a).dtype
    small = float(dtypes.finfo(dtype).tiny) / float(dtypes.finfo(dtype).eps)

    def away(v: Any) -> Any:
        return select_n(e.lt_p.bind(e.abs_p.bind(v), like(v, small)), v, like(v, small))

    def term(numerator: Any, c: Any, d: Any, h: Any) -> tuple[Any, Any, Any]:
        c, d = away(add(div(numerator, c), 1.0)), div(1.0, away(add(mul(numerator, d), 1.0)))
        return c, d, mul(h, mul(c, d))

    def step(m: Any, c: Any, d: Any, h: Any) -> list[Any]:
        twice = add(a, mul(m, 2.0))
        even = div(mul(mul(m, sub(b, m)), x), mul(sub(twice, 1.0), twice))
        odd = e.neg_p.bind(div(mul(mul(add(a, m), add(add(a, b), m)), x), mul(twice, add(twice, 1.0))))
        return [add(m, 1.0), *term(odd, *term(even, c, d, h))]

    # The first even term is that of m = 0, in a form that has no 0/0 for a = 0.
    first = e.neg_p.bind(div(mul(add(a, b), x), add(a, 1.0)))
    start = div(1.0, away(add(first, 1.0)))
    state = [like(a, 1), like(a, 1), start, start]
    return _iterate(step, lambda m, c, d, h: h, state, None, active).value


def betainc(a: Any, b: Any, x: Any) -> Any:
    """The regularised incomplete beta function I_x(a, b)."""
    invalid = _or(
        *map(_is_nan, (a, b, x)), _below(a, 0), _below(b, 0), _below(x, 0), e.gt_p.bind(x, like(x, 1)),
    )  # fmt: skip
    # All of the mass is at 0, or all of it at 1.
    at_zero, at_one = _or(_is(a, 0), _is(b, np.inf)), _or(_is(b, 0), _is(a, np.inf))
    invalid = e.or_p.bind(invalid, e.and_p.bind(at_zero, at_one))
    low, high = _is(x, 0), _is(x, 1)

    direct = e.lt_p.bind(x, div(add(a, 1.0), add(add(a, b), 2.0)))
    p, q = select_n(direct, b, a), select_n(direct, a, b)  # I_x(a, b) = 1 - I_{1-x}(b, a), DLMF 8.17.4
    y = select_n(direct, sub(1.0, x), x)
    active = e.not_p.bind(_or(invalid, at_zero, at_one, low, high))
    fraction = _beta_fraction(p, q, y, active)
    found = mul(fraction, _beta_weight(p, q, y))
    found = select_n(direct, sub(1.0, found), found)
    none = _or(e.and_p.bind(at_one, e.not_p.bind(high)), low)
    whole = _or(e.and_p.bind(at_zero, e.not_p.bind(low)), high)
    return _choose(found, (none, 0), (whole, 1), (invalid, np.nan))


def _beta_weight(a: Any, b: Any, x: Any) -> Any:
    """x^a (1 - x)^b / (a B(a, b)), also where a is so small that Gamma(a) overflows: a Gamma(a) is 1 there."""
    tail = mul(e.log1p_p.bind(e.neg_p.bind(x)), b)
    rest = sub(gamma.lgamma_p.bind(b), gamma.lgamma_p.bind(add(a, b)))
    tiny = e.lt_p.bind(a, like(a, 2 * float(dtypes.finfo(aval_of(a).dtype).tiny)))
    usual = sub(add(mul(e.log_p.bind(x), a), tail), add(gamma.lgamma_p.bind(a), rest))
    return select_n(tiny, div(e.exp_p.bind(usual), a), e.exp_p.bind(sub(tail, rest)))
