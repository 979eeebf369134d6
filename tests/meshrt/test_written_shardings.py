"""Shardings come back as they were written, where JAX's do: trailing Nones, axes of size 1, what was asked for."""

import jax
import numpy as np
import pytest

import meshrt

X = np.zeros((8, 8, 8), np.float32)
SPECS = [("x", None, None), ("x",), ("o", None), ("o",), (("x", "o"),), (None, "o"), (None, None, "y"), ((), "x")]


def _sharding(l, spec, types="Auto"):
    mesh = l.make_mesh((4, 1, 2), ("x", "o", "y"), axis_types=(l.sharding.AxisType[types],) * 3)
    return l.sharding.NamedSharding(mesh, l.sharding.PartitionSpec(*spec))


def _constrained(l, x, s):
    return l.lax.with_sharding_constraint(x, s)


def _put(l, s):
    return l.device_put(X, s)


PROGRAMS = {
    "device_put": lambda l, s: _put(l, s),
    "out_shardings": lambda l, s: l.jit(lambda x: x + 1, out_shardings=s)(X),
    "in_shardings": lambda l, s: l.jit(lambda x: x + 1, in_shardings=s)(X),
    "in_shardings of an array": lambda l, s: l.jit(lambda x: x + 1, in_shardings=s)(_put(l, s)),
    "argument": lambda l, s: l.jit(lambda x: x + 1)(_put(l, s)),
    "identity": lambda l, s: l.jit(lambda x: x)(_put(l, s)),
    "second argument": lambda l, s: l.jit(lambda x, y: y + 1)(_put(l, s.update(spec=l.P())), _put(l, s)),
    "beside a NumPy array": lambda l, s: l.jit(lambda x, y: y + x)(X, _put(l, s)),
    "rank changes": lambda l, s: l.jit(lambda x: x.sum(2))(_put(l, s)),
    "transposed": lambda l, s: l.jit(lambda x: x.T)(_put(l, s)),
    "constraint": lambda l, s: l.jit(lambda x: _constrained(l, x + 1, s))(X),
    "eager constraint": lambda l, s: _constrained(l, _put(l, s), s),
    "eager operation": lambda l, s: _put(l, s) + 1,
    "like": lambda l, s: l.numpy.zeros_like(_put(l, s)),
    "compiled": lambda l, s: l.jit(lambda x: x * 2).lower(_put(l, s)).compile()(_put(l, s)),
}


def _spec(sharding):
    return str(sharding.spec).replace("PartitionSpec", "P")


@pytest.mark.parametrize("program", PROGRAMS)
def test_results(program):
    specs = [(_spec(PROGRAMS[program](l, _sharding(l, s)).sharding) for l in (meshrt, jax)) for s in SPECS]
    for written, (ours, theirs) in zip(SPECS, specs):
        assert ours == theirs, written


@pytest.mark.parametrize("program", PROGRAMS)
def test_results_over_explicit_axes(program):
    def shown(l, s):
        try:
            return _spec(PROGRAMS[program](l, _sharding(l, s, "Explicit")).sharding)
        except (ValueError, TypeError, AssertionError) as e:
            return next(c for c in (ValueError, TypeError, AssertionError) if isinstance(e, c))

    for s in SPECS:
        assert shown(meshrt, s) == shown(jax, s), s


STAGES = {
    "trace": lambda l, s: l.jit(lambda x: x, out_shardings=s).trace(X).out_info,
    "lower": lambda l, s: l.jit(lambda x: x, out_shardings=s).lower(X).out_info,
    "compile": lambda l, s: l.jit(lambda x: x, out_shardings=s).lower(X).compile().out_info,
    "method": lambda l, s: l.jit(lambda x: x, out_shardings=s).eval_shape(X),
    "eval_shape": lambda l, s: l.eval_shape(l.jit(lambda x: x, out_shardings=s), X),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("spec", [("x", None), ("o",)])
def test_stages_say_what_was_asked_for(stage, spec):
    ours, theirs = (STAGES[stage](l, _sharding(l, spec)) for l in (meshrt, jax))
    assert (ours.shape, ours.dtype, _spec(ours.sharding)) == (theirs.shape, theirs.dtype, _spec(theirs.sharding))
    assert ours.sharding.mesh is _sharding(meshrt, spec).mesh


def test_results_left_open_have_none():
    for l in (meshrt, jax):
        assert l.jit(lambda x: x).lower(X).out_info.sharding is None
        assert l.eval_shape(lambda x: x, X).sharding is None


def test_what_is_written_otherwise_is_the_same_program():
    f = meshrt.jit(lambda x: x + 1)
    lowered = [f.lower(_put(meshrt, _sharding(meshrt, s))) for s in [("x",), ("x", None)]]
    assert len({id(low.module) for low in lowered}) == 1


@pytest.mark.parametrize("spec", [("x", None, None), ("o", None), (None, "o"), (("x", "o"),)])
def test_what_is_written_over_an_abstract_mesh_is_shown_over_the_devices(spec):
    asked = meshrt.sharding.NamedSharding(_sharding(meshrt, ()).mesh.abstract_mesh, meshrt.P(*spec))
    program = meshrt.jit(lambda x: x + 1, out_shardings=asked)
    for put in ((), ("x",)):
        found = program(_put(meshrt, _sharding(meshrt, put))).sharding
        assert found.spec is asked.spec and found.mesh is _sharding(meshrt, ()).mesh


def test_what_is_left_open_in_part_is_shown_as_it_came_out():
    open_ = meshrt.P.UNCONSTRAINED
    mesh = _sharding(meshrt, ()).mesh
    asked = meshrt.sharding.NamedSharding(mesh, meshrt.P(open_, "y"))
    for put, rows in ((("x",), 2), ((), 8)):
        found = meshrt.jit(lambda x: x + 1, out_shardings=asked)(_put(meshrt, _sharding(meshrt, put))).sharding
        assert open_ not in found.spec.partitions and found.shard_shape(X.shape) == (rows, 4, 8)


@pytest.mark.parametrize("option", ["in_shardings", "out_shardings"])
def test_what_does_not_divide_is_refused_where_it_was_asked_for(option):
    asked = _sharding(meshrt, (None, "x"))
    of = "argument x of" if option == "in_shardings" else "result of"
    with pytest.raises(meshrt.errors.IndivisibleError, match=f"{of} .*cannot be sharded so: .*array axis 1"):
        meshrt.jit(lambda x: x + 1, **{option: asked})(np.ones((8, 6), np.float32))
    with pytest.raises(meshrt.errors.RankMismatchError, match=f"a value of rank 1, {of} "):
        meshrt.jit(lambda x: x + 1, **{option: asked})(np.ones(8, np.float32))
