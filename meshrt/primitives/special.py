"""Bessel functions, the zeta function, incomplete gamma and beta functions: `lax` functions of real arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes
from meshrt.core.basic.pointwise import nary, no_derivative, stretched
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.primitives import elementwise as e
from meshrt.primitives import gamma, incomplete
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.elementwise import add, div, mul, sub
from meshrt.primitives.incomplete import like
from meshrt.primitives.selection import select_n
from meshrt.primitives.written import widened, written

__all__ = [
    "bessel_i0e", "bessel_i0e_p", "bessel_i1e", "bessel_i1e_p", "betainc", "igamma", "igamma_grad_a",
    "igamma_grad_a_p", "igamma_p", "igammac", "igammac_p", "random_gamma_grad", "regularized_incomplete_beta_p", "zeta",
    "zeta_p",
]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Modified Bessel functions


# Chebyshev coefficients of exp(-x) I0(x) over x/4 - 1, for x from 0 to 8, and of sqrt(x) exp(-x) I0(x) over 16/x - 1,
# for larger x. They were calculated in extended precision from exp(-x) I0(x), the mean of exp(x (cos t - 1)) over a
# period (DLMF 10.32.1).
_NEAR = (
    0.33839763720473803, -0.3046826723431984, 0.17162090152220877, -0.09490109704804764, 0.04930528423967071,
    -0.02373741480589947, 0.010546460394594998, -0.004324309995050576, 0.001639475616941336, -0.0005763755745385825,
    0.00018850288509584184, -5.754195010082119e-05, 1.6448448070729018e-05, -4.416738358458862e-06,
    1.1173875391205054e-06, -2.6707938539426607e-07, 6.046995022551335e-08, -1.300025009983735e-08,
    2.6598237247173404e-09, -5.189795602386298e-10, 9.675809035692177e-11, -1.7268263059169904e-11,
    2.9550527516139283e-12, -4.856448269427207e-13, 7.676167192479054e-14, -1.1685255446996593e-14,
    1.715232683171854e-15, -2.4271446759256226e-16, 3.323079658668071e-17, -4.466687075187677e-18,
    4.009289283670355e-19,
)  # fmt: skip
_FAR = (
    0.4022452055070544, 0.0033691164782556943, 6.889758346916825e-05, 2.8913705208347655e-06, 2.0489185894690953e-07,
    2.26666899049817e-08, 3.396232025744718e-09, 4.940602387608191e-10, 1.1889147145680449e-11, -3.149916530499243e-11,
    -1.3215811768257479e-11, -1.7941785752408068e-12, 7.180124731176926e-13, 3.8527777431081323e-13,
    1.540108734264754e-14, -4.150573927521467e-14, -9.554820553849601e-15, 3.8117036021302385e-15,
    1.7725886721622318e-15, -3.4257852269658124e-16, -2.8279423141858336e-16, 3.45883080568136e-17,
    4.4679223315690894e-17, -4.9060148304969076e-18, -7.368057263849407e-18, 9.84816973341e-19,
)  # fmt: skip


def _chebyshev(s: Any, coefficients: Sequence[float]) -> Any:
    """The sum of coefficients[k] T_k(s), by Clenshaw's recurrence."""
    last = before = mul(s, 0.0)
    double = mul(s, 2.0)
    for c in reversed(coefficients[1:]):
        last, before = add(sub(mul(double, last), before), c), last
    return add(sub(mul(s, last), before), coefficients[0])


def _bessel_i0e(x: Any) -> Any:
    near: Sequence[float] = _NEAR
    far: Sequence[float] = _FAR
    if aval_of(x).dtype == np.float32:
        near, far = ([c for c in found if abs(c) > 1e-9] for found in (near, far))
    x = e.abs_p.bind(x)
    is_near = e.le_p.bind(x, like(x, 8))
    larger, smaller = select_n(is_near, x, like(x, 8)), select_n(is_near, like(x, 8), x)
    return select_n(
        is_near,
        mul(e.rsqrt_p.bind(larger), _chebyshev(sub(div(16.0, larger), 1.0), far)),
        _chebyshev(sub(mul(smaller, 0.25), 1.0), near),
    )


def _i1e_derivative(t: Any, o: Any, x: Any) -> Any:
    """exp(-|x|) I1(x) is i1e(x): its slope is i0e - i1e (sign(x) + 1/x), which is 1/2 at 0."""
    tiny = e.le_p.bind(e.abs_p.bind(x), like(x, float(dtypes.finfo(aval_of(x).dtype).eps)))
    safe = select_n(tiny, x, like(x, 1))
    slope = sub(bessel_i0e_p.bind(safe), mul(o, add(e.sign_p.bind(safe), div(1.0, safe))))
    return mul(t, select_n(tiny, slope, like(x, 0.5)))


bessel_i0e_p = written(
    "bessel_i0e", 1, _bessel_i0e,
    [lambda t, o, x: mul(t, sub(bessel_i1e_p.bind(x), mul(e.sign_p.bind(x), o)))],
)  # fmt: skip
bessel_i1e_p: Primitive = nary("bessel_i1e", "chlo.bessel_i1e", 1, kinds="f", derivatives=[_i1e_derivative])


def bessel_i0e(x: Any) -> Any:
    """Elementwise exp(-|x|) I0(x), the scaled modified Bessel function of order 0, of a floating array.

    >>> lax.bessel_i0e(0.0)
    Array(1.0000001, dtype=float32, weak_type=True)
    """
    return bessel_i0e_p.bind(x)


def bessel_i1e(x: Any) -> Any:
    """Elementwise exp(-|x|) I1(x), the scaled modified Bessel function of order 1, of a floating array.

    >>> lax.bessel_i1e(1.0)
    Array(0.20791042, dtype=float32, weak_type=True)
    """
    return bessel_i1e_p.bind(x)


# ---------------------------------------------------------------------------------------------------------------------
# The Hurwitz zeta function


zeta_p: Primitive = nary(
    "zeta", "chlo.zeta", 2, kinds="f",
    # DLMF 25.11.17
    derivatives=[
        no_derivative("zeta", "x"), lambda t, o, x, q: mul(t, e.neg_p.bind(mul(x, zeta_p.bind(add(x, 1.0), q)))),
    ],
)  # fmt: skip


def zeta(x: Any, q: Any) -> Any:
    """Elementwise Hurwitz zeta function, the sum of (q + k)^-x over k = 0, 1, ...; differentiable in q.

    Args:
      x: an array.
      q: an array of the same dtype.

    >>> lax.zeta(2.0, 1.0)
    Array(1.644934, dtype=float32, weak_type=True)
    """
    return zeta_p.bind(*stretched("zeta", x, q))


# ---------------------------------------------------------------------------------------------------------------------
# Incomplete gamma and beta functions


def _gamma_density(a: Any, x: Any) -> Any:
    """The slope of igamma in x."""
    return e.exp_p.bind(sub(mul(sub(a, 1.0), e.log_p.bind(x)), add(x, gamma.lgamma_p.bind(a))))


igamma_p: Primitive = written(
    "igamma", 2, incomplete.igamma,
    [lambda t, o, a, x: mul(t, igamma_grad_a_p.bind(a, x)), lambda t, o, a, x: mul(t, _gamma_density(a, x))],
)  # fmt: skip
igammac_p: Primitive = written(
    "igammac", 2, incomplete.igammac,
    [
        lambda t, o, a, x: e.neg_p.bind(mul(t, igamma_grad_a_p.bind(a, x))),
        lambda t, o, a, x: e.neg_p.bind(mul(t, _gamma_density(a, x))),
    ],
)  # fmt: skip
igamma_grad_a_p: Primitive = written(
    "igamma_grad_a", 2, incomplete.igamma_grad_a,
    [
        no_derivative("igamma_grad_a", "a"),
        # The order of derivatives does not matter: that of the density in a.
        lambda t, o, a, x: mul(t, mul(_gamma_density(a, x), sub(e.log_p.bind(x), gamma.digamma_p.bind(a)))),
    ],
)  # fmt: skip


def _beta_density(a: Any, b: Any, x: Any) -> Any:
    """The slope of betainc in x."""
    log_beta = sub(add(gamma.lgamma_p.bind(a), gamma.lgamma_p.bind(b)), gamma.lgamma_p.bind(add(a, b)))
    powers = add(mul(sub(b, 1.0), e.log1p_p.bind(e.neg_p.bind(x))), mul(sub(a, 1.0), e.log_p.bind(x)))
    return e.exp_p.bind(sub(powers, log_beta))


regularized_incomplete_beta_p = written(
    "regularized_incomplete_beta", 3, incomplete.betainc,
    [
        no_derivative("betainc", "a"), no_derivative("betainc", "b"),
        lambda t, o, a, b, x: mul(t, _beta_density(a, b, x)),
    ],
)  # fmt: skip


def igamma(a: Any, x: Any) -> Any:
    """Elementwise regularised lower incomplete gamma function P(a, x); NaN for negative arguments.

    Args:
      a: an array.
      x: an array.

    >>> lax.igamma(2.0, 1.0)
    Array(0.26424113, dtype=float32, weak_type=True)
    """
    return igamma_p.bind(*stretched("igamma", a, x))


def igammac(a: Any, x: Any) -> Any:
    """Elementwise regularised upper incomplete gamma function Q(a, x) = 1 - P(a, x); NaN for negative arguments.

    Args:
      a: an array.
      x: an array.

    >>> lax.igammac(2.0, 1.0)
    Array(0.7357589, dtype=float32, weak_type=True)
    """
    return igammac_p.bind(*stretched("igammac", a, x))


def igamma_grad_a(a: Any, x: Any) -> Any:
    """Elementwise derivative of `igamma(a, x)` with respect to `a`.

    Args:
      a: an array.
      x: an array.

    >>> lax.igamma_grad_a(2.0, 1.0)
    Array(-0.27619603, dtype=float32, weak_type=True)
    """
    return igamma_grad_a_p.bind(*stretched("igamma_grad_a", a, x))


def random_gamma_grad(a: Any, x: Any) -> Any:
    """Elementwise derivative with respect to `a` of a sample `x` of the gamma distribution of shape `a`: how far it
    moves where its probability stays (implicit reparameterisation, Figurnov and others 2018).

    Args:
      a: an array.
      x: an array.

    >>> lax.random_gamma_grad(2.0, 1.0)
    Array(0.7507787, dtype=float32)
    """
    found = widened(incomplete.gamma_sample_grad)(*stretched("random_gamma_grad", a, x))
    return convert_element_type(found, aval_of(found).dtype)  # not weakly typed, as in JAX


def betainc(a: Any, b: Any, x: Any) -> Any:
    """Elementwise regularised incomplete beta function I_x(a, b); NaN outside a, b >= 0 and 0 <= x <= 1.

    Differentiable in `x`.

    Args:
      a: an array.
      b: an array of the same dtype.
      x: an array.

    >>> lax.betainc(1.0, 2.0, 0.5)
    Array(0.75000006, dtype=float32, weak_type=True)
    """
    return regularized_incomplete_beta_p.bind(*stretched("betainc", a, b, x))
