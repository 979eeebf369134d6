"""meshrt.extend: programs are walked and run as those of JAX."""

import jax.extend.core
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors


def program(x):
    def body(c, _):
        return c * 2, jnp.sin(c)

    return meshrt.lax.scan(body, meshrt.jit(lambda v: v + 1)(x), None, length=3)


def names(jaxpr, core):
    found = []
    for eqn in jaxpr.eqns:
        found.append(eqn.primitive.name)
        for inner in core.jaxprs_in_params(eqn.params):
            found += names(getattr(inner, "jaxpr", inner), core)
    return found


def test_programs_are_walked():
    core = meshrt.extend.core
    closed = meshrt.make_jaxpr(program)(1.0)
    assert isinstance(closed, core.ClosedJaxpr) and isinstance(closed.jaxpr, core.Jaxpr)
    assert {"jit", "add", "scan", "mul", "sin"} <= set(names(closed.jaxpr, core))
    (scan,) = [e for e in closed.eqns if e.primitive is core.primitives.scan_p]
    assert isinstance(scan, core.JaxprEqn) and all(isinstance(v, core.Var) for v in scan.outvars)
    core.check_jaxpr(closed)


def test_programs_are_functions():
    fun = meshrt.extend.core.jaxpr_as_fun(meshrt.make_jaxpr(program)(1.0))
    for f in (fun, meshrt.jit(fun)):
        for got, wanted in zip(f(0.5), program(0.5)):
            np.testing.assert_allclose(np.asarray(got), np.asarray(wanted))
    np.testing.assert_allclose(meshrt.grad(lambda x: fun(x)[0])(0.5), meshrt.grad(lambda x: program(x)[0])(0.5))


def test_primitives_have_the_names_of_jax():
    ours, theirs = meshrt.extend.core.primitives, jax.extend.core.primitives
    for name in ours.__all__:
        judge = getattr(theirs, name, None)
        if judge is not None and name != "remat_p":  # JAX numbers the versions of its own
            assert getattr(ours, name).name.replace("_", "-") == judge.name.replace("_", "-"), name
    with pytest.raises(errors.MissingFunctionError, match="no program of meshrt"):
        ours.call_p
