"""Shardings of values inside programs, and shardings as text."""

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as mnp
from meshrt import P
from meshrt.runtime import events
from meshrt.sharding import AxisType
from meshrt.sharding.drawing import parts

X = np.arange(64, dtype=np.float32).reshape(8, 8)


@pytest.fixture
def mesh():
    return meshrt.make_mesh((4, 2), ("x", "y"), AxisType.Auto)


def put(mesh, *spec):
    return meshrt.device_put(X, meshrt.NamedSharding(mesh, P(*spec)))


def asked(f, *args):
    """The shardings that `f(look, ...)` is called back with in one jitted call."""
    seen = []
    look = lambda v: meshrt.debug.inspect_array_sharding(v, callback=seen.append)
    meshrt.jit(lambda *a: f(look, *a))(*args)
    return seen


def test_b13_inspect_sharding_in_shard_map(mesh):
    def run(names, spec):
        f = lambda look, x: meshrt.shard_map(
            lambda x: (look(mnp.sin(x)), x)[1], mesh=mesh, in_specs=P(*spec), out_specs=P(*spec), axis_names=names
        )(x)
        (found,) = asked(f, put(mesh, "x", "y"))
        return found.spec, [t.name for t in found.mesh.axis_types]

    assert run({"x"}, ("x",)) == (P(None, "y"), ["Manual", "Auto"])
    assert run({"x", "y"}, ("x", "y")) == (P(), ["Manual", "Manual"])


@pytest.mark.parametrize("propagator", ["meshrt", "shardy"])
@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
def test_in_a_program_it_is_what_propagation_decides(mesh, propagator, partitioner):
    def f(look, x):
        y = x @ x.T
        look({"y": y, "x": x})
        meshrt.lax.scan(lambda c, a: (look(a), (c + a, None))[1], y[0], y)
        return y

    with meshrt.config.override(propagator=propagator, partitioner=partitioner):
        found = asked(f, put(mesh, "x", None))
    assert [s.spec for s in found] == [P("x"), P("x"), P()] and all(s.mesh is mesh for s in found)


def test_it_agrees_with_jax(mesh):
    m = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def run(j, np_, x):
        seen = []
        look = lambda v: j.debug.inspect_array_sharding(v, callback=seen.append)

        def f(x):
            look(x * 2)
            look(np_.sum(x, 0))
            look((x.T @ x).reshape(64))
            return x + 1

        j.jit(f)(x)
        return [tuple(s.spec) for s in seen]

    theirs = run(jax, jax.numpy, jax.device_put(X, jax.NamedSharding(m, jax.P("x", "y"))))
    strip = lambda spec: tuple(e[0] if isinstance(e, tuple) and len(e) == 1 else e for e in spec)
    assert [strip(s) for s in run(meshrt, mnp, put(mesh, "x", "y"))][:2] == [strip(s) for s in theirs][:2]


def test_without_a_compilation_and_once_per_program(mesh):
    seen = []
    f = meshrt.jit(lambda x: (meshrt.debug.inspect_array_sharding(x + 1, callback=seen.append), x)[1])
    x = put(mesh, "x")
    with events.count("compile") as n:
        f.lower(x).propagate()
    assert n["compile"] == 0 and len(seen) == 1 and seen[0].mesh is mesh
    f(x)
    f(x)
    assert len(seen) == 1
    text = f.lower(x).propagate().as_text() + f.lower(x).partition().as_text()
    assert "inspect" not in text
    abstract = meshrt.ShapeDtypeStruct((8, 8), "float32", sharding=meshrt.NamedSharding(mesh.abstract_mesh, P("y")))
    f.lower(abstract).propagate()
    assert seen[1].mesh is mesh.abstract_mesh and seen[1].spec == P("y")


def test_transformations_and_single_devices(mesh):
    grad = lambda look, x: meshrt.grad(lambda x: (look(x), (x**2).sum())[1])(x)
    assert [s.spec for s in asked(grad, put(mesh, "x"))] == [P("x")]
    assert [s.spec for s in asked(lambda look, x: meshrt.vmap(look)(x), put(mesh, "x", "y"))] == [P("x", "y")]
    (alone,) = asked(lambda look, x: look(x), mnp.array(X))
    assert alone.device_assignment == (meshrt.devices()[0],)
    seen = []
    meshrt.debug.inspect_array_sharding([put(mesh, "x")], callback=seen.append)
    assert seen[0].spec == P("x")
    with pytest.raises(TypeError, match="takes Arrays"):
        meshrt.debug.inspect_array_sharding(X, callback=print)


# -- as text ----------------------------------------------------------------------------------------------------------


def test_parts(mesh):
    assert parts((8, 4), meshrt.NamedSharding(mesh, P("x"))) == {(i, 0): [2 * i, 2 * i + 1] for i in range(4)}
    assert parts((), meshrt.NamedSharding(mesh, P())) == {(): list(range(8))}
    assert parts((8,), meshrt.NamedSharding(mesh.abstract_mesh, P(("y", "x"))))[(1,)] == [2]


@pytest.mark.parametrize("spec", [(None, "x"), ("x", None), ("y", "x"), ("x", "y"), (("x", "y"),)])
def test_grids_hold_what_those_of_jax_hold(mesh, spec, capsys):
    """The same cells in the same places; how wide they are is taste."""
    rows = lambda text: [[c.strip() for c in line.split("│")[1:-1]] for line in text.splitlines() if "CPU" in line]
    m = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    jax.debug.visualize_sharding((8, 8), jax.NamedSharding(m, jax.P(*spec)), max_width=120)
    theirs = rows(capsys.readouterr().out)
    meshrt.debug.visualize_sharding((8, 8), meshrt.NamedSharding(mesh, P(*spec)), max_width=120)
    assert rows(capsys.readouterr().out) == theirs


@pytest.mark.parametrize(
    "shape, spec, scale", [((5,), (), 1.0), ((5,), (), 8.0), ((1000,), ("x",), 1.0), ((128, 10000), ("x",), 1.0)]
)
def test_vectors_and_wide_arrays_are_drawn_as_by_jax(mesh, shape, spec, scale, capsys):
    theirs = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    jax.debug.visualize_sharding(shape, jax.NamedSharding(theirs, jax.P(*spec)), scale=scale)
    text = capsys.readouterr().out
    meshrt.debug.visualize_sharding(shape, meshrt.NamedSharding(mesh, P(*spec)), scale=scale)
    assert capsys.readouterr().out == text


def test_any_rank(mesh, capsys):
    show = lambda shape, *spec: (meshrt.debug.visualize_sharding(shape, meshrt.NamedSharding(mesh, P(*spec))),
                                 capsys.readouterr().out)[1]  # fmt: skip
    assert "CPU 0,1,2,3,4,5,6,7" in show(())
    assert show((16,), "y").count("CPU") == 2
    text = show((4, 8, 8), "y", None, "x")
    assert text.index("[0:2, ...]") < text.index("CPU 6") < text.index("[2:4, ...]") < text.index("CPU 7")
    text = show((2, 4, 8, 8), None, "x")
    assert text.count("[:, ") == 4 and "[:, 3:4, ...]" in text and text.count("CPU") == 4


def test_in_programs_and_shard_map(mesh, capsys):
    meshrt.jit(lambda x: meshrt.debug.visualize_array_sharding(x.reshape(2, 4, 8)))(put(mesh, None, "y"))
    assert capsys.readouterr().out.count("CPU") == 2
    f = lambda x: (meshrt.debug.visualize_array_sharding(x), x)[1]
    g = meshrt.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    meshrt.jit(g)(put(mesh, "x", "y"))
    assert capsys.readouterr().out.count("CPU") == 2


def test_colours_need_a_terminal(mesh, capsys):
    options = {"use_color": True, "scale": 2.0, "min_width": 12, "color_map": lambda t: (t, 1 - t, 0.5)}
    meshrt.debug.visualize_sharding((8, 8), meshrt.NamedSharding(mesh, P("x")), **options)
    assert "\x1b" not in capsys.readouterr().out
