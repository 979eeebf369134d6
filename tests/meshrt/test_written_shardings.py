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


@pytest.mark.parametrize("option", ["in_shardings", "out_shardings"])
def test_what_does_not_divide_is_refused_where_it_was_asked_for(option):
    asked = _sharding(meshrt, (None, "x"))
    of = "argument x of" if option == "in_shardings" else "result of"
    with pytest.raises(meshrt.errors.IndivisibleError, match=f"{of} .*cannot be sharded so: .*array axis 1"):
        meshrt.jit(lambda x: x + 1, **{option: asked})(np.ones((8, 6), np.float32))
    with pytest.raises(meshrt.errors.RankMismatchError, match=f"a value of rank 1, {of} "):
        meshrt.jit(lambda x: x + 1, **{option: asked})(np.ones(8, np.float32))


# ---------------------------------------------------------------------------------------------------------------------
# Over Explicit axes, and over meshes with axes of both types.

SPLITS = [("x", None), ("x",), (None,), (), ("x", "y"), (None, "y"), ("y", None), (("x", "y"),)]
EACH_WAY = {
    "argument": lambda l, m, x, s: l.jit(lambda x: x * 2)(x),
    "eager operation": lambda l, m, x, s: x * 2,
    "transposed": lambda l, m, x, s: l.jit(lambda x: x.T)(x),
    "gradient": lambda l, m, x, s: l.jit(l.grad(lambda x: (x * x).sum()))(x),
    "out_shardings": lambda l, m, x, s: l.jit(lambda: l.numpy.ones((8, 4)), out_shardings=s)(),
    "eager shard_map": lambda l, m, x, s: l.shard_map(lambda x: x, mesh=m, in_specs=s.spec, out_specs=s.spec)(x),
    "lower": lambda l, m, x, s: l.jit(lambda x: x * 2).lower(x).out_info,
    "trace": lambda l, m, x, s: l.jit(lambda x: x * 2).trace(x).out_info,
    "eval_shape": lambda l, m, x, s: l.eval_shape(lambda x: x * 2, x),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("way", EACH_WAY)
@pytest.mark.parametrize("types", ["Auto Auto", "Explicit Explicit", "Explicit Auto", "Auto Explicit"])
@pytest.mark.parametrize("shape", [(4, 2), (8, 1), (1, 1)])
def test_by_types_of_axes(way, types, shape):
    def shown(l, split):
        mesh = l.make_mesh(shape, ("x", "y"), axis_types=tuple(l.sharding.AxisType[t] for t in types.split()))
        sharding = l.sharding.NamedSharding(mesh, l.P(*split))
        x = l.device_put(np.ones((8, 4), np.float32), sharding)
        found = EACH_WAY[way](l, mesh, x, sharding).sharding
        return None if found is None else (_spec(found), type(found.mesh).__name__)

    # Along an Auto axis of size 1 whether a value "is split" is nobody's to see.
    splits = SPLITS if shape[0] > 1 or "Auto" not in types else [s for s in SPLITS if "x" not in str(s)]
    for split in splits:
        assert shown(meshrt, split) == shown(jax, split), split


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_arguments_of_a_compiled_program(kind, tmp_path):
    def shown(l, split):
        mesh = l.make_mesh((4, 2), ("x", "y"), axis_types=(l.sharding.AxisType[kind],) * 2)
        x = l.device_put(np.ones((8, 4), np.float32), l.sharding.NamedSharding(mesh, l.P(*split)))
        compiled = l.jit(lambda x, y: x * 2).lower(x, x).compile()
        assert compiled.input_shardings[0][0] == x.sharding
        return compiled, x

    for split in SPLITS:
        shown(jax, split)
        compiled, x = shown(meshrt, split)
        compiled.save(tmp_path / "program")
        assert meshrt.stages.load(tmp_path / "program").input_shardings[0][0] == x.sharding
