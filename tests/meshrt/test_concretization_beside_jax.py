"""Where a traced value is needed: the error says, as JAX's does, which function was being traced for what, and on which
of its arguments the value depends."""

from __future__ import annotations

import functools
import operator
import re

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy
from tests.meshrt.beside import outcome


def pick(x, *rest):
    return 1.0 if x > 0 else 2.0


def pair(x, y):
    return 1.0 if x + y > 0 else 2.0


def nested(p):
    return 1.0 if p["a"][1] > 0 else 2.0


def keyword(*, k):
    return 1.0 if k > 0 else 2.0


def several(*args):
    return 1.0 if args[1] > 0 else 2.0


def step(c, x):
    return (c, 1.0 if x > 0 else 2.0)


def carried(c, x):
    return (c if c > 0 else -c), x


def asked(s):
    return bool(s > 0)


def turned(s):
    return s + 1 if s > 0 else s


def counted(i, acc):
    return acc if i > 0 else -acc


def _closed_over(j):
    return j.jit(lambda a: j.lax.scan(lambda c, x: (c, 1.0 if a > 0 else 2.0), a, np.ones(3)))(1.0)


def _with_rule(j):
    f = j.custom_jvp(pair)
    f.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    return j.jit(lambda y: f(1.0, y))(2.0)


PROGRAMS = {
    "jit": lambda j: j.jit(pick)(1.0),
    "jit, two arguments": lambda j: j.jit(pair)(1.0, 2.0),
    "jit, a tree": lambda j: j.jit(nested)({"a": (1.0, 2.0)}),
    "jit, a keyword": lambda j: j.jit(keyword)(k=1.0),
    "jit, varargs": lambda j: j.jit(several)(1.0, 2.0),
    "jit, static": lambda j: j.jit(pair, static_argnums=0)(1.0, 2.0),
    "jit, partial": lambda j: j.jit(functools.partial(pair, 1.0))(2.0),
    "jit, a built-in": lambda j: j.jit(max)(1.0, 2.0),
    "jit, many": lambda j: j.jit(lambda a, b, c, d: 1.0 if a + b + c + d > 0 else 2.0)(1.0, 2.0, 3.0, 4.0),
    "jit in jit": lambda j: j.jit(lambda y: j.jit(pick)(y * 2))(1.0),
    "make_jaxpr": lambda j: j.make_jaxpr(pick)(1.0),
    "make_jaxpr, static": lambda j: j.make_jaxpr(pair, static_argnums=0)(1.0, 2.0),
    "eval_shape": lambda j: j.eval_shape(pick, 1.0),
    "grad in jit": lambda j: j.jit(j.grad(pick))(1.0),
    "jit in grad": lambda j: j.grad(j.jit(pick))(1.0),
    "vmap": lambda j: j.vmap(pick)(np.ones(3)),
    "scan, slice": lambda j: j.lax.scan(step, 1.0, np.ones(3)),
    "scan, carry": lambda j: j.lax.scan(carried, 1.0, np.ones(3)),
    "scan, closed over": _closed_over,
    "cond": lambda j: j.lax.cond(True, pick, lambda x: 2.0, 1.0),
    "switch": lambda j: j.lax.switch(1, [lambda x: 2.0, pick], 1.0),
    "while, condition": lambda j: j.lax.while_loop(asked, turned, 1.0),
    "while, body": lambda j: j.lax.while_loop(lambda s: s < 3, turned, 1.0),
    "fori_loop": lambda j: j.lax.fori_loop(0, 3, counted, 1.0),
    "fori_loop, unknown bound": lambda j: j.jit(lambda n: j.lax.fori_loop(0, n, counted, 1.0))(3),
    "checkpoint": lambda j: j.checkpoint(pair)(1.0, 2.0),
    "checkpoint, static": lambda j: j.checkpoint(pair, static_argnums=0)(1.0, 2.0),
    "custom_jvp": _with_rule,
    "custom_root": lambda j: j.lax.custom_root(pick, 1.0, lambda f, x: x, lambda g, y: y),
    "shard_map": lambda j: j.jit(
        j.shard_map(pick, mesh=j.make_mesh((1,), ("a",)), in_specs=j.P(), out_specs=j.P())
    )(1.0),
    "int": lambda j: j.jit(lambda x: int(x))(1.0),
    "float": lambda j: j.jit(lambda x: float(x))(1.0),
    "item": lambda j: j.jit(lambda x: x.item())(1.0),
    "tolist": lambda j: j.jit(lambda x: x.tolist())(1.0),
    "NumPy": lambda j: j.jit(lambda x: np.array(x))(1.0),
    "index": lambda j: j.jit(lambda x: operator.index(x))(1),
    "arange": lambda j: j.jit(lambda x: j.numpy.arange(x))(1),
    "unique": lambda j: j.jit(lambda x: j.numpy.unique(x))(np.arange(3)),
    "nonzero": lambda j: j.jit(lambda x: j.numpy.nonzero(x))(np.arange(3)),
    "a shape": lambda j: j.jit(lambda x: j.numpy.zeros(x))(3),
    "an axis": lambda j: j.jit(lambda x, y: j.numpy.sum(x, axis=y))(np.arange(3), 0),
}  # fmt: skip

# What a message says of the function, of the arguments, of the operations, and of the object.
PARTS = (
    r"The error occurred while tracing the function .*? for [\w /]+?\.",
    r"This concrete value was not available in Python because it depends on the values? of the arguments? .*?\.(?= |$)",
    r"This value became a tracer due to JAX operations on these lines:\n\n  operation \w+:",
    r"This BatchTracer with object id \d+ was created on line:\n  .*?:\d+",
    r"Abstract tracer value encountered where concrete value is expected",
)


def _parts(message):
    found = [m.group() for part in PARTS for m in [re.search(part, message, re.M)] if m]
    return [re.sub(r"id \d+", "id", re.sub(r"operation \w+:", "operation", text)) for text in found]


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_said(program):
    theirs, ours = outcome(program, jax), outcome(program, meshrt)
    assert isinstance(ours, meshrt.errors.ConcretizationTypeError | TypeError)
    wanted = _parts(str(theirs))
    assert wanted
    missing = [part for part in wanted if part not in _parts(str(ours))]
    assert not missing, f"{missing} not in {ours}"


def test_many_operations_are_cut_short():
    def long(x):
        y = meshrt.numpy.ones(())
        for _ in range(9):
            y = y * 2
        return x if y > 0 else -x

    with pytest.raises(meshrt.errors.TracerBoolConversionError, match=r"(?s)operation .*\n\n  and \d+ more") as e:
        meshrt.jit(long)(1.0)
    assert str(e.value).count("operation ") == 5
