"""Rows of control flow: each loop and branch under every transformation, by the same judge."""

from __future__ import annotations

import numpy as np

from tests.meshrt.primitives.cases import BOOL, Arg, Case, integers, normal, uniform

CASES: list[Case] = []


def row(name, fun, *args, **options):
    CASES.append(Case(f"{name}-float32", fun, args, **options))


row(
    "scan",
    lambda lax, c, xs: lax.scan(lambda a, x: (lax.sin(lax.add(lax.mul(a, x), x)), lax.mul(a, a)), c, xs),
    normal(2),
    normal(3, 2),
)
row(
    "scan reverse unrolled",
    lambda lax, c, xs: lax.scan(lambda a, x: (lax.mul(a, lax.cos(x)), lax.add(a, x)), c, xs, reverse=True, unroll=2),
    normal(),
    normal(5),
)
row(
    "scan with a constant",
    lambda lax, c, w, xs: lax.scan(lambda a, x: (lax.tanh(lax.mul(a, w)), lax.mul(x, w)), c, xs),
    normal(2),
    normal(2),
    normal(3, 2),
)
row(
    "cond",
    lambda lax, p, x, y: lax.cond(p, lambda a, b: lax.mul(a, b), lambda a, b: lax.sin(a), x, y),
    normal(dtype=BOOL),
    normal(3),
    normal(3),
)
row(
    "switch",
    lambda lax, i, x: lax.switch(i, [lax.sin, lax.exp, lambda a: lax.mul(a, a)], x),
    integers(-1, 4),
    normal(3),
)
row(
    "platform_dependent",
    lambda lax, x: lax.platform_dependent(
        x, cpu=lax.sin, cuda=lambda a: lax.mul(a, a), default=lambda a: lax.mul(a, lax.cos(a))
    ),
    normal(3),
)
row(
    "platform_dependent default",
    lambda lax, x, y: lax.platform_dependent(x, y, cuda=lambda a, b: a, default=lambda a, b: lax.mul(a, lax.cos(b))),
    normal(3),
    normal(3),
)
row(
    "while_loop",
    lambda lax, n, x: lax.while_loop(
        lambda c: lax.lt(c[0], n), lambda c: (lax.add(c[0], 1), lax.sin(lax.mul(c[1], 1.5))), (0, x)
    ),
    integers(1, 4),
    uniform(0.2, 1, 3),
    reverse=False,
)
row("fori_loop", lambda lax, x: lax.fori_loop(0, 3, lambda i, c: lax.mul(lax.sin(c), x), x), uniform(0.5, 1, 2))
row("map", lambda lax, xs: lax.map(lambda x: lax.exp(lax.sin(x)), xs), normal(3, 2))


def well_conditioned(n):
    """[n, n], near the identity."""
    return Arg(lambda rng: (3 * np.eye(n) + 0.3 * rng.standard_normal((n, n))).astype(np.float32))


def jacobi(lax, a):
    """Solves by iteration, which takes the matrix apart and is not to be differentiated."""

    def solve(matvec, b):
        diagonal = lax.reduce_sum(lax.mul(a, np.eye(3, dtype=np.float32)), [0])
        step = lambda i, x: lax.add(x, lax.div(lax.sub(b, matvec(x)), diagonal))
        return lax.stop_gradient(lax.fori_loop(0, 40, step, lax.div(b, diagonal)))

    return solve


row(
    "custom_linear_solve",
    lambda lax, a, b: lax.custom_linear_solve(lambda x: lax.dot(a, x), b, jacobi(lax, a), jacobi(lax, a)),
    well_conditioned(3),
    normal(3),
)
row(
    "custom_linear_solve symmetric with aux",
    lambda lax, a, b: lax.custom_linear_solve(
        lambda x: lax.dot(lax.add(a, lax.transpose(a, (1, 0))), x),
        b,
        lambda mv, y: (jacobi(lax, lax.add(a, a))(mv, y), lax.reduce_max(y, [0])),
        symmetric=True,
        has_aux=True,
    )[0],
    well_conditioned(3),
    normal(3),
)
row(
    "custom_root",
    lambda lax, a: lax.custom_root(
        lambda x: lax.sub(lax.mul(x, lax.mul(x, x)), a),
        np.float32(1.3),
        lambda f, x: lax.fori_loop(0, 30, lambda i, x: lax.sub(x, lax.div(f(x), lax.mul(3.0, lax.mul(x, x)))), x),
        lambda g, y: lax.div(y, g(lax.full_like(y, 1.0))),
    ),
    uniform(1, 3),
)
