"""Python scalars in bodies stay weakly typed under vmap, as in JAX."""

import jax
import pytest

import meshrt


def halvings(J):
    lax = J.lax
    return lambda x: lax.while_loop(lambda s: (s[0] > 1e-4) & (s[1] < 50), lambda s: (s[0] / 2, s[1] + 1), (x, 0))[1]


PROGRAMS = {
    "while": halvings,
    "while, one condition for all": lambda J: (
        lambda x: J.lax.while_loop(lambda s: s[1] < 5, lambda s: (s[0] / 2, s[1] + 1), (x, 0))[1]
    ),
    "cond": lambda J: lambda x: J.lax.cond(x > 1, lambda: 1, lambda: 2),
    "cond of floats": lambda J: lambda x: J.lax.cond(x > 1, lambda: 1.5, lambda: 2.5),
    "switch": lambda J: lambda x: J.lax.switch(x.astype(int), [lambda: 1, lambda: 2, lambda: 3]),
    "mixed": lambda J: lambda x: J.lax.cond(x > 1, lambda: J.numpy.float32(1), lambda: 2.0),
    "constant": lambda J: lambda x: 3,
    "scan": lambda J: lambda x: J.lax.scan(lambda c, _: (c + 1, 2.0), 0, None, length=3),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_vmap_keeps_weak_types(name):
    results = []
    for J in (jax, meshrt):
        out = J.vmap(PROGRAMS[name](J))(J.numpy.arange(3.0))
        results.append([(x.weak_type, str(x.dtype), x.shape, x.tolist()) for x in J.tree.leaves(out)])
    assert results[0] == results[1]
