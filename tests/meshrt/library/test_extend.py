"""meshrt.extend: programs are walked and run as those of JAX."""

import subprocess
import sys

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
        ours.xla_pmap_p


def test_calls_of_functions_and_jaxprs_are_written_in_place():
    core, linear_util = meshrt.extend.core, meshrt.extend.linear_util
    x = jnp.arange(3.0)
    double = linear_util.wrap_init(lambda x: [2 * x])
    closed = meshrt.make_jaxpr(lambda x: [jnp.sin(x) * 3])(x)
    call = lambda x: core.primitives.call_p.bind(double, x, name="f")[0]
    closed_call = lambda x: core.primitives.closed_call_p.bind(x, call_jaxpr=closed)[0]
    for f, wanted, slope in ((call, 2 * x, [2] * 3), (closed_call, 3 * jnp.sin(x), 3 * jnp.cos(x))):
        for g in (f, meshrt.jit(f), meshrt.vmap(f)):
            np.testing.assert_allclose(np.asarray(g(x)), np.asarray(wanted), rtol=1e-6)
        np.testing.assert_allclose(np.asarray(meshrt.grad(lambda x: f(x).sum())(x)), np.asarray(slope), rtol=1e-6)
        named = [e.primitive.name for e in meshrt.make_jaxpr(f)(x).eqns]
        assert not {"call", "closed_call"} & set(named), named


def test_equations_say_in_which_scopes_they_were_written():
    def scopes(m):
        def f(x):
            with m.named_scope("outer"), m.named_scope("inner"):
                y = m.numpy.sin(x)
            return y * 2

        return [(e.primitive.name, str(e.source_info.name_stack)) for e in m.make_jaxpr(f)(1.0).eqns]

    assert scopes(meshrt) == scopes(jax) == [("sin", "outer/inner"), ("mul", "")]


def test_packages_are_there_without_an_import_of_their_own():
    program = "import sys, {0} as jax; jax.interpreters.ad, jax.experimental.__name__, jax.scipy.__name__"
    for library in ("meshrt", "jax"):
        subprocess.run([sys.executable, "-c", program.format(library)], check=True, timeout=100)


def test_primitives_have_the_names_that_programs_match_on():
    theirs, ours = jax.extend.core.primitives, meshrt.extend.core.primitives
    names = [n for n in dir(theirs) if n.endswith("_p") and hasattr(ours, n)]
    different = {n for n in names if getattr(theirs, n).name != getattr(ours, n).name}
    assert len(names) > 150 and different <= {"remat_p"}, different  # whose name changes with JAX's releases
